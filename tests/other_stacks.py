"""Batches as other serving stacks have them: padded with another row or with none, some of them in int32.

A batch whose padding is another row than 0, or that has none, is the batch whose rows are all one further, in
tables with a row more in front: that batch the reference knows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from shared_ref.conformance.case import PlanInputs

INT64_MAX = 2**63 - 1
NARROW = (
    "req_pool_indices",
    "prefix_lens",
    "extend_seq_lens",
    "full_to_swa_index_mapping",
    "req_to_verify_expected_tokens_valid_lens",
)
"""What may be int32."""


def shifted(inputs: PlanInputs, padding_row: int | None) -> PlanInputs:
    """The batch whose padding row is 0: every row one further, if there is a next one."""
    rows = np.array(
        [0 if r == padding_row else r + (0 <= r < INT64_MAX) for r in inputs.req_pool_indices.tolist()]
    )
    return dataclasses.replace(
        inputs,
        req_pool_indices=rows.astype(np.int64),
        req_to_token=_with_row_in_front(inputs.req_to_token),
        req_to_verify_expected_tokens=_with_row_in_front(inputs.req_to_verify_expected_tokens),
    )


def _with_row_in_front(table: np.ndarray | None) -> Any:
    return None if table is None else np.pad(table, ((1, 0), (0, 0)), constant_values=31)


def small_inputs(**changes: Any) -> PlanInputs:
    """Two requests, one of them in row 0, and padding; everything present."""
    values: dict[str, Any] = {
        "req_pool_indices": np.array([0, -1, 2, -1]),
        "prefix_lens": np.array([3, 9, 5, 0]),
        "extend_seq_lens": np.array([1, 1, 2, 0]),
        "req_to_token": np.arange(1, 25, dtype=np.int32).reshape(3, 8),
        "swa_window_size": 4,
        "full_to_swa_index_mapping": np.arange(30) + 500,
        "verify_capacity": 12,
        "req_to_verify_expected_tokens": np.arange(100, 124, dtype=np.int32).reshape(3, 8),
        "req_to_verify_expected_tokens_valid_lens": np.array([3, 0, 4, 0]),
    }
    return PlanInputs(**values | changes)


def narrowed(inputs: PlanInputs, names: tuple[str, ...]) -> dict[str, Any]:
    return {k: v.astype(np.int32) if k in names else v for k, v in inputs.keywords().items()}
