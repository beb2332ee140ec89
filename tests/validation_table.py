"""Every message of the contract's sections 3, 5 (strict) and 6, with a way to make it come out.

`ROWS` breaks a good call, once a row: the arguments to replace, the exact message, and where the contract
has the rule in its order. `IMPOSSIBLE` lists the messages that no call brings out, `Frontend.cannot` what
a framework's arrays cannot be, each with the reason. Names, orders and texts are written down here from
the contract, not read from `shared_ref`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

Call = dict[str, Any]
"""A launcher's arguments by name, plans as their buffers under the staged launchers' names."""

PLAN, OFFSETS, ENTRIES = (
    "launch_canary_plan_kernels",
    "launch_plan_offsets_kernel",
    "launch_plan_entries_kernel",
)

VERIFY_FIELDS = {
    "verify_slot_indices": "out_verify_slot_indices",
    "verify_expected_tokens": "out_verify_expected_tokens",
    "verify_expected_positions": "out_verify_expected_positions",
    "verify_prev_slot_indices": "out_verify_prev_slot_indices",
    "verify_num_valid": "out_verify_num_valid",
    "enable": "out_verify_enable",
}
WRITE_FIELDS = {
    "write_offsets": "out_write_offsets",
    "write_seed_slot_indices": "out_write_seed_slot_indices",
    "write_num_valid_reqs": "out_write_num_valid_reqs",
}
COLUMNS = tuple(VERIFY_FIELDS.values())[:4]
TABLES = ("req_to_token", "req_to_verify_expected_tokens")
EXTRAS = ("verify_total_out", "faults_out")
"""The optional outputs."""
OPTIONAL = (
    "full_to_swa_index_mapping",
    "req_to_verify_expected_tokens",
    "req_to_verify_expected_tokens_valid_lens",
    *EXTRAS,
)
INT32 = (*TABLES, "out_verify_num_valid", "out_verify_enable", "out_write_num_valid_reqs", "verify_enable")

TENSORS = {
    PLAN: (
        *VERIFY_FIELDS.values(),
        *WRITE_FIELDS.values(),
        "req_pool_indices",
        "prefix_lens",
        "extend_seq_lens",
        "req_to_token",
        "full_to_swa_index_mapping",
        "req_to_verify_expected_tokens",
        "req_to_verify_expected_tokens_valid_lens",
        *EXTRAS,
    ),
    OFFSETS: (
        "req_pool_indices",
        "prefix_lens",
        "extend_seq_lens",
        "req_to_token",
        "full_to_swa_index_mapping",
        "out_verify_offsets_scratch",
        "out_write_offsets",
        "out_write_seed_slot_indices",
        "out_verify_num_valid",
        "out_verify_enable",
        "out_write_num_valid_reqs",
        *EXTRAS,
    ),
    ENTRIES: (
        "req_pool_indices",
        "prefix_lens",
        "req_to_token",
        "full_to_swa_index_mapping",
        "verify_offsets_scratch",
        "verify_enable",
        "req_to_verify_expected_tokens",
        "req_to_verify_expected_tokens_valid_lens",
        *COLUMNS,
        "faults_out",
    ),
}
INTEGERS = {
    PLAN: ("swa_window_size", "verify_capacity", "kv_token_id_vs_position_offset", "page_size"),
    OFFSETS: (
        "swa_window_size",
        "verify_capacity",
        "req_to_token_stride0",
        "write_offsets_len",
        "write_req_capacity",
        "page_size",
    ),
    ENTRIES: ("kv_token_id_vs_position_offset", "swa_window_size", "page_size"),
}
OPTIONAL_INTEGERS = ("req_to_token_stride0", "write_offsets_len", "write_req_capacity")


def is_output(name: str) -> bool:
    return name.startswith("out_") or name in EXTRAS


def good_call(launcher: str) -> Call:
    """A call that every rule accepts and `strict` finds no fault in; fresh arrays."""
    poison = np.arange(4097) - 2**40
    everything = {
        "out_verify_slot_indices": poison[:8] + 1000,
        "out_verify_expected_tokens": poison[:8] + 2000,
        "out_verify_expected_positions": poison[:8] + 3000,
        "out_verify_prev_slot_indices": poison[:8] + 4000,
        "out_verify_num_valid": np.array([-71], np.int32),
        "out_verify_enable": np.array([-72], np.int32),
        "out_write_offsets": poison[:5] + 5000,
        "out_write_seed_slot_indices": poison[:4] + 6000,
        "out_write_num_valid_reqs": np.array([-73], np.int32),
        "out_verify_offsets_scratch": poison + 7000,
        "verify_offsets_scratch": poison + 8000,
        "verify_enable": np.array([1], np.int32),
        "req_pool_indices": np.array([2, 0, 1]),
        "prefix_lens": np.array([3, 7, 2]),
        "extend_seq_lens": np.array([2, 1, 0]),
        "req_to_token": np.arange(1, 25, dtype=np.int32).reshape(4, 6),
        "full_to_swa_index_mapping": np.arange(30) + 100,
        "req_to_verify_expected_tokens": np.arange(500, 509, dtype=np.int32).reshape(3, 3),
        "req_to_verify_expected_tokens_valid_lens": np.array([3, 0, 2]),
        "swa_window_size": 2,
        "verify_capacity": 8,
        "kv_token_id_vs_position_offset": 1,
        "req_to_token_stride0": None,
        "write_offsets_len": None,
        "write_req_capacity": None,
        "page_size": 1,
        "verify_total_out": np.array([-74]),
        "faults_out": np.arange(16).reshape(8, 2) - 2**40,
    }
    return {name: everything[name] for name in (*TENSORS[launcher], *INTEGERS[launcher])}


class Elsewhere(NamedTuple):
    """An array on another device than the call's others."""

    array: np.ndarray


