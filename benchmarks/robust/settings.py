"""How much of everything a run does."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Settings(NamedTuple):
    """Numbers of one run; equal ones launch the same cases."""

    device: str = "cuda"
    seed: int = 0
    launches: int = 2_000_000
    """Least launches whose batch has a corrupt request, of all backends together."""
    workers: int = 6
    """Processes among which the layouts are shared out: compilers take longer than the launches."""
    most_blocks: int = 8
    """Of cases in a chunk."""
    sample: int = 64
    """Of so many cases, one is compared with the reference too."""
    replays: int = 20_000
    """Of CUDA graphs, at least."""
    threaded: int = 40_000
    """Launches of two threads, at least."""
    refusals: int = 6_000
    """Bad calls, of all frameworks together."""
    allocations: int = 200
    """That run out of memory, of torch; JAX waits for seconds before it gives up."""
    sanitized: int = 600
    """Drawn cases under the sanitizer, of torch; a third of it of each JAX kernel."""
    silence_s: float = 120.0
    """After so long without a word, a process hangs."""
    saved: Path = Path()
    """Directory for cases that differ."""


QUICK = Settings(launches=20_000, replays=1_000, threaded=1_000, refusals=300, allocations=8, sanitized=60)
