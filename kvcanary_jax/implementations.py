"""Which implementation of the plan runs: `implementation=` as in tokamax (contract, section 7)."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from shared_ref.validation import fail

from . import gpu, xla

Compute = Callable[[xla.Arguments], xla.Outputs]


class Implementation(NamedTuple):
    """One way to compute the outputs of each launcher, traced inside `jax.enable_x64(True)`."""

    plan: Compute
    unavailable: Callable[[str], str | None]
    """Why it cannot run on a platform (`cpu`, `gpu`, `tpu`), or None. Never raises."""
    in_checked_shard_map: bool = True
    """Whether it runs inside a `shard_map` that checks which values vary (`check_vma`)."""
    offsets: Compute | None = None
    entries: Compute | None = None


def _lazily(module: str) -> Compute:
    """`plan` of a module that is loaded when it is needed; under `vmap` it runs batch by batch.

    The barriers keep XLA from handing the kernel a part of a larger array: where a `scan` stacks plans, it
    would let the kernel's outputs be slices of the stack, and forget that a kernel that writes in place
    writes to its inputs. They move no byte.
    """

    def plan(arguments: xla.Arguments) -> xla.Outputs:
        arrays = {name: value for name, value in arguments.items() if isinstance(value, jax.Array)}
        others = {name: value for name, value in arguments.items() if name not in arrays}
        compute = importlib.import_module(f"{__package__}.{module}").plan

        def kernel(arrays: dict[str, jax.Array]) -> xla.Outputs:
            fixed = jax.lax.optimization_barrier(arrays)
            return jax.lax.optimization_barrier(compute(fixed | others))

        return jax.custom_batching.sequential_vmap(kernel)(arrays)

    return plan


def _mosaic_unavailable(platform: str) -> str | None:
    if (reason := _needs_gpu(platform, capability=(9, 0), called="Hopper")) is not None:
        return reason
    if importlib.util.find_spec("absl") is None:  # which JAX's Mosaic GPU imports, and JAX does not require
        return "absl-py is not installed: pip install 'kvcanary[cuda12]' or 'kvcanary[cuda13]'"
    return None


def _triton_unavailable(platform: str) -> str | None:
    if (reason := _needs_gpu(platform, capability=(8, 0), called="Ampere")) is not None:
        return reason
    return _jax_triton_error()


def _needs_gpu(platform: str, capability: tuple[int, int], called: str) -> str | None:
    if platform not in ("gpu", "cuda"):
        return f"it needs a CUDA GPU ({called} or newer), and the arrays are on {platform}"
    return gpu.unfit(capability, called)


@functools.cache
def _jax_triton_error() -> str | None:
    if importlib.util.find_spec("jax_triton") is None:
        return "jax-triton is not installed: pip install 'kvcanary[cuda12]' or 'kvcanary[cuda13]'"
    cache = os.environ.get("TRITON_CACHE_DIR")
    try:
        importlib.import_module("jax_triton")
    except Exception as error:
        return f"jax-triton does not load: {error}"
    finally:
        # jax-triton 0.3 empties this, and then Triton finds no place to cache what torch launches.
        if cache is not None:
            os.environ["TRITON_CACHE_DIR"] = cache
        else:
            os.environ.pop("TRITON_CACHE_DIR", None)
    return None


IMPLEMENTATIONS = {
    "mosaic": Implementation(_lazily("mosaic"), _mosaic_unavailable, in_checked_shard_map=False),
    "triton": Implementation(_lazily("triton"), _triton_unavailable),
    "xla": Implementation(xla.plan, lambda platform: None, offsets=xla.offsets, entries=xla.entries),
}
"""Best first: the order that `implementation=None` tries."""


def resolve(
    implementation: str | Sequence[str] | None, kind: str, platform: str, arrays: Iterable[Any] = ()
) -> str:
    """The name of the implementation to run a launcher with (`plan`, `offsets` or `entries`).

    Raises:
        ValueError: an unknown name, or none of those named can run; says why for each.
    """
    if implementation is None:
        implementation = tuple(IMPLEMENTATIONS)
    named = implementation if isinstance(implementation, list | tuple) else (implementation,)
    for name in named:
        if not isinstance(name, str) or name not in IMPLEMENTATIONS:
            fail(f"implementation must be one of {', '.join(map(repr, IMPLEMENTATIONS))}, got {name!r}")
    in_checked_shard_map = any(map(_varies, arrays))
    reasons = []
    for name in named:
        if in_checked_shard_map and not IMPLEMENTATIONS[name].in_checked_shard_map:
            reasons.append(
                f"{name!r} cannot run here: inside a shard_map it needs check_vma=False, "
                "because Pallas writes no Ref whose value varies over a mesh axis"
            )
        elif getattr(IMPLEMENTATIONS[name], kind) is None:
            reasons.append(f"{name!r} cannot run here: it has no staged launchers")
        elif (reason := IMPLEMENTATIONS[name].unavailable(platform)) is not None:
            reasons.append(f"{name!r} cannot run here: {reason}")
        else:
            return name
    fail(f"implementation {'; '.join(reasons) or 'must not be empty'}")


def _varies(array: Any) -> bool:
    """Whether an array is one shard's, inside a `shard_map` that checks for it."""
    axes = getattr(jax.typeof(array), "manual_axis_type", None) if array is not None else None
    return bool(getattr(axes, "varying", ()))
