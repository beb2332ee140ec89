"""The rules of a call, for every framework (contract, section 6).

A frontend says how to describe its arrays (`Framework`); the rules see descriptions only, so the same
mistake gives the same text on numpy, torch and JAX. Every rule is a generator of messages in the
contract's order, and the first message is raised. Nothing here touches a buffer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .constants import MOST_POSITIONS, PLAN_BS_BLOCK_SIZE
from .schema import (
    COLUMNS,
    LAUNCH_ENTRIES,
    LAUNCH_OFFSETS,
    LAUNCH_PLAN,
    PLAN,
    PLAN_INTO,
    Integer,
    Launcher,
    Plan,
    Tensor,
    VerifyPlanFields,
    WritePlanFields,
)


class ArrayInfo(NamedTuple):
    """What the rules look at of an array."""

    shape: tuple[int, ...]
    dtype: Hashable
    """The framework's own dtype; prints as its name, with or without the framework's prefix."""
    strides: tuple[float, ...] | None
    """In elements; None where the framework has none (JAX)."""
    device: Hashable | None
    """None: not known (tracing), or several."""
    writable: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class Framework:
    """How one framework's arrays answer the rules."""

    array_name: str
    """As messages print it, for example `torch.Tensor`."""
    array_type: type | tuple[type, ...]
    describe: Callable[[Any], ArrayInfo]
    key: Callable[[list], tuple]
    """Of arrays and Nones, something hashable that determines their descriptions. Made on every call."""
    dtype_hint: Callable[[str, str], str] = lambda expected, got: ""
    """One more sentence for a dtype message, given the two names, or nothing."""


class Checked(dict[str, int]):
    """The integers of a call that passed, by name. Shared among equal calls: not to be changed.

    A frontend keeps here what else follows from the call's description.
    """

    recipe: Any = None


def fail(message: str) -> NoReturn:
    """Raise the ValueError that every refused call ends in."""
    raise ValueError(f"kv-canary: {message}")


_BUFFERS = (
    tuple((f.argument, f.name) for f in VerifyPlanFields.fields()),
    tuple((f.argument, f.name) for f in WritePlanFields.fields()),
)


def plan_arguments(verify_plan: object, write_plan: object) -> dict[str, object]:
    """The plans' buffers under the staged launchers' argument names; None for a missing field."""
    arguments = {argument: getattr(verify_plan, name, None) for argument, name in _BUFFERS[0]}
    arguments.update({argument: getattr(write_plan, name, None) for argument, name in _BUFFERS[1]})
    return arguments


def pair_of_plans(out: object) -> Any:
    """What `out=` of `plan` was given (section 7). ValueError for anything but a pair."""
    if not isinstance(out, tuple | list) or len(out) != 2:
        fail(f"out must be a pair of plans, got {type(out).__name__}")
    return out


def faults_buffer(faults_out: Any) -> Any:
    """The array of a `faults_out` argument, which may be a `Faults` of any framework."""
    buffer = getattr(faults_out, "buffer", None)
    return faults_out if buffer is None else buffer


def used(launcher: Launcher, arguments: Mapping[str, Any]) -> list[str]:
    """The tensors that a call has, by name: valid lengths without their table are ignored (section 2)."""
    names = [name for name in launcher.tensor_names if arguments[name] is not None]
    return [name for name in names if name != _VALID_LENS or arguments[_TOKENS] is not None]


_TOKENS, _VALID_LENS = "req_to_verify_expected_tokens", "req_to_verify_expected_tokens_valid_lens"


def check(launcher: Launcher, framework: Framework, arguments: Mapping[str, Any]) -> Checked:
    """Raise ValueError for the first broken rule; else return the call's integers, as Python ints.

    `arguments` holds every tensor and integer of `launcher` by name. Integers that were not given
    come back as what the tensors say.

    A server makes the same call every step, so calls that passed are remembered by their description.
    """
    arrays = [arguments[name] for name in launcher.tensor_names]
    integers = [arguments[name] for name in launcher.integer_names]
    try:
        # The types too, because True == 1 and 2.0 == 2.
        key = launcher, framework, framework.key(arrays), *integers, *map(type, integers)
        return _passed[key]
    except (KeyError, AttributeError, TypeError):  # not seen yet, or no array, or nothing to look up by
        checked = _check(launcher, framework, arguments)
    if len(_passed) >= _MOST_PASSED:
        _passed.clear()
    _passed[key] = checked
    return checked


