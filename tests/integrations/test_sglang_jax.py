"""`from_sglang_jax`: batches of each forward mode as sglang-jax pads them, planned."""

from __future__ import annotations

from enum import IntEnum, auto
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import kvcanary_jax  # noqa: E402
from kvcanary_jax.integrations.sglang_jax import from_sglang_jax  # noqa: E402


class ForwardMode(IntEnum):
    """sglang-jax's modes, as far as `from_sglang_jax` asks after them."""

    EXTEND = auto()
    DECODE = auto()
    MIXED = auto()
    IDLE = auto()
    TARGET_VERIFY = auto()
    DRAFT_EXTEND = auto()

    def is_decode(self) -> bool:
        return self == ForwardMode.DECODE

    def is_decode_or_idle(self) -> bool:
        return self in (ForwardMode.DECODE, ForwardMode.IDLE)

    def is_target_verify(self) -> bool:
        return self == ForwardMode.TARGET_VERIFY

    def is_draft_extend(self) -> bool:
        return self == ForwardMode.DRAFT_EXTEND


def int32(values: Any) -> np.ndarray:
    return np.array(values, np.int32)


TABLE = int32([[11, 12, 13, 14], [21, 22, 23, 24], [31, 32, 33, 34]])
"""Row 0 is a request's like any other."""


def batch(mode: ForwardMode, *, array: Any = int32, **fields: Any) -> SimpleNamespace:
    """A batch of the requests in rows 0 and 2, filled up to a bucket of four."""
    arrays = {"req_pool_indices": [0, 2, -1, -1], "seq_lens": [3, 2, 0, 0]}
    arrays |= {name: value for name, value in fields.items() if isinstance(value, list)}
    others = {name: value for name, value in fields.items() if name not in arrays}
    drafts = {} if "spec_info_padded" in others else {"spec_info": None}
    absent = {"extend_prefix_lens": None, "extend_seq_lens": None} | drafts
    batch = absent | {name: array(value) for name, value in arrays.items()} | others
    return SimpleNamespace(forward_mode=mode, **batch)


def planned(batch: SimpleNamespace, table: Any = TABLE) -> tuple[list[int], list[int], list[int]]:
    """The slots to check, the write offsets and the seeds."""
    keywords = from_sglang_jax(batch, table)
    verify, write = kvcanary_jax.plan(**keywords, verify_capacity=8, write_req_capacity=4)
    entries = int(verify.verify_num_valid[0])
    return (
        verify.verify_slot_indices.tolist()[:entries],
        write.write_offsets.tolist(),
        write.write_seed_slot_indices.tolist(),
    )


EXTEND = {"extend_prefix_lens": [2, 0, 0, 0], "extend_seq_lens": [1, 2, 0, 0]}


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.MIXED], ids=lambda mode: mode.name)
def test_a_prefill_step_passes_its_lengths_as_they_are(mode: ForwardMode) -> None:
    step = batch(mode, **EXTEND)
    keywords = from_sglang_jax(step, TABLE)
    assert keywords["req_pool_indices"] is step.req_pool_indices
    assert keywords["prefix_lens"] is step.extend_prefix_lens
    assert keywords["extend_seq_lens"] is step.extend_seq_lens
    assert keywords["req_to_token"] is TABLE
    assert planned(step) == ([11, 12], [0, 1, 3, 3, 3], [12, -1, -1, -1])


def test_a_decode_step_writes_the_last_token_of_each_request() -> None:
    assert planned(batch(ForwardMode.DECODE)) == ([11, 12, 31], [0, 1, 2, 2, 2], [12, 31, -1, -1])


def test_an_idle_step_plans_nothing() -> None:
    idle = batch(ForwardMode.IDLE, req_pool_indices=[-1] * 4, seq_lens=[0] * 4)
    assert planned(idle) == ([], [0, 0, 0, 0, 0], [-1, -1, -1, -1])


