"""How a wrong implementation is made: the reference with a small change to its source.

A change names the text that it replaces, which must occur exactly once in its module: a refactoring of the
reference cannot drop a mutant in silence. `load` runs the patched sources in modules of their own, beside
the real ones.
"""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import shared_ref

HOME = Path(shared_ref.__file__).parent
SHARED = ("arrays", "constants", "plan", "schema")
"""Modules that a mutant has in common with the package; the others are run anew."""


class Edit(NamedTuple):
    """One replacement in a module of `shared_ref`."""

    module: str
    old: str
    new: str


class Mutant(NamedTuple):
    """A wrong implementation of sections 4 and 5."""

    name: str
    story: str
    """What its author believed."""
    edits: tuple[Edit, ...]
    rule: str = ""
    """Part of a rule that the judge must name among the first differences."""


def source_of(module: str) -> str:
    return (HOME / f"{module}.py").read_text(encoding="utf-8")


def patched(module: str, edits: tuple[Edit, ...]) -> str:
    """A module's source after the edits that concern it. AssertionError: a text is not there, or twice."""
    source = source_of(module)
    for edit in edits:
        if edit.module == module:
            count = source.count(edit.old)
            assert count == 1, f"{module}.py has {count} times, not once:\n{edit.old}"
            source = source.replace(edit.old, edit.new)
    return source


@functools.cache
def load(name: str, edits: tuple[Edit, ...]) -> ModuleType:
    """`shared_ref.reference` with these edits in it and in what it imports."""
    modules = ("validation", "batch", "faults", "reference")
    name = "mutant " + name.replace(".", " ")
    return package(name, {module: patched(module, edits) for module in modules})


def package(name: str, sources: Mapping[str, str | ast.Module]) -> ModuleType:
    """The last of `sources`, run in a package whose other modules are the earlier ones and `SHARED`.

    The modules stay importable as `<name>.<module>`.
    """
    parent = ModuleType(name)
    parent.__path__ = []  # a package whose modules are all in sys.modules
    sys.modules[name] = parent
    for module in SHARED:
        sys.modules[f"{name}.{module}"] = importlib.import_module(f"shared_ref.{module}")
    for module, source in sources.items():
        loaded = ModuleType(f"{name}.{module}")
        loaded.__package__ = name
        sys.modules[loaded.__name__] = loaded
        exec(compile(source, f"<{name}: {module}.py>", "exec"), loaded.__dict__)
    return loaded


def wrong_in(default: str) -> Callable[..., Mutant]:
    """What makes mutants by edits of one module, which is `default` unless it is named."""

    def wrong(name: str, story: str, *texts: str, rule: str = "", module: str = default) -> Mutant:
        return Mutant(name, story, edits_in(module, *texts), rule)

    return wrong


def edits_in(module: str, *texts: str) -> tuple[Edit, ...]:
    """Edits of one module, from old and new texts in turn."""
    return tuple(Edit(module, old, new) for old, new in zip(texts[::2], texts[1::2], strict=True))