_MOST_PASSED = 8192
_passed: dict[tuple, Checked] = {}


def check_types(
    launcher: Launcher, framework: Framework, arguments: Mapping[str, Any]
) -> dict[str, int | None]:
    """The first of `check`'s rules alone, for who cannot look at arrays yet; the integers as Python ints."""
    for tensor in launcher.tensors:
        array = arguments[tensor.name]
        if not (isinstance(array, framework.array_type) or (array is None and tensor.optional)):
            fail(f"{tensor.name} must be a {framework.array_name}, got {type(array).__name__}")
    return {i.name: _integer(i, arguments[i.name]) for i in launcher.integers}


def check_capacities(integers: Mapping[str, Any]) -> None:
    """Raise for plans that cannot be made, however the rest of the call is."""
    for name in _CAPACITIES:
        if integers[name] < 0:
            fail(_negative(name, integers[name]))


def check_capacity(plan: type[Plan], capacity: object) -> int:
    """The capacity of a plan to allocate, as a Python int; ValueError for none that it can have."""
    n = _int32(plan.CAPACITY, capacity)
    if n < 1:
        name = "VerifyPlan" if issubclass(plan, VerifyPlanFields) else "WritePlan"
        fail(f"{name} {plan.CAPACITY} must be positive, got {n}")
    return n


def _check(launcher: Launcher, framework: Framework, arguments: Mapping[str, Any]) -> Checked:
    given = check_types(launcher, framework, arguments)
    call = _Call(launcher, framework, arguments, given)
    for message in _RULES[launcher](call):
        fail(message)
    quantities: dict[str, Any] = {name: call.quantity(name) for name in launcher.integer_names}
    return Checked(quantities)


def _integer(integer: Integer, value: object) -> int | None:
    return None if value is None and integer.optional else _int32(integer.name, value)


def _int32(name: str, value: object) -> int:
    n = python_int(name, value)
    if not -(2**31) <= n < 2**31:
        fail(f"{name} must fit int32, got {n}")
    return n


def python_int(name: str, value: object) -> int:
    """An integer of any size, Python's or numpy's; ValueError for anything else, a bool too."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        fail(f"{name} must be an int, got {type(value).__name__}")
    return int(value)


class _Call:
    """One call's descriptions, and the quantities that rules derive from them."""

    def __init__(
        self, launcher: Launcher, framework: Framework, arguments: Mapping[str, Any], given: dict
    ) -> None:
        self.launcher = launcher
        self.framework = framework
        self.infos = {name: framework.describe(arguments[name]) for name in used(launcher, arguments)}
        self.given = given

    def tensors(self, launcher: Launcher) -> list[tuple[Tensor, ArrayInfo]]:
        """The arguments of a launcher that this call has, in its order."""
        own = {t.name: t for t in self.launcher.tensors}
        return [(own[t.name], self.infos[t.name]) for t in launcher.tensors if t.name in self.infos]

    def quantity(self, name: str) -> float | None:
        """A number that rules speak of; None where the tensor it comes from lacks the dimension."""
        if self.given.get(name) is not None:
            return self.given[name]
        if name == "req_to_token_stride0":
            return _row_stride(self.infos["req_to_token"])
        info = self.infos.get(_LENGTH_OF.get(name, ""))
        return info.shape[0] if info is not None and info.shape else None


_LENGTH_OF = {
    "bs": "req_pool_indices",
    "write_offsets_len": "out_write_offsets",
    "write_req_capacity": "out_write_seed_slot_indices",
    "verify_capacity": COLUMNS[0],
    "verify_columns_len": COLUMNS[0],
    "lut_len": "full_to_swa_index_mapping",
}

_Tensors = list[tuple[Tensor, ArrayInfo]]
_Messages = Iterator[str]


