"""SGLang: put this library's plan launcher in the place of SGLang's own, in a running process.

Importing this module imports neither torch nor sglang; `install` does.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from types import ModuleType
from typing import Any

from shared_ref.validation import fail

LAUNCHER = "launch_canary_plan_kernels"

HOMES = ("sglang.kernels.ops.kv_canary.plan", "sglang.jit_kernel.kv_canary.plan")
"""The packages that SGLang's releases have the launcher in, newest first."""

Launch = Callable[..., None]


@dataclass(frozen=True)
class _Swap:
    original: Launch
    replacement: Launch


_lock = threading.Lock()
_installed: _Swap | None = None


def install() -> tuple[str, ...]:
    """Let SGLang build its plans with `kvcanary_torch.launch_canary_plan_kernels`.

    SGLang's launcher is replaced in its own module, where later imports find it, and in every module that
    has imported it, under whatever name. SGLang's plan classes and its other kernels stay as they are. Call
    it in each process that runs a model, before CUDA graphs are captured: a captured graph keeps the kernels
    that it was captured with. A second call reaches modules that took SGLang's launcher meanwhile.

    Returns:
        The names that were replaced, `module.name` each.

    Raises:
        ImportError: SGLang, its kv-canary, or torch is not installed.
        ValueError: SGLang's launcher has a signature that this library does not know; nothing is replaced.
    """
    global _installed
    # Imports come before the lock: SGLang's may run a plugin that installs too.
    home = _home()
    from kvcanary_torch import launch_canary_plan_kernels as ours

    with _lock:
        if _installed is None:
            original = getattr(home, LAUNCHER)
            _check_signature(original, ours)
            _installed = _Swap(original, _replacement(original, ours))
        return _replace(_installed.original, _installed.replacement)


def uninstall() -> tuple[str, ...]:
    """Put SGLang's launcher back wherever a module has ours now. Without an `install` it does nothing.

    Returns:
        The names that were put back, `module.name` each.
    """
    global _installed
    with _lock:
        if _installed is None:
            return ()
        swap, _installed = _installed, None
        return _replace(swap.replacement, swap.original)


def _home() -> ModuleType:
    for name in HOMES:
        package = _imported(name)
        if package is not None and hasattr(package, LAUNCHER):
            return package
    raise ImportError(
        f"kv-canary: no {LAUNCHER} to replace: SGLang is not installed, or is a release without kv-canary "
        f"(looked in {' and '.join(HOMES)})"
    )


def _imported(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Any other missing module is SGLang's own trouble, and worth its own message.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None


def _replacement(original: Launch, ours: Launch) -> Launch:
    """Our launcher as a function of its own, which `uninstall` can tell from other uses of ours."""

    @functools.wraps(original)
    def launch_canary_plan_kernels(**arguments: Any) -> None:
        ours(**arguments)

    return launch_canary_plan_kernels


def _check_signature(original: Launch, ours: Launch) -> None:
    theirs, known = inspect.signature(original).parameters, inspect.signature(ours).parameters
    required = [name for name, p in known.items() if p.default is Parameter.empty]
    differences = {
        "takes {}, which kvcanary does not know": [name for name in theirs if name not in known],
        "does not take {}, which kvcanary needs": [name for name in required if name not in theirs],
        "takes {} otherwise than by keyword only": [
            name for name, p in theirs.items() if p.kind is not Parameter.KEYWORD_ONLY
        ],
        "has a default for {}, which kvcanary needs": [
            name for name in required if name in theirs and theirs[name].default is not Parameter.empty
        ],
    }
    found = [text.format(", ".join(names)) for text, names in differences.items() if names]
    if found:
        name = getattr(original, "__qualname__", type(original).__name__)
        fail(
            f"{original.__module__}.{name} has an unknown signature and was left in place: "
            f"it {'; it '.join(found)}"
        )


def _replace(old: Launch, new: Launch) -> tuple[str, ...]:
    found: set[str] = set()
    # Again until there is none: another thread's import may take the old one while this one looks.
    while names := _sweep(old, new):
        found |= names
    return tuple(sorted(found))


def _sweep(old: Launch, new: Launch) -> set[str]:
    """Replace one function by another in all that is imported now."""
    found = set()
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            # Not `vars`, which would load a module that waits for its first use.
            namespace = object.__getattribute__(module, "__dict__")
            for name in [name for name, value in list(namespace.items()) if value is old]:
                namespace[name] = new
                found.add(f"{module.__name__}.{name}")
    return found
