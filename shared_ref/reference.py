"""The contract's sections 4 and 5 as code: the plan that every backend must reproduce byte for byte.

A loop over requests with numpy slices. `fill_plan`, `fill_offsets` and `fill_entries` take a launcher's
arguments by name, checked and with the plans' buffers under the names of the staged launchers; the CPU
path of torch enters there too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .batch import Arguments, Request, cells, requests
from .constants import NO_SLOT, NO_TOKEN
from .faults import count_cell_faults, count_request_faults, first_fault
from .schema import (
    COLUMNS,
    LAUNCH_ENTRIES,
    LAUNCH_OFFSETS,
    LAUNCH_PLAN,
    FaultsFields,
    Launcher,
    VerifyPlanFields,
    WritePlanFields,
)
from .validation import NUMPY, check, fail, faults_buffer, plan_arguments


def translate(slots: np.ndarray, mapping: np.ndarray | None) -> np.ndarray:
    """Slots of the group's own pool, as int64; negative ones are sentinels and pass through."""
    if mapping is None:
        return slots
    translated = mapping.take(slots, mode="clip").astype(np.int64, copy=False)
    np.copyto(translated, slots, where=slots < 0)
    return translated


def fill_plan(arguments: Arguments) -> None:
    """Section 4, on the arguments of `launch_canary_plan_kernels`."""
    batch = requests(arguments)
    _write_rows(batch, arguments)
    count_request_faults(batch, arguments)
    if _totals(batch, arguments):
        _entries(batch, arguments)


def fill_offsets(arguments: Arguments) -> None:
    """Section 4, staged, on the arguments of `launch_plan_offsets_kernel`."""
    batch = requests(arguments)
    _write_rows(batch, arguments)
    count_request_faults(batch, arguments)
    _totals(batch, arguments)
    scratch = arguments["out_verify_offsets_scratch"]
    scratch[0] = 0
    np.array([r.verify_count for r in batch], np.int64).cumsum(out=scratch[1 : len(batch) + 1])


def fill_entries(arguments: Arguments) -> None:
    """Section 4, staged, on the arguments of `launch_plan_entries_kernel`."""
    batch = requests(arguments)
    total = sum(r.verify_count for r in batch)
    if arguments["verify_enable"][0] != 0 and total <= len(arguments[COLUMNS[0]]):
        _entries(batch, arguments)


def _plain(launcher: Launcher, arguments: Arguments) -> dict[str, Any]:
    """Without subclasses of arrays, whose slices may have another shape."""
    arrays = {name: arguments[name] for name in launcher.tensor_names}
    return {**arguments, **{k: np.asarray(v) for k, v in arrays.items() if isinstance(v, np.ndarray)}}


def _totals(batch: list[Request], arguments: Arguments) -> bool:
    total, capacity = sum(r.verify_count for r in batch), arguments["verify_capacity"]
    enable = total <= capacity
    arguments["out_verify_enable"][0] = enable
    arguments["out_verify_num_valid"][0] = min(total, capacity)
    if (out := arguments["verify_total_out"]) is not None:
        out[0] = total
    return enable


def _write_rows(batch: list[Request], arguments: Arguments) -> None:
    mapping = arguments["full_to_swa_index_mapping"]
    offsets, seeds = arguments["out_write_offsets"], arguments["out_write_seed_slot_indices"]
    bs = len(batch)
    offsets[0] = 0
    np.array([r.write_count for r in batch], np.int64).cumsum(out=offsets[1 : bs + 1])  # wraps
    offsets[bs + 1 :] = 0
    for r in batch:
        last_cell = cells(arguments, r.row, r.end - 1, r.end) if r.has_seed else None
        seeds[r.index] = NO_SLOT if last_cell is None else translate(last_cell, mapping)[0]
    arguments["out_write_num_valid_reqs"][0] = bs


def _entries(batch: list[Request], arguments: Arguments) -> None:
    count_cell_faults(batch, arguments)
    mapping = arguments["full_to_swa_index_mapping"]
    slots, tokens, positions, prev_slots = (arguments[name] for name in COLUMNS)
    begin = 0
    for r in batch:
        if r.verify_count == 0:
            continue
        span = slice(begin, begin + r.verify_count)
        # One cell more than the entries, where there is one: the predecessor of a window's first entry.
        known_slots = translate(cells(arguments, r.row, max(r.start - 1, 0), r.end), mapping)
        slots[span] = known_slots[-r.verify_count :]
        prev_slots[begin] = NO_SLOT if r.start == 0 else known_slots[0]
        prev_slots[begin + 1 : span.stop] = slots[begin : span.stop - 1]
        positions[span] = np.arange(r.start, r.end)
        tokens[span] = NO_TOKEN
        first, known = r.expected_tokens(arguments)
        tokens[begin + first : begin + first + len(known)] = known
        begin = span.stop


