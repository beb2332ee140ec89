"""The plan as Triton kernels, for torch and for JAX (contract, section 4). Needs neither of them.

Decomposition. The entries of one request are cut into *units* of `TILE` positions, so that a unit never
crosses a request. Every program reads the whole batch's rows and prefix lengths (16 bytes a request, from
L2 after the first program). In a small batch it scans them into the requests' last units and last entries,
and then knows by one reduction which request a unit belongs to and where its entries go: it takes one unit
at a time, a grid's stride apart, so that neighbouring programs write neighbouring memory. In a large batch
it sums chunks of `CHUNK` requests, looks up in which of them its share of neighbouring units begins, and
walks on from there, `UNITS` at a time. The first `WRITERS` programs write the write rows instead, an equal
share of the requests each.

One program owns the elements of its units, respectively of its requests (with a mapping, each entry's slot
is also its successor's predecessor, which the same program stores), and no two programs touch the same
element of a plan: no atomics, no scratch, no order among programs.

Bytes that must move for an entry: 4 of the slot table, 32 of the columns, 8 more with a mapping and 4
more with a token table.

A table's cell is a page of `PAGE` slots, which neighbouring lanes load from one address. What makes no sense
is looked for only where a launch has `faults_out`: a program collects one flag a lane while it writes, asks
once at its end whether one is set, and only then goes through its entries again and counts, by atomics whose
order does not matter.

Nothing specialises on a value: integers are typed and pointers are taken as they come, so the
compilations of a kernel are its constexpr arguments' combinations, and the pointers' dtypes.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import triton
import triton.language as tl

from shared_ref.constants import FAULT_KINDS, FAULT_POSITION_BITS, NO_SLOT, NO_TOKEN
from shared_ref.tiling import most_units, positions_of_a_request, positions_of_a_unit

LARGE_BATCH = 1024
"""Requests above which looking one unit after the other up in the whole batch takes too long."""

CHUNK = tl.constexpr(16)
"""Requests that are summed, and walked through, at a time in a large batch."""

# Of globals, a kernel sees constexprs alone.
_NO_SLOT = tl.constexpr(NO_SLOT)
_NO_TOKEN = tl.constexpr(NO_TOKEN)
_POSITION_BITS = tl.constexpr(FAULT_POSITION_BITS)
_LATEST_PLACE = tl.constexpr(2**63 - 1)
"""Greater than the place of any fault, also as signed."""
_ROW_OUTSIDE = tl.constexpr(FAULT_KINDS.index("row_outside"))
_PREFIX_NEGATIVE = tl.constexpr(FAULT_KINDS.index("prefix_negative"))
_EXTEND_NEGATIVE = tl.constexpr(FAULT_KINDS.index("extend_negative"))
_PREFIX_EXCEEDS = tl.constexpr(FAULT_KINDS.index("prefix_exceeds"))
_SLOT_OUTSIDE = tl.constexpr(FAULT_KINDS.index("slot_outside"))
_TOKEN_OUTSIDE = tl.constexpr(FAULT_KINDS.index("token_outside"))
_SLOT_NEGATIVE = tl.constexpr(FAULT_KINDS.index("slot_negative"))
_SLOT_DUMMY = tl.constexpr(FAULT_KINDS.index("slot_dummy"))


# What the functions hand on together: pointers and integers. What may be absent is None as a whole, since not
# every version of Triton takes a None inside a tuple.


class _Batch(NamedTuple):
    """A step's requests, how large their table is, and the window."""

    rows: Any
    prefix_lens: Any
    bs: Any
    max_reqs: Any
    max_seq_len: Any
    swa_window_size: Any


class _Table(NamedTuple):
    """`req_to_token`, or a table of pages."""

    cells: Any
    stride0: Any


class _Mapping(NamedTuple):
    """`full_to_swa_index_mapping`."""

    slots: Any
    length: Any


class _Tokens(NamedTuple):
    """`req_to_verify_expected_tokens`."""

    cells: Any
    valid_lens: Any
    rows: Any
    columns: Any
    stride0: Any
    offset: Any
    """`kv_token_id_vs_position_offset`."""


