"""The plan as Triton kernels, for torch and for JAX (contract, section 4). Imports triton alone.

Decomposition. The entries of one request are cut into *units* of `TILE` positions, so that a unit never
crosses a request. Every program reads the whole batch's rows and prefix lengths (16 bytes a request, from
L2 after the first program), scans them into the requests' last units and last entries, and then knows by
one reduction which request a unit belongs to and where its entries go. Unit programs take `UNITS`
neighbouring units at a time, a grid's stride apart, so that neighbouring programs write neighbouring
memory. The first `WRITERS` programs write the write rows instead, an equal share of the requests each.

One program owns the elements of its units, respectively of its requests, and no two programs touch the
same element: no atomics, no scratch, no order among programs.

Bytes that must move for an entry: 4 of the slot table, 32 of the columns, 8 more with a mapping and 4
more with a token table.

Nothing specialises on a value: integers are typed and pointers are taken as they come, so the
compilations of a kernel are its constexpr arguments' combinations.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import triton
import triton.language as tl

CHUNK = tl.constexpr(64)
"""Requests that a warp sums, and scans, without help from other warps."""


@triton.jit
def _add2(a0, b0, a1, b1):
    return a0 + a1, b0 + b1


@triton.jit
def _max2(a0, b0, a1, b1):
    return tl.maximum(a0, a1), tl.maximum(b0, b1)


@triton.jit
def _max3(a0, b0, c0, a1, b1, c1):
    return tl.maximum(a0, a1), tl.maximum(b0, b1), tl.maximum(c0, c1)


@triton.jit
def _sum_max4(s0, a0, b0, c0, d0, s1, a1, b1, c1, d1):
    return s0 + s1, tl.maximum(a0, a1), tl.maximum(b0, b1), tl.maximum(c0, c1), tl.maximum(d0, d1)


@triton.jit
def _is_active(row, max_reqs):
    return (row > 0) & (row < max_reqs)


@triton.jit
def _span(prefix_len, max_seq_len, swa_window_size, WINDOWED: tl.constexpr):
    """The positions to verify, int64: first, and one past the last that the table has."""
    prefix_len = tl.maximum(prefix_len, 0)
    end = tl.minimum(prefix_len, max_seq_len)
    start = tl.maximum(prefix_len - swa_window_size, 0) if WINDOWED else end * 0
    return start, end


@triton.jit
def _verify_counts(row, prefix_len, max_reqs, max_seq_len, swa_window_size, WINDOWED: tl.constexpr):
    start, end = _span(prefix_len, max_seq_len, swa_window_size, WINDOWED)
    return tl.where(_is_active(row, max_reqs), tl.maximum(end - start, 0), 0)


@triton.jit
def _units(count, TILE: tl.constexpr):
    """int32; wraps only where the entries do not fit, and then nothing follows from it."""
    return ((count.to(tl.uint32) + (TILE - 1)) // TILE).to(tl.int32)


@triton.jit
def _translate(cell, mask, mapping, lut_len):
    """Slots of the group's own pool, int64; negative ones are sentinels and pass through."""
    slot = cell.to(tl.int64)
    if mapping is not None:
        known = mask & (cell >= 0)
        last = tl.minimum(lut_len - 1, 0x7FFFFFFF).to(tl.int32)
        slot = tl.where(known, tl.load(mapping + tl.minimum(cell, last), known, other=0), slot)
    return slot


@triton.jit
def _store_exclusive_cumsum(out, counts, index, bs, before):
    """`out[index + 1]`, and `out[0]` by whoever owns request 0; `before` precedes the first count."""
    tl.store(out + index, tl.full(index.shape, 0, tl.int64), index == 0)
    tl.store(out + index + 1, tl.cumsum(counts, 0) + before, index < bs)