def launch_canary_plan_kernels_reference(
    *,
    verify_plan_out: VerifyPlanFields[np.ndarray],
    write_plan_out: WritePlanFields[np.ndarray],
    req_pool_indices: np.ndarray,
    prefix_lens: np.ndarray,
    extend_seq_lens: np.ndarray,
    req_to_token: np.ndarray,
    swa_window_size: int,
    full_to_swa_index_mapping: np.ndarray | None,
    verify_capacity: int,
    req_to_verify_expected_tokens: np.ndarray | None,
    req_to_verify_expected_tokens_valid_lens: np.ndarray | None,
    kv_token_id_vs_position_offset: int,
    page_size: int = 1,
    verify_total_out: np.ndarray | None = None,
    faults_out: np.ndarray | FaultsFields[np.ndarray] | None = None,
    strict: bool = False,
) -> None:
    """Fill both plans in place (contract, section 4).

    Args:
        verify_plan_out: plan of `verify_capacity` entries; any object with the fields of section 3.
        write_plan_out: plan of at least `bs` requests; likewise.
        req_pool_indices: int64 `[bs]`, row of each request in `req_to_token`; 0 is a padding request.
        prefix_lens: int64 `[bs]`, tokens in the cache before this step.
        extend_seq_lens: int64 `[bs]`, tokens that this step writes.
        req_to_token: int32 `[max_reqs, max_seq_len / page_size]`, slot of (row, position), or page of (row,
            position // page_size); may be row-strided.
        swa_window_size: sliding-window length in tokens; 0 or less for full attention.
        full_to_swa_index_mapping: int64 `[lut_len]`, full-pool slot to window-pool slot, or None.
        verify_capacity: length of the verify columns, in entries.
        req_to_verify_expected_tokens: int32 `[rows, max_context_len]`, token id of (row, position), or
            None; may be row-strided.
        req_to_verify_expected_tokens_valid_lens: int64 `[bs]`, leading cells of each request's row in that
            table that are current; ignored without the table.
        kv_token_id_vs_position_offset: added to a position before its token is looked up.
        page_size: slots of a cell of `req_to_token`.
        verify_total_out: int64 `[1]`, becomes the number of entries, also where they do not fit.
        faults_out: int64 `[8, 2]` or a `Faults`: what made no sense is added to it (section 5).
        strict: raise for the first value of section 5's table instead of giving its harmless answer.

    Raises:
        ValueError: a rule of section 6 is broken, or `strict` and a value makes no sense; nothing is
            written then.
    """
    arguments = locals()
    arguments |= plan_arguments(verify_plan_out, write_plan_out)
    arguments["faults_out"] = faults_buffer(faults_out)
    arguments = _plain(LAUNCH_PLAN, arguments) | check(LAUNCH_PLAN, NUMPY, arguments)
    if strict and (fault := first_fault(arguments)) is not None:
        fail(fault)
    fill_plan(arguments)


def launch_plan_offsets_kernel_reference(
    *,
    req_pool_indices: np.ndarray,
    prefix_lens: np.ndarray,
    extend_seq_lens: np.ndarray,
    req_to_token: np.ndarray,
    full_to_swa_index_mapping: np.ndarray | None,
    out_verify_offsets_scratch: np.ndarray,
    out_write_offsets: np.ndarray,
    out_write_seed_slot_indices: np.ndarray,
    out_verify_num_valid: np.ndarray,
    out_verify_enable: np.ndarray,
    out_write_num_valid_reqs: np.ndarray,
    swa_window_size: int,
    verify_capacity: int,
    req_to_token_stride0: int | None = None,
    write_offsets_len: int | None = None,
    write_req_capacity: int | None = None,
    page_size: int = 1,
    verify_total_out: np.ndarray | None = None,
    faults_out: np.ndarray | FaultsFields[np.ndarray] | None = None,
) -> None:
    """Fill the write rows, the totals and the offsets scratch in place (contract, section 4, "Staged").

    Args:
        out_verify_offsets_scratch: int64 `[>= 4097]`; `[0 .. bs]` becomes the exclusive prefix sum of the
            requests' verify entries.
        out_write_offsets: int64 `[write_req_capacity + 1]`, and so on: the plans' fields of section 3.
        req_to_token_stride0: elements from a row of `req_to_token` to the next; default: the table's own.
        write_offsets_len: default: the length of `out_write_offsets`.
        write_req_capacity: default: the length of `out_write_seed_slot_indices`.

    The other arguments are those of `launch_canary_plan_kernels_reference`, but a window without a mapping
    is legal here, and `faults_out` gets the requests' own faults.

    Raises:
        ValueError: a rule of section 6 is broken; nothing is written then.
    """
    arguments = locals() | {"faults_out": faults_buffer(faults_out)}
    fill_offsets(_plain(LAUNCH_OFFSETS, arguments) | check(LAUNCH_OFFSETS, NUMPY, arguments))


def launch_plan_entries_kernel_reference(
    *,
    req_pool_indices: np.ndarray,
    prefix_lens: np.ndarray,
    req_to_token: np.ndarray,
    full_to_swa_index_mapping: np.ndarray | None,
    verify_offsets_scratch: np.ndarray,
    verify_enable: np.ndarray,
    req_to_verify_expected_tokens: np.ndarray | None,
    req_to_verify_expected_tokens_valid_lens: np.ndarray | None,
    out_verify_slot_indices: np.ndarray,
    out_verify_expected_tokens: np.ndarray,
    out_verify_expected_positions: np.ndarray,
    out_verify_prev_slot_indices: np.ndarray,
    kv_token_id_vs_position_offset: int,
    swa_window_size: int,
    page_size: int = 1,
    faults_out: np.ndarray | FaultsFields[np.ndarray] | None = None,
) -> None:
    """Fill the four verify columns in place if `verify_enable` is not 0 and the entries fit (section 4).

    Args:
        verify_offsets_scratch: int64 `[>= 4097]`, as the offsets launcher left it. Its contents are not
            trusted: the offsets are computed again.
        verify_enable: int32 `[1]`, as the offsets launcher left it.

    The other arguments are those of `launch_canary_plan_kernels_reference`, the columns by the names of
    section 2; a window without a mapping is legal here, and `faults_out` gets the faults of cells.

    Raises:
        ValueError: a rule of section 6 is broken; nothing is written then.
    """
    arguments = locals() | {"faults_out": faults_buffer(faults_out)}
    fill_entries(_plain(LAUNCH_ENTRIES, arguments) | check(LAUNCH_ENTRIES, NUMPY, arguments))
