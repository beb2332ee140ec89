"""How often things are measured."""

from __future__ import annotations

from typing import NamedTuple


class Settings(NamedTuple):
    """Numbers of one run of a benchmark."""

    sets: int = 5
    """Input sets that take turns."""
    launches: int = 10
    """In a CUDA graph."""
    replays: int = 50
    """Of a graph."""
    rounds: int = 3
    """In which the graphs of a case's variants take turns."""
    batch: int = 30
    """Calls between two synchronisations, for host times: JAX waits from the 33rd call in flight on."""
    batches: int = 30
    profiled: int = 50
    """Calls under the profiler."""
    profilers: tuple[str, ...] = ("torch.profiler", "jax.profiler")
    """The first of these that sees the GPU times the kernels."""


QUICK = Settings(sets=3, replays=30, batches=10, profiled=20)
