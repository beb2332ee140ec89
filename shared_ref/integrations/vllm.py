"""vLLM's batch metadata as the keywords of `plan`. Any framework's arrays are sliced and subtracted alike."""

from __future__ import annotations

from typing import Any

from ..validation import fail, python_int


def plan_keywords(
    metadata: Any,
    *,
    block_size: int,
    rows: Any,
    num_computed_tokens: Any = None,
    sliding_window: int | None = None,
) -> dict[str, Any]:
    """The keywords of `plan` that vLLM's metadata gives.

    Args:
        metadata: any object with `query_start_loc` `[bs + 1]`, `seq_lens` `[bs]`, and either
            `block_table_tensor` `[>= bs, blocks]` or `block_tables` `[bs * blocks]`.
        block_size: slots of a block in that table.
        rows: 0, 1, 2, ...: at least `bs` int32 or int64.
        num_computed_tokens: `[>= bs]`, tokens in the cache before this step, if it is at hand; 0 for the
            requests that pad the batch.
        sliding_window: the tokens that a token attends to, itself included; None for full attention.

    Raises:
        ValueError: the shapes do not belong together, or the window leaves no cached token to read.
    """
    starts, seq_lens = metadata.query_start_loc, metadata.seq_lens
    check_ndim("query_start_loc", starts, 1)
    check_ndim("seq_lens", seq_lens, 1)
    bs = seq_lens.shape[0]
    if starts.shape[0] != bs + 1:
        fail(
            f"query_start_loc must have one element more than seq_lens, got {starts.shape[0]} and {bs}: "
            "a data-parallel rank plans its own requests"
        )
    extend_seq_lens = starts[1:] - starts[:-1]
    keywords = {
        "req_pool_indices": rows[:bs],
        "prefix_lens": seq_lens - extend_seq_lens
        if num_computed_tokens is None
        else num_computed_tokens[:bs],
        "extend_seq_lens": extend_seq_lens,
        "req_to_token": _block_table(metadata, bs),
        "page_size": block_size,
        "padding_row": None,
    }
    if sliding_window is not None:
        sliding_window = python_int("sliding_window", sliding_window)
        if sliding_window < 2:
            fail(f"sliding_window must be at least 2, got {sliding_window}: no cached token is read")
        # The token being computed is one of the window's, so one cached token fewer is read, and kept.
        keywords["swa_window_size"] = sliding_window - 1
    return keywords


def check_ndim(name: str, array: Any, ndim: int) -> None:
    """ValueError for what is no array of so many dimensions."""
    shape = getattr(array, "shape", None)
    if shape is None:
        fail(f"{name} must be an array, got {type(array).__name__}")
    if len(shape) != ndim:
        fail(f"{name} must be {ndim}-D, got shape {tuple(shape)}")


def _block_table(metadata: Any, bs: int) -> Any:
    """The table as `[bs, blocks]` at least; tpu-inference passes the rows one behind the other."""
    if hasattr(metadata, "block_table_tensor"):
        table = metadata.block_table_tensor
        check_ndim("block_table_tensor", table, 2)
        if table.shape[0] < bs:
            fail(f"block_table_tensor must have a row for each of the {bs} requests, got {table.shape[0]}")
        return table
    flat = metadata.block_tables
    check_ndim("block_tables", flat, 1)
    blocks = flat.shape[0] // max(bs, 1)
    if blocks * bs != flat.shape[0]:
        fail(
            f"block_tables must have as many blocks for each of the {bs} requests, got {flat.shape[0]} in all"
        )
    return flat.reshape(bs, blocks)
