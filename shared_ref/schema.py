"""The plan's fields and the launchers' arguments, stated once (contract, sections 2 and 3).

Allocation, validation, comparison, conformance files and documentation read this module; nobody else
spells a field's dtype or length.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from .constants import FAULT_KINDS, VERIFY_OFFSETS_SCRATCH_LEN

Array = TypeVar("Array")

ITEM_BYTES = {"int32": 4, "int64": 8}


class Length(enum.Enum):
    """Length of a plan's field, as a function of the plan's capacity."""

    ONE = "1"
    CAPACITY = "capacity"
    CAPACITY_PLUS_ONE = "capacity + 1"

    def of(self, capacity: int) -> int:
        return {Length.ONE: 1, Length.CAPACITY: capacity, Length.CAPACITY_PLUS_ONE: capacity + 1}[self]


class Field(NamedTuple):
    """One buffer of a plan."""

    name: str
    argument: str
    """Its name as an argument of the staged launchers, and in every message."""
    dtype: str
    length: Length


def _buffer(dtype: str, length: Length, argument: str) -> Any:
    return dataclasses.field(metadata={"dtype": dtype, "length": length, "argument": argument})


class Plan:
    """What `VerifyPlan` and `WritePlan` of every framework share."""

    CAPACITY: ClassVar[str]
    """Name of the capacity, as `allocate` takes it."""

    @classmethod
    def fields(cls) -> tuple[Field, ...]:
        """The plan's buffers, in the contract's order."""
        return tuple(Field(f.name, **f.metadata) for f in dataclasses.fields(cls))  # type: ignore[arg-type]

    @classmethod
    def allocation_bytes(cls, capacity: int) -> int:
        """Bytes that a plan of this capacity (entries or requests) occupies."""
        return sum(ITEM_BYTES[f.dtype] * f.length.of(capacity) for f in cls.fields())


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class VerifyPlanFields(Plan, Generic[Array]):
    """Which slots to check in this step: one entry per cached position of each request."""

    CAPACITY: ClassVar[str] = "verify_capacity"

    verify_slot_indices: Array = _buffer("int64", Length.CAPACITY, "out_verify_slot_indices")
    verify_expected_tokens: Array = _buffer("int64", Length.CAPACITY, "out_verify_expected_tokens")
    verify_expected_positions: Array = _buffer("int64", Length.CAPACITY, "out_verify_expected_positions")
    verify_prev_slot_indices: Array = _buffer("int64", Length.CAPACITY, "out_verify_prev_slot_indices")
    verify_num_valid: Array = _buffer("int32", Length.ONE, "out_verify_num_valid")
    enable: Array = _buffer("int32", Length.ONE, "out_verify_enable")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WritePlanFields(Plan, Generic[Array]):
    """How the tokens written in this step continue each request's chain: one row per request."""

    CAPACITY: ClassVar[str] = "write_req_capacity"

    write_offsets: Array = _buffer("int64", Length.CAPACITY_PLUS_ONE, "out_write_offsets")
    write_seed_slot_indices: Array = _buffer("int64", Length.CAPACITY, "out_write_seed_slot_indices")
    write_num_valid_reqs: Array = _buffer("int32", Length.ONE, "out_write_num_valid_reqs")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FaultsFields(Generic[Array]):
    """What made no sense, summed over launches until it is reset (section 5)."""

    SHAPE: ClassVar[tuple[int, int]] = (len(FAULT_KINDS), 2)
    """A row a kind: how many were found, and the smallest place of one."""

    buffer: Array
    """int64, of `SHAPE`."""


class Tensor(NamedTuple):
    """A launcher's tensor argument: what section 6 checks of it."""

    name: str
    dtype: str
    ndim: int = 1
    length: str | int | None = None
    """What dimension 0 must be: a number, or the name of a quantity of the call; None: anything."""
    columns: int | None = None
    """What dimension 1 must be, of a matrix without gaps; None for a table, whose rows may be apart."""
    at_least: bool = False
    or_int32: bool = False
    """Whether int32 will do as well."""
    optional: bool = False
    output: bool = False

    @property
    def is_table(self) -> bool:
        return self.ndim == 2 and self.columns is None


class Integer(NamedTuple):
    """A launcher's Python integer."""

    name: str
    optional: bool = False
    """Whether it may be None."""


@dataclasses.dataclass(frozen=True, eq=False)
class Launcher:
    """A launcher's arguments, each group in signature order, plan objects as their fields."""

    name: str
    tensors: tuple[Tensor, ...]
    integers: tuple[Integer, ...]
    device_reference: str

    @functools.cached_property
    def tensor_names(self) -> tuple[str, ...]:
        return tuple(t.name for t in self.tensors)

    @functools.cached_property
    def integer_names(self) -> tuple[str, ...]:
        return tuple(i.name for i in self.integers)


def _inputs(*names: str) -> tuple[Tensor, ...]:
    return tuple(_INPUTS[name] for name in names)


def _outputs(plan: type[Plan]) -> dict[str, Tensor]:
    quantity: dict[tuple[str, Length], str | int] = {
        ("verify_capacity", Length.CAPACITY): "verify_columns_len",
        ("write_req_capacity", Length.CAPACITY): "write_req_capacity",
        ("write_req_capacity", Length.CAPACITY_PLUS_ONE): "write_offsets_len",
    }
    return {
        f.argument: Tensor(
            f.argument, f.dtype, length=quantity.get((plan.CAPACITY, f.length), 1), output=True
        )
        for f in plan.fields()
    }