@triton.jit
def _write_rows(
    writer,
    req_pool_indices,
    prefix_lens,
    extend_seq_lens,
    req_to_token,
    mapping,
    write_offsets,
    write_seeds,
    num_valid_reqs,
    verify_offsets,
    num_valid,
    enable,
    bs,
    max_reqs,
    max_seq_len,
    req_to_token_stride0,
    lut_len,
    swa_window_size,
    verify_capacity,
    write_offsets_len,
    BS: tl.constexpr,
    WINDOWED: tl.constexpr,
    WRITERS: tl.constexpr,
):
    """Write rows of this writer's share of the requests; writer 0 writes the totals too."""
    share: tl.constexpr = BS // WRITERS
    index = writer * share + tl.arange(0, share)
    in_batch = index < bs
    row = tl.load(req_pool_indices + index, in_batch, other=0)
    prefix_len = tl.load(prefix_lens + index, in_batch, other=0)
    extend_len = tl.load(extend_seq_lens + index, in_batch, other=0)
    end = _span(prefix_len, max_seq_len, swa_window_size, WINDOWED)[1]
    count = tl.where(_is_active(row, max_reqs), tl.maximum(extend_len, 0), 0)
    has_seed = (count > 0) & (end > 0)
    cell = tl.load(req_to_token + row * req_to_token_stride0 + end - 1, has_seed, other=-1)

    everyone = tl.arange(0, BS)
    rows = tl.load(req_pool_indices + everyone, everyone < bs, other=0)
    lens = tl.load(prefix_lens + everyone, everyone < bs, other=0)
    verify_count = _verify_counts(rows, lens, max_reqs, max_seq_len, swa_window_size, WINDOWED)
    written_before = tl.zeros([], tl.int64)
    verified_before = tl.zeros([], tl.int64)
    if WRITERS > 1:
        before = everyone < writer * share
        lens = tl.load(extend_seq_lens + everyone, before & (everyone < bs), other=0)
        written = tl.where(before & _is_active(rows, max_reqs), tl.maximum(lens, 0), 0)
        written_before = tl.sum(written, 0)
        verified_before = tl.sum(tl.where(before, verify_count, 0), 0)

    _store_exclusive_cumsum(write_offsets, count, index, bs, written_before)
    behind = bs + 1 + index
    for first in range(0, write_offsets_len - bs - 1, BS):
        zero = tl.full([share], 0, tl.int64)
        tl.store(write_offsets + first + behind, zero, first + behind < write_offsets_len)
    if verify_offsets is not None:
        own = _verify_counts(row, prefix_len, max_reqs, max_seq_len, swa_window_size, WINDOWED)
        _store_exclusive_cumsum(verify_offsets, own, index, bs, verified_before)
    if writer == 0:
        total = tl.sum(verify_count, 0)
        tl.store(num_valid, tl.minimum(total, verify_capacity).to(tl.int32))
        tl.store(enable, (total <= verify_capacity).to(tl.int32))
        tl.store(num_valid_reqs, bs)
    tl.store(write_seeds + index, _translate(cell, has_seed, mapping, lut_len), in_batch)


@triton.jit
def _scan(count, TILE: tl.constexpr):
    """Up to and with each request: entries, units."""
    return tl.associative_scan((count.to(tl.int32), _units(count, TILE)), 0, _add2)


@triton.jit
def _find(unit, last_entries, last_units, index):
    """Which element a unit belongs to, and its first unit and first entry.

    Both scans never decrease: the greatest of those that ended are the latest.
    """
    ended = last_units <= unit
    return tl.reduce(
        (tl.where(ended, index + 1, 0), tl.where(ended, last_units, 0), tl.where(ended, last_entries, 0)),
        0,
        _max3,
    )


