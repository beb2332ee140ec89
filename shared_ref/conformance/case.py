"""One launch to judge an implementation by: its inputs, and both plans as they are before it."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..constants import NO_PLACE
from ..plan import VerifyPlan, WritePlan
from ..reference import launch_canary_plan_kernels_reference
from ..schema import OPTIONAL_OUTPUTS, Plan

PlanType = TypeVar("PlanType", VerifyPlan, WritePlan)
Launch = Callable[..., Any]
"""A launcher with `launch_canary_plan_kernels`'s keywords on numpy arrays (contract, section 2).

It fills the plans in place and returns None, or leaves them alone and returns the new pair, followed by
the optional outputs that it was given.
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
    page_size: int = 1

    def keywords(self) -> dict[str, Any]:
        """By name; without `page_size` where it is 1, for ports that know no pages."""
        arguments = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if self.page_size == 1:
            del arguments["page_size"]
        return arguments


class _Pair(NamedTuple):
    verify: VerifyPlan
    write: WritePlan


class Plans(_Pair):
    """Both plans of one launch, a pair; beside it the optional outputs that the launch was given."""

    extras: dict[str, np.ndarray]
    """By argument name."""

    def __new__(
        cls, verify: VerifyPlan, write: WritePlan, extras: Mapping[str, np.ndarray] | None = None
    ) -> Plans:
        plans = super().__new__(cls, verify, write)
        plans.extras = {name: extras[name] for name in OPTIONAL_OUTPUTS if name in extras} if extras else {}
        return plans

    def copy(self) -> Plans:
        extras = {name: array.copy() for name, array in self.extras.items()}
        return Plans(_copy(self.verify), _copy(self.write), extras)

    def buffers(self) -> dict[str, np.ndarray]:
        """Every buffer by field name, in the contract's order, and the optional outputs."""
        return {f.name: getattr(plan, f.name) for plan in self for f in plan.fields()} | self.extras

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
    def poisoned(
        cls,
        name: str,
        inputs: PlanInputs,
        *,
        write_req_capacity: int,
        seed: int = 0,
        extras: Iterable[str] = (),
    ) -> Case:
        """A case whose buffers hold a value of their own in every element, so that no stray write hides.

        `extras` names the optional outputs that the launch gets.
        """
        before = Plans(
            VerifyPlan(**_poison(VerifyPlan, inputs.verify_capacity, 2 * seed)),
            WritePlan(**_poison(WritePlan, write_req_capacity, 2 * seed + 1)),
            {name: _poisoned_extra(name, 2 * seed) for name in extras},
        )
        return cls(name, inputs, before)

    @property
    def is_plain(self) -> bool:
        """Whether the launch has neither pages nor optional outputs."""
        return self.inputs.page_size == 1 and not self.before.extras

    def run(self, launch: Launch) -> Plans:
        """The plans after `launch`, from a fresh copy of the plans before."""
        plans = self.before.copy()
        outputs = {"verify_plan_out": plans.verify, "write_plan_out": plans.write} | plans.extras
        returned = launch(**outputs, **self.inputs.keywords())
        if returned is None:
            return plans
        try:
            verify, write, *extras = returned
            new = Plans(verify, write, dict(zip(plans.extras, extras, strict=True)))
        except (TypeError, ValueError):
            new = None
        if new is None or not all(map(_is_like, new, (VerifyPlan, WritePlan))):
            more = "".join(f", {name}" for name in plans.extras)
            raise TypeError(
                f"a launcher returns None or the pair of new plans{more}, got {type(returned).__name__}"
            )
        return new

    def expected(self) -> Plans:
        """The plans after the reference."""
        return self.run(launch_canary_plan_kernels_reference)

    def save(self, path: str | Path, after: Mapping[str, np.ndarray] | None = None) -> None:
        """Write the case as one `.npz`: inputs by argument name, outputs as `before.<field>`.

        With `after`, the buffers that an implementation made of it, by field, as `after.<field>` too.
        """
        arrays = {k: v for k, v in self.inputs.keywords().items() if v is not None}
        arrays |= {f"before.{name}": buffer for name, buffer in self.before.buffers().items()}
        arrays |= {f"after.{name}": buffer for name, buffer in (after or {}).items()}
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
                {name: arrays[f"before.{name}"] for name in OPTIONAL_OUTPUTS if f"before.{name}" in arrays},
            )
            return cls(str(arrays["name"]), PlanInputs(**keywords), before)


def _is_like(plan: object, kind: type[Plan]) -> bool:
    """Whether it has anything of such a plan."""
    return any(hasattr(plan, field.name) for field in kind.fields())


def _copy(plan: PlanType) -> PlanType:
    return type(plan)(**{f.name: getattr(plan, f.name).copy() for f in plan.fields()})


def _required_arrays() -> list[str]:
    inputs = [f.name for f in dataclasses.fields(PlanInputs) if f.default is dataclasses.MISSING]
    return ["name", *inputs, *(f"before.{f.name}" for p in (VerifyPlan, WritePlan) for f in p.fields())]


def _poison(plan: type[Plan], capacity: int, salt: int) -> dict[str, np.ndarray]:
    return {
        field.name: _noise(field.length.of(capacity), field.dtype, salt * 64 + i + 1)
        for i, field in enumerate(plan.fields())
    }


def _poisoned_extra(name: str, salt: int) -> np.ndarray:
    """The kinds of faults have any counts; every third has no place yet, the others any."""
    shape = OPTIONAL_OUTPUTS[name]
    values = _noise(math.prod(shape), "int64", salt * 64 + 40).reshape(shape)
    if name == "faults_out":
        values[::3, 1] = NO_PLACE
        values[1::3, 1] >>= 20
    return values


def _noise(n: int, dtype: str, salt: int) -> np.ndarray:
    words = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words ^= np.uint64(salt * 0xD1B54A32D192ED03 % 2**64)
    return (
        (words >> np.uint64(64 - 8 * np.dtype(dtype).itemsize))
        .astype(np.dtype(dtype).str.replace("i", "u"))
        .view(dtype)
    )
