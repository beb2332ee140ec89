"""Plans and faults of JAX arrays or Refs; those of arrays are pytrees (contract, sections 3, 5 and 7)."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shared_ref.constants import NO_PLACE
from shared_ref.schema import FaultsFields, Plan, VerifyPlanFields, WritePlanFields
from shared_ref.validation import check_capacity, fail


def _buffers(plan: type[Plan], capacity: int, device: Any) -> dict[str, jax.Array]:
    capacity = check_capacity(plan, capacity)
    with jax.enable_x64(True):
        return {f.name: jnp.zeros(f.length.of(capacity), f.dtype, device=device) for f in plan.fields()}


class _Pickled:
    """Pickled as numpy arrays, which come back inside the scope: a JAX array alone comes back as int32.

    They come back on JAX's default device.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = vars(self)
        if any(isinstance(array, jax.Ref) for array in arrays.values()):
            fail(f"a {type(self).__name__} of jax.Ref cannot be pickled: make one of what they hold")
        return _restored, (type(self), {name: np.asarray(array) for name, array in arrays.items()})

    def __copy__(self) -> Any:
        return type(self)(**vars(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)(**{name: copy.deepcopy(array, memo) for name, array in vars(self).items()})


def _restored(cls: Any, arrays: dict[str, np.ndarray]) -> Any:
    with jax.enable_x64(True):
        return cls(**{name: jnp.asarray(array) for name, array in arrays.items()})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class VerifyPlan(_Pickled, VerifyPlanFields[jax.Array]):
    """Which slots to check in this step; columns of `verify_capacity` entries (contract, section 3)."""

    @classmethod
    def allocate(
        cls, *, verify_capacity: int, device: jax.Device | jax.sharding.Sharding | None = None
    ) -> VerifyPlan:
        """A plan on `device` with `enable` at 1 and the rest unspecified. ValueError below 1."""
        buffers = _buffers(cls, verify_capacity, device)
        return cls(**buffers | {"enable": jnp.ones_like(buffers["enable"])})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WritePlan(_Pickled, WritePlanFields[jax.Array]):
    """How this step's tokens continue each chain; `write_req_capacity` rows (contract, section 3)."""

    @classmethod
    def allocate(
        cls, *, write_req_capacity: int, device: jax.Device | jax.sharding.Sharding | None = None
    ) -> WritePlan:
        """A plan on `device` whose contents are unspecified. ValueError below 1."""
        return cls(**_buffers(cls, write_req_capacity, device))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Faults(_Pickled, FaultsFields[jax.Array]):
    """What made no sense, summed over launches (contract, section 5). To forget it, allocate another."""

    @classmethod
    def allocate(cls, *, device: jax.Device | jax.sharding.Sharding | None = None) -> Faults:
        """No faults yet, on `device`."""
        empty = np.zeros(cls.SHAPE, np.int64)
        empty[:, 1] = NO_PLACE
        with jax.enable_x64(True):
            return cls(buffer=jnp.asarray(empty, device=device))