@triton.jit
def _store_units(
    request,
    nth_unit,
    first_entry,
    is_unit,
    req_pool_indices,
    prefix_lens,
    req_to_token,
    mapping,
    tokens,
    valid_lens,
    slots,
    expected_tokens,
    positions,
    prev_slots,
    max_seq_len,
    req_to_token_stride0,
    lut_len,
    swa_window_size,
    token_rows,
    token_columns,
    tokens_stride0,
    kv_token_id_vs_position_offset,
    WINDOWED: tl.constexpr,
    INDEX: tl.constexpr,
    TILE: tl.constexpr,
    UNITS: tl.constexpr,
):
    """The entries of some units: one a row of the tile, given its request and its number there."""
    row = tl.load(req_pool_indices + request, is_unit, other=0)
    prefix_len = tl.load(prefix_lens + request, is_unit, other=0)
    start, end = _span(prefix_len, max_seq_len, swa_window_size, WINDOWED)
    start = start.to(INDEX)[:, None]
    end = tl.where(is_unit, end, 0).to(INDEX)[:, None]
    nth_entry = (nth_unit * TILE)[:, None] + tl.arange(0, TILE)[None, :]
    position = start + nth_entry
    entry = first_entry[:, None] + nth_entry
    is_entry = position < end
    cells = req_to_token + (row * req_to_token_stride0)[:, None] + position
    cell = tl.load(cells, is_entry, other=0)
    # The mapping is gathered once a slot, and the successor's entry gets the same; only the first entry of
    # a request looks its predecessor up. Without a mapping, reading a cell twice costs less.
    looks_back = is_entry
    if mapping is not None:
        looks_back = is_entry & (position == start)
    prev_cell = tl.load(cells - 1, looks_back & (position > 0), other=-1)
    if tokens is not None:
        valid_len = tl.maximum(tl.load(valid_lens + request, is_unit, other=0), 0)
        known = tl.minimum(valid_len, token_columns)
        known = tl.where(row < token_rows, known, 0) - kv_token_id_vs_position_offset
        last: tl.constexpr = 2 ** (INDEX.primitive_bitwidth - 1) - 1
        stop = tl.minimum(tl.maximum(known, 0), last).to(INDEX)[:, None]
        first = tl.minimum(tl.maximum(-kv_token_id_vs_position_offset, 0), last).to(INDEX)
        token_cells = tokens + (row * tokens_stride0 + kv_token_id_vs_position_offset)[:, None] + position
        has_token = is_entry & (position >= first) & (position < stop)
        token = tl.load(token_cells, has_token, other=-1).to(tl.int64)
    else:
        token = tl.full([UNITS, TILE], -1, tl.int64)
    tl.store(positions + entry, position.to(tl.int64), is_entry)
    tl.store(expected_tokens + entry, token, is_entry)
    slot = _translate(cell, is_entry, mapping, lut_len)
    tl.store(slots + entry, slot, is_entry)
    tl.store(prev_slots + entry, _translate(prev_cell, looks_back, mapping, lut_len), looks_back)
    if mapping is not None:
        tl.store(prev_slots + entry + 1, slot, is_entry & (position + 1 < end))


@triton.jit
def _entries(
    program,
    programs,
    req_pool_indices,
    prefix_lens,
    req_to_token,
    mapping,
    tokens,
    valid_lens,
    slots,
    expected_tokens,
    positions,
    prev_slots,
    bs,
    max_reqs,
    max_seq_len,
    req_to_token_stride0,
    lut_len,
    swa_window_size,
    verify_capacity,
    token_rows,
    token_columns,
    tokens_stride0,
    kv_token_id_vs_position_offset,
    BS: tl.constexpr,
    WINDOWED: tl.constexpr,
    INDEX: tl.constexpr,
    TILE: tl.constexpr,
):
    """One unit at a time, a grid's stride apart, if all entries of the batch fit."""
    request = tl.arange(0, BS)
    row = tl.load(req_pool_indices + request, request < bs, other=0)
    prefix_len = tl.load(prefix_lens + request, request < bs, other=0)
    count = _verify_counts(row, prefix_len, max_reqs, max_seq_len, swa_window_size, WINDOWED)
    last_entries, last_units = _scan(count, TILE)
    unit = program
    ended = last_units <= unit
    # `_find`, and the totals in the same pass.
    total, n_units, found, first_unit, first_entry = tl.reduce(
        (
            count,
            last_units,
            tl.where(ended, request + 1, 0),
            tl.where(ended, last_units, 0),
            tl.where(ended, last_entries, 0),
        ),
        0,
        _sum_max4,
    )
    n_units = tl.where(total <= verify_capacity, n_units, 0)
    one = tl.zeros([1], tl.int32)
    while unit < n_units:
        _store_units(
            found + one,
            unit - first_unit + one,
            first_entry + one,
            one == 0,
            req_pool_indices,
            prefix_lens,
            req_to_token,
            mapping,
            tokens,
            valid_lens,
            slots,
            expected_tokens,
            positions,
            prev_slots,
            max_seq_len,
            req_to_token_stride0,
            lut_len,
            swa_window_size,
            token_rows,
            token_columns,
            tokens_stride0,
            kv_token_id_vs_position_offset,
            WINDOWED,
            INDEX,
            TILE,
            1,
        )
        unit += programs
        if unit < n_units:
            found, first_unit, first_entry = _find(unit, last_entries, last_units, request)