MISSING = object()
"""Of a plan: a field that the object does not have."""


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One way to break a good call."""

    launcher: str
    rule: str
    """The message as the contract prints it, with its placeholders."""
    order: tuple[int, ...]
    """Place in the contract's order; the smaller of two broken rules is reported."""
    message: str
    """The whole text behind `kv-canary: `; {array}, {home} and {away} are the framework's own words."""
    changes: Call
    involves: frozenset[str]
    """Arguments that the breakage or its message depends on. A row that changes none of them can be added."""
    needs: str | None = None
    """What arrays must be able to be, see `Frontend.cannot`."""
    truncated: bool = False
    """An int32 array where int64 is due: JAX's message ends in one more sentence."""

    @property
    def id(self) -> str:
        return f"{self.launcher}-{self.message}"


class Impossible(NamedTuple):
    """A message that no call of a launcher brings out, in any framework."""

    launcher: str
    rule: str
    subject: str
    reason: str


TYPE = "{name} must be a {numpy.ndarray | torch.Tensor | jax.Array}, got {type name}"
INTEGER_TYPE = "{name} must be an int, got {type name}"
INT32_RANGE = "{name} must fit int32, got {n}"
CONTIGUOUS = "{name} must be contiguous"
UNIT_STRIDE = "{name} must have unit stride along dim 1, got strides {strides}"
DTYPE = "{name} must have dtype {dtype}, got {dtype}"
OFFSETS_BS = "offsets kernel bs must be in [0, 4096], got {bs}"
ENTRIES_BS = "entries kernel bs must be in [0, 4096], got {bs}"
OFFSETS_LEN_SIGN = "write_offsets_len must be positive, got {n}"
WRITE_CAPACITY_SIGN = "write_req_capacity must be non-negative, got {n}"
VERIFY_CAPACITY_SIGN = "verify_capacity must be non-negative, got {n}"
STRIDE0_SIGN = "req_to_token_stride0 must be positive, got {n}"
PAGE_SIZE_SIGN = "page_size must be positive, got {n}"
LUT_LEN = "lut_len must be positive when has_swa_lut is True"
NDIM = "{name} must be 1-D, got shape {shape}"
TABLE_NDIM = "{name} must be 2-D, got shape {shape}"
LENGTH = "{name} length must be {n}, got {m}"
SCRATCH_LENGTH = "{name} length must be >= {n}, got {m}"
FAULTS_COLUMNS = "faults_out must have 2 columns, got {m}"
OFFSETS_LEN = "write_offsets_len must equal write_req_capacity + 1, got {a} and {b}"
WRITE_CAPACITY = "bs={bs} exceeds write_req_capacity={n}"
STRIDE0 = "req_to_token_stride0={given} does not match req_to_token.stride(0)={actual}"
ROW_STRIDE = "{name} row stride must be at least {width}, got {stride}"
POSITIONS = "req_to_token of {width} columns with page_size={n} has more than 2**48 positions"
WRITABLE = "{name} must be writable"
DEVICE = "{name} must be on {reference}'s device {device}, got {device}"
PLAN_BS = (
    "launch_canary_plan_kernels supports at most bs=4096 reqs per launch, got bs={bs}. "
    "Bump _PLAN_BS_BLOCK_SIZE if real workloads need this."
)
PLAN_MAPPING = "launch_canary_plan_kernels requires full_to_swa_index_mapping when swa_window_size > 0"
PLAN_CAPACITY = (
    "launch_canary_plan_kernels verify_capacity={v} does not match "
    "verify_plan_out.verify_slot_indices.shape[0]={n}"
)
VALID_LENS = (
    "launch_plan_entries_kernel requires req_to_verify_expected_tokens_valid_lens "
    "when req_to_verify_expected_tokens is set"
)
TYPES = (TYPE, INTEGER_TYPE, INT32_RANGE)
OFFSETS_RULES = (
    *(CONTIGUOUS, UNIT_STRIDE, DTYPE, OFFSETS_BS, OFFSETS_LEN_SIGN, WRITE_CAPACITY_SIGN),
    *(VERIFY_CAPACITY_SIGN, STRIDE0_SIGN, PAGE_SIZE_SIGN, LUT_LEN, NDIM, TABLE_NDIM, LENGTH, FAULTS_COLUMNS),
    *(OFFSETS_LEN, WRITE_CAPACITY, STRIDE0, ROW_STRIDE, POSITIONS, WRITABLE, DEVICE),
)
ENTRIES_RULES = (
    *(VALID_LENS, CONTIGUOUS, UNIT_STRIDE, DTYPE, ENTRIES_BS, PAGE_SIZE_SIGN, LUT_LEN, NDIM, TABLE_NDIM),
    *(LENGTH, FAULTS_COLUMNS, ROW_STRIDE, POSITIONS, WRITABLE, DEVICE),
)
MESSAGES = {
    PLAN: {*TYPES, PLAN_BS, PLAN_MAPPING, PLAN_CAPACITY, *OFFSETS_RULES, *ENTRIES_RULES},
    OFFSETS: {*TYPES, *OFFSETS_RULES, SCRATCH_LENGTH},
    ENTRIES: {*TYPES, *ENTRIES_RULES, SCRATCH_LENGTH},
}
"""Section 6: what each launcher can say."""

