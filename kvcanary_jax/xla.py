"""The plan in plain jnp, for every platform that XLA has (contract, section 4).

Decomposition: one lane an entry of the capacity. A lane finds its request by a running count of the
requests that ended before it, then gathers that request's few numbers and its two cells. The work is
bounded by the capacity and the batch, never by what the lengths claim.

JAX guards no index: it truncates int64 ones to int32, wraps negative ones and clips large ones. So every
index here is clamped in int64 first, and gathered with `promise_in_bounds` after.

Each function takes a launcher's arguments by name, like the reference, and returns the outputs by name.
It must be traced inside `jax.enable_x64(True)`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shared_ref.batch import Arguments, max_seq_len
from shared_ref.constants import FAULT_KINDS, FAULT_POSITION_BITS, NO_PLACE, NO_SLOT, NO_TOKEN, PADDING_ROW
from shared_ref.schema import COLUMNS

Outputs = dict[str, jax.Array]

Found = dict[str, tuple[jax.Array, jax.Array]]
"""By kind of fault: which elements have one, and the place of each."""


class _Batch(NamedTuple):
    """What section 4 derives from each request, int64 `[bs]`."""

    row: jax.Array
    """In bounds of the table; 0 where the request is not active."""
    active: jax.Array
    start: jax.Array
    end: jax.Array
    verify_count: jax.Array


def plan(arguments: Arguments) -> Outputs:
    """The outputs of `launch_canary_plan_kernels`."""
    batch = _batch(arguments)
    totals, fits = _totals(batch, arguments)
    faults = _request_faults(arguments)
    columns, of_cells = _columns(batch, arguments, fits)
    return _write_rows(batch, arguments) | totals | columns | _counted(arguments, faults | of_cells)


def offsets(arguments: Arguments) -> Outputs:
    """The outputs of `launch_plan_offsets_kernel`."""
    batch = _batch(arguments)
    totals, _ = _totals(batch, arguments)
    scratch = arguments["out_verify_offsets_scratch"]
    bs = len(batch.row)
    scratch = scratch.at[: bs + 1].set(_exclusive_cumsum(batch.verify_count))
    totals |= {"out_verify_offsets_scratch": scratch}
    return _write_rows(batch, arguments) | totals | _counted(arguments, _request_faults(arguments))


def entries(arguments: Arguments) -> Outputs:
    """The outputs of `launch_plan_entries_kernel`."""
    batch = _batch(arguments)
    fits = batch.verify_count.sum() <= len(arguments[COLUMNS[0]])
    columns, faults = _columns(batch, arguments, fits & (arguments["verify_enable"][0] != 0))
    return columns | _counted(arguments, faults)


def _batch(arguments: Arguments) -> _Batch:
    window, max_reqs = arguments["swa_window_size"], len(arguments["req_to_token"])
    row = _int64(arguments["req_pool_indices"])
    prefix_len = jnp.maximum(_int64(arguments["prefix_lens"]), 0)
    active = (row >= 0) & (row < max_reqs) & ~_is_padding(arguments)
    start = jnp.maximum(prefix_len - window, 0) if window > 0 else jnp.zeros_like(prefix_len)
    end = jnp.minimum(prefix_len, max_seq_len(arguments))
    return _Batch(
        row=jnp.where(active, row, 0),
        active=active,
        start=start,
        end=end,
        verify_count=jnp.where(active, jnp.maximum(end - start, 0), 0),
    )


def _int64(array: jax.Array) -> jax.Array:
    """Those of other stacks may be int32."""
    return array.astype(jnp.int64)


def _is_padding(arguments: Arguments) -> jax.Array:
    row, padding_row = arguments["req_pool_indices"], arguments.get("padding_row", PADDING_ROW)
    return row == padding_row if padding_row is not None else jnp.zeros(row.shape, bool)


def _totals(batch: _Batch, arguments: Arguments) -> tuple[Outputs, jax.Array]:
    total, capacity = batch.verify_count.sum(), arguments["verify_capacity"]
    fits = total <= capacity
    outputs = {
        "out_verify_num_valid": jnp.minimum(total, capacity).astype(jnp.int32)[None],
        "out_verify_enable": fits.astype(jnp.int32)[None],
    }
    if arguments["verify_total_out"] is not None:
        outputs["verify_total_out"] = total[None]
    return outputs, fits


def _write_rows(batch: _Batch, arguments: Arguments) -> Outputs:
    bs = len(batch.row)
    count = jnp.where(batch.active, jnp.maximum(_int64(arguments["extend_seq_lens"]), 0), 0)
    last_slot = _translated(arguments, _slots(arguments, batch.row, batch.end - 1))
    seeds = jnp.where((count > 0) & (batch.end > 0), last_slot, NO_SLOT)
    write_offsets = jnp.zeros_like(arguments["out_write_offsets"])
    return {
        "out_write_offsets": write_offsets.at[: bs + 1].set(_exclusive_cumsum(count)),
        "out_write_seed_slot_indices": arguments["out_write_seed_slot_indices"].at[:bs].set(seeds),
        "out_write_num_valid_reqs": jnp.full(1, bs, jnp.int32),
    }


def _columns(batch: _Batch, arguments: Arguments, enable: jax.Array) -> tuple[Outputs, Found]:
    """The four verify columns, and what is wrong with the entries' cells.

    `enable` says whether the entries fit and are wanted.
    """
    former = [arguments[name] for name in COLUMNS]
    entry = jnp.arange(len(former[0]), dtype=jnp.int32)
    request = _request_of_each_entry(batch.verify_count, len(former[0]))
    offsets = _exclusive_cumsum(batch.verify_count)

    def of_request(values: jax.Array) -> jax.Array:
        return _gather(values, request)

    # What wraps here belongs to no entry.
    index = jnp.int32 if max_seq_len(arguments) < 2**31 else jnp.int64
    first = (batch.start - offsets[:-1]).astype(index)
    position = entry + of_request(first)
    row = of_request(batch.row.astype(jnp.int32))
    slots = _slots(arguments, row, position)
    tokens, is_missing = _expected_tokens(batch, arguments, position, of_request)
    prev_slots = _translated(arguments, _slots(arguments, row, position - 1))
    columns = (
        _translated(arguments, slots),
        tokens,
        position.astype(jnp.int64),
        jnp.where(position == 0, NO_SLOT, prev_slots),
    )
    is_entry = enable & (entry < offsets[-1])
    outputs = {
        name: jnp.where(is_entry, new, old) for name, new, old in zip(COLUMNS, columns, former, strict=True)
    }
    place = _int64(request) << FAULT_POSITION_BITS | _int64(position)
    flags = {"slot_negative": slots < 0, "slot_dummy": (slots >= 0) & (slots < arguments["page_size"])}
    if (mapping := arguments["full_to_swa_index_mapping"]) is not None:
        flags["slot_outside"] = slots >= len(mapping)
    if is_missing is not None:
        flags["token_outside"] = is_missing
    return outputs, {kind: (is_entry & flag, place) for kind, flag in flags.items()}


def _request_faults(arguments: Arguments) -> Found:
    """What is wrong with the requests' own values."""
    row, prefix_len = _int64(arguments["req_pool_indices"]), _int64(arguments["prefix_lens"])
    flags = {
        "row_outside": (row < 0) | (row >= len(arguments["req_to_token"])),
        "prefix_negative": prefix_len < 0,
        "extend_negative": arguments["extend_seq_lens"] < 0,
        "prefix_exceeds": prefix_len > max_seq_len(arguments),
    }
    place = jnp.arange(len(row), dtype=jnp.int64) << FAULT_POSITION_BITS
    return {kind: (flag & ~_is_padding(arguments), place) for kind, flag in flags.items()}