@triton.jit
def _entries_of_large_batch(
    program,
    programs,
    req_pool_indices,
    prefix_lens,
    req_to_token,
    mapping,
    tokens,
    valid_lens,
    slots,
    expected_tokens,
    positions,
    prev_slots,
    bs,
    max_reqs,
    max_seq_len,
    req_to_token_stride0,
    lut_len,
    swa_window_size,
    verify_capacity,
    token_rows,
    token_columns,
    tokens_stride0,
    kv_token_id_vs_position_offset,
    BS: tl.constexpr,
    WINDOWED: tl.constexpr,
    INDEX: tl.constexpr,
    TILE: tl.constexpr,
    UNITS: tl.constexpr,
):
    """`UNITS` units at a time of an equal share of neighbouring units, if all entries of the batch fit.

    Looking a unit up in the whole batch is dear here. So the share's first unit is looked up once, and
    from there the requests are walked through, a chunk at a time.
    """
    CHUNKS: tl.constexpr = BS // CHUNK
    chunk = tl.arange(0, CHUNKS)
    in_chunk = tl.arange(0, CHUNK)
    request = chunk[:, None] * CHUNK + in_chunk[None, :]
    row = tl.load(req_pool_indices + request, request < bs, other=0)
    prefix_len = tl.load(prefix_lens + request, request < bs, other=0)
    count = _verify_counts(row, prefix_len, max_reqs, max_seq_len, swa_window_size, WINDOWED)
    counts, units = tl.reduce((count, _units(count, TILE)), 1, _add2)
    total, n_units = tl.reduce((counts, units), 0, _add2)
    n_units = tl.where(total <= verify_capacity, n_units, 0)
    share = tl.cdiv(n_units, programs)
    unit = program * share
    stop = tl.minimum(unit + share, n_units)
    if unit < stop:
        last_entries, last_units = tl.associative_scan((counts.to(tl.int32), units), 0, _add2)
        found, first_unit, first_entry = _find(unit, last_entries, last_units, chunk)
        near = found * CHUNK
        while unit < stop:
            near_row = tl.load(req_pool_indices + near + in_chunk, near + in_chunk < bs, other=0)
            near_len = tl.load(prefix_lens + near + in_chunk, near + in_chunk < bs, other=0)
            near_count = _verify_counts(near_row, near_len, max_reqs, max_seq_len, swa_window_size, WINDOWED)
            near_entries, near_units = _scan(near_count, TILE)
            units_here, entries_here = tl.reduce((near_units, near_entries), 0, _max2)
            first = unit - first_unit
            last = tl.minimum(stop - first_unit, units_here)
            for nth in range(first, last, UNITS):
                nth_unit = nth + tl.arange(0, UNITS)
                ended = near_units[None, :] <= nth_unit[:, None]
                request_of, first_unit_of, first_entry_of = tl.reduce(
                    (
                        tl.where(ended, in_chunk[None, :] + 1, 0),
                        tl.where(ended, near_units[None, :], 0),
                        tl.where(ended, near_entries[None, :], 0),
                    ),
                    1,
                    _max3,
                )
                _store_units(
                    near + request_of,
                    nth_unit - first_unit_of,
                    first_entry + first_entry_of,
                    nth_unit < last,
                    req_pool_indices,
                    prefix_lens,
                    req_to_token,
                    mapping,
                    tokens,
                    valid_lens,
                    slots,
                    expected_tokens,
                    positions,
                    prev_slots,
                    max_seq_len,
                    req_to_token_stride0,
                    lut_len,
                    swa_window_size,
                    token_rows,
                    token_columns,
                    tokens_stride0,
                    kv_token_id_vs_position_offset,
                    WINDOWED,
                    INDEX,
                    TILE,
                    UNITS,
                )
            unit = first_unit + last
            first_unit += units_here
            first_entry += entries_here
            near += CHUNK