class _Columns(NamedTuple):
    """What is written of each entry."""

    slots: Any
    expected_tokens: Any
    positions: Any
    prev_slots: Any


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
def _is_active(row, max_reqs, PADDING_ROW: tl.constexpr):
    active = row.to(tl.uint64) < max_reqs.to(tl.uint64)  # a negative row is large
    if PADDING_ROW is not None:
        active = active & (row != PADDING_ROW)
    return active


@triton.jit
def _load_int64(pointers, mask):
    """Of int32 or int64; 0 where the mask is off."""
    return tl.load(pointers, mask, other=0).to(tl.int64)


@triton.jit
def _span(prefix_len, batch, WINDOWED: tl.constexpr):
    """The positions to verify, int64: first, and one past the last that the table has."""
    prefix_len = tl.maximum(prefix_len, 0)
    end = tl.minimum(prefix_len, batch.max_seq_len)
    start = tl.maximum(prefix_len - batch.swa_window_size, 0) if WINDOWED else end * 0
    return start, end


@triton.jit
def _verify_counts(row, prefix_len, batch, WINDOWED: tl.constexpr, PADDING_ROW: tl.constexpr):
    start, end = _span(prefix_len, batch, WINDOWED)
    return tl.where(_is_active(row, batch.max_reqs, PADDING_ROW), tl.maximum(end - start, 0), 0)


