"""Implementations from outside: a function by its path, judged like any backend."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import Any

from ..backends import Backend
from .case import Launch
from .runner import told


class ImplementationError(ValueError):
    """A path that leads to no implementation. The text names the path and where it ends."""


def load_implementation(path: str) -> Launch:
    """The function at `package.module:function`; the current directory is searched first.

    Args:
        path: a module as it is imported, a colon, and a name in it, dotted for an attribute's attribute.

    Raises:
        ImplementationError: `path` has another form, its module does not import, or it leads to nothing
            that can be called.
    """
    module_name, colon, attributes = path.partition(":")
    if not colon or not module_name or not attributes:
        raise ImplementationError(f"{path!r} is not of the form package.module:function")
    found = _import(path, module_name)
    for i, name in enumerate(attributes.split(".")):
        try:
            inner = getattr(found, name)
        except Exception as error:  # also of a module's own `__getattr__`
            holder = ".".join((module_name, *attributes.split(".")[:i]))
            raise ImplementationError(f"{path!r}: {holder} has no {name!r}{_functions_of(found)}") from error
        found = inner
    if not callable(found):
        raise ImplementationError(f"{path!r} is a {type(found).__name__}, which cannot be called")
    return found


def implementation_backend(path: str) -> Backend:
    """The function at `path` as a backend that has the path for a name. Raises as `load_implementation`."""
    launch = load_implementation(path)
    package = path.partition(":")[0].partition(".")[0]
    version = getattr(sys.modules[package], "__version__", None)
    return Backend(name=path, launch=launch, version=lambda: f"{package} {version}" if version else package)


def _import(path: str, module_name: str) -> Any:
    try:
        here = os.getcwd()
    except OSError as error:
        raise ImplementationError(f"{path!r}: the current directory is gone") from error
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # and left there, for what the implementation imports on its first launch
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ImplementationError(
                f"{path!r}: there is no module {error.name!r} in {here} or where Python looks"
            ) from error
        raise ImplementationError(f"{path!r}: {module_name} does not import: {error}") from error
    except (Exception, SystemExit) as error:  # whatever a module raises while it is imported
        raise ImplementationError(f"{path!r}: {module_name} does not import: {told(error)}") from error


def _functions_of(found: Any) -> str:
    members = getattr(found, "__dict__", {})
    names = [name for name, value in members.items() if inspect.isroutine(value) and name[0] != "_"]
    return f": there are {', '.join(names)}" if names else ""