_INTEGERS = (
    "bs",
    "max_reqs",
    "max_seq_len",
    "req_to_token_stride0",
    "lut_len",
    "swa_window_size",
    "verify_capacity",
    "write_offsets_len",
    "token_rows",
    "token_columns",
    "tokens_stride0",
    "kv_token_id_vs_position_offset",
)
_POINTERS = (
    "req_pool_indices",
    "prefix_lens",
    "extend_seq_lens",
    "req_to_token",
    "full_to_swa_index_mapping",
    "req_to_verify_expected_tokens",
    "req_to_verify_expected_tokens_valid_lens",
    "out_verify_offsets_scratch",
    "verify_enable",
    "out_verify_slot_indices",
    "out_verify_expected_tokens",
    "out_verify_expected_positions",
    "out_verify_prev_slot_indices",
    "out_verify_num_valid",
    "out_verify_enable",
    "out_write_offsets",
    "out_write_seed_slot_indices",
    "out_write_num_valid_reqs",
)


def _jit(kernel):
    """A kernel with one compilation per combination of its constexpr arguments."""
    names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    return triton.jit(
        kernel,
        do_not_specialize=[name for name in names if name in _INTEGERS],
        do_not_specialize_on_alignment=[name for name in names if name in _POINTERS],
    )


@_jit
def plan_kernel(
    req_pool_indices,
    prefix_lens,
    extend_seq_lens,
    req_to_token,
    full_to_swa_index_mapping,
    req_to_verify_expected_tokens,
    req_to_verify_expected_tokens_valid_lens,
    out_verify_slot_indices,
    out_verify_expected_tokens,
    out_verify_expected_positions,
    out_verify_prev_slot_indices,
    out_verify_num_valid,
    out_verify_enable,
    out_write_offsets,
    out_write_seed_slot_indices,
    out_write_num_valid_reqs,
    bs: tl.int32,
    max_reqs: tl.int64,
    max_seq_len: tl.int64,
    req_to_token_stride0: tl.int64,
    lut_len: tl.int64,
    swa_window_size: tl.int64,
    verify_capacity: tl.int64,
    write_offsets_len: tl.int32,
    token_rows: tl.int64,
    token_columns: tl.int64,
    tokens_stride0: tl.int64,
    kv_token_id_vs_position_offset: tl.int64,
    BS: tl.constexpr,
    WINDOWED: tl.constexpr,
    INDEX: tl.constexpr,
    TILE: tl.constexpr,
    UNITS: tl.constexpr,
    WRITERS: tl.constexpr,
):
    """The whole plan. Grid: `WRITERS` programs for the write rows, the others share the entries."""
    program = tl.program_id(0)
    if program < WRITERS:
        _write_rows(
            program,
            req_pool_indices,
            prefix_lens,
            extend_seq_lens,
            req_to_token,
            full_to_swa_index_mapping,
            out_write_offsets,
            out_write_seed_slot_indices,
            out_write_num_valid_reqs,
            None,
            out_verify_num_valid,
            out_verify_enable,
            bs,
            max_reqs,
            max_seq_len,
            req_to_token_stride0,
            lut_len,
            swa_window_size,
            verify_capacity,
            write_offsets_len,
            BS,
            WINDOWED,
            WRITERS,
        )
    elif UNITS == 1:
        _entries(
            program - WRITERS,
            tl.num_programs(0) - WRITERS,
            req_pool_indices,
            prefix_lens,
            req_to_token,
            full_to_swa_index_mapping,
            req_to_verify_expected_tokens,
            req_to_verify_expected_tokens_valid_lens,
            out_verify_slot_indices,
            out_verify_expected_tokens,
            out_verify_expected_positions,
            out_verify_prev_slot_indices,
            bs,
            max_reqs,
            max_seq_len,
            req_to_token_stride0,
            lut_len,
            swa_window_size,
            verify_capacity,
            token_rows,
            token_columns,
            tokens_stride0,
            kv_token_id_vs_position_offset,
            BS,
            WINDOWED,
            INDEX,
            TILE,
        )
    else:
        _entries_of_large_batch(
            program - WRITERS,
            tl.num_programs(0) - WRITERS,
            req_pool_indices,
            prefix_lens,
            req_to_token,
            full_to_swa_index_mapping,
            req_to_verify_expected_tokens,
            req_to_verify_expected_tokens_valid_lens,
            out_verify_slot_indices,
            out_verify_expected_tokens,
            out_verify_expected_positions,
            out_verify_prev_slot_indices,
            bs,
            max_reqs,
            max_seq_len,
            req_to_token_stride0,
            lut_len,
            swa_window_size,
            verify_capacity,
            token_rows,
            token_columns,
            tokens_stride0,
            kv_token_id_vs_position_offset,
            BS,
            WINDOWED,
            INDEX,
            TILE,
            UNITS,
        )


