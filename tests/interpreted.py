"""Triton kernels without a GPU: under Triton's interpreter, with every access checked.

The interpreter must be switched on before triton is imported, so the kernels run in a process of their own:
`interpreted(function, *arguments)` calls a function of this module there. Loads may touch inputs alone,
stores outputs alone, and no two programs may store to the same element; a stray access is an error.

No framework is needed: the interpreter gets numpy arrays.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib
import multiprocessing
import os
import tempfile
import types
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np

from shared_ref.conformance.case import Case, PlanInputs, Plans
from shared_ref.reference import launch_plan_entries_kernel_reference, launch_plan_offsets_kernel_reference
from shared_ref.schema import COLUMNS, LAUNCH_ENTRIES, LAUNCH_OFFSETS, Launcher
from shared_ref.validation import plan_arguments

CHUNK = 16
"""Requests that `_entries_of_large_batch` walks at a time; it takes batches padded to at least as many."""

SCRATCH_LEN = 4100
SCRATCH_POISON = -9


LONGEST = 60
"""Seconds that one call may take."""


class Cut(NamedTuple):
    """How a launch is cut up, in place of `kernels.configure`, whose tiles are too big to interpret."""

    tile: int = 16
    units: int = 1
    writers: int = 1
    programs: int = 1
    """Programs that share the entries."""
    index: str = "int32"
    least_bs: int = 1
    """What the batch is padded to at least."""
    gap: int = 0
    """Elements between a table's rows; nothing may touch them."""


