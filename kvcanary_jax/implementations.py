"""Which implementation of the plan runs: `implementation=` as in tokamax (contract, section 7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shared_ref.validation import fail

from . import xla


class Implementation(NamedTuple):
    """One way to compute the outputs of each launcher, traced inside `jax.enable_x64(True)`."""

    plan: Callable[[xla.Arguments], xla.Outputs]
    offsets: Callable[[xla.Arguments], xla.Outputs]
    entries: Callable[[xla.Arguments], xla.Outputs]
    unavailable: Callable[[str], str | None]
    """Why it cannot run on a platform (`cpu`, `gpu`, `tpu`), or None."""


IMPLEMENTATIONS = {"xla": Implementation(xla.plan, xla.offsets, xla.entries, lambda platform: None)}
"""Best first: the order that `implementation=None` tries."""


def resolve(implementation: str | Sequence[str] | None, platform: str) -> str:
    """The name of the implementation to run.

    Raises:
        ValueError: an unknown name, or none of those named can run; says why for each.
    """
    named = list(IMPLEMENTATIONS) if implementation is None else implementation
    named = [named] if isinstance(named, str) else list(named)
    reasons = []
    for name in named:
        if name not in IMPLEMENTATIONS:
            fail(f"implementation must be one of {', '.join(map(repr, IMPLEMENTATIONS))}, got {name!r}")
        reason = IMPLEMENTATIONS[name].unavailable(platform)
        if reason is None:
            return name
        reasons.append(f"{name!r} cannot run here: {reason}")
    fail(f"implementation {'; '.join(reasons) or 'must not be empty'}")
