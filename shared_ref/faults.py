"""Values that make no sense: found, counted, and told in the words of the contract's section 5."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .arrays import as_numpy
from .batch import Arguments, Request, cells, max_seq_len, requests
from .constants import FAULT_KINDS, FAULT_POSITION_BITS, NO_PLACE
from .schema import PLAN, PLAN_INPUTS, FaultsFields
from .validation import fail, faults_buffer

_ROW, _PREFIX_SIGN, _EXTEND_SIGN, _PREFIX_END, _SLOT_END, _TOKEN, _SLOT_SIGN, _DUMMY = range(len(FAULT_KINDS))

_CHUNK = 2**20
"""Positions that are looked at together: a corrupt length may claim more than memory holds."""


def first_fault(arguments: Arguments) -> str | None:
    """The text of the batch's first fault, or None. `arguments`: those of `launch_canary_plan_kernels`."""
    return next((text for r in requests(arguments) for text in request_faults(r, arguments)), None)


def request_faults(r: Request, arguments: Arguments) -> Iterator[str]:
    """Every fault of one request, in the contract's order. A padding request has none."""
    for kind in _kinds(r, arguments):
        yield _text(kind, r, None, arguments)
    if r.active:
        first, stop = _positions(r)
        for begin in range(first, stop, _CHUNK):
            yield from _cell_faults(r, arguments, begin, min(begin + _CHUNK, stop))


def _cell_faults(r: Request, arguments: Arguments, first: int, stop: int) -> Iterator[str]:
    found = _cell_kinds(r, arguments, first, stop)
    # The cells that are no entry's are looked up, but no token belongs to them.
    found[_TOKEN, : max(r.start - first, 0)] = False
    if r.verify_count == 0:
        found[_TOKEN] = False
    for i in np.flatnonzero(found[_SLOT_END] | found[_TOKEN]):
        for kind in (_SLOT_END, _TOKEN):
            if found[kind, i]:
                yield _text(kind, r, first + int(i), arguments)


def count_request_faults(batch: list[Request], arguments: Arguments) -> None:
    """Add the requests' own faults to `faults_out`, if there is one (section 5)."""
    if (out := arguments["faults_out"]) is not None:
        for r in batch:
            for kind in _kinds(r, arguments):
                _count(out, kind, 1, r.index, 0)


def count_cell_faults(batch: list[Request], arguments: Arguments) -> None:
    """Add the faults of the entries' cells to `faults_out`, if there is one (section 5)."""
    if (out := arguments["faults_out"]) is not None:
        for r in batch:
            if r.verify_count > 0:
                found = _cell_kinds(r, arguments, r.start, r.end)
                for kind in np.flatnonzero(found.any(axis=1)).tolist():
                    where = np.flatnonzero(found[kind])
                    _count(out, kind, len(where), r.index, r.start + int(where[0]))


def _count(out: np.ndarray, kind: int, n: int, request: int, position: int) -> None:
    out[kind : kind + 1, 0] += n  # of an array: wraps
    places = out[:, 1].view(np.uint64)
    places[kind] = min(int(places[kind]), request << FAULT_POSITION_BITS | position)


def _kinds(r: Request, arguments: Arguments) -> Iterator[int]:
    """The faults of a request's own values."""
    if r.is_padding:
        return
    if not r.active:
        yield _ROW
    if r.prefix_len < 0:
        yield _PREFIX_SIGN
    if r.extend_len < 0:
        yield _EXTEND_SIGN
    if r.prefix_len > max_seq_len(arguments):
        yield _PREFIX_END


def _cell_kinds(r: Request, arguments: Arguments, first: int, stop: int) -> np.ndarray:
    """bool `[kinds, stop - first]`: what is wrong with the cells of some positions of an active request."""
    slots, positions = cells(arguments, r.row, first, stop), np.arange(first, stop)
    found = np.zeros((len(FAULT_KINDS), len(slots)), bool)
    found[_SLOT_SIGN] = slots < 0
    found[_DUMMY] = (slots >= 0) & (slots < arguments.get("page_size", 1))
    if (mapping := arguments["full_to_swa_index_mapping"]) is not None:
        found[_SLOT_END] = slots >= len(mapping)
    if (tokens := arguments["req_to_verify_expected_tokens"]) is not None:
        rows, columns = tokens.shape
        q = positions + arguments["kv_token_id_vs_position_offset"]
        is_cell = (q >= 0) & (q < columns) & (r.row < rows)
        found[_TOKEN] = (q < arguments["req_to_verify_expected_tokens_valid_lens"][r.index]) & ~is_cell
    return found


def _positions(r: Request) -> tuple[int, int]:
    """The positions whose cells are read: the entries, the cell before them, and the seed's."""
    if r.verify_count > 0:
        return max(r.start - 1, 0), r.end
    return (r.end - 1, r.end) if r.has_seed else (0, 0)


def _text(kind: int, r: Request, position: int | None, arguments: Arguments) -> str:
    if kind in (_SLOT_END, _SLOT_SIGN, _DUMMY):
        assert position is not None
        value = int(cells(arguments, r.row, position, position + 1)[0])
    elif kind == _TOKEN:
        assert position is not None
        value = position + arguments["kv_token_id_vs_position_offset"]
    else:
        value = {_ROW: r.row, _EXTEND_SIGN: r.extend_len}.get(kind, r.prefix_len)
    return _words(kind, r.index, position, f" {value}", _sizes(arguments))