def _plan_rules(call: _Call) -> _Messages:
    bs, capacity = call.quantity("bs"), call.quantity("verify_capacity")
    columns_len = call.quantity("verify_columns_len")
    name = LAUNCH_PLAN.name
    if bs is not None and bs > PLAN_BS_BLOCK_SIZE:
        yield (
            f"{name} supports at most bs={PLAN_BS_BLOCK_SIZE} reqs per launch, got bs={bs}. "
            "Bump _PLAN_BS_BLOCK_SIZE if real workloads need this."
        )
    if not has_swa_mapping(call.given["swa_window_size"], call.infos.get("full_to_swa_index_mapping")):
        yield f"{name} requires full_to_swa_index_mapping when swa_window_size > 0"
    if columns_len is not None and capacity != columns_len:
        yield (
            f"{name} verify_capacity={capacity} does not match "
            f"verify_plan_out.verify_slot_indices.shape[0]={columns_len}"
        )
    yield from _offsets_rules(call)
    yield from _entries_rules(call)


def _offsets_rules(call: _Call) -> _Messages:
    tensors = call.tensors(LAUNCH_OFFSETS)
    yield from _contiguity(tensors)
    yield from _dtypes(tensors, call.framework)
    yield from _batch_size(call, "offsets")
    yield from _positive(call, "write_offsets_len")
    yield from _non_negative(call, *_CAPACITIES)
    yield from _positive(call, "req_to_token_stride0")
    yield from _positive(call, "page_size")
    yield from _mapping_length(call)
    yield from _shapes(call, tensors)
    offsets_len, capacity = call.quantity("write_offsets_len"), call.quantity("write_req_capacity")
    if offsets_len is not None and capacity is not None and offsets_len != capacity + 1:
        yield f"write_offsets_len must equal write_req_capacity + 1, got {offsets_len} and {capacity}"
    bs = call.quantity("bs")
    if bs is not None and capacity is not None and bs > capacity:
        yield f"bs={bs} exceeds write_req_capacity={capacity}"
    given, actual = call.given.get("req_to_token_stride0"), _row_stride(call.infos["req_to_token"])
    if given is not None and actual is not None and given != actual:
        yield f"req_to_token_stride0={given} does not match req_to_token.stride(0)={actual}"
    yield from _row_strides(tensors)
    yield from _positions(call)
    yield from _writable(tensors)
    yield from _devices(call, tensors)


def _entries_rules(call: _Call) -> _Messages:
    if _TOKENS in call.infos and _VALID_LENS not in call.infos:
        yield f"{LAUNCH_ENTRIES.name} requires {_VALID_LENS} when {_TOKENS} is set"
    tensors = call.tensors(LAUNCH_ENTRIES)
    yield from _contiguity(tensors)
    yield from _dtypes(tensors, call.framework)
    yield from _batch_size(call, "entries")
    yield from _positive(call, "page_size")
    yield from _mapping_length(call)
    yield from _shapes(call, tensors)
    yield from _row_strides(tensors)
    yield from _positions(call)
    yield from _writable(tensors)
    yield from _devices(call, tensors)


def _positive(call: _Call, name: str) -> _Messages:
    n = call.quantity(name)
    if n is not None and n <= 0:
        yield f"{name} must be positive, got {n}"


def _non_negative(call: _Call, *names: str) -> _Messages:
    for name in names:
        n = call.quantity(name)
        if n is not None and n < 0:
            yield _negative(name, n)


_CAPACITIES = (WritePlanFields.CAPACITY, VerifyPlanFields.CAPACITY)


def _negative(name: str, n: float) -> str:
    return f"{name} must be non-negative, got {n}"


_RULES: dict[Launcher, Callable[[_Call], _Messages]] = {
    LAUNCH_PLAN: _plan_rules,
    LAUNCH_OFFSETS: _offsets_rules,
    LAUNCH_ENTRIES: _entries_rules,
    PLAN: _plan_rules,
    PLAN_INTO: _plan_rules,
}


def _contiguity(tensors: _Tensors) -> _Messages:
    for tensor, info in tensors:
        if info.strides is None:
            continue
        if not tensor.is_table and not _is_contiguous(info):
            yield f"{tensor.name} must be contiguous"
        if tensor.is_table and len(info.shape) == 2 and not _has_unit_columns(info):
            yield f"{tensor.name} must have unit stride along dim 1, got strides {info.strides}"