def _counted(arguments: Arguments, found: Found) -> Outputs:
    """`faults_out`, if there is one, with what was found added."""
    if (former := arguments["faults_out"]) is None:
        return {}
    counts, places = [], []
    for kind in FAULT_KINDS:
        flag, place = found.get(kind, (jnp.zeros(0, bool), jnp.zeros(0, jnp.int64)))
        counts.append(flag.sum(dtype=jnp.int64))
        places.append(jnp.where(flag, place, NO_PLACE).astype(jnp.uint64).min(initial=np.uint64(2**64 - 1)))
    smallest = jnp.minimum(former[:, 1].astype(jnp.uint64), jnp.stack(places)).astype(jnp.int64)
    return {"faults_out": jnp.stack([former[:, 0] + jnp.stack(counts), smallest], axis=1)}


def _request_of_each_entry(counts: jax.Array, capacity: int) -> jax.Array:
    """int32 `[capacity]`: how many requests end at or before each entry."""
    ends = jnp.minimum(jnp.cumsum(counts), capacity).astype(jnp.int32)
    marks = jnp.zeros(capacity + 1, jnp.int32).at[ends].add(1, mode="promise_in_bounds")
    return jnp.cumsum(marks, dtype=jnp.int32)[:capacity]


def _slots(arguments: Arguments, row: jax.Array, position: jax.Array) -> jax.Array:
    """The untranslated slot of any position, as int64."""
    page_size = arguments["page_size"]
    if page_size == 1:
        return _int64(_gather(arguments["req_to_token"], row, position))
    page = _int64(_gather(arguments["req_to_token"], row, position // page_size))
    return jnp.where(page < 0, page, page * page_size + position % page_size)


def _translated(arguments: Arguments, slot: jax.Array) -> jax.Array:
    mapping = arguments["full_to_swa_index_mapping"]
    return slot if mapping is None else jnp.where(slot < 0, slot, _int64(_gather(mapping, slot)))


def _expected_tokens(
    batch: _Batch, arguments: Arguments, position: jax.Array, of_request: Any
) -> tuple[jax.Array, jax.Array | None]:
    """The tokens, and where one is current that the table does not have."""
    tokens = arguments["req_to_verify_expected_tokens"]
    if tokens is None:
        return jnp.full(position.shape, NO_TOKEN, jnp.int64), None
    rows, columns = tokens.shape
    valid_lens = _int64(arguments["req_to_verify_expected_tokens_valid_lens"])
    known = jnp.where(batch.row < rows, jnp.minimum(valid_lens, columns), 0)
    q = position.astype(jnp.int64) + arguments["kv_token_id_vs_position_offset"]
    has_token = (q >= 0) & (q < of_request(known))
    row = of_request(batch.row)
    expected = jnp.where(has_token, _int64(_gather(tokens, row, q)), NO_TOKEN)
    return expected, (q < of_request(valid_lens)) & ~has_token


def _exclusive_cumsum(counts: jax.Array) -> jax.Array:
    """int64 `[n + 1]`, the total last; wraps in two's complement."""
    return jnp.concatenate([jnp.zeros(1, jnp.int64), jnp.cumsum(counts)])


def _gather(values: jax.Array, *indices: jax.Array) -> jax.Array:
    """`values[indices]` with each index clamped into its dimension; 0 where `values` has no element."""
    if 0 in values.shape:
        return jnp.zeros(jnp.broadcast_shapes(*(i.shape for i in indices)), values.dtype)
    clamped = (jnp.clip(i, 0, n - 1).astype(jnp.int32) for i, n in zip(indices, values.shape, strict=True))
    return values.at[tuple(clamped)].get(mode="promise_in_bounds")