@triton.jit
def _units(count, TILE: tl.constexpr):
    """int32; wraps only where the entries do not fit, and then nothing follows from it."""
    return ((count.to(tl.uint32) + (TILE - 1)) // TILE).to(tl.int32)


@triton.jit
def _load_slots(cells, position, mask, PAGE: tl.constexpr):
    """Untranslated slots of some positions of the rows at `cells`; `NO_SLOT` where the mask is off."""
    if PAGE == 1:
        slot = tl.load(cells + position, mask, other=_NO_SLOT)
    else:
        page = tl.load(cells + _unsigned(position) // PAGE, mask, other=_NO_SLOT).to(tl.int64)
        slot = tl.where(page < 0, page, page * PAGE + (_unsigned(position) % PAGE).to(tl.int64))
    return slot


@triton.jit
def _load_previous_slots(cells, position, slot, mask, PAGE: tl.constexpr):
    """`_load_slots` of the positions before, given their successors' slots; `NO_SLOT` before position 0."""
    if PAGE == 1:
        before = tl.load(cells + position - 1, mask & (position > 0), other=_NO_SLOT)
    else:
        starts_page = _unsigned(position) % PAGE == 0
        before = _load_slots(cells, position - 1, mask & starts_page & (position > 0), PAGE)
        before = tl.where(starts_page, before, tl.where(slot < 0, slot, slot - 1))
    return before


@triton.jit
def _unsigned(position):
    """For divisions: a shift, where the divisor allows it."""
    return position.to(tl.uint32) if position.dtype == tl.int32 else position.to(tl.uint64)


@triton.jit
def _translate(slot, mask, mapping):
    """Slots of the group's own pool, int64; negative ones are sentinels and pass through."""
    translated = slot.to(tl.int64)
    if mapping is not None:
        known = mask & (slot >= 0)
        last = mapping.length - 1
        if slot.dtype == tl.int32:
            last = tl.minimum(last, 0x7FFFFFFF).to(tl.int32)
        translated = tl.where(known, _load_int64(mapping.slots + tl.minimum(slot, last), known), translated)
    return translated


@triton.jit
def _any(flags):
    return tl.max(tl.ravel(flags.to(tl.int32)), 0) != 0


@triton.jit
def _add_faults(faults, KIND: tl.constexpr, count, first):
    """To a kind's count, and to its smallest place."""
    places = faults.to(tl.pointer_type(tl.uint64), bitcast=True)
    tl.atomic_add(faults + 2 * KIND, count.to(tl.int64), count > 0, sem="relaxed")
    tl.atomic_min(places + 2 * KIND + 1, first.to(tl.uint64), count > 0, sem="relaxed")


@triton.jit
def _count_flags(faults, KIND: tl.constexpr, flags, place):
    count = tl.sum(tl.ravel(flags.to(tl.int32)), 0)
    first = tl.min(tl.ravel(tl.where(flags, place, _LATEST_PLACE)), 0)
    _add_faults(faults, KIND, count, first)


@triton.jit
def _count_request_faults(
    faults, request, in_batch, row, prefix_len, extend_len, batch, PADDING_ROW: tl.constexpr
):
    """What is wrong with some requests themselves."""
    is_request = in_batch
    if PADDING_ROW is not None:
        is_request = in_batch & (row != PADDING_ROW)
    outside = is_request & ((row < 0) | (row >= batch.max_reqs))
    prefix_negative = is_request & (prefix_len < 0)
    extend_negative = is_request & (extend_len < 0)
    exceeds = is_request & (prefix_len > batch.max_seq_len)
    if _any(outside | prefix_negative | extend_negative | exceeds):
        place = request.to(tl.int64) << _POSITION_BITS
        _count_flags(faults, _ROW_OUTSIDE, outside, place)
        _count_flags(faults, _PREFIX_NEGATIVE, prefix_negative, place)
        _count_flags(faults, _EXTEND_NEGATIVE, extend_negative, place)
        _count_flags(faults, _PREFIX_EXCEEDS, exceeds, place)


@triton.jit
def _missing_tokens(first, stop, row, valid_len, tokens):
    """Of each unit, positions `first` to `stop`: how many current tokens the table lacks, and the first one.

    Those are the current positions before the table's first cell, and those behind its last.
    """
    current = tl.minimum(tl.maximum(valid_len, -(2**50)), 2**50) - tokens.offset
    stop = tl.minimum(stop, current)
    first_cell = -tokens.offset
    behind = tl.maximum(first, first_cell + tl.where(row < tokens.rows, tokens.columns, 0))
    before = tl.maximum(tl.minimum(stop, first_cell) - first, 0)
    return before + tl.maximum(stop - behind, 0), tl.where(before > 0, first, behind)


@triton.jit
def _count_slot_faults(
    faults, request, position, slot, is_entry, n_missing, first_missing, mapping, PAGE: tl.constexpr
):
    """What is wrong with the cells of a tile's entries; without a token table nothing is missing."""
    request = request.to(tl.int64) << _POSITION_BITS
    place = request[:, None] | position.to(tl.int64)
    if mapping is not None:
        _count_flags(faults, _SLOT_OUTSIDE, is_entry & (slot >= mapping.length), place)
    if n_missing is not None:
        first = tl.where(n_missing > 0, request | first_missing, _LATEST_PLACE)
        _add_faults(faults, _TOKEN_OUTSIDE, tl.sum(n_missing, 0), tl.min(first, 0))
    _count_flags(faults, _SLOT_NEGATIVE, is_entry & (slot < 0), place)
    _count_flags(faults, _SLOT_DUMMY, is_entry & (slot >= 0) & (slot < PAGE), place)


@triton.jit
def _store_exclusive_cumsum(out, counts, index, bs, before):
    """`out[index + 1]`, and `out[0]` by whoever owns request 0; `before` precedes the first count."""
    tl.store(out + index, tl.full(index.shape, 0, tl.int64), index == 0)
    tl.store(out + index + 1, tl.cumsum(counts, 0) + before, index < bs)


@triton.jit
def _write_rows(
    writer,
    batch,
    extend_seq_lens,
    table,
    mapping,
    write_offsets,
    write_seeds,
    num_valid_reqs,
    verify_offsets,
    num_valid,
    enable,
    verify_total,
    faults,
    verify_capacity,
    write_offsets_len,
    BS: tl.constexpr,
    WINDOWED: tl.constexpr,
    PAGE: tl.constexpr,
    PADDING_ROW: tl.constexpr,
    WRITERS: tl.constexpr,
):
    """Write rows of this writer's share of the requests; writer 0 writes the totals too."""
    share: tl.constexpr = BS // WRITERS
    index = writer * share + tl.arange(0, share)
    in_batch = index < batch.bs
    row = _load_int64(batch.rows + index, in_batch)
    prefix_len = _load_int64(batch.prefix_lens + index, in_batch)
    extend_len = _load_int64(extend_seq_lens + index, in_batch)
    end = _span(prefix_len, batch, WINDOWED)[1]
    count = tl.where(_is_active(row, batch.max_reqs, PADDING_ROW), tl.maximum(extend_len, 0), 0)
    has_seed = (count > 0) & (end > 0)
    last_slot = _load_slots(table.cells + row * table.stride0, end - 1, has_seed, PAGE)

    everyone = tl.arange(0, BS)
    rows = _load_int64(batch.rows + everyone, everyone < batch.bs)
    lens = _load_int64(batch.prefix_lens + everyone, everyone < batch.bs)
    verify_count = _verify_counts(rows, lens, batch, WINDOWED, PADDING_ROW)
    written_before = tl.zeros([], tl.int64)
    verified_before = tl.zeros([], tl.int64)
    if WRITERS > 1:
        before = everyone < writer * share
        lens = _load_int64(extend_seq_lens + everyone, before & (everyone < batch.bs))
        written = tl.where(before & _is_active(rows, batch.max_reqs, PADDING_ROW), tl.maximum(lens, 0), 0)
        written_before = tl.sum(written, 0)
        verified_before = tl.sum(tl.where(before, verify_count, 0), 0)

    _store_exclusive_cumsum(write_offsets, count, index, batch.bs, written_before)
    behind = batch.bs + 1 + index
    for first in range(0, write_offsets_len - batch.bs - 1, BS):
        zero = tl.full([share], 0, tl.int64)
        tl.store(write_offsets + first + behind, zero, first + behind < write_offsets_len)
    if verify_offsets is not None:
        own = _verify_counts(row, prefix_len, batch, WINDOWED, PADDING_ROW)
        _store_exclusive_cumsum(verify_offsets, own, index, batch.bs, verified_before)
    if writer == 0:
        total = tl.sum(verify_count, 0)
        tl.store(num_valid, tl.minimum(total, verify_capacity).to(tl.int32))
        tl.store(enable, (total <= verify_capacity).to(tl.int32))
        tl.store(num_valid_reqs, batch.bs)
        if verify_total is not None:
            tl.store(verify_total, total)
    if faults is not None:
        _count_request_faults(faults, index, in_batch, row, prefix_len, extend_len, batch, PADDING_ROW)
    tl.store(write_seeds + index, _translate(last_slot, has_seed, mapping), in_batch)


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
    batch,
    table,
    mapping,
    tokens,
    columns,
    faults,
    WINDOWED: tl.constexpr,
    PAGE: tl.constexpr,
    INDEX: tl.constexpr,
    TILE: tl.constexpr,
    UNITS: tl.constexpr,
    COUNT: tl.constexpr,
):
    """The entries of some units: one a row of the tile, given its request and its number there.

    Writes them, and returns a flag for each that is a fault, if faults are wanted; with `COUNT` counts these.
    """
    row = _load_int64(batch.rows + request, is_unit)
    prefix_len = _load_int64(batch.prefix_lens + request, is_unit)
    start, end = _span(prefix_len, batch, WINDOWED)
    start = start.to(INDEX)[:, None]
    end = tl.where(is_unit, end, 0).to(INDEX)[:, None]
    nth_entry = (nth_unit * TILE)[:, None] + tl.arange(0, TILE)[None, :]
    position = start + nth_entry
    entry = first_entry[:, None] + nth_entry
    is_entry = position < end
    cells = table.cells + (row * table.stride0)[:, None]
    slot = _load_slots(cells, position, is_entry, PAGE)
    n_missing = None
    first_missing = None
    if tokens is not None:
        valid_len = _load_int64(tokens.valid_lens + request, is_unit)
        if faults is not None:
            first = (start + (nth_unit * TILE)[:, None]).to(tl.int64)
            stop = tl.minimum(first + TILE, end.to(tl.int64))
            n_missing, first_missing = _missing_tokens(
                tl.ravel(first), tl.ravel(stop), row, valid_len, tokens
            )
    odd = tl.zeros([UNITS, TILE], tl.int32)
    if COUNT:
        _count_slot_faults(faults, request, position, slot, is_entry, n_missing, first_missing, mapping, PAGE)
    else:
        # The mapping is gathered once a slot, and the successor's entry gets the same; only the first entry
        # of a request looks its predecessor up. Without a mapping, reading a cell twice costs less.
        looks_back = is_entry
        if mapping is not None:
            looks_back = is_entry & (position == start)
        prev_slot = _load_previous_slots(cells, position, slot, looks_back, PAGE)
        if tokens is not None:
            known = tl.minimum(tl.maximum(valid_len, 0), tokens.columns)
            known = tl.where(row < tokens.rows, known, 0)
            first = _clamp(-tokens.offset, INDEX)
            stop = _clamp(known - tokens.offset, INDEX)[:, None]
            token_cells = tokens.cells + (row * tokens.stride0 + tokens.offset)[:, None] + position
            has_token = is_entry & (position >= first) & (position < stop)
            token = tl.load(token_cells, has_token, other=_NO_TOKEN).to(tl.int64)
        else:
            token = tl.full([UNITS, TILE], _NO_TOKEN, tl.int64)
        tl.store(columns.positions + entry, position.to(tl.int64), is_entry)
        tl.store(columns.expected_tokens + entry, token, is_entry)
        own_slot = _translate(slot, is_entry, mapping)
        tl.store(columns.slots + entry, own_slot, is_entry)
        tl.store(columns.prev_slots + entry, _translate(prev_slot, looks_back, mapping), looks_back)
        if mapping is not None:
            tl.store(columns.prev_slots + entry + 1, own_slot, is_entry & (position + 1 < end))
        if faults is not None:
            is_odd = slot < PAGE
            if mapping is not None:
                is_odd = is_odd | (slot >= mapping.length)
            odd = (is_entry & is_odd).to(tl.int32)
            if tokens is not None:
                odd = odd | (n_missing > 0).to(tl.int32)[:, None]  # type: ignore[operator, union-attr]
    return odd


@triton.jit
def _clamp(position, INDEX: tl.constexpr):
    """A position as `INDEX`, where only its order among positions counts."""
    last: tl.constexpr = 0x7FFFFFFF if INDEX == tl.int32 else 0x7FFFFFFFFFFFFFFF  # noqa: SIM300
    return tl.minimum(tl.maximum(position, 0), last).to(INDEX)


@triton.jit
def _stride(
    unit,
    programs,
    n_units,
    found,
    first_unit,
    first_entry,
    last_entries,
    last_units,
    batch,
    table,
    mapping,
    tokens,
    columns,
    faults,
    BS: tl.constexpr,
    WINDOWED: tl.constexpr,
    PAGE: tl.constexpr,
    INDEX: tl.constexpr,
    TILE: tl.constexpr,
    COUNT: tl.constexpr,
):
    """Units from `unit` on, a grid's stride apart. Returns `_store_units`' flags."""
    request = tl.arange(0, BS)
    one = tl.zeros([1], tl.int32)
    odd = tl.zeros([1, TILE], tl.int32)
    while unit < n_units:
        found_odd = _store_units(
            found + one, unit - first_unit + one, first_entry + one, one == 0, batch, table, mapping, tokens,
            columns, faults, WINDOWED, PAGE, INDEX, TILE, 1, COUNT,
        )  # fmt: skip
        if faults is not None:
            odd = odd | found_odd
        unit += programs
        if unit < n_units:
            found, first_unit, first_entry = _find(unit, last_entries, last_units, request)
    return odd


@triton.jit
def _entries_of_small_batch(
    program,
    programs,
    batch,
    table,
    mapping,
    tokens,
    columns,
    faults,
    verify_capacity,
    BS: tl.constexpr,
    WINDOWED: tl.constexpr,
    PAGE: tl.constexpr,
    PADDING_ROW: tl.constexpr,
    INDEX: tl.constexpr,
    TILE: tl.constexpr,
):
    """One unit at a time, a grid's stride apart, if all entries of the batch fit."""
    request = tl.arange(0, BS)
    row = _load_int64(batch.rows + request, request < batch.bs)
    prefix_len = _load_int64(batch.prefix_lens + request, request < batch.bs)
    count = _verify_counts(row, prefix_len, batch, WINDOWED, PADDING_ROW).to(INDEX)
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
    odd = _stride(
        unit, programs, n_units, found, first_unit, first_entry, last_entries, last_units, batch, table,
        mapping, tokens, columns, faults, BS, WINDOWED, PAGE, INDEX, TILE, False,
    )  # fmt: skip
    if faults is not None:  # noqa: SIM102 (decided while it is compiled)
        if _any(odd):
            _stride(
                unit, programs, n_units, found, first_unit, first_entry, last_entries, last_units, batch,
                table, mapping, tokens, columns, faults, BS, WINDOWED, PAGE, INDEX, TILE, True,
            )  # fmt: skip


@triton.jit
def _walk(
    unit,
    stop,
    found,
    first_unit,
    first_entry,
    batch,
    table,
    mapping,
    tokens,
    columns,
    faults,
    WINDOWED: tl.constexpr,
    PAGE: tl.constexpr,
    PADDING_ROW: tl.constexpr,
    INDEX: tl.constexpr,
    TILE: tl.constexpr,
    UNITS: tl.constexpr,
    COUNT: tl.constexpr,
):
    """Units `unit` to `stop`, through the requests from chunk `found` on. Returns `_store_units`' flags."""
    in_chunk = tl.arange(0, CHUNK)
    odd = tl.zeros([UNITS, TILE], tl.int32)
    near = found * CHUNK
    while unit < stop:
        near_row = _load_int64(batch.rows + near + in_chunk, near + in_chunk < batch.bs)
        near_len = _load_int64(batch.prefix_lens + near + in_chunk, near + in_chunk < batch.bs)
        near_count = _verify_counts(near_row, near_len, batch, WINDOWED, PADDING_ROW).to(INDEX)
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
            found_odd = _store_units(
                near + request_of, nth_unit - first_unit_of, first_entry + first_entry_of, nth_unit < last,
                batch, table, mapping, tokens, columns, faults, WINDOWED, PAGE, INDEX, TILE, UNITS, COUNT,
            )  # fmt: skip
            if faults is not None:
                odd = odd | found_odd
        unit = first_unit + last
        first_unit += units_here
        first_entry += entries_here
        near += CHUNK
    return odd


@triton.jit
def _entries_of_large_batch(
    program,
    programs,
    batch,
    table,
    mapping,
    tokens,
    columns,
    faults,
    verify_capacity,
    BS: tl.constexpr,
    WINDOWED: tl.constexpr,
    PAGE: tl.constexpr,
    PADDING_ROW: tl.constexpr,
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
    row = _load_int64(batch.rows + request, request < batch.bs)
    prefix_len = _load_int64(batch.prefix_lens + request, request < batch.bs)
    count = _verify_counts(row, prefix_len, batch, WINDOWED, PADDING_ROW).to(INDEX)
    counts, units = tl.reduce((count, _units(count, TILE)), 1, _add2)
    total, n_units = tl.reduce((counts, units), 0, _add2)
    n_units = tl.where(total <= verify_capacity, n_units, 0)
    share = tl.cdiv(n_units, programs)
    unit = program * share
    stop = tl.minimum(unit + share, n_units)
    if unit < stop:
        last_entries, last_units = tl.associative_scan((counts.to(tl.int32), units), 0, _add2)
        found, first_unit, first_entry = _find(unit, last_entries, last_units, chunk)
        odd = _walk(
            unit, stop, found, first_unit, first_entry, batch, table, mapping, tokens, columns, faults,
            WINDOWED, PAGE, PADDING_ROW, INDEX, TILE, UNITS, False,
        )  # fmt: skip
        if faults is not None:  # noqa: SIM102 (decided while it is compiled)
            if _any(odd):
                _walk(
                    unit, stop, found, first_unit, first_entry, batch, table, mapping, tokens, columns,
                    faults, WINDOWED, PAGE, PADDING_ROW, INDEX, TILE, UNITS, True,
                )  # fmt: skip


@triton.jit
def _entries(
    program,
    programs,
    batch,
    table,
    mapping,
    tokens,
    columns,
    faults,
    verify_capacity,
    BS: tl.constexpr,
    WINDOWED: tl.constexpr,
    PAGE: tl.constexpr,
    PADDING_ROW: tl.constexpr,
    INDEX: tl.constexpr,
    TILE: tl.constexpr,
    UNITS: tl.constexpr,
):
    """This program's entries."""
    if UNITS == 1:
        _entries_of_small_batch(
            program, programs, batch, table, mapping, tokens, columns, faults, verify_capacity, BS, WINDOWED,
            PAGE, PADDING_ROW, INDEX, TILE,
        )  # fmt: skip
    else:
        _entries_of_large_batch(
            program, programs, batch, table, mapping, tokens, columns, faults, verify_capacity, BS, WINDOWED,
            PAGE, PADDING_ROW, INDEX, TILE, UNITS,
        )  # fmt: skip


@triton.jit
def _mapping_of(slots, length):
    mapping = None
    if slots is not None:
        mapping = _Mapping(slots, length)
    return mapping


@triton.jit
def _tokens_of(cells, valid_lens, rows, columns, stride0, offset):
    tokens = None
    if cells is not None:
        tokens = _Tokens(cells, valid_lens, rows, columns, stride0, offset)
    return tokens


def _jit(kernel):
    """A kernel with one compilation per combination of its constexpr arguments. Untyped ones are pointers."""
    names, types = kernel.__code__.co_varnames[: kernel.__code__.co_argcount], kernel.__annotations__
    return triton.jit(
        kernel,
        do_not_specialize=[name for name in names if types.get(name) in ("tl.int32", "tl.int64")],
        do_not_specialize_on_alignment=[name for name in names if name not in types],
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
    verify_total_out,
    faults_out,
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
    PAGE: tl.constexpr,
    PADDING_ROW: tl.constexpr,
    INDEX: tl.constexpr,
    TILE: tl.constexpr,
    UNITS: tl.constexpr,
    WRITERS: tl.constexpr,
):
    """The whole plan. Grid: `WRITERS` programs for the write rows, the others share the entries."""
    batch = _Batch(req_pool_indices, prefix_lens, bs, max_reqs, max_seq_len, swa_window_size)
    table = _Table(req_to_token, req_to_token_stride0)
    mapping = _mapping_of(full_to_swa_index_mapping, lut_len)
    tokens = _tokens_of(
        req_to_verify_expected_tokens, req_to_verify_expected_tokens_valid_lens, token_rows, token_columns,
        tokens_stride0, kv_token_id_vs_position_offset,
    )  # fmt: skip
    columns = _Columns(
        out_verify_slot_indices, out_verify_expected_tokens, out_verify_expected_positions,
        out_verify_prev_slot_indices,
    )  # fmt: skip
    program = tl.program_id(0)
    if program < WRITERS:
        _write_rows(
            program, batch, extend_seq_lens, table, mapping, out_write_offsets, out_write_seed_slot_indices,
            out_write_num_valid_reqs, None, out_verify_num_valid, out_verify_enable, verify_total_out,
            faults_out, verify_capacity, write_offsets_len, BS, WINDOWED, PAGE, PADDING_ROW, WRITERS,
        )  # fmt: skip
    else:
        _entries(
            program - WRITERS, tl.num_programs(0) - WRITERS, batch, table, mapping, tokens, columns,
            faults_out, verify_capacity, BS, WINDOWED, PAGE, PADDING_ROW, INDEX, TILE, UNITS,
        )  # fmt: skip


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
    verify_total_out,
    faults_out,
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
    PAGE: tl.constexpr,
    PADDING_ROW: tl.constexpr,
    WRITERS: tl.constexpr,
):
    """The staged launcher's first half. Grid: `WRITERS` programs."""
    batch = _Batch(req_pool_indices, prefix_lens, bs, max_reqs, max_seq_len, swa_window_size)
    table = _Table(req_to_token, req_to_token_stride0)
    mapping = _mapping_of(full_to_swa_index_mapping, lut_len)
    _write_rows(
        tl.program_id(0), batch, extend_seq_lens, table, mapping, out_write_offsets,
        out_write_seed_slot_indices, out_write_num_valid_reqs, out_verify_offsets_scratch,
        out_verify_num_valid, out_verify_enable, verify_total_out, faults_out, verify_capacity,
        write_offsets_len, BS, WINDOWED, PAGE, PADDING_ROW, WRITERS,
    )  # fmt: skip


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
    faults_out,
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
    PAGE: tl.constexpr,
    PADDING_ROW: tl.constexpr,
    INDEX: tl.constexpr,
    TILE: tl.constexpr,
    UNITS: tl.constexpr,
):
    """The staged launcher's second half. Grid: programs that share the entries."""
    batch = _Batch(req_pool_indices, prefix_lens, bs, max_reqs, max_seq_len, swa_window_size)
    table = _Table(req_to_token, req_to_token_stride0)
    mapping = _mapping_of(full_to_swa_index_mapping, lut_len)
    tokens = _tokens_of(
        req_to_verify_expected_tokens, req_to_verify_expected_tokens_valid_lens, token_rows, token_columns,
        tokens_stride0, kv_token_id_vs_position_offset,
    )  # fmt: skip
    columns = _Columns(
        out_verify_slot_indices, out_verify_expected_tokens, out_verify_expected_positions,
        out_verify_prev_slot_indices,
    )  # fmt: skip
    wanted_capacity = tl.where(tl.load(verify_enable) != 0, verify_capacity, -1)
    _entries(
        tl.program_id(0), tl.num_programs(0), batch, table, mapping, tokens, columns, faults_out,
        wanted_capacity, BS, WINDOWED, PAGE, PADDING_ROW, INDEX, TILE, UNITS,
    )  # fmt: skip


