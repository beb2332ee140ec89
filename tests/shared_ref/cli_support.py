"""Backends of the tests' own, for the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared_ref import launch_canary_plan_kernels_reference as reference
from shared_ref.backends import Backend


def backend(name: str, launch: Callable[..., Any] = reference, **keywords: Any) -> Backend:
    return Backend(name=name, launch=launch, version=lambda: f"{name} 1.0", **keywords)


def never(**arguments: Any) -> None:
    raise AssertionError("an unavailable backend is not launched")


ABSENT = backend("absent", never, unavailable=lambda: "no chip: pip install 'kvcanary[chip]'")
TWIN = backend("twin", note="the reference again")