PADDING = np.zeros(4097, np.int64)
LENGTH_OF = {
    "prefix_lens": ("req_pool_indices",),
    "extend_seq_lens": ("req_pool_indices",),
    "req_to_verify_expected_tokens_valid_lens": ("req_pool_indices", "req_to_verify_expected_tokens"),
    **dict.fromkeys(COLUMNS[1:], COLUMNS[:1]),
}
"""Whose length an argument's must be, and without what the rule does not apply."""


def spread(array: np.ndarray) -> np.ndarray:
    """The array with a gap behind each element (at least 2 elements: one alone is always contiguous)."""
    return np.repeat(np.resize(array, max(len(array), 2)), 2)[::2]


def rows_of(launcher: str) -> Iterator[Row]:
    """The rows of one launcher."""
    good = good_call(launcher)

    def row(
        rule: str,
        order: tuple[int, ...],
        message: str,
        changes: Call,
        involves: tuple[str, ...] = (),
        **more: Any,
    ) -> Row:
        return Row(launcher, rule, order, message, changes, frozenset((*changes, *involves)), **more)

    def types() -> Iterator[Row]:
        for i, name in enumerate(TENSORS[launcher]):
            wrong = [("list", [1, 2]), ("int", 7)]
            if name not in OPTIONAL:
                wrong.append(("NoneType", None))
            if launcher == PLAN and name.startswith("out_"):
                wrong.append(("NoneType", MISSING))
            for kind, value in wrong:
                yield row(TYPE, (-1, i), f"{name} must be a {{array}}, got {kind}", {name: value})
        for i, name in enumerate(INTEGERS[launcher], len(TENSORS[launcher])):
            wrong = [("str", "4"), ("float", 4.0), ("bool", True)]
            if name not in OPTIONAL_INTEGERS:
                wrong.append(("NoneType", None))
            for kind, value in wrong:
                yield row(INTEGER_TYPE, (-1, i), f"{name} must be an int, got {kind}", {name: value})
            for n in (2**31, -(2**31) - 1, np.int64(2**40)):
                yield row(INT32_RANGE, (-1, i), f"{name} must fit int32, got {n}", {name: n})

    def layout(order: tuple[int, ...], names: tuple[str, ...]) -> Iterator[Row]:
        """Rules 1 and 2."""
        for i, name in enumerate(names):
            array = good[name]
            if name in TABLES:
                rows, width = array.shape
                gaps = np.repeat(array, 2, axis=1)[:, ::2]
                columns_first = np.asfortranarray(array)
                for table, strides in ((gaps, (2 * width, 2)), (columns_first, (1, rows))):
                    message = f"{name} must have unit stride along dim 1, got strides {strides}"
                    yield row(UNIT_STRIDE, (*order, 1, i), message, {name: table}, needs="strides")
            elif name == "faults_out":
                message = f"{name} must be contiguous"
                apart = np.repeat(array, 2, axis=0)[::2], np.repeat(array, 2, axis=1)[:, ::2]
                for faults in (*apart, np.asfortranarray(array)):
                    yield row(CONTIGUOUS, (*order, 1, i), message, {name: faults}, needs="strides")
                for faults in (array[::-1], array[:, ::-1]):
                    yield row(CONTIGUOUS, (*order, 1, i), message, {name: faults}, needs="negative strides")
            else:
                message = f"{name} must be contiguous"
                yield row(CONTIGUOUS, (*order, 1, i), message, {name: spread(array)}, needs="strides")
                if len(array) > 1:
                    columns_first = {name: np.asfortranarray(np.stack((array, array), 1))}
                    yield row(CONTIGUOUS, (*order, 1, i), message, columns_first, needs="strides")
                    backwards = {name: array[::-1]}
                    yield row(CONTIGUOUS, (*order, 1, i), message, backwards, needs="negative strides")
            due, other = ("int32", "int64") if name in INT32 else ("int64", "int32")
            message = f"{name} must have dtype {due}, got"
            for dtype in (other, "float32"):
                changes = {name: array.astype(dtype)}
                truncated = (due, dtype) == ("int64", "int32")
                yield row(DTYPE, (*order, 2, i), f"{message} {dtype}", changes, truncated=truncated)
            swapped = array.astype(array.dtype.newbyteorder(">"))
            code = {"int32": ">i4", "int64": ">i8"}[due]
            yield row(DTYPE, (*order, 2, i), f"{message} {code}", {name: swapped}, needs="byte order")

    def shapes(order: tuple[int, ...], names: tuple[str, ...]) -> Iterator[Row]:
        """Rule 10."""
        for i, name in enumerate(names):
            array, at = good[name], (*order, 10, i)
            if array.ndim == 2:
                for table in (array[0], array[:, :, None], array[0, 0]):
                    message = f"{name} must be 2-D, got shape {table.shape}"
                    yield row(TABLE_NDIM, at, message, {name: np.asarray(table)})
                if name == "faults_out":
                    yield from faults_shape(at)
                continue
            for other in (array[:, None], np.stack((array, array), 1), array[0]):
                message = f"{name} must be 1-D, got shape {other.shape}"
                yield row(NDIM, at, message, {name: np.asarray(other)})
            if name in ("out_verify_offsets_scratch", "verify_offsets_scratch"):
                for n in (4096, 0):
                    message = f"{name} length must be >= 4097, got {n}"
                    yield row(SCRATCH_LENGTH, at, message, {name: array[:n].copy()})
            elif name in LENGTH_OF or len(array) == 1:
                for n in (len(array) + 1, len(array) - 1):
                    message = f"{name} length must be {len(array)}, got {n}"
                    yield row(LENGTH, at, message, {name: np.resize(array, n)}, LENGTH_OF.get(name, ()))

    def faults_shape(at: tuple[int, ...]) -> Iterator[Row]:
        """Of rule 10: eight rows are asked for before two columns."""
        for rows, columns in ((7, 2), (9, 2), (0, 2), (16, 1), (4, 4)):
            changes = {"faults_out": np.zeros((rows, columns), np.int64)}
            yield row(LENGTH, at, f"faults_out length must be 8, got {rows}", changes)
        for columns in (1, 3, 0):
            changes = {"faults_out": np.zeros((8, columns), np.int64)}
            message = FAULTS_COLUMNS.replace("{m}", str(columns))
            yield row(FAULTS_COLUMNS, at, message, changes)

    def pages(order: tuple[int, ...]) -> Iterator[Row]:
        """Rules 8 and 15."""
        for n in (0, -1, -(2**31)):
            yield row(PAGE_SIZE_SIGN, (*order, 8), PAGE_SIZE_SIGN.replace("{n}", str(n)), {"page_size": n})
        for width, n in ((2**17 + 1, 2**31 - 1), (2**18, 2**30 + 1)):
            message = POSITIONS.replace("{width}", str(width)).replace("{n}", str(n))
            changes = {"req_to_token": np.zeros((1, width), np.int32), "page_size": n}
            yield row(POSITIONS, (*order, 15), message, changes)

    def placement(
        order: tuple[int, ...], names: tuple[str, ...], first: str, reference: str
    ) -> Iterator[Row]:
        """Rules 14 to 17; `first` is the first tensor that the device rule looks at."""
        for i, name in enumerate(names):
            array = good[name]
            if name in TABLES:
                width = array.shape[1]
                overlapping = as_strided(array, strides=((width - 1) * 4, 4))
                message = f"{name} row stride must be at least {width}, got {width - 1}"
                yield row(ROW_STRIDE, (*order, 14, i), message, {name: overlapping}, needs="strides")
            if is_output(name):
                frozen = array.copy()
                frozen.flags.writeable = False
                message = f"{name} must be writable"
                yield row(WRITABLE, (*order, 16, i), message, {name: frozen}, needs="read-only")
            if name != reference:
                message = f"{name} must be on {reference}'s device {{home}}, got {{away}}"
                changes = {name: Elsewhere(array)}
                yield row(DEVICE, (*order, 17, i), message, changes, (reference,), needs="devices")
        if first == names[0]:
            message = f"{first} must be on {reference}'s device {{away}}, got {{home}}"
            changes = {reference: Elsewhere(good[reference])}
            yield row(DEVICE, (*order, 17, 0), message, changes, (first,), needs="devices")

    def offsets_rules(order: tuple[int, ...], names: tuple[str, ...], reference: str) -> Iterator[Row]:
        yield from layout(order, names)
        if launcher == OFFSETS:
            message = "offsets kernel bs must be in [0, 4096], got 4097"
            yield row(OFFSETS_BS, (*order, 3), message, {"req_pool_indices": PADDING})
            for name, rule, n in (
                ("write_offsets_len", OFFSETS_LEN_SIGN, 4),
                ("write_req_capacity", WRITE_CAPACITY_SIGN, 5),
                ("verify_capacity", VERIFY_CAPACITY_SIGN, 6),
                ("req_to_token_stride0", STRIDE0_SIGN, 7),
            ):
                for value in (-1, -(2**31)):
                    yield row(rule, (*order, n), rule.replace("{n}", str(value)), {name: value})
            for name, rule, n in (
                ("write_offsets_len", OFFSETS_LEN_SIGN, 4),
                ("req_to_token_stride0", STRIDE0_SIGN, 7),
            ):
                yield row(rule, (*order, n), rule.replace("{n}", "0"), {name: 0})
        else:
            # Only a column without a length lets a capacity of -1 through to here.
            changes = {"verify_capacity": -1, "out_verify_slot_indices": np.array(5)}
            message = "verify_capacity must be non-negative, got -1"
            yield row(VERIFY_CAPACITY_SIGN, (*order, 6), message, changes)
        yield row(
            OFFSETS_LEN_SIGN,
            (*order, 4),
            "write_offsets_len must be positive, got 0",
            {"out_write_offsets": np.empty(0, np.int64)},
            ("write_offsets_len",),
        )
        table = good["req_to_token"]
        given = ("req_to_token_stride0",)
        message = "req_to_token_stride0 must be positive, got"
        one_row = {"req_to_token": as_strided(table, strides=(0, 4))}
        yield row(STRIDE0_SIGN, (*order, 7), f"{message} 0", one_row, given, needs="strides")
        upside_down = {"req_to_token": table[::-1]}
        yield row(STRIDE0_SIGN, (*order, 7), f"{message} -6", upside_down, given, needs="negative strides")
        yield from pages(order)
        empty = {"full_to_swa_index_mapping": np.empty(0, np.int64)}
        yield row(LUT_LEN, (*order, 9), LUT_LEN, empty)
        yield from shapes(order, names)
        if launcher == OFFSETS:
            for name, given, n, got in (
                ("out_write_offsets", "write_offsets_len", 6, 5),
                ("out_write_seed_slot_indices", "write_req_capacity", 5, 4),
            ):
                message = f"{name} length must be {n}, got {got}"
                yield row(LENGTH, (*order, 10, names.index(name)), message, {given: n}, (name,))
        writes = (
            "out_write_offsets",
            "out_write_seed_slot_indices",
            "write_offsets_len",
            "write_req_capacity",
        )
        message = "write_offsets_len must equal write_req_capacity + 1, got 6 and 4"
        changes = {"out_write_offsets": np.zeros(6, np.int64)}
        yield row(OFFSETS_LEN, (*order, 11), message, changes, writes)
        message = "write_offsets_len must equal write_req_capacity + 1, got 5 and 3"
        changes = {"out_write_seed_slot_indices": np.zeros(3, np.int64)}
        yield row(OFFSETS_LEN, (*order, 11), message, changes, writes)
        changes = {
            "out_write_offsets": np.zeros(3, np.int64),
            "out_write_seed_slot_indices": np.zeros(2, np.int64),
        }
        message = "bs=3 exceeds write_req_capacity=2"
        yield row(WRITE_CAPACITY, (*order, 12), message, changes, (*writes, "req_pool_indices"))
        if launcher == OFFSETS:
            for n in (7, 5, 2**31 - 1):
                message = f"req_to_token_stride0={n} does not match req_to_token.stride(0)=6"
                yield row(STRIDE0, (*order, 13), message, {"req_to_token_stride0": n}, ("req_to_token",))
            wide = np.repeat(table, 2, axis=1)[:, :6]
            message = "req_to_token_stride0=6 does not match req_to_token.stride(0)=12"
            changes = {"req_to_token_stride0": 6, "req_to_token": wide}
            yield row(STRIDE0, (*order, 13), message, changes, needs="strides")
        yield from placement(order, names, "req_pool_indices", reference)

    def entries_rules(order: tuple[int, ...], names: tuple[str, ...], reference: str) -> Iterator[Row]:
        tokens, valid_lens = "req_to_verify_expected_tokens", "req_to_verify_expected_tokens_valid_lens"
        yield row(VALID_LENS, (*order, 0), VALID_LENS, {valid_lens: None}, (tokens,))
        yield from layout(order, names)
        if launcher == ENTRIES:
            message = "entries kernel bs must be in [0, 4096], got 4097"
            yield row(ENTRIES_BS, (*order, 3), message, {"req_pool_indices": PADDING})
            yield from pages(order)
            empty = {"full_to_swa_index_mapping": np.empty(0, np.int64)}
            yield row(LUT_LEN, (*order, 9), LUT_LEN, empty)
        yield from shapes(order, names)
        yield from placement(order, names, "req_pool_indices", reference)

    yield from types()
    if launcher == OFFSETS:
        yield from offsets_rules((), TENSORS[OFFSETS], "out_verify_offsets_scratch")
    elif launcher == ENTRIES:
        yield from entries_rules((), TENSORS[ENTRIES], "verify_offsets_scratch")
    else:
        yield row(PLAN_BS, (1,), PLAN_BS.replace("{bs}", "4097"), {"req_pool_indices": PADDING})
        needed = {"full_to_swa_index_mapping": None}
        yield row(PLAN_MAPPING, (2,), PLAN_MAPPING, needed, ("swa_window_size",))
        for v, n in ((7, 8), (0, 8), (-1, 8), (8, 9)):
            message = PLAN_CAPACITY.replace("{v}", str(v)).replace("{n}", str(n))
            changes = {"verify_capacity": v, "out_verify_slot_indices": np.zeros(n, np.int64)}
            yield row(PLAN_CAPACITY, (3,), message, changes)
        in_offsets = tuple(name for name in TENSORS[OFFSETS] if name in good)
        in_entries = tuple(name for name in TENSORS[ENTRIES] if name in good and name not in in_offsets)
        yield from offsets_rules((4,), in_offsets, "out_verify_slot_indices")
        yield from entries_rules((5,), in_entries, "out_verify_slot_indices")


