from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    write_offsets: torch.Tensor
    write_seed_slot_indices: torch.Tensor
    write_num_valid_reqs: torch.Tensor

    @classmethod
    def allocate(cls, *, write_req_capacity: int, device: torch.device) -> WritePlan:
        return cls(
            write_offsets=torch.full((write_req_capacity + 1,), -7, dtype=torch.int64, device=device),
            write_seed_slot_indices=torch.full((write_req_capacity,), -7, dtype=torch.int64, device=device),
            write_num_valid_reqs=torch.zeros(1, dtype=torch.int32, device=device),
        )