def _is_contiguous(info: ArrayInfo) -> bool:
    assert info.strides is not None
    expected = 1
    for n, stride in zip(reversed(info.shape), reversed(info.strides), strict=True):
        if n != 1 and stride != expected:
            return 0 in info.shape
        expected *= n
    return True


def _has_unit_columns(info: ArrayInfo) -> bool:
    """Whether neighbouring positions are neighbours in memory; one column or no cell has none."""
    rows, width = info.shape
    return info.strides is None or rows == 0 or width <= 1 or info.strides[1] == 1


def _dtypes(tensors: _Tensors, framework: Framework) -> _Messages:
    for tensor, info in tensors:
        name = str(info.dtype).rpartition(".")[2]
        if name != tensor.dtype and not (tensor.or_int32 and name == "int32"):
            hint = framework.dtype_hint(tensor.dtype, name)
            yield f"{tensor.name} must have dtype {tensor.dtype}, got {name}{hint}"


def _batch_size(call: _Call, kernel: str) -> _Messages:
    bs = call.quantity("bs")
    if bs is not None and bs > PLAN_BS_BLOCK_SIZE:
        yield f"{kernel} kernel bs must be in [0, {PLAN_BS_BLOCK_SIZE}], got {bs}"


def _mapping_length(call: _Call) -> _Messages:
    if call.quantity("lut_len") == 0:
        yield "lut_len must be positive when has_swa_lut is True"


def _shapes(call: _Call, tensors: _Tensors) -> _Messages:
    for tensor, info in tensors:
        if len(info.shape) != tensor.ndim:
            yield f"{tensor.name} must be {tensor.ndim}-D, got shape {tuple(info.shape)}"
            continue
        n = call.quantity(tensor.length) if isinstance(tensor.length, str) else tensor.length
        got = info.shape[0]
        if n is not None and (got < n if tensor.at_least else got != n):
            yield f"{tensor.name} length must be {'>= ' if tensor.at_least else ''}{n}, got {got}"
        if tensor.columns is not None and info.shape[1] != tensor.columns:
            yield f"{tensor.name} must have {tensor.columns} columns, got {info.shape[1]}"


def _row_stride(info: ArrayInfo) -> float | None:
    """Elements from a table's row to the next; None for what is no table."""
    if len(info.shape) != 2:
        return None
    rows, width = info.shape
    if info.strides is None or rows <= 1 or width == 0:
        return max(width, 1)
    return info.strides[0]


def _row_strides(tensors: _Tensors) -> _Messages:
    for tensor, info in tensors:
        stride = _row_stride(info)
        if tensor.is_table and stride is not None and stride < info.shape[1]:
            yield f"{tensor.name} row stride must be at least {info.shape[1]}, got {stride}"


def _positions(call: _Call) -> _Messages:
    table, page_size = call.infos["req_to_token"], call.given["page_size"]
    if len(table.shape) == 2 and page_size is not None and table.shape[1] * page_size > MOST_POSITIONS:
        yield (
            f"req_to_token of {table.shape[1]} columns with page_size={page_size} "
            f"has more than 2**{MOST_POSITIONS.bit_length() - 1} positions"
        )


def _writable(tensors: _Tensors) -> _Messages:
    for tensor, info in tensors:
        if tensor.output and not info.writable:
            yield f"{tensor.name} must be writable"


def _devices(call: _Call, tensors: _Tensors) -> _Messages:
    reference = call.launcher.device_reference
    expected = call.infos[reference].device
    for tensor, info in tensors:
        if None not in (expected, info.device) and info.device != expected:
            yield f"{tensor.name} must be on {reference}'s device {expected}, got {info.device}"


def has_swa_mapping(swa_window_size: int, mapping: object) -> bool:
    """Whether a group has the mapping it needs: a window without one cannot be translated (section 2)."""
    return swa_window_size <= 0 or mapping is not None


def _describe_numpy(array: np.ndarray) -> ArrayInfo:
    item = array.itemsize or 1
    strides = tuple(s // item if s % item == 0 else s / item for s in array.strides)
    return ArrayInfo(array.shape, array.dtype, strides, "cpu", array.flags.writeable)


def _numpy_key(arrays: list) -> tuple:
    return tuple([None if array is None else _describe_numpy(array) for array in arrays])


NUMPY = Framework("numpy.ndarray", np.ndarray, _describe_numpy, _numpy_key)