def other_sides() -> Iterator[Row]:
    """Rules broken from their other side: columns shorter than the capacity, offsets than the rows."""
    for v in (9, 2**31 - 1):
        text = PLAN_CAPACITY.replace("{v}", str(v)).replace("{n}", "8")
        yield Row(PLAN, PLAN_CAPACITY, (3,), text, {"verify_capacity": v}, _CAPACITY)
    for launcher in (PLAN, OFFSETS):
        for name, n, lengths in (
            ("out_write_offsets", 4, "4 and 4"),
            ("out_write_seed_slot_indices", 5, "5 and 5"),
        ):
            text, order = OFFSETS_LEN.replace("{a} and {b}", lengths), (4, 11) if launcher == PLAN else (11,)
            yield Row(launcher, OFFSETS_LEN, order, text, {name: np.zeros(n, np.int64)}, _LENGTHS)


_CAPACITY = frozenset({"verify_capacity", "out_verify_slot_indices"})
_LENGTHS = frozenset(
    {"out_write_offsets", "out_write_seed_slot_indices", "write_offsets_len", "write_req_capacity"}
)

ROWS = (*(row for launcher in (PLAN, OFFSETS, ENTRIES) for row in rows_of(launcher)), *other_sides())

IMPOSSIBLE = (
    Impossible(PLAN, OFFSETS_BS, "req_pool_indices", "the plan's own rule 1 reports it before"),
    Impossible(PLAN, ENTRIES_BS, "req_pool_indices", "the plan's own rule 1 reports it before"),
    Impossible(PLAN, WRITE_CAPACITY_SIGN, "write_req_capacity", "it is a tensor's length"),
    Impossible(PLAN, STRIDE0, "req_to_token_stride0", "the launcher does not take one"),
    *(
        Impossible(PLAN, rule, "what both launchers have", "the offsets launcher's rule reports it before")
        for rule in (
            *(CONTIGUOUS, UNIT_STRIDE, DTYPE, PAGE_SIZE_SIGN, LUT_LEN, NDIM, TABLE_NDIM, LENGTH),
            *(FAULTS_COLUMNS, ROW_STRIDE, POSITIONS, WRITABLE, DEVICE),
        )
    ),
    *(
        Impossible(launcher, LENGTH, name, "the length that the rule asks for is its own")
        for launcher, names in {
            PLAN: ("out_write_offsets", "out_write_seed_slot_indices", "out_verify_slot_indices"),
            ENTRIES: ("out_verify_slot_indices",),
        }.items()
        for name in names
    ),
    *(
        Impossible(launcher, LENGTH, name, "no rule asks a certain length of it")
        for launcher in (PLAN, OFFSETS, ENTRIES)
        for name in ("req_pool_indices", "req_to_token", "full_to_swa_index_mapping")
    ),
    *(
        Impossible(launcher, LENGTH, "req_to_verify_expected_tokens", "no rule asks a certain length of it")
        for launcher in (PLAN, ENTRIES)
    ),
    *(
        Impossible(launcher, rule, "req_pool_indices", "no array has a length below 0")
        for launcher, rule in ((OFFSETS, OFFSETS_BS), (ENTRIES, ENTRIES_BS))
    ),
    Impossible(ENTRIES, WRITABLE, "verify_offsets_scratch, verify_enable", "they are inputs there"),
)
"""Part of a rule, or a whole one, that no call breaks first."""


