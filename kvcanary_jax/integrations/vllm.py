"""tpu-inference, which is vLLM on JAX: its attention metadata as the keywords of `plan`."""

from __future__ import annotations

from typing import Any

import numpy as np

from shared_ref.integrations.vllm import check_ndim, plan_keywords


def from_vllm(
    metadata: Any, *, block_size: int, num_computed_tokens: Any = None, sliding_window: int | None = None
) -> dict[str, Any]:
    """The keywords of `kvcanary_jax.plan` that a batch's metadata gives, inside `jit` or outside.

    Args:
        metadata: tpu-inference's `AttentionMetadata`, or any object with its `query_start_loc`
            `[max_num_seqs + 1]`, `seq_lens` `[max_num_seqs]` and `block_tables` `[max_num_seqs * blocks]`,
            int32. vLLM's name and shape, `block_table_tensor` `[max_num_seqs, blocks]`, will do too. Requests
            that pad the batch have no tokens there, and get none in the plan.
        block_size: slots of a block. Static.
        num_computed_tokens: `[max_num_seqs]` or longer, tokens in the cache before this step, and 0 for the
            requests that pad the batch. It saves their computation, `seq_lens` less the query lengths.
        sliding_window: the window of this KV-cache group in tokens, as in its spec; None for full attention.
            A window needs `full_to_swa_index_mapping` beside these keywords: the identity. Static.

    Raises:
        ValueError: the shapes do not belong together (several data-parallel ranks' metadata does not: plan
            inside the `shard_map`), or `sliding_window` is below 2.
    """
    check_ndim("seq_lens", metadata.seq_lens, 1)
    return plan_keywords(
        metadata,
        block_size=block_size,
        rows=np.arange(len(metadata.seq_lens), dtype=np.int32),
        num_computed_tokens=num_computed_tokens,
        sliding_window=sliding_window,
    )