class Config(NamedTuple):
    """How a launch is cut up. All but `programs` and `num_warps` are constexpr arguments of the kernels."""

    BS: int
    WINDOWED: bool
    PAGE: int
    PADDING_ROW: int | None
    INDEX: tl.dtype
    """Of positions, and of the batch's number of entries."""
    TILE: int
    UNITS: int
    WRITERS: int
    programs: int
    """Programs that share the entries."""
    num_warps: int


@functools.lru_cache(maxsize=8192)
def configure(
    bs: int,
    max_seq_len: int,
    swa_window_size: int,
    verify_capacity: int,
    multiprocessors: int,
    page_size: int = 1,
    padding_row: int | None = 0,
) -> Config:
    """The launch of a batch on a GPU (shared_ref/tiling.py)."""
    large = bs > LARGE_BATCH
    tile = positions_of_a_unit(large, swa_window_size, verify_capacity)
    if large:
        units, warps, programs, requests_of_a_writer = 4, 8, multiprocessors * 2, 512
    else:
        units, warps, programs, requests_of_a_writer = 1, 4, multiprocessors * (4 if tile == 512 else 8), 128
    padded = triton.next_power_of_2(max(bs, 1))
    total = most_units(bs, max_seq_len, swa_window_size, verify_capacity, tile)
    # Positions of a last tile may pass the table's end before they are masked.
    fits = max(max_seq_len + tile, bs * positions_of_a_request(max_seq_len, swa_window_size)) < 2**31
    return Config(
        BS=padded,
        WINDOWED=swa_window_size > 0,
        PAGE=page_size,
        PADDING_ROW=padding_row,
        INDEX=tl.int32 if fits else tl.int64,
        TILE=tile,
        UNITS=units,
        WRITERS=max(1, padded // requests_of_a_writer),
        programs=max(1, min(programs, triton.cdiv(total, units))),
        num_warps=warps,
    )