class Fault(NamedTuple):
    """One value to put into a good plan call, and what `strict` says then."""

    name: str
    index: tuple[int, ...]
    value: int
    text: str


FAULTS = (
    Fault("req_pool_indices", (0,), -1, "request 0: row -1 is outside req_to_token (4 rows)"),
    Fault("prefix_lens", (0,), -(2**63), f"request 0: prefix_lens {-(2**63)} is negative"),
    Fault("extend_seq_lens", (0,), -2, "request 0: extend_seq_lens -2 is negative"),
    Fault("prefix_lens", (0,), 7, "request 0: prefix_lens 7 exceeds the 6 positions of req_to_token"),
    Fault(
        *("req_to_token", (2, 0), 30),
        "request 0, position 0: slot 30 is outside full_to_swa_index_mapping (30 slots)",
    ),
    Fault(
        *("req_to_token", (2, 1), 2**31 - 1),
        "request 0, position 1: slot 2147483647 is outside full_to_swa_index_mapping (30 slots)",
    ),
    Fault(
        *("req_to_token", (2, 2), 31),
        "request 0, position 2: slot 31 is outside full_to_swa_index_mapping (30 slots)",
    ),
    Fault(
        *("req_to_verify_expected_tokens_valid_lens", (0,), 4),
        "request 0, position 2: token position 3 is outside req_to_verify_expected_tokens "
        "(3 rows, 3 columns)",
    ),
    Fault("req_pool_indices", (2,), 2**32 + 1, "request 2: row 4294967297 is outside req_to_token (4 rows)"),
    Fault("prefix_lens", (2,), -1, "request 2: prefix_lens -1 is negative"),
    Fault("extend_seq_lens", (2,), -1, "request 2: extend_seq_lens -1 is negative"),
    Fault(
        *("prefix_lens", (2,), 2**32 + 2),
        "request 2: prefix_lens 4294967298 exceeds the 6 positions of req_to_token",
    ),
    Fault(
        *("req_to_token", (1, 0), 99),
        "request 2, position 0: slot 99 is outside full_to_swa_index_mapping (30 slots)",
    ),
    Fault(
        *("req_to_token", (1, 1), 99),
        "request 2, position 1: slot 99 is outside full_to_swa_index_mapping (30 slots)",
    ),
)
"""In the contract's order. Position 0 of request 0 is the cell before its window's first entry."""