@_jit
def offsets_kernel(
    req_pool_indices,
    prefix_lens,
    extend_seq_lens,
    req_to_token,
    full_to_swa_index_mapping,
    out_verify_offsets_scratch,
    out_write_offsets,
    out_write_seed_slot_indices,
    out_verify_num_valid,
    out_verify_enable,
    out_write_num_valid_reqs,
    bs: tl.int32,
    max_reqs: tl.int64,
    max_seq_len: tl.int64,
    req_to_token_stride0: tl.int64,
    lut_len: tl.int64,
    swa_window_size: tl.int64,
    verify_capacity: tl.int64,
    write_offsets_len: tl.int32,
    BS: tl.constexpr,
    WINDOWED: tl.constexpr,
    WRITERS: tl.constexpr,
):
    """The staged launcher's first half. Grid: `WRITERS` programs."""
    _write_rows(
        tl.program_id(0),
        req_pool_indices,
        prefix_lens,
        extend_seq_lens,
        req_to_token,
        full_to_swa_index_mapping,
        out_write_offsets,
        out_write_seed_slot_indices,
        out_write_num_valid_reqs,
        out_verify_offsets_scratch,
        out_verify_num_valid,
        out_verify_enable,
        bs,
        max_reqs,
        max_seq_len,
        req_to_token_stride0,
        lut_len,
        swa_window_size,
        verify_capacity,
        write_offsets_len,
        BS,
        WINDOWED,
        WRITERS,
    )


