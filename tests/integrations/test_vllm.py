"""`from_vllm`: vLLM's metadata in PyTorch and tpu-inference's in JAX, planned."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shared_ref.integrations.vllm import plan_keywords

BLOCK_SIZE = 4

QUERY_START_LOC = [0, 1, 4, 4]
SEQ_LENS = [6, 3, 0]
BLOCK_TABLE = [[3, 5, 0], [2, 0, 0], [0, 0, 0]]
"""One request decodes its sixth token, one begins with three, and one pads the batch of a captured graph."""

SLOTS = [12, 13, 14, 15, 20]
PREDECESSORS = [-1, 12, 13, 14, 15]


def metadata(array: Any, **changes: Any) -> SimpleNamespace:
    """What vLLM's attention metadata builders get, as far as `from_vllm` reads it."""
    fields = {"query_start_loc": QUERY_START_LOC, "seq_lens": SEQ_LENS, "block_table_tensor": BLOCK_TABLE}
    return SimpleNamespace(**{name: array(value) for name, value in (fields | changes).items()})


def int32(values: Any) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.fixture
def tensor() -> Any:
    torch = pytest.importorskip("torch")
    return functools.partial(torch.tensor, dtype=torch.int32)


def assert_planned(verify: Any, write: Any) -> None:
    assert verify.verify_num_valid.tolist() == [5]
    assert verify.verify_slot_indices.tolist()[:5] == SLOTS
    assert verify.verify_prev_slot_indices.tolist()[:5] == PREDECESSORS
    assert write.write_offsets.tolist() == [0, 1, 4, 4]
    assert write.write_seed_slot_indices.tolist() == [20, -1, -1]


# --- What the metadata says


def test_the_query_lengths_are_written_and_what_is_before_them_is_cached() -> None:
    keywords = plan_keywords(metadata(int32), block_size=BLOCK_SIZE, rows=np.arange(8))
    assert keywords["extend_seq_lens"].tolist() == [1, 3, 0]
    assert keywords["prefix_lens"].tolist() == [5, 0, 0]
    assert keywords["req_pool_indices"].tolist() == [0, 1, 2]
    assert (keywords["page_size"], keywords["padding_row"]) == (4, None)


def test_computed_tokens_at_hand_are_taken() -> None:
    computed = int32([7, 8, 9, 10])
    keywords = plan_keywords(
        metadata(int32), block_size=BLOCK_SIZE, rows=np.arange(3), num_computed_tokens=computed
    )
    assert keywords["prefix_lens"].tolist() == [7, 8, 9]
    assert np.shares_memory(keywords["prefix_lens"], computed)


def test_rows_of_blocks_one_behind_the_other_are_the_same_table() -> None:
    flat = SimpleNamespace(
        query_start_loc=int32(QUERY_START_LOC),
        seq_lens=int32(SEQ_LENS),
        block_tables=int32(BLOCK_TABLE).ravel(),
    )
    keywords = plan_keywords(flat, block_size=BLOCK_SIZE, rows=np.arange(3))
    assert keywords["req_to_token"].tolist() == BLOCK_TABLE
    assert np.shares_memory(keywords["req_to_token"], flat.block_tables)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"query_start_loc": [0, 1, 4, 0, 2, 3]},
            "kv-canary: query_start_loc must have one element more than seq_lens, got 6 and 3: "
            "a data-parallel rank plans its own requests",
        ),
        (
            {"block_table_tensor": BLOCK_TABLE[:2]},
            "kv-canary: block_table_tensor must have a row for each of the 3 requests, got 2",
        ),
    ],
    ids=["several ranks", "too few rows"],
)
def test_shapes_that_do_not_belong_together_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=r"^kv-canary: ") as refused:
        plan_keywords(metadata(int32, **changes), block_size=BLOCK_SIZE, rows=np.arange(3))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_start_loc": np.int32(3)}, "query_start_loc must be 1-D, got shape ()"),
        ({"seq_lens": np.ones((3, 1), np.int32)}, "seq_lens must be 1-D, got shape (3, 1)"),
        ({"seq_lens": [1, 2]}, "seq_lens must be an array, got list"),
        ({"block_table_tensor": None}, "block_table_tensor must be an array, got NoneType"),
        ({"block_table_tensor": np.ones(6, np.int32)}, "block_table_tensor must be 2-D, got shape (6,)"),
    ],
)
def test_metadata_of_other_dimensions_is_refused(changes: dict, message: str) -> None:
    given = SimpleNamespace(**vars(metadata(int32)) | changes)
    with pytest.raises(ValueError, match=r"^kv-canary: ") as refused:
        plan_keywords(given, block_size=BLOCK_SIZE, rows=np.arange(3))
    assert str(refused.value) == f"kv-canary: {message}"


