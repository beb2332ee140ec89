"""sglang-jax: its batches as the keywords of `plan`."""

from __future__ import annotations

from typing import Any

import numpy as np

from shared_ref.validation import fail, python_int

PADDING_ROW = -1
"""What sglang-jax fills `req_pool_indices` up with. Its row 0 is a request's."""


def from_sglang_jax(batch: Any, req_to_token: Any) -> dict[str, Any]:
    """The keywords of `kvcanary_jax.plan` that a batch gives, inside `jit` or outside.

    Arrays are passed as they are, except in decode steps, whose prefix lengths are `seq_lens - 1`.

    Args:
        batch: a `ForwardBatch` or `ModelWorkerBatch`, or any object with their `forward_mode`,
            `req_pool_indices` and `seq_lens`, and what the mode has beside: `extend_prefix_lens` and
            `extend_seq_lens` to extend, `spec_info` or `spec_info_padded` to verify a draft. Arrays are
            int32 `[bs]`, JAX's or numpy's.
        req_to_token: int32 `[max_reqs, max_seq_len]`, the table of the `ReqToTokenPool`, or a copy of it on
            the device.

    Raises:
        ValueError: a draft model's own batch, whose lengths do not say what is cached before the step.
    """
    prefix_lens, extend_seq_lens = _lengths(batch)
    return {
        "req_pool_indices": batch.req_pool_indices,
        "prefix_lens": prefix_lens,
        "extend_seq_lens": extend_seq_lens,
        "req_to_token": req_to_token,
        "padding_row": PADDING_ROW,
    }


def _lengths(batch: Any) -> tuple[Any, Any]:
    """What is cached before the step and what the step writes, per request."""
    mode, drafts = batch.forward_mode, _drafts(batch)
    # First the modes of speculative decoding: to sglang-jax they extend too, with other meanings of lengths.
    if mode.is_target_verify():
        if drafts is None:
            fail("a batch to verify drafts needs its spec_info")
        return batch.seq_lens, _each(batch, python_int("draft_token_num", drafts.draft_token_num))
    if mode.is_draft_extend() or (mode.is_decode() and drafts is not None):
        fail(
            f"a draft model's {mode.name} batch does not say what is cached before the step: "
            "give plan its lengths yourself"
        )
    if mode.is_decode_or_idle():
        return batch.seq_lens - 1, _each(batch, 1)
    return batch.extend_prefix_lens, batch.extend_seq_lens


def _drafts(batch: Any) -> Any:
    """The batch's part in speculative decoding, or None."""
    return batch.spec_info if hasattr(batch, "spec_info") else getattr(batch, "spec_info_padded", None)


def _each(batch: Any, tokens: int) -> np.ndarray:
    return np.full(batch.req_pool_indices.shape, tokens, np.int32)