@_jit
def entries_kernel(
    req_pool_indices,
    prefix_lens,
    req_to_token,
    full_to_swa_index_mapping,
    req_to_verify_expected_tokens,
    req_to_verify_expected_tokens_valid_lens,
    verify_enable,
    out_verify_slot_indices,
    out_verify_expected_tokens,
    out_verify_expected_positions,
    out_verify_prev_slot_indices,
    bs: tl.int32,
    max_reqs: tl.int64,
    max_seq_len: tl.int64,
    req_to_token_stride0: tl.int64,
    lut_len: tl.int64,
    swa_window_size: tl.int64,
    verify_capacity: tl.int64,
    token_rows: tl.int64,
    token_columns: tl.int64,
    tokens_stride0: tl.int64,
    kv_token_id_vs_position_offset: tl.int64,
    BS: tl.constexpr,
    WINDOWED: tl.constexpr,
    INDEX: tl.constexpr,
    TILE: tl.constexpr,
    UNITS: tl.constexpr,
):
    """The staged launcher's second half. Grid: programs that share the entries."""
    wanted_capacity = tl.where(tl.load(verify_enable) != 0, verify_capacity, -1)
    if UNITS == 1:
        _entries(
            tl.program_id(0),
            tl.num_programs(0),
            req_pool_indices,
            prefix_lens,
            req_to_token,
            full_to_swa_index_mapping,
            req_to_verify_expected_tokens,
            req_to_verify_expected_tokens_valid_lens,
            out_verify_slot_indices,
            out_verify_expected_tokens,
            out_verify_expected_positions,
            out_verify_prev_slot_indices,
            bs,
            max_reqs,
            max_seq_len,
            req_to_token_stride0,
            lut_len,
            swa_window_size,
            wanted_capacity,
            token_rows,
            token_columns,
            tokens_stride0,
            kv_token_id_vs_position_offset,
            BS,
            WINDOWED,
            INDEX,
            TILE,
        )
    else:
        _entries_of_large_batch(
            tl.program_id(0),
            tl.num_programs(0),
            req_pool_indices,
            prefix_lens,
            req_to_token,
            full_to_swa_index_mapping,
            req_to_verify_expected_tokens,
            req_to_verify_expected_tokens_valid_lens,
            out_verify_slot_indices,
            out_verify_expected_tokens,
            out_verify_expected_positions,
            out_verify_prev_slot_indices,
            bs,
            max_reqs,
            max_seq_len,
            req_to_token_stride0,
            lut_len,
            swa_window_size,
            wanted_capacity,
            token_rows,
            token_columns,
            tokens_stride0,
            kv_token_id_vs_position_offset,
            BS,
            WINDOWED,
            INDEX,
            TILE,
            UNITS,
        )


class Config(NamedTuple):
    """How a launch is cut up. All but `programs` and `num_warps` are constexpr arguments of the kernels."""

    BS: int
    WINDOWED: bool
    INDEX: tl.dtype
    TILE: int
    UNITS: int
    WRITERS: int
    programs: int
    """Programs that share the entries."""
    num_warps: int


@functools.lru_cache(maxsize=8192)
def configure(
    bs: int, max_seq_len: int, swa_window_size: int, verify_capacity: int, multiprocessors: int
) -> Config:
    """The launch of a batch on a GPU, from sizes alone: no value of a tensor is known.

    Measured on an H200; docs/performance.md has the figures.
    """
    padded = triton.next_power_of_2(max(bs, 1))
    if padded > 512:
        tile, units, warps, programs = 256, 8, 16, multiprocessors
    else:
        windowed_tile = max(128, triton.next_power_of_2(swa_window_size)) if swa_window_size > 0 else 512
        tile = min(windowed_tile, 512 if verify_capacity > 2**17 else 256)
        units, warps, programs = 1, 4, multiprocessors * (4 if tile == 512 else 8)
    span = min(swa_window_size, max_seq_len) if swa_window_size > 0 else max_seq_len
    most_units = min(verify_capacity // tile + bs, bs * triton.cdiv(span, tile))
    return Config(
        BS=padded,
        WINDOWED=swa_window_size > 0,
        # Positions of a last tile may pass the table's end before they are masked.
        INDEX=tl.int32 if max_seq_len < 2**31 - tile else tl.int64,
        TILE=tile,
        UNITS=units,
        WRITERS=max(1, padded // (32 * warps)),
        programs=max(1, min(programs, triton.cdiv(most_units, units))),
        num_warps=warps,
    )
