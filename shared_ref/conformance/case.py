"""One launch to judge an implementation by: its inputs, and both plans as they are before it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..plan import VerifyPlan, WritePlan
from ..reference import launch_canary_plan_kernels_reference
from ..schema import Plan

PlanType = TypeVar("PlanType", VerifyPlan, WritePlan)
Launch = Callable[..., Any]
"""A launcher with `launch_canary_plan_kernels`'s keywords on numpy arrays (contract, section 2).

It fills the plans in place and returns None, or leaves them alone and returns the new pair.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PlanInputs:
    """A launcher's arguments without the plans (contract, section 2)."""

    req_pool_indices: np.ndarray
    prefix_lens: np.ndarray
    extend_seq_lens: np.ndarray
    req_to_token: np.ndarray
    swa_window_size: int = 0
    full_to_swa_index_mapping: np.ndarray | None = None
    verify_capacity: int
    req_to_verify_expected_tokens: np.ndarray | None = None
    req_to_verify_expected_tokens_valid_lens: np.ndarray | None = None
    kv_token_id_vs_position_offset: int = 0

    def keywords(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


class Plans(NamedTuple):
    """Both plans of one launch."""

    verify: VerifyPlan
    write: WritePlan

    def copy(self) -> Plans:
        return Plans(_copy(self.verify), _copy(self.write))

    def buffers(self) -> dict[str, np.ndarray]:
        """Every buffer by field name, in the contract's order."""
        return {f.name: getattr(plan, f.name) for plan in self for f in plan.fields()}

    def digest(self) -> bytes:
        """SHA-256 over all bytes of all buffers, in the contract's order, little-endian."""
        sha = hashlib.sha256()
        for buffer in self.buffers().values():
            sha.update(buffer.astype(buffer.dtype.newbyteorder("<"), copy=False).tobytes())
        return sha.digest()


class Case(NamedTuple):
    """Inputs and the plans before the launch. What an implementation does with them is judged."""

    name: str
    inputs: PlanInputs
    before: Plans

    @classmethod
    def poisoned(cls, name: str, inputs: PlanInputs, *, write_req_capacity: int, seed: int = 0) -> Case:
        """A case whose plans hold a value of its own in every element, so that no stray write hides."""
        before = Plans(
            VerifyPlan(**_poison(VerifyPlan, inputs.verify_capacity, 2 * seed)),
            WritePlan(**_poison(WritePlan, write_req_capacity, 2 * seed + 1)),
        )
        return cls(name, inputs, before)

    def run(self, launch: Launch) -> Plans:
        """The plans after `launch`, from a fresh copy of the plans before."""
        plans = self.before.copy()
        returned = launch(verify_plan_out=plans.verify, write_plan_out=plans.write, **self.inputs.keywords())
        if returned is None:
            return plans
        try:
            verify, write = returned
        except (TypeError, ValueError):
            raise TypeError(
                f"a launcher returns None or the pair of new plans, got {type(returned).__name__}"
            ) from None
        return Plans(verify, write)

    def expected(self) -> Plans:
        """The plans after the reference."""
        return self.run(launch_canary_plan_kernels_reference)

    def save(self, path: str | Path) -> None:
        """Write the case as one `.npz`: inputs by argument name, plans as `before.<field>`."""
        arrays = {k: v for k, v in self.inputs.keywords().items() if v is not None}
        arrays |= {f"before.{name}": buffer for name, buffer in self.before.buffers().items()}
        np.savez_compressed(path, name=self.name, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Case:
        """Read what `save` wrote. ValueError says what a file lacks."""
        with np.load(path, allow_pickle=False) as arrays:
            missing = [n for n in _required_arrays() if n not in arrays]
            if missing:
                raise ValueError(f"{path} is no case: it lacks {', '.join(missing)}")
            keywords: dict[str, Any] = {
                f.name: int(arrays[f.name]) if f.type == "int" else arrays[f.name]
                for f in dataclasses.fields(PlanInputs)
                if f.name in arrays
            }
            before = Plans(
                VerifyPlan(**{f.name: arrays[f"before.{f.name}"] for f in VerifyPlan.fields()}),
                WritePlan(**{f.name: arrays[f"before.{f.name}"] for f in WritePlan.fields()}),
            )
            return cls(str(arrays["name"]), PlanInputs(**keywords), before)


def _copy(plan: PlanType) -> PlanType:
    return type(plan)(**{f.name: getattr(plan, f.name).copy() for f in plan.fields()})


def _required_arrays() -> list[str]:
    inputs = [f.name for f in dataclasses.fields(PlanInputs) if f.default is dataclasses.MISSING]
    return ["name", *inputs, *(f"before.{f.name}" for p in (VerifyPlan, WritePlan) for f in p.fields())]


def _poison(plan: type[Plan], capacity: int, salt: int) -> dict[str, np.ndarray]:
    buffers = {}
    for i, field in enumerate(plan.fields()):
        n = field.length.of(capacity)
        words = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        words ^= np.uint64((salt * 64 + i + 1) * 0xD1B54A32D192ED03 % 2**64)
        buffers[field.name] = (
            (words >> np.uint64(64 - 8 * np.dtype(field.dtype).itemsize))
            .astype(np.dtype(field.dtype).str.replace("i", "u"))
            .view(field.dtype)
        )
    return buffers
