"""The plan without a loop over requests: one numpy operation for all entries of the batch.

A port of its own, to show what kvcanary asks of one. `launch` has the launcher's keywords and fills the plans
in place; `BACKEND` announces it (see pyproject.toml). What each line must give is in docs/plan-contract.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shared_ref.conformance import Backend

__version__ = "0.1.0"


def launch(
    *,
    verify_plan_out: Any,
    write_plan_out: Any,
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
) -> None:
    """Build both plans in place (contract, sections 4 and 5)."""
    bs = len(req_pool_indices)
    max_reqs, max_seq_len = req_to_token.shape
    active = (req_pool_indices > 0) & (req_pool_indices < max_reqs)
    prefix = np.maximum(prefix_lens, 0)
    start = np.maximum(prefix - swa_window_size, 0) if swa_window_size > 0 else np.zeros_like(prefix)
    end = np.minimum(prefix, max_seq_len)

    def translate(slots: np.ndarray) -> np.ndarray:
        if full_to_swa_index_mapping is None:
            return slots.astype(np.int64)
        inside = np.clip(slots, 0, len(full_to_swa_index_mapping) - 1)
        return np.where(slots < 0, slots, full_to_swa_index_mapping[inside])

    # Write rows.
    write_counts = np.where(active, np.maximum(extend_seq_lens, 0), 0)
    write_plan_out.write_offsets[0] = 0
    write_plan_out.write_offsets[1 : bs + 1] = np.cumsum(write_counts, dtype=np.int64)
    write_plan_out.write_offsets[bs + 1 :] = 0
    seeds = np.full(bs, -1, np.int64)
    seeding = np.flatnonzero((write_counts > 0) & (end > 0))
    seeds[seeding] = translate(req_to_token[req_pool_indices[seeding], end[seeding] - 1])
    write_plan_out.write_seed_slot_indices[:bs] = seeds
    write_plan_out.write_num_valid_reqs[0] = bs

    # Numbers.
    counts = np.where(active, np.maximum(end - start, 0), 0)
    total = int(counts.sum())
    verify_plan_out.verify_num_valid[0] = min(total, verify_capacity)
    verify_plan_out.enable[0] = total <= verify_capacity
    if total > verify_capacity:
        return

    # Entries: the request and the position of each, then every column at once.
    request = np.repeat(np.arange(bs), counts)
    position = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts) + start[request]
    row = req_pool_indices[request]
    first = position == 0
    before = translate(req_to_token[row, np.where(first, 0, position - 1)])
    verify_plan_out.verify_slot_indices[:total] = translate(req_to_token[row, position])
    verify_plan_out.verify_prev_slot_indices[:total] = np.where(first, -1, before)
    verify_plan_out.verify_expected_positions[:total] = position

    tokens = np.full(total, -1, np.int64)
    if req_to_verify_expected_tokens is not None:
        assert req_to_verify_expected_tokens_valid_lens is not None
        rows, columns = req_to_verify_expected_tokens.shape
        q = position + kv_token_id_vs_position_offset
        known = (q >= 0) & (q < req_to_verify_expected_tokens_valid_lens[request])
        known &= (q < columns) & (row < rows)
        tokens[known] = req_to_verify_expected_tokens[row[known], q[known]]
    verify_plan_out.verify_expected_tokens[:total] = tokens


BACKEND = Backend(
    name="my-backend",
    launch=launch,
    version=lambda: f"my_backend {__version__}, numpy {np.__version__}",
    unavailable=lambda: None,  # or why it cannot run here: "it needs a chip of the new kind"
    plain=True,  # it knows neither pages nor optional outputs
    note="vectorised numpy",
)