def test_an_empty_batch_has_no_rows_of_blocks() -> None:
    flat = SimpleNamespace(
        query_start_loc=np.zeros(1, np.int32),
        seq_lens=np.zeros(0, np.int32),
        block_tables=np.zeros(0, np.int32),
    )
    keywords = plan_keywords(flat, block_size=BLOCK_SIZE, rows=np.arange(3))
    assert keywords["req_to_token"].shape == (0, 0)
    assert [len(keywords[name]) for name in ("req_pool_indices", "prefix_lens", "extend_seq_lens")] == [
        0,
        0,
        0,
    ]


@pytest.mark.parametrize(("bs", "blocks"), [(3, 7), (0, 4)])
def test_a_flat_table_must_have_equal_rows(bs: int, blocks: int) -> None:
    flat = SimpleNamespace(
        query_start_loc=np.zeros(bs + 1, np.int32),
        seq_lens=np.zeros(bs, np.int32),
        block_tables=np.zeros(blocks, np.int32),
    )
    with pytest.raises(ValueError, match=r"^kv-canary: ") as refused:
        plan_keywords(flat, block_size=BLOCK_SIZE, rows=np.arange(3))
    assert str(refused.value) == (
        f"kv-canary: block_tables must have as many blocks for each of the {bs} requests, got {blocks} in all"
    )


def test_a_window_of_which_no_cached_token_is_read_is_refused() -> None:
    with pytest.raises(ValueError, match="sliding_window must be at least 2, got 1"):
        plan_keywords(metadata(int32), block_size=BLOCK_SIZE, rows=np.arange(3), sliding_window=1)


def test_a_window_is_an_int() -> None:
    with pytest.raises(ValueError, match=r"^kv-canary: sliding_window must be an int, got str$"):
        plan_keywords(metadata(int32), block_size=BLOCK_SIZE, rows=np.arange(3), sliding_window="5")  # type: ignore[arg-type]


# --- PyTorch


def test_torch_plans_a_batch_as_vllm_describes_it(tensor: Any) -> None:
    import kvcanary_torch
    from kvcanary_torch.integrations.vllm import from_vllm

    verify, write = kvcanary_torch.plan(
        **from_vllm(metadata(tensor), block_size=BLOCK_SIZE), verify_capacity=8, write_req_capacity=3
    )
    assert_planned(verify, write)


def test_torch_refuses_lengths_that_are_no_array(tensor: Any) -> None:
    from kvcanary_torch.integrations.vllm import from_vllm

    given = SimpleNamespace(**vars(metadata(tensor)) | {"seq_lens": [6, 3, 0]})
    with pytest.raises(ValueError, match=r"^kv-canary: seq_lens must be an array, got list$"):
        from_vllm(given, block_size=BLOCK_SIZE)


def test_torch_copies_neither_the_block_table_nor_the_rows(tensor: Any) -> None:
    from kvcanary_torch.integrations.vllm import from_vllm

    batch, rows = metadata(tensor), tensor(range(16))
    keywords = from_vllm(batch, block_size=BLOCK_SIZE, rows=rows)
    assert keywords["req_to_token"] is batch.block_table_tensor
    assert keywords["req_pool_indices"].data_ptr() == rows.data_ptr()
    assert keywords["req_pool_indices"].tolist() == [0, 1, 2]


def test_torch_takes_a_view_of_vllm_s_persistent_buffers(tensor: Any) -> None:
    import kvcanary_torch
    from kvcanary_torch.integrations.vllm import from_vllm

    table = tensor([[*row, 9, 9] for row in [*BLOCK_TABLE, [7, 7, 7]]])
    batch = SimpleNamespace(
        query_start_loc=tensor([*QUERY_START_LOC, 4])[:4],
        seq_lens=tensor([*SEQ_LENS, 0])[:3],
        block_table_tensor=table[:3, :3],
    )
    verify, write = kvcanary_torch.plan(
        **from_vllm(batch, block_size=BLOCK_SIZE), verify_capacity=8, write_req_capacity=3
    )
    assert_planned(verify, write)


