"""vLLM's block tables, planned step by step, until one of them is corrupted.

The arrays have the shapes and conventions of vLLM's V1 engine: persistent buffers of the batch's largest
size, a block table with a row for each place in the batch, block 0 as the null block, and a batch that is
filled up to the size of a captured graph by requests without tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import shared_ref
from kvcanary_torch import Faults, VerifyPlan, WritePlan, plan
from kvcanary_torch.integrations.vllm import from_vllm
from shared_ref.sizing import suggest_capacities

BLOCK_SIZE, NUM_BLOCKS = 4, 32
MAX_NUM_REQS, MAX_MODEL_LEN = 4, 24


@dataclass
class CommonAttentionMetadata:
    """vLLM's, as far as `from_vllm` reads it."""

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table_tensor: torch.Tensor


class Worker:
    """The buffers of a model runner: the same memory in every step, as CUDA graphs need it."""

    def __init__(self, device: str) -> None:
        def int32(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.query_start_loc, self.seq_lens = int32(MAX_NUM_REQS + 1), int32(MAX_NUM_REQS)
        self.block_table = int32(MAX_NUM_REQS, MAX_MODEL_LEN // BLOCK_SIZE)

    def metadata(self, computed: list[int], scheduled: list[int], padded: int) -> CommonAttentionMetadata:
        """A step of `len(computed)` requests, filled up to `padded`."""
        num_reqs, ends = len(computed), torch.tensor(scheduled).cumsum(0)
        self.query_start_loc[1 : num_reqs + 1] = ends
        self.query_start_loc[num_reqs + 1 :] = ends[-1]
        self.seq_lens[:num_reqs] = torch.tensor(computed) + torch.tensor(scheduled)
        self.seq_lens[num_reqs:] = 0
        return CommonAttentionMetadata(
            self.query_start_loc[: padded + 1], self.seq_lens[:padded], self.block_table[:padded]
        )


class Planner:
    """The plans of one KV-cache group, and what has been noticed while building them."""

    def __init__(self, device: str) -> None:
        capacities = suggest_capacities(
            max_running_requests=MAX_NUM_REQS,
            max_seq_len=MAX_MODEL_LEN,
            pool_slots=NUM_BLOCKS * BLOCK_SIZE,
        )
        self.plans = (
            VerifyPlan.allocate(verify_capacity=capacities.verify_capacity, device=device),
            WritePlan.allocate(write_req_capacity=capacities.write_req_capacity, device=device),
        )
        self.rows = torch.arange(MAX_NUM_REQS, device=device)
        # Every slot to itself: one group has one pool. Its length makes a block outside the pool a fault.
        self.slots = torch.arange(NUM_BLOCKS * BLOCK_SIZE, device=device)
        self.faults = Faults.allocate(device=device)

    def step(self, metadata: CommonAttentionMetadata) -> None:
        plan(
            **from_vllm(metadata, block_size=BLOCK_SIZE, rows=self.rows),
            full_to_swa_index_mapping=self.slots,
            out=self.plans,
            faults_out=self.faults,
        )


def report(name: str, planner: Planner) -> None:
    verify, write = planner.plans
    entries, requests = int(verify.verify_num_valid), int(write.write_num_valid_reqs)
    print(f"{name}: check slots {verify.verify_slot_indices[:entries].tolist()}")
    offsets, seeds = write.write_offsets[: requests + 1], write.write_seed_slot_indices[:requests]
    print(f"  tokens from {offsets.tolist()} follow slots {seeds.tolist()}")


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    worker, planner = Worker(device), Planner(device)

    worker.block_table[0, :2] = torch.tensor([7, 3])
    worker.block_table[1, :1] = torch.tensor([9])
    planner.step(worker.metadata(computed=[0, 0], scheduled=[5, 2], padded=2))
    report("prefill", planner)

    planner.step(worker.metadata(computed=[5, 2], scheduled=[1, 1], padded=4))
    report("decode, padded to 4", planner)

    # The first request ends. vLLM moves the last one to its place, and another begins behind it.
    worker.block_table[0] = worker.block_table[1]
    worker.block_table[1, :2] = torch.tensor([3, 12])
    planner.step(worker.metadata(computed=[3, 0], scheduled=[1, 6], padded=2))
    report("a place is taken over", planner)

    worker.block_table[1, 1] = NUM_BLOCKS  # one block past the pool: a mistake of the block manager
    planner.step(worker.metadata(computed=[4, 6], scheduled=[1, 1], padded=2))
    report("a corrupted block table", planner)
    print(*shared_ref.decode_faults(planner.faults), sep="\n")


if __name__ == "__main__":
    main()
