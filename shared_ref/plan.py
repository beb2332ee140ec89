"""Plans and faults whose buffers are numpy arrays (contract, sections 3 and 5)."""

from __future__ import annotations

import numpy as np

from .constants import NO_PLACE
from .schema import FaultsFields, Plan, VerifyPlanFields, WritePlanFields
from .validation import check_capacity


def _buffers(plan: type[Plan], capacity: int) -> dict[str, np.ndarray]:
    capacity = check_capacity(plan, capacity)
    return {f.name: np.empty(f.length.of(capacity), f.dtype) for f in plan.fields()}


class VerifyPlan(VerifyPlanFields[np.ndarray]):
    """Which slots to check in this step; columns of `verify_capacity` entries (contract, section 3)."""

    @classmethod
    def allocate(cls, *, verify_capacity: int) -> VerifyPlan:
        """A plan with `enable` at 1 and the rest unspecified. ValueError below 1."""
        plan = cls(**_buffers(cls, verify_capacity))
        plan.enable.fill(1)
        return plan


class WritePlan(WritePlanFields[np.ndarray]):
    """How this step's tokens continue each chain; `write_req_capacity` rows (contract, section 3)."""

    @classmethod
    def allocate(cls, *, write_req_capacity: int) -> WritePlan:
        """A plan whose contents are unspecified. ValueError below 1."""
        return cls(**_buffers(cls, write_req_capacity))


class Faults(FaultsFields[np.ndarray]):
    """What made no sense, summed over launches (contract, section 5)."""

    @classmethod
    def allocate(cls) -> Faults:
        """No faults yet."""
        faults = cls(buffer=np.empty(cls.SHAPE, np.int64))
        faults.reset_()
        return faults

    def reset_(self) -> None:
        """Forget what was found."""
        self.buffer[:] = 0, NO_PLACE
