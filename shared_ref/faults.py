"""Values that make no sense, in the order and the words of the contract's section 5."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .batch import Arguments, Request, requests
from .constants import PADDING_ROW


def first_fault(arguments: Arguments) -> str | None:
    """The text of the batch's first fault, or None. `arguments`: those of `launch_canary_plan_kernels`."""
    return next((text for r in requests(arguments) for text in request_faults(r, arguments)), None)


def request_faults(r: Request, arguments: Arguments) -> Iterator[str]:
    """Every fault of one request, in the contract's order. A padding request has none."""
    max_reqs, max_seq_len = arguments["req_to_token"].shape
    if r.row == PADDING_ROW:
        return
    if not r.active:
        yield f"request {r.index}: row {r.row} is outside req_to_token ({max_reqs} rows)"
    if r.prefix_len < 0:
        yield f"request {r.index}: prefix_lens {r.prefix_len} is negative"
    if r.extend_len < 0:
        yield f"request {r.index}: extend_seq_lens {r.extend_len} is negative"
    if r.prefix_len > max_seq_len:
        yield (
            f"request {r.index}: prefix_lens {r.prefix_len} exceeds the {max_seq_len} positions "
            "of req_to_token"
        )
    if r.active:
        yield from _cell_faults(r, arguments)


def _cell_faults(r: Request, arguments: Arguments) -> Iterator[str]:
    mapping, tokens = arguments["full_to_swa_index_mapping"], arguments["req_to_verify_expected_tokens"]
    first, stop = _positions(r)
    positions = np.arange(first, stop)
    slots = arguments["req_to_token"][r.row, first:stop]
    lut_len = len(mapping) if mapping is not None else 2**31
    bad_slots = slots >= lut_len
    q = positions + arguments["kv_token_id_vs_position_offset"]
    if tokens is None:
        rows, columns = 0, 0
        bad_tokens = np.zeros(len(positions), bool)
    else:
        rows, columns = tokens.shape
        is_cell = (q >= 0) & (q < columns) & (r.row < rows)
        is_current = q < arguments["req_to_verify_expected_tokens_valid_lens"][r.index]
        bad_tokens = (positions >= r.start) & is_current & ~is_cell
    for i in np.flatnonzero(bad_slots | bad_tokens):
        at = f"request {r.index}, position {positions[i]}"
        if bad_slots[i]:
            yield f"{at}: slot {slots[i]} is outside full_to_swa_index_mapping ({lut_len} slots)"
        if bad_tokens[i]:
            yield (
                f"{at}: token position {q[i]} is outside req_to_verify_expected_tokens "
                f"({rows} rows, {columns} columns)"
            )


def _positions(r: Request) -> tuple[int, int]:
    """The positions whose cells are read: the entries, the cell before them, and the seed's."""
    if r.verify_count > 0:
        return max(r.start - 1, 0), r.end
    return (r.end - 1, r.end) if r.has_seed else (0, 0)
