"""The CUDA GPU that JAX sees, whatever its default device is."""

from __future__ import annotations

import jax


def unfit(capability: tuple[int, int], called: str) -> str | None:
    """Why JAX's CUDA GPU cannot run a kernel that needs this compute capability, or None."""
    try:
        found = jax.devices("cuda")[0].compute_capability
    except RuntimeError:
        return "JAX sees no CUDA GPU: pip install 'kvcanary[cuda12]' or 'kvcanary[cuda13]'"
    if tuple(map(int, found.split("."))) < capability:
        return (
            f"it needs {called} or newer, compute capability {'.'.join(map(str, capability))}; found {found}"
        )
    return None


def multiprocessors() -> int:
    """How many it has; an H100's 132 where a kernel is only lowered for a GPU."""
    try:
        return jax.devices("cuda")[0].core_count
    except (RuntimeError, AttributeError):
        return 132
