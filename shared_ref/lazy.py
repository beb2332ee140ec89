"""Packages whose names load on first use, so that a missing framework is found out when it is needed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def exports(
    package: str, home: Mapping[str, str], *, framework: str, extra: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__` (PEP 562), given the submodule that holds each name.

    Where `framework` is not installed, the first use raises ImportError naming the extra that brings it.
    """

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            importlib.import_module(framework)
        except ModuleNotFoundError as error:
            if error.name != framework:
                raise  # it is installed, and broken
            raise ImportError(
                f"{package}.{name} needs {framework}, which is not installed: pip install 'kvcanary[{extra}]'"
            ) from error
        value = getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return load, names
