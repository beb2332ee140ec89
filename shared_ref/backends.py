"""The one registry of implementations: conformance, tests, benchmarks and the command line read it.

A package announces its backends through the entry-point group `kvcanary.backends`; each entry point
loads a `Backend`. Names are what `--backend` takes.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Callable
from typing import Any

import numpy as np

from . import validation
from .reference import launch_canary_plan_kernels_reference

ENTRY_POINT_GROUP = "kvcanary.backends"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backend:
    """One implementation of the plan, as the conformance kit drives it."""

    name: str
    launch: Callable[..., Any]
    """`launch_canary_plan_kernels` on numpy arrays, copies to and from its device included.

    Fills the plans in place and returns None, or returns the new pair.
    """
    version: Callable[[], str]
    """Versions of what it runs on, for example `torch 2.11.0`."""
    unavailable: Callable[[], str | None] = lambda: None
    """Why it cannot run here and what would help, or None where it can. Cheap, and never raises."""
    plain: bool = False
    """Whether it knows neither pages nor optional outputs, and is judged without them."""
    note: str = ""
    """What a reader of its figures should know."""


def backends() -> dict[str, Backend]:
    """Every announced backend by name: the reference first, the others as their packages sort.

    One that does not load is listed as unavailable, with the error as the reason.
    """
    found = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    loaded = [_load(entry_point) for entry_point in sorted(found, key=lambda e: (e.name != "numpy", e.name))]
    return {backend.name: backend for backend in loaded}


def _load(entry_point: importlib.metadata.EntryPoint) -> Backend:
    try:
        return entry_point.load()
    except Exception as error:
        reason = f"its entry point {entry_point.value!r} does not load: {error}"
        return Backend(
            name=entry_point.name,
            launch=lambda **keywords: validation.fail(reason),
            version=lambda: "unknown",
            unavailable=lambda: reason,
        )


NUMPY = Backend(
    name="numpy",
    launch=launch_canary_plan_kernels_reference,
    version=lambda: f"numpy {np.__version__}",
    note="the reference",
)
