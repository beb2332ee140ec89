"""Plans whose buffers are torch tensors (contract, section 3)."""

from __future__ import annotations

import torch

from shared_ref.schema import Plan, VerifyPlanFields, WritePlanFields


def _buffers(plan: type[Plan], capacity: int, device: torch.device | str | None) -> dict[str, torch.Tensor]:
    plan.check_capacity(capacity)
    return {
        f.name: torch.empty(f.length.of(capacity), dtype=getattr(torch, f.dtype), device=device)
        for f in plan.fields()
    }


class VerifyPlan(VerifyPlanFields[torch.Tensor]):
    """Which slots to check in this step; columns of `verify_capacity` entries (contract, section 3)."""

    @classmethod
    def allocate(cls, *, verify_capacity: int, device: torch.device | str | None = None) -> VerifyPlan:
        """A plan on `device` with `enable` at 1 and the rest unspecified. ValueError below 1."""
        plan = cls(**_buffers(cls, verify_capacity, device))
        plan.enable.fill_(1)
        return plan


class WritePlan(WritePlanFields[torch.Tensor]):
    """How this step's tokens continue each chain; `write_req_capacity` rows (contract, section 3)."""

    @classmethod
    def allocate(cls, *, write_req_capacity: int, device: torch.device | str | None = None) -> WritePlan:
        """A plan on `device` whose contents are unspecified. ValueError below 1."""
        return cls(**_buffers(cls, write_req_capacity, device))