def freed_window(array: Any) -> SimpleNamespace:
    """A request of eight computed tokens, whose first block vLLM has freed: a window of five reads 4 to 8."""
    return metadata(array, query_start_loc=[0, 1], seq_lens=[9], block_table_tensor=[[0, 5, 6]])


@pytest.mark.parametrize(("window", "in_the_null_block"), [("of vLLM", 0), ("one too long", 1)])
def test_the_window_ends_where_vllm_frees_blocks(window: str, in_the_null_block: int, tensor: Any) -> None:
    """One token more would reach into the block that is gone: the null block, whose slots are 0 to 3."""
    torch = pytest.importorskip("torch")
    import kvcanary_torch
    from kvcanary_torch.integrations.vllm import from_vllm

    keywords = from_vllm(freed_window(tensor), block_size=BLOCK_SIZE, sliding_window=5)
    if window == "one too long":
        keywords["swa_window_size"] = 5
    faults = kvcanary_torch.Faults.allocate()
    verify, _ = kvcanary_torch.plan(
        **keywords,
        full_to_swa_index_mapping=torch.arange(8 * BLOCK_SIZE),
        verify_capacity=8,
        write_req_capacity=1,
        faults_out=faults,
    )
    count = {"of vLLM": 4, "one too long": 5}[window]
    assert verify.verify_slot_indices.tolist()[:count] == [3, 20, 21, 22, 23][-count:]
    assert faults.buffer[:, 0].tolist() == [0, 0, 0, 0, 0, 0, 0, in_the_null_block]


# --- JAX


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax")


@dataclasses.dataclass
class AttentionMetadata:
    """tpu-inference's, as far as `from_vllm` reads it."""

    block_tables: Any
    seq_lens: Any
    query_start_loc: Any


def on_tpu_inference(jax: Any, ranks: int = 1) -> AttentionMetadata:
    """Of each data-parallel rank the same batch, one behind the other."""
    return AttentionMetadata(
        block_tables=jax.numpy.asarray(np.tile(int32(BLOCK_TABLE).ravel(), ranks)),
        seq_lens=jax.numpy.asarray(np.tile(int32(SEQ_LENS), ranks)),
        query_start_loc=jax.numpy.asarray(np.tile(int32(QUERY_START_LOC), ranks)),
    )


def step(batch: AttentionMetadata) -> Any:
    import kvcanary_jax
    from kvcanary_jax.integrations.vllm import from_vllm

    return kvcanary_jax.plan(
        **from_vllm(batch, block_size=BLOCK_SIZE), verify_capacity=8, write_req_capacity=3
    )


@pytest.mark.parametrize("transform", ["jit", "eager"])
def test_jax_plans_a_batch_as_tpu_inference_describes_it(transform: str, jax: Any) -> None:
    batch = on_tpu_inference(jax)
    fields = vars(batch)
    run = {"jit": jax.jit(lambda fields: step(AttentionMetadata(**fields))), "eager": lambda _: step(batch)}
    assert_planned(*run[transform](fields))


def test_jax_takes_vllm_s_own_names_too(jax: Any) -> None:
    assert_planned(*step(metadata(lambda values: jax.numpy.asarray(int32(values)))))


def shard(rank: int, array: Any) -> np.ndarray:
    return np.split(np.asarray(array), 2)[rank]


def test_each_data_parallel_rank_plans_its_own_requests(jax: Any) -> None:
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices: XLA_FLAGS=--xla_force_host_platform_device_count=2")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    data = jax.sharding.PartitionSpec("data")
    on_rank = jax.shard_map(
        lambda fields: step(AttentionMetadata(**fields)), mesh=mesh, in_specs=data, out_specs=data
    )
    verify, write = jax.jit(on_rank)(vars(on_tpu_inference(jax, ranks=2)))
    for rank in range(2):
        assert_planned(*jax.tree.map(functools.partial(shard, rank), (verify, write)))
    with pytest.raises(ValueError, match="got 8 and 6: a data-parallel rank plans its own requests"):
        step(on_tpu_inference(jax, ranks=2))