def _sizes(arguments: Arguments) -> dict[str, str]:
    mapping, tokens = arguments["full_to_swa_index_mapping"], arguments["req_to_verify_expected_tokens"]
    rows, columns = (0, 0) if tokens is None else tokens.shape
    return {
        "rows": f" ({len(arguments['req_to_token'])} rows)",
        "positions": f" {max_seq_len(arguments)}",
        "slots": f" ({0 if mapping is None else len(mapping)} slots)",
        "tokens": f" ({rows} rows, {columns} columns)",
    }


def _words(kind: int, request: int, position: int | None, value: str, sizes: Mapping[str, str]) -> str:
    """Section 5's text. Values and sizes that are not known are left out."""
    rows, positions, slots, tokens = (sizes.get(k, "") for k in ("rows", "positions", "slots", "tokens"))
    at = f"request {request}" if position is None else f"request {request}, position {position}"
    what = {
        _ROW: f"row{value} is outside req_to_token{rows}",
        _PREFIX_SIGN: f"prefix_lens{value} is negative",
        _EXTEND_SIGN: f"extend_seq_lens{value} is negative",
        _PREFIX_END: f"prefix_lens{value} exceeds the{positions} positions of req_to_token",
        _SLOT_END: f"slot{value} is outside full_to_swa_index_mapping{slots}",
        _TOKEN: f"token position{value} is outside req_to_verify_expected_tokens{tokens}",
        _SLOT_SIGN: f"slot{value} is negative",
        _DUMMY: f"slot{value} is of the dummy page",
    }
    return f"{at}: {what[kind]}"


def decode_faults(buffer: Any, inputs: Mapping[str, Any] | None = None) -> list[str]:
    """What a `faults_out` buffer holds, a line for each kind that was found (contract, section 5).

    A line is the text of the kind's first fault, and how many there were: `request 7: row 9001 is outside
    req_to_token (64 rows); 3 in all`. Reading the buffer waits for the device.

    Args:
        buffer: int64 `[8, 2]`, or a `Faults`: numpy's, torch's, JAX's, or anything numpy can read.
        inputs: the arguments of the launcher or of `plan` by name, arrays of any framework, for the values
            and sizes in the texts. Those of another step than the one that had the first fault do no harm:
            its values are left out.

    Raises:
        ValueError: `buffer` has another shape or dtype, or `inputs` lacks an argument that is needed.
    """
    array = as_numpy(faults_buffer(buffer))
    if array.shape != FaultsFields.SHAPE or array.dtype != np.int64:
        fail(f"decode_faults takes int64 {list(FaultsFields.SHAPE)}, got {array.dtype} {list(array.shape)}")
    arguments = None if inputs is None else _arguments(inputs)
    lines = []
    for kind, (count, place) in enumerate(array.tolist()):
        if place == NO_PLACE or count == 0:
            continue
        # As unsigned: a request is below 2**12, but a buffer that was never reset may hold anything.
        request, position = divmod(place % 2**64, 2**FAULT_POSITION_BITS)
        lines.append(f"{_decoded(kind, request, position, arguments)}; {count} in all")
    return lines


def _arguments(inputs: Mapping[str, Any]) -> dict[str, Any]:
    arguments = _DEFAULTS | dict(inputs)
    for name in PLAN_INPUTS:
        if arguments.get(name) is not None:
            arguments[name] = as_numpy(arguments[name])
    tensors = [t for t in PLAN.tensors if t.name in PLAN_INPUTS]
    needed = {t.name for t in tensors if not t.optional}
    if arguments.get("extend_seq_lens") is None:  # those of the entries launcher
        arguments.pop("extend_seq_lens", None)
        needed.remove("extend_seq_lens")
    if arguments["req_to_verify_expected_tokens"] is not None:
        needed.add("req_to_verify_expected_tokens_valid_lens")
    if missing := [t.name for t in tensors if t.name in needed and arguments.get(t.name) is None]:
        fail(f"decode_faults needs {', '.join(missing)} in inputs")
    bs = len(arguments["req_pool_indices"])
    for t in tensors:
        if t.name in needed and t.length == "bs" and len(arguments[t.name]) != bs:
            fail(f"{t.name} length must be {bs}, got {len(arguments[t.name])}")
    return arguments


_DEFAULTS = {
    "swa_window_size": 0,
    "full_to_swa_index_mapping": None,
    "req_to_verify_expected_tokens": None,
    "kv_token_id_vs_position_offset": 0,
}
"""Of what `plan` may be called without."""


def _decoded(kind: int, request: int, position: int, arguments: Arguments | None) -> str:
    at = position if kind >= _SLOT_END else None
    if arguments is None:
        return _words(kind, request, at, "", {})
    batch = requests(arguments)
    if request < len(batch):
        r = batch[request]
        if at is None:
            is_there = kind in _kinds(r, arguments)
        else:
            is_there = r.active and r.start <= position < r.end
            is_there = is_there and bool(_cell_kinds(r, arguments, position, position + 1)[kind, 0])
        if is_there:
            return _text(kind, r, at, arguments)
    return _words(kind, request, at, "", _sizes(arguments))
