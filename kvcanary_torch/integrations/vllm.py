"""vLLM: its attention metadata as the keywords of `plan`."""

from __future__ import annotations

from typing import Any

import torch

from shared_ref.integrations.vllm import check_ndim, plan_keywords


def from_vllm(
    metadata: Any,
    *,
    block_size: int,
    num_computed_tokens: torch.Tensor | None = None,
    sliding_window: int | None = None,
    rows: torch.Tensor | None = None,
) -> dict[str, Any]:
    """The keywords of `kvcanary_torch.plan` that a batch's metadata gives. The block table is not copied.

    Args:
        metadata: a `CommonAttentionMetadata`, or any object with its `query_start_loc` `[num_reqs + 1]`,
            `seq_lens` `[num_reqs]` and `block_table_tensor` `[num_reqs, blocks]`, int32 on one device. The
            requests that pad a CUDA graph's batch have no tokens there, and get none in the plan.
        block_size: slots of a block in that table: the `block_size` of vLLM's `BlockTable`, which is the
            attention kernel's and may be smaller than the cache's.
        num_computed_tokens: `[num_reqs]` or longer, tokens in the cache before this step, and 0 for the
            requests that pad the batch. It saves their computation, `seq_lens` less the query lengths.
        sliding_window: the window of this KV-cache group in tokens, as in its spec; None for full attention.
            A window needs `full_to_swa_index_mapping` beside these keywords: the identity.
        rows: `torch.arange` of at least `num_reqs` on the device, if one is at hand. It saves making it.

    Raises:
        ValueError: the shapes do not belong together, or `sliding_window` is below 2.
    """
    if rows is None:
        seq_lens = metadata.seq_lens
        check_ndim("seq_lens", seq_lens, 1)
        rows = torch.arange(len(seq_lens), dtype=torch.int32, device=seq_lens.device)
    return plan_keywords(
        metadata,
        block_size=block_size,
        rows=rows,
        num_computed_tokens=num_computed_tokens,
        sliding_window=sliding_window,
    )
