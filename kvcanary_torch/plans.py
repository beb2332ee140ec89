"""Plans and faults whose buffers are torch tensors (contract, sections 3 and 5)."""

from __future__ import annotations

import torch

from shared_ref.constants import NO_PLACE
from shared_ref.schema import FaultsFields, Field, Plan, VerifyPlanFields, WritePlanFields
from shared_ref.validation import check_capacity


def _buffers(plan: type[Plan], capacity: int, device: torch.device | str | None) -> dict[str, torch.Tensor]:
    capacity = check_capacity(plan, capacity)
    return {
        f.name: torch.empty(f.length.of(capacity), dtype=getattr(torch, f.dtype), device=device)
        for f in plan.fields()
    }


def zeros(
    verify_capacity: int, write_req_capacity: int, device: torch.device
) -> tuple[VerifyPlan, WritePlan]:
    """Plans whose elements are all 0; capacities of 0 are legal here."""

    def buffers(fields: tuple[Field, ...], capacity: int) -> dict[str, torch.Tensor]:
        return {
            f.name: torch.zeros(f.length.of(capacity), dtype=getattr(torch, f.dtype), device=device)
            for f in fields
        }

    return (
        VerifyPlan(**buffers(_VERIFY_FIELDS, verify_capacity)),
        WritePlan(**buffers(_WRITE_FIELDS, write_req_capacity)),
    )


# Read here, because torch.compile does not see through `dataclasses.fields`.
_VERIFY_FIELDS, _WRITE_FIELDS = VerifyPlanFields.fields(), WritePlanFields.fields()


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


class Faults(FaultsFields[torch.Tensor]):
    """What made no sense, summed over launches (contract, section 5)."""

    @classmethod
    def allocate(cls, *, device: torch.device | str | None = None) -> Faults:
        """No faults yet, on `device`."""
        faults = cls(buffer=torch.empty(cls.SHAPE, dtype=torch.int64, device=device))
        faults.reset_()
        return faults

    def reset_(self) -> None:
        """Forget what was found; does not wait for the device, and can be captured in a CUDA graph."""
        self.buffer[:, 0].zero_()
        self.buffer[:, 1].fill_(NO_PLACE)