@dataclasses.dataclass(frozen=True, eq=False)
class Frontend:
    """How a numpy call becomes a framework's, and what of it cannot be broken there."""

    backend: str
    """Name of the registered backend that runs where this does."""
    package: str
    array_name: str
    array: Callable[[np.ndarray], Any]
    """The framework's array with the same shape, dtype and strides."""
    elsewhere: Callable[[np.ndarray], Any]
    devices: Callable[[], tuple[str, str]]
    """What messages print for where `array` and `elsewhere` put things."""
    cannot: dict[str, str]
    """What arrays cannot be, and why: rows that need it are left out."""
    hint_on_truncation: bool = False
    suffix: str = ""
    """Of the launchers' names."""

    def launcher(self, name: str) -> Callable[..., Any]:
        return getattr(importlib.import_module(self.package), name + self.suffix)

    def plan_class(self, name: str) -> Any:
        return getattr(importlib.import_module(self.package), name)

    def convert(self, call: Call) -> Call:
        """A call's values as the framework has them."""
        return {name: self._value(value) for name, value in call.items()}

    def _value(self, value: Any) -> Any:
        if isinstance(value, Elsewhere):
            return self.elsewhere(value.array)
        return self.array(value) if isinstance(value, np.ndarray) else value

    def launch(self, name: str, call: Call, **more: Any) -> Call:
        """Launch a converted call; the outputs after it, as arrays of the framework."""
        arguments = dict(call)
        if name == PLAN:
            arguments["verify_plan_out"] = _plan(arguments, VERIFY_FIELDS)
            arguments["write_plan_out"] = _plan(arguments, WRITE_FIELDS)
        returned = self.launcher(name)(**arguments, **more)
        outputs = [n for n in call if is_output(n) and call[n] is not None]
        if returned is None:
            return {n: call[n] for n in outputs}
        if name == PLAN:
            verify, write, *extras = returned
            returned = (
                *(getattr(verify, field) for field in VERIFY_FIELDS),
                *(getattr(write, field) for field in WRITE_FIELDS),
                *extras,
            )
        return dict(zip(outputs, returned, strict=True))

    def bytes_of(self, array: Any) -> bytes | None:
        """What an array holds; None where there is nothing to look at."""
        if isinstance(array, np.ndarray):
            return array.tobytes()
        if str(getattr(array, "device", "")) == "meta" or not hasattr(array, "dtype"):
            return None
        return np.asarray(array).tobytes()


