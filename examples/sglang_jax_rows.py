"""sglang-jax's batches, planned step by step: prefill, decode, and a row that another request takes over.

The arrays have the shapes and conventions of sglang-jax: numpy int32 on the host, a batch that is filled
up to a bucket by requests of row -1, and a table whose row 0 is a request's like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto

import numpy as np

import shared_ref
from kvcanary_jax import Faults, VerifyPlan, WritePlan, plan
from kvcanary_jax.integrations.sglang_jax import from_sglang_jax

BUCKET, MAX_REQS, MAX_CONTEXT_LEN = 4, 3, 8


class ForwardMode(IntEnum):
    """sglang-jax's, without the modes of speculative decoding."""

    EXTEND = auto()
    DECODE = auto()

    def is_decode(self) -> bool:
        return self == ForwardMode.DECODE

    is_decode_or_idle = is_decode

    def is_target_verify(self) -> bool:
        return False

    is_draft_extend = is_target_verify


@dataclass
class ModelWorkerBatch:
    """sglang-jax's, as far as `from_sglang_jax` reads it."""

    forward_mode: ForwardMode
    req_pool_indices: np.ndarray
    seq_lens: np.ndarray
    extend_prefix_lens: np.ndarray | None = None
    extend_seq_lens: np.ndarray | None = None


def padded(values: list[int], fill: int = 0) -> np.ndarray:
    return np.array(values + [fill] * (BUCKET - len(values)), np.int32)


def extend(rows: list[int], prefix_lens: list[int], extend_seq_lens: list[int]) -> ModelWorkerBatch:
    prefix, new = padded(prefix_lens), padded(extend_seq_lens)
    return ModelWorkerBatch(ForwardMode.EXTEND, padded(rows, -1), prefix + new, prefix, new)


def decode(rows: list[int], seq_lens: list[int]) -> ModelWorkerBatch:
    return ModelWorkerBatch(ForwardMode.DECODE, padded(rows, -1), padded(seq_lens))


def report(name: str, verify: VerifyPlan, write: WritePlan) -> None:
    entries, requests = int(verify.verify_num_valid[0]), int(write.write_num_valid_reqs[0])
    print(f"{name}: check slots {verify.verify_slot_indices[:entries].tolist()}")
    offsets, seeds = write.write_offsets[: requests + 1], write.write_seed_slot_indices[:requests]
    print(f"  tokens from {offsets.tolist()} follow slots {seeds.tolist()}")


def main() -> None:
    req_to_token = np.zeros((MAX_REQS, MAX_CONTEXT_LEN), np.int32)  # of the ReqToTokenPool
    faults = Faults.allocate()

    def step(name: str, batch: ModelWorkerBatch) -> None:
        nonlocal faults
        verify, write, faults = plan(
            **from_sglang_jax(batch, req_to_token),
            verify_capacity=MAX_REQS * MAX_CONTEXT_LEN,
            write_req_capacity=BUCKET,
            faults_out=faults,
        )
        report(name, verify, write)

    req_to_token[0, :3], req_to_token[1, :2] = [5, 6, 7], [8, 9]
    step("prefill", extend(rows=[0, 1], prefix_lens=[0, 0], extend_seq_lens=[3, 2]))

    req_to_token[0, 3], req_to_token[1, 2] = 10, 11
    step("decode", decode(rows=[0, 1], seq_lens=[4, 3]))

    # Row 0 goes to a request that shares the prompt of row 1; the former owner's tail is still in it.
    req_to_token[0, :3] = [8, 9, 5]
    step("a row is taken over", extend(rows=[0], prefix_lens=[2], extend_seq_lens=[1]))

    step("a length that is too long", decode(rows=[0, 1], seq_lens=[4, 5]))  # of row 1, by one
    print(*shared_ref.decode_faults(faults), sep="\n")


if __name__ == "__main__":
    main()