_INPUTS = {
    tensor.name: tensor
    for tensor in (
        Tensor("req_pool_indices", "int64"),
        Tensor("prefix_lens", "int64", length="bs"),
        Tensor("extend_seq_lens", "int64", length="bs"),
        Tensor("req_to_token", "int32", ndim=2),
        Tensor("full_to_swa_index_mapping", "int64", optional=True),
        Tensor("req_to_verify_expected_tokens", "int32", ndim=2, optional=True),
        Tensor("req_to_verify_expected_tokens_valid_lens", "int64", length="bs", optional=True),
    )
}
VERIFY_OUTPUTS = _outputs(VerifyPlanFields)
WRITE_OUTPUTS = _outputs(WritePlanFields)
PLAN_OUTPUTS = (*VERIFY_OUTPUTS, *WRITE_OUTPUTS)
"""Both plans' buffers, by argument name, in the contract's order."""
COLUMNS = tuple(f.argument for f in VerifyPlanFields.fields() if f.length is Length.CAPACITY)
"""The four verify columns, by argument name."""

PLAN_INPUTS = tuple(_INPUTS)
"""The tensors a plan is built from, by name, in signature order."""

_TOTAL = Tensor("verify_total_out", "int64", length=1, optional=True, output=True)
_KINDS, _COLUMNS = FaultsFields.SHAPE
_FAULTS = Tensor("faults_out", "int64", ndim=2, length=_KINDS, columns=_COLUMNS, optional=True, output=True)
OPTIONAL_OUTPUTS: dict[str, tuple[int, ...]] = {_TOTAL.name: (1,), _FAULTS.name: FaultsFields.SHAPE}
"""What a launch writes beside the plans if it is given, in signature order, and the shapes; all int64."""

_SCRATCH = Tensor(
    "out_verify_offsets_scratch", "int64", length=VERIFY_OFFSETS_SCRATCH_LEN, at_least=True, output=True
)

LAUNCH_PLAN = Launcher(
    "launch_canary_plan_kernels",
    (*VERIFY_OUTPUTS.values(), *WRITE_OUTPUTS.values(), *_INPUTS.values(), _TOTAL, _FAULTS),
    (
        Integer("swa_window_size"),
        Integer("verify_capacity"),
        Integer("kv_token_id_vs_position_offset"),
        Integer("page_size"),
    ),
    device_reference="out_verify_slot_indices",
)
LAUNCH_OFFSETS = Launcher(
    "launch_plan_offsets_kernel",
    (
        *_inputs(
            "req_pool_indices", "prefix_lens", "extend_seq_lens", "req_to_token", "full_to_swa_index_mapping"
        ),
        _SCRATCH,
        WRITE_OUTPUTS["out_write_offsets"],
        WRITE_OUTPUTS["out_write_seed_slot_indices"],
        VERIFY_OUTPUTS["out_verify_num_valid"],
        VERIFY_OUTPUTS["out_verify_enable"],
        WRITE_OUTPUTS["out_write_num_valid_reqs"],
        _TOTAL,
        _FAULTS,
    ),
    (
        Integer("swa_window_size"),
        Integer("verify_capacity"),
        Integer("req_to_token_stride0", optional=True),
        Integer("write_offsets_len", optional=True),
        Integer("write_req_capacity", optional=True),
        Integer("page_size"),
    ),
    device_reference="out_verify_offsets_scratch",
)
LAUNCH_ENTRIES = Launcher(
    "launch_plan_entries_kernel",
    (
        *_inputs("req_pool_indices", "prefix_lens", "req_to_token", "full_to_swa_index_mapping"),
        _SCRATCH._replace(name="verify_offsets_scratch", output=False),
        VERIFY_OUTPUTS["out_verify_enable"]._replace(name="verify_enable", output=False),
        *_inputs("req_to_verify_expected_tokens", "req_to_verify_expected_tokens_valid_lens"),
        *(VERIFY_OUTPUTS[name] for name in COLUMNS),
        _FAULTS,
    ),
    (Integer("kv_token_id_vs_position_offset"), Integer("swa_window_size"), Integer("page_size")),
    device_reference="verify_offsets_scratch",
)

_PLAN_INPUTS = tuple(t._replace(or_int32=t.dtype == "int64") for t in _INPUTS.values())


def _plan_integers(*, optional: bool) -> tuple[Integer, ...]:
    return (
        Integer("swa_window_size"),
        Integer("verify_capacity", optional),
        Integer("write_req_capacity", optional),
        Integer("kv_token_id_vs_position_offset"),
        Integer("page_size"),
        Integer("padding_row", optional=True),
    )


PLAN = Launcher(
    "plan",
    (*_PLAN_INPUTS, _TOTAL, _FAULTS),
    _plan_integers(optional=False),
    device_reference="req_pool_indices",
)
"""The idiomatic form, which makes the plans itself and takes other stacks' rows and dtypes (section 7)."""

PLAN_INTO = Launcher(
    "plan",
    (*_PLAN_INPUTS, *VERIFY_OUTPUTS.values(), *WRITE_OUTPUTS.values(), _TOTAL, _FAULTS),
    _plan_integers(optional=True),
    device_reference="req_pool_indices",
)
"""The same with `out=`: plans that are there already say their capacities."""