@pytest.mark.parametrize("name", ["spec_info", "spec_info_padded"])
def test_to_verify_a_draft_writes_all_its_tokens_behind_the_sequence(name: str) -> None:
    """`extend_seq_lens` holds something else then: sglang-jax leaves the draft's tokens there."""
    drafts = {name: SimpleNamespace(draft_token_num=2)}
    step = batch(
        ForwardMode.TARGET_VERIFY, seq_lens=[2, 1, 0, 0], extend_seq_lens=[501, 502, 503, 504], **drafts
    )
    assert planned(step) == ([11, 12, 31], [0, 2, 4, 4, 4], [12, 31, -1, -1])


@pytest.mark.parametrize("mode", [ForwardMode.DRAFT_EXTEND, ForwardMode.DECODE], ids=lambda mode: mode.name)
def test_a_draft_model_s_own_batch_is_refused(mode: ForwardMode) -> None:
    with pytest.raises(ValueError, match=r"^kv-canary: ") as refused:
        from_sglang_jax(batch(mode, spec_info=SimpleNamespace(), **EXTEND), TABLE)
    assert str(refused.value) == (
        f"kv-canary: a draft model's {mode.name} batch does not say what is cached before the step: "
        "give plan its lengths yourself"
    )


@pytest.mark.parametrize(
    ("drafts", "message"),
    [
        (None, "a batch to verify drafts needs its spec_info"),
        (SimpleNamespace(draft_token_num=2.5), "draft_token_num must be an int, got float"),
    ],
)
def test_drafts_to_verify_need_their_number(drafts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^kv-canary: {message}$"):
        from_sglang_jax(batch(ForwardMode.TARGET_VERIFY, spec_info=drafts), TABLE)


def test_padding_has_no_faults() -> None:
    step = batch(ForwardMode.DECODE)
    with jax.enable_x64(True):
        faults = jax.numpy.tile(jax.numpy.array([0, -1]), (8, 1))
    *_, faults = kvcanary_jax.plan(
        **from_sglang_jax(step, TABLE), verify_capacity=8, write_req_capacity=4, faults_out=faults
    )
    assert faults[:, 0].tolist() == [0] * 8


def test_it_can_be_part_of_a_jitted_step() -> None:
    @jax.jit
    def slots(rows: Any, lens: Any, table: Any) -> Any:
        step = SimpleNamespace(
            forward_mode=ForwardMode.DECODE, req_pool_indices=rows, seq_lens=lens, spec_info=None
        )
        return kvcanary_jax.plan(**from_sglang_jax(step, table), verify_capacity=4, write_req_capacity=4)

    step = batch(ForwardMode.DECODE, array=lambda values: jax.numpy.asarray(int32(values)))
    verify, _ = slots(step.req_pool_indices, step.seq_lens, TABLE)
    assert verify.verify_slot_indices.tolist()[:3] == [11, 12, 31]


def test_each_data_parallel_rank_plans_its_part_of_the_batch_on_sglang_jax_s_mesh() -> None:
    """Ranks count their slots on their own, and each has its own padding in the middle of the batch."""
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices: XLA_FLAGS=--xla_force_host_platform_device_count=2")
    explicit = (jax.sharding.AxisType.Explicit,) * 2
    mesh = jax.make_mesh((2, 1), ("data", "tensor"), axis_types=explicit, devices=jax.devices()[:2])
    on_ranks, everywhere = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()

    def on_rank(rows: Any, lens: Any, table: Any) -> Any:
        step = SimpleNamespace(
            forward_mode=ForwardMode.DECODE, req_pool_indices=rows, seq_lens=lens, spec_info=None
        )
        return kvcanary_jax.plan(**from_sglang_jax(step, table), verify_capacity=4, write_req_capacity=2)

    plan = jax.shard_map(on_rank, mesh=mesh, in_specs=(on_ranks, on_ranks, everywhere), out_specs=on_ranks)
    with jax.set_mesh(mesh):
        sharding = jax.sharding.NamedSharding(mesh, on_ranks)
        rows, lens = (jax.device_put(int32(v), sharding) for v in ([0, -1, 1, 2], [3, 0, 2, 4]))
        verify, write = jax.jit(plan)(rows, lens, TABLE)
    assert verify.verify_num_valid.tolist() == [2, 4]
    assert verify.verify_slot_indices.tolist() == [11, 12, 0, 0, 21, 31, 32, 33]
    assert write.write_offsets.tolist() == [0, 1, 1, 0, 1, 2]
