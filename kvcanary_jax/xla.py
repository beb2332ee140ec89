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

from shared_ref.batch import Arguments
from shared_ref.constants import NO_SLOT, NO_TOKEN, PADDING_ROW
from shared_ref.schema import COLUMNS

Outputs = dict[str, jax.Array]


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
    capacity = arguments["verify_capacity"]
    totals, fits = _totals(batch, capacity)
    return _write_rows(batch, arguments) | totals | _columns(batch, arguments, fits)


def offsets(arguments: Arguments) -> Outputs:
    """The outputs of `launch_plan_offsets_kernel`."""
    batch = _batch(arguments)
    totals, _ = _totals(batch, arguments["verify_capacity"])
    scratch = arguments["out_verify_offsets_scratch"]
    bs = len(batch.row)
    scratch = scratch.at[: bs + 1].set(_exclusive_cumsum(batch.verify_count))
    return _write_rows(batch, arguments) | totals | {"out_verify_offsets_scratch": scratch}


def entries(arguments: Arguments) -> Outputs:
    """The outputs of `launch_plan_entries_kernel`."""
    batch = _batch(arguments)
    fits = batch.verify_count.sum() <= len(arguments[COLUMNS[0]])
    return _columns(batch, arguments, fits & (arguments["verify_enable"][0] != 0))


def _batch(arguments: Arguments) -> _Batch:
    max_reqs, max_seq_len = arguments["req_to_token"].shape
    window = arguments["swa_window_size"]
    row = arguments["req_pool_indices"]
    prefix_len = jnp.maximum(arguments["prefix_lens"], 0)
    active = (row != PADDING_ROW) & (row >= 0) & (row < max_reqs)
    start = jnp.maximum(prefix_len - window, 0) if window > 0 else jnp.zeros_like(prefix_len)
    end = jnp.minimum(prefix_len, max_seq_len)
    return _Batch(
        row=jnp.where(active, row, 0),
        active=active,
        start=start,
        end=end,
        verify_count=jnp.where(active, jnp.maximum(end - start, 0), 0),
    )


def _totals(batch: _Batch, capacity: int) -> tuple[Outputs, jax.Array]:
    total = batch.verify_count.sum()
    fits = total <= capacity
    outputs = {
        "out_verify_num_valid": jnp.minimum(total, capacity).astype(jnp.int32)[None],
        "out_verify_enable": fits.astype(jnp.int32)[None],
    }
    return outputs, fits


def _write_rows(batch: _Batch, arguments: Arguments) -> Outputs:
    bs = len(batch.row)
    count = jnp.where(batch.active, jnp.maximum(arguments["extend_seq_lens"], 0), 0)
    last_slot = _slots(arguments, batch.row, batch.end - 1)
    seeds = jnp.where((count > 0) & (batch.end > 0), last_slot, NO_SLOT)
    write_offsets = jnp.zeros_like(arguments["out_write_offsets"])
    return {
        "out_write_offsets": write_offsets.at[: bs + 1].set(_exclusive_cumsum(count)),
        "out_write_seed_slot_indices": arguments["out_write_seed_slot_indices"].at[:bs].set(seeds),
        "out_write_num_valid_reqs": jnp.full(1, bs, jnp.int32),
    }


def _columns(batch: _Batch, arguments: Arguments, enable: jax.Array) -> Outputs:
    """The four verify columns; `enable` says whether the entries fit and are wanted."""
    former = [arguments[name] for name in COLUMNS]
    entry = jnp.arange(len(former[0]), dtype=jnp.int32)
    request = _request_of_each_entry(batch.verify_count, len(former[0]))
    offsets = _exclusive_cumsum(batch.verify_count)

    def of_request(values: jax.Array) -> jax.Array:
        return _gather(values, request)

    # Entries that count have positions below 2**31; what wraps here belongs to no entry.
    first = (batch.start - offsets[:-1]).astype(jnp.int32)
    position = entry + of_request(first)
    row = of_request(batch.row.astype(jnp.int32))
    columns = (
        _slots(arguments, row, position),
        _expected_tokens(batch, arguments, position, of_request),
        position.astype(jnp.int64),
        jnp.where(position == 0, NO_SLOT, _slots(arguments, row, position - 1)),
    )
    is_entry = enable & (entry < offsets[-1])
    return {
        name: jnp.where(is_entry, new, old) for name, new, old in zip(COLUMNS, columns, former, strict=True)
    }


def _request_of_each_entry(counts: jax.Array, capacity: int) -> jax.Array:
    """int32 `[capacity]`: how many requests end at or before each entry."""
    ends = jnp.minimum(jnp.cumsum(counts), capacity).astype(jnp.int32)
    marks = jnp.zeros(capacity + 1, jnp.int32).at[ends].add(1, mode="promise_in_bounds")
    return jnp.cumsum(marks, dtype=jnp.int32)[:capacity]


def _slots(arguments: Arguments, row: jax.Array, position: jax.Array) -> jax.Array:
    """`translate(req_to_token[row, position])` for any position, as int64."""
    slot = _gather(arguments["req_to_token"], row, position).astype(jnp.int64)
    mapping = arguments["full_to_swa_index_mapping"]
    return slot if mapping is None else jnp.where(slot < 0, slot, _gather(mapping, slot))


def _expected_tokens(batch: _Batch, arguments: Arguments, position: jax.Array, of_request: Any) -> jax.Array:
    tokens = arguments["req_to_verify_expected_tokens"]
    if tokens is None:
        return jnp.full(position.shape, NO_TOKEN, jnp.int64)
    rows, columns = tokens.shape
    known = jnp.minimum(arguments["req_to_verify_expected_tokens_valid_lens"], columns)
    known = jnp.where(batch.row < rows, known, 0)
    q = position.astype(jnp.int64) + arguments["kv_token_id_vs_position_offset"]
    has_token = (q >= 0) & (q < of_request(known))
    row = of_request(batch.row)
    return jnp.where(has_token, _gather(tokens, row, q).astype(jnp.int64), NO_TOKEN)


def _exclusive_cumsum(counts: jax.Array) -> jax.Array:
    """int64 `[n + 1]`, the total last; wraps in two's complement."""
    return jnp.concatenate([jnp.zeros(1, jnp.int64), jnp.cumsum(counts)])


def _gather(values: jax.Array, *indices: jax.Array) -> jax.Array:
    """`values[indices]` with each index clamped into its dimension; 0 where `values` has no element."""
    if 0 in values.shape:
        return jnp.zeros(jnp.broadcast_shapes(*(i.shape for i in indices)), values.dtype)
    clamped = (jnp.clip(i, 0, n - 1).astype(jnp.int32) for i, n in zip(indices, values.shape, strict=True))
    return values.at[tuple(clamped)].get(mode="promise_in_bounds")