def interpreted(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of this module returns in a process whose Triton is the interpreter."""
    try:
        outcome, result = _process().submit(_outcome, function, arguments).result()
    except BrokenProcessPool:
        _process.cache_clear()
        raise
    assert outcome == "returned", f"in Triton's interpreter: {result}"
    return result


@functools.cache
def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_switch_on)


def _switch_on() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["JAX_PLATFORMS"] = "cpu"


def _outcome(function: Callable[..., Any], arguments: tuple) -> tuple[str, Any]:
    """Exceptions as text: those of the interpreter cross no process border. A loop without end ends here."""
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    try:
        return "returned", function(*arguments)
    except Exception as error:
        return "raised", _innermost(error)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


# What follows runs in the interpreter's process.


def plan(case: Case, cut: Cut) -> Plans:
    """The plans after `plan_kernel`."""
    plans = case.before.copy()
    outputs = plan_arguments(plans.verify, plans.write) | plans.extras
    values = _values(case.inputs, cut) | outputs
    values["write_offsets_len"] = len(outputs["out_write_offsets"])
    _launch("plan_kernel", cut.writers + cut.programs, values, outputs)
    return plans


def plan_of_other_stacks(case: Case, cut: Cut, padding_row: int | None, narrow: tuple[str, ...]) -> Plans:
    """The plans after `plan_kernel`, which takes some inputs as int32 and any row for the padding row."""
    plans = case.before.copy()
    outputs = plan_arguments(plans.verify, plans.write) | plans.extras
    values = _values(case.inputs, cut) | outputs | {"PADDING_ROW": padding_row}
    values |= {name: values[name].astype(np.int32) for name in narrow}
    values["write_offsets_len"] = len(outputs["out_write_offsets"])
    _launch("plan_kernel", cut.writers + cut.programs, values, outputs)
    return plans


def plan_of_wide_table(cut: Cut) -> tuple[Plans, Plans]:
    """The plans after `plan_kernel` and after the reference, of a table of more than 2**31 columns.

    A sparse file holds its 17 GB; the requests are windows at its end and at its beginning.
    """
    width = 2**31 + 64
    with tempfile.TemporaryFile() as file:
        table = np.memmap(file, np.int32, "w+", shape=(2, width))
        table[1, -200:] = np.arange(200)
        table[1, :20] = np.arange(1000, 1020)
        inputs = PlanInputs(
            req_pool_indices=np.ones(4, np.int64),
            prefix_lens=np.array([2**31 + 50, 7, 2**31, 2**62]),
            extend_seq_lens=np.ones(4, np.int64),
            req_to_token=table,
            swa_window_size=40,
            full_to_swa_index_mapping=np.arange(2000) + 5000,
            verify_capacity=100,
            req_to_verify_expected_tokens=table,
            req_to_verify_expected_tokens_valid_lens=np.array([2**31 + 45, 9, 2**31, 0]),
            kv_token_id_vs_position_offset=1,
        )
        case = Case.poisoned("a wide table", inputs, write_req_capacity=5)
        return plan(case, cut), case.expected()


def plan_of_a_shorter_buffer(kind: str) -> None:
    """A launch that must fail: its kernel loads, or stores, past an end."""
    inputs = PlanInputs(
        req_pool_indices=np.array([1]),
        prefix_lens=np.array([9]),
        extend_seq_lens=np.array([1]),
        req_to_token=np.ones((2, 8), np.int32),
        verify_capacity=9,
    )
    case = Case.poisoned("short", inputs, write_req_capacity=1)
    outputs = plan_arguments(*case.before)
    values = _values(inputs, Cut()) | outputs | {"write_offsets_len": 2 + (kind == "store")}
    values["max_seq_len"] += kind == "load"
    _launch("plan_kernel", 2, values, outputs)


def staged(case: Case, cut: Cut, enable: int | None = None) -> tuple[dict[str, np.ndarray], ...]:
    """All outputs after both staged kernels, and after both staged references.

    `enable` is what the entries kernel is told; None: what the offsets kernel wrote.
    """
    return _staged(case, _offsets_kernel, _entries_kernel, cut, enable), _staged(
        case, launch_plan_offsets_kernel_reference, launch_plan_entries_kernel_reference, None, enable
    )


def _staged(case: Case, offsets: Any, entries: Any, cut: Cut | None, enable: int | None) -> dict:
    plans = case.before.copy()
    outputs = plan_arguments(plans.verify, plans.write) | plans.extras
    outputs["out_verify_offsets_scratch"] = np.full(SCRATCH_LEN, SCRATCH_POISON)
    arguments = case.inputs.keywords() | outputs
    more = {} if cut is None else {"cut": cut}
    offsets(**_of(LAUNCH_OFFSETS, arguments), **more)
    told = outputs["out_verify_enable"] if enable is None else np.array([enable], np.int32)
    nonsense = np.full(SCRATCH_LEN, 2**62)
    entries(
        **_of(LAUNCH_ENTRIES, arguments | {"verify_enable": told, "verify_offsets_scratch": nonsense}), **more
    )
    return outputs


def _of(launcher: Launcher, arguments: dict[str, Any]) -> dict[str, Any]:
    names = (*launcher.tensor_names, *launcher.integer_names)
    return {name: arguments[name] for name in names if name in arguments}


def _offsets_kernel(cut: Cut, **arguments: Any) -> None:
    inputs = types.SimpleNamespace(**{"page_size": 1} | arguments | dict.fromkeys(_TOKENS))
    outputs = {t.name: arguments[t.name] for t in LAUNCH_OFFSETS.tensors if t.output and t.name in arguments}
    values = arguments | _values(inputs, cut) | outputs
    values["write_offsets_len"] = len(outputs["out_write_offsets"])
    _launch("offsets_kernel", cut.writers, values, outputs)


def _entries_kernel(cut: Cut, **arguments: Any) -> None:
    capacity = len(arguments[COLUMNS[0]])
    inputs = {"page_size": 1, "extend_seq_lens": None, "verify_capacity": capacity} | arguments
    outputs = {t.name: arguments[t.name] for t in LAUNCH_ENTRIES.tensors if t.output and t.name in arguments}
    _launch(
        "entries_kernel",
        cut.programs,
        arguments | _values(types.SimpleNamespace(**inputs), cut) | outputs,
        outputs,
    )


_TOKENS = (
    "req_to_verify_expected_tokens",
    "req_to_verify_expected_tokens_valid_lens",
    "kv_token_id_vs_position_offset",
)


def _values(inputs: Any, cut: Cut) -> dict[str, Any]:
    """The kernels' arguments by name, but for the outputs."""
    import triton
    import triton.language as tl

    from kvcanary_torch.kernels import configure

    table, tokens = _spread(inputs.req_to_token, cut.gap), inputs.req_to_verify_expected_tokens
    mapping, bs = inputs.full_to_swa_index_mapping, len(inputs.req_pool_indices)
    valid_lens = inputs.req_to_verify_expected_tokens_valid_lens
    if tokens is not None and cut.gap:
        tokens = _spread(tokens, cut.gap + 1)
    max_seq_len = table.shape[1] * inputs.page_size
    narrowest = configure(bs, max_seq_len, inputs.swa_window_size, inputs.verify_capacity, 1).INDEX
    return {
        "verify_total_out": None,
        "faults_out": None,
        "req_pool_indices": inputs.req_pool_indices,
        "prefix_lens": inputs.prefix_lens,
        "extend_seq_lens": inputs.extend_seq_lens,
        "req_to_token": table,
        "full_to_swa_index_mapping": mapping,
        "req_to_verify_expected_tokens": tokens,
        "req_to_verify_expected_tokens_valid_lens": None if tokens is None else valid_lens,
        "bs": bs,
        "max_reqs": table.shape[0],
        "max_seq_len": max_seq_len,
        "req_to_token_stride0": table.strides[0] // 4,
        "lut_len": 0 if mapping is None else len(mapping),
        "swa_window_size": inputs.swa_window_size,
        "verify_capacity": inputs.verify_capacity,
        "token_rows": 0 if tokens is None else tokens.shape[0],
        "token_columns": 0 if tokens is None else tokens.shape[1],
        "tokens_stride0": 0 if tokens is None else tokens.strides[0] // 4,
        "kv_token_id_vs_position_offset": inputs.kv_token_id_vs_position_offset,
        "BS": max(triton.next_power_of_2(max(bs, 1)), cut.least_bs),
        "WINDOWED": inputs.swa_window_size > 0,
        "PAGE": inputs.page_size,
        "PADDING_ROW": 0,
        "INDEX": tl.int64 if cut.index == "int64" else narrowest,
        "TILE": cut.tile,
        "UNITS": cut.units,
        "WRITERS": cut.writers,
    }


def _spread(table: np.ndarray, gap: int) -> np.ndarray:
    """The table with a gap between its rows."""
    if gap == 0:
        return table
    wider = np.full((table.shape[0], table.shape[1] + gap), 777_777, table.dtype)
    wider[:, : table.shape[1]] = table
    return wider[:, : table.shape[1]]


def _launch(kernel: str, programs: int, values: dict[str, Any], outputs: dict[str, np.ndarray]) -> None:
    jitted = getattr(importlib.import_module("kvcanary_torch.kernels"), kernel)
    annotations = jitted.fn.__annotations__
    arguments = [_typed(values[name], annotations.get(name)) for name in jitted.arg_names]
    run(jitted, programs, arguments, list(outputs.values()))


def run(kernel: Any, programs: int, arguments: list[Any], outputs: list[np.ndarray]) -> None:
    """Run a kernel, which may load from those arrays among its arguments that are no outputs."""
    _prepare_interpreter()
    arrays = [a for a in arguments if isinstance(a, np.ndarray)]
    inputs = [a for a in arrays if all(a is not output for output in outputs)]
    with _Memory(inputs, outputs):
        kernel[(programs, 1, 1)](*[_Pointer(a) if isinstance(a, np.ndarray) else a for a in arguments])


def _typed(value: Any, annotation: str | None) -> Any:
    """An integer of its annotated type: the interpreter would type it by its size."""
    if annotation not in ("tl.int32", "tl.int64"):
        return value
    import triton.language as tl
    import triton.runtime.interpreter as interpreter

    name = annotation.removeprefix("tl.")
    dtype = getattr(tl, name)
    return tl.tensor(interpreter.TensorHandle(np.array([value], name), dtype), dtype)


class _Pointer:
    """What the interpreter asks of a tensor."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.dtype = array.dtype.name

    def data_ptr(self) -> int:
        return self.array.ctypes.data


class _Memory:
    """What kernels may touch while this is entered."""

    current: _Memory | None = None

    def __init__(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.stored_by = [np.full(output.size, -1) for output in outputs]

    def __enter__(self) -> None:
        _Memory.current = self

    def __exit__(self, *exception: object) -> None:
        _Memory.current = None

    def load(self, addresses: np.ndarray, mask: np.ndarray) -> None:
        wanted = _chosen(addresses, mask)
        known = np.zeros(wanted.shape, bool)
        for array in self.inputs:
            known |= _is_cell(wanted - array.ctypes.data, array)
        assert known.all(), f"{np.sum(~known)} loads from outside the inputs"

    def store(self, addresses: np.ndarray, mask: np.ndarray, program: int) -> None:
        wanted = _chosen(addresses, mask)
        known = np.zeros(wanted.shape, bool)
        for array, stored_by in zip(self.outputs, self.stored_by, strict=True):
            cells = _is_cell(wanted - array.ctypes.data, array)
            known |= cells
            elements = (wanted[cells] - array.ctypes.data) // array.itemsize
            former = stored_by[elements]
            assert ((former == -1) | (former == program)).all(), "two programs store to one element"
            stored_by[elements] = program
        assert known.all(), f"{np.sum(~known)} stores to outside the outputs"

    def add(self, addresses: np.ndarray, mask: np.ndarray) -> None:
        """An atomic: by any programs, but to outputs of two dimensions alone."""
        wanted = _chosen(addresses, mask)
        known = np.zeros(wanted.shape, bool)
        for array in self.outputs:
            if array.ndim == 2:
                known |= _is_cell(wanted - array.ctypes.data, array)
        assert known.all(), f"{np.sum(~known)} atomics to outside the faults"


def _chosen(addresses: np.ndarray, mask: np.ndarray) -> np.ndarray:
    addresses, mask = np.broadcast_arrays(addresses, mask)
    return addresses[mask.astype(bool)].astype(np.int64)


def _is_cell(offset: np.ndarray, array: np.ndarray) -> np.ndarray:
    """Which byte offsets are those of an element: one between a strided table's rows is not."""
    if array.size == 0:
        return np.zeros(offset.shape, bool)
    rows, width = (1, array.size) if array.ndim == 1 else array.shape
    row_bytes = array.nbytes if array.ndim == 1 else array.strides[0]
    in_row = offset % row_bytes
    is_row = (offset >= 0) & (offset < rows * row_bytes)
    return is_row & (in_row < width * array.itemsize) & (in_row % array.itemsize == 0)


@functools.cache
def _prepare_interpreter() -> None:
    """Check each access, reduce and scan whole arrays, and leave the language patched between calls.

    Without the last two a launch takes a hundred times as long. Both keep the order of the elements, so a
    combine function need not commute, as on a GPU.
    """
    import triton.language as tl
    import triton.runtime.interpreter as interpreter

    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store
    atomic = builder.create_atomic_rmw

    def checked_load(self: Any, pointers: Any, mask: Any, *more: Any, **options: Any) -> Any:
        if _Memory.current is not None:
            _Memory.current.load(pointers.data, mask.data)
        return load(self, pointers, mask, *more, **options)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *more: Any, **options: Any) -> Any:
        if _Memory.current is not None:
            _Memory.current.store(pointers.data, mask.data, self.grid_idx[0])
        return store(self, pointers, value, mask, *more, **options)

    def checked_atomic(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        if _Memory.current is not None:
            _Memory.current.add(pointers.data, mask.data)
        return atomic(self, operation, pointers, value, mask, *more)

    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    builder.create_atomic_rmw = checked_atomic
    interpreter.ReduceOps.generic_reduce = _reduce
    interpreter.ScanOps.generic_scan = _scan
    executor = interpreter.GridExecutor
    executor._init_args_hst = lambda self, arguments, keywords: (arguments, keywords)
    executor._restore_args_dev = lambda self, *arguments: None
    patch, patched = interpreter._patch_lang, set()

    def patch_once(function: Any) -> Any:
        if id(function.__globals__) not in patched:
            patched.add(id(function.__globals__))
            patch(function)
            # Triton 3.6's own asks numpy 2.5 for more than it gives.
            tl.tensor.__index__ = lambda tensor: int(tensor.handle.data.item())
        return types.SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = patch_once


def _combined(operation: Any, tensors: Any, left: list[np.ndarray], right: list[np.ndarray]) -> list[Any]:
    typed = zip((*left, *right), (*tensors, *tensors), strict=True)
    combined = operation.combine_fn.fn(*[operation.to_tensor(data, t.dtype) for data, t in typed])
    return [c.handle.data for c in (combined if isinstance(combined, tuple) else (combined,))]


def _reduce(operation: Any, tensors: Any) -> list[Any]:
    """Neighbours in pairs, until one is left."""
    assert operation.axis is not None
    assert not operation.keep_dims
    data = [np.moveaxis(t.handle.data, operation.axis, 0) for t in tensors]
    while len(data[0]) > 1:
        data = _combined(operation, tensors, [d[0::2] for d in data], [d[1::2] for d in data])
    return [operation.to_tensor(d[0], t.dtype) for d, t in zip(data, tensors, strict=True)]


def _scan(operation: Any, tensors: Any) -> list[Any]:
    """Each element with the one a step before it, in steps of 1, 2, 4 and so on."""
    data = [np.moveaxis(t.handle.data, operation.axis, 0) for t in tensors]
    step = 1
    while step < len(data[0]):
        both = _combined(operation, tensors, [np.roll(d, step, 0) for d in data], data)
        data = [np.concatenate([d[:step], b[step:]]) for d, b in zip(data, both, strict=True)]
        step *= 2
    return [
        operation.to_tensor(np.moveaxis(d, 0, operation.axis), t.dtype)
        for d, t in zip(data, tensors, strict=True)
    ]
