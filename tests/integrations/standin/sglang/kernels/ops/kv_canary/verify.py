from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    verify_slot_indices: torch.Tensor
    verify_expected_tokens: torch.Tensor
    verify_expected_positions: torch.Tensor
    verify_prev_slot_indices: torch.Tensor
    verify_num_valid: torch.Tensor
    enable: torch.Tensor

    @classmethod
    def allocate(cls, *, verify_capacity: int, device: torch.device) -> VerifyPlan:
        columns = [torch.full((verify_capacity,), -7, dtype=torch.int64, device=device) for _ in range(4)]
        return cls(
            verify_slot_indices=columns[0],
            verify_expected_tokens=columns[1],
            verify_expected_positions=columns[2],
            verify_prev_slot_indices=columns[3],
            verify_num_valid=torch.zeros(1, dtype=torch.int32, device=device),
            enable=torch.ones(1, dtype=torch.int32, device=device),
        )