def _plan(arguments: Call, fields: dict[str, str]) -> SimpleNamespace:
    """A plan of nobody's class: launchers read plans by attribute."""
    buffers = {field: arguments.pop(argument) for field, argument in fields.items()}
    return SimpleNamespace(**{field: buffer for field, buffer in buffers.items() if buffer is not MISSING})


def _same(array: np.ndarray) -> np.ndarray:
    return array


def _nowhere(array: np.ndarray) -> Any:
    raise AssertionError("this framework has one device")


def _torch_array(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


def _torch_meta(array: np.ndarray) -> Any:
    return _torch_array(array).to("meta")


def _jax_device(elsewhere: bool) -> Any:
    import jax

    here, *others = jax.devices()
    return (others or jax.devices("cpu"))[0] if elsewhere else here


def _jax_array(array: np.ndarray, elsewhere: bool = False) -> Any:
    import jax

    with jax.enable_x64(True):
        return jax.numpy.array(array, device=_jax_device(elsewhere))


FRONTENDS = {
    "numpy": Frontend(
        backend="numpy",
        package="shared_ref",
        array_name="numpy.ndarray",
        array=_same,
        elsewhere=_nowhere,
        devices=lambda: ("cpu", "cpu"),
        cannot={"devices": "numpy arrays have one device"},
        suffix="_reference",
    ),
    "torch": Frontend(
        backend="torch-cpu",
        package="kvcanary_torch",
        array_name="torch.Tensor",
        array=_torch_array,
        elsewhere=_torch_meta,
        devices=lambda: ("cpu", "meta"),
        cannot={
            "negative strides": "torch has none",
            "byte order": "torch dtypes are native",
            "read-only": "every torch tensor can be written",
        },
    ),
    "jax": Frontend(
        backend="jax-xla",
        package="kvcanary_jax",
        array_name="jax.Array",
        array=_jax_array,
        elsewhere=functools.partial(_jax_array, elsewhere=True),
        devices=lambda: (str(_jax_device(False)), str(_jax_device(True))),
        cannot={
            "strides": "JAX arrays have no strides",
            "negative strides": "JAX arrays have no strides",
            "byte order": "JAX dtypes are native",
            "read-only": "JAX arrays are replaced, never written",
        },
        hint_on_truncation=True,
    ),
}


def breakable(frontend: Frontend, launcher: str | None = None) -> list[Row]:
    """The rows that a framework can be broken with."""
    return [r for r in ROWS if r.needs not in frontend.cannot and launcher in (None, r.launcher)]
