"""A case as Python that builds it: what a failure of the strategies ends as.

`assert_conforms` in a hypothesis test over `strategies.cases()` fails with the smallest batch that still
differs, and prints it as a script to run.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from .case import Case, Launch
from .explain import differences_text
from .runner import check

_MOST_CELLS = 4096
"""Of an array that is written out cell by cell."""
_MOST_EXCEPTIONS = 12
"""Cells that may differ from a pattern that stands for the rest."""
_SEEDS = 8
"""Poisons that are recognised, and not written out."""

_ANY = "from shared_ref import launch_canary_plan_kernels_reference as implementation  # put yours here"


def assert_conforms(implementation: Launch, case: Case) -> None:
    """Hold an implementation against the reference on one case.

    Args:
        implementation: a launcher with `launch_canary_plan_kernels`'s keywords on numpy arrays.
        case: a launch that breaks no rule of section 6.

    Raises:
        AssertionError: it does not give the reference's bytes. The text has the first differences, each
            with the rule that it breaks, and a snippet that builds the case.
        ValueError: the reference refuses the case.
    """
    failure = check(implementation, case)
    if failure is None:
        return
    lines = [f"{_name_of(implementation)} does not conform on case {case.name!r}"]
    if failure.error is not None:
        lines.append(f"  the launch raised {failure.error}")
    if failure.changed_inputs:
        lines.append(f"  the launch wrote to its inputs: {', '.join(failure.changed_inputs)}")
    lines += [f"  {line}" for line in differences_text(failure.differences)]
    try:
        script = snippet(failure.case, implementation)
    except ValueError as error:
        lines += ["", str(error)]
    else:
        lines += ["", "To see it again, run this:", "", script]
    raise AssertionError("\n".join(lines))


def snippet(case: Case, implementation: Launch | str | None = None) -> str:
    """A script that builds the case and holds an implementation against the reference.

    Args:
        case: any case whose arrays are small, or follow a pattern.
        implementation: a launcher or its path `package.module:function`. For None, or a function that
            cannot be imported, the script takes the reference and says where to put another.

    Raises:
        ValueError: the case is too large to be written out.
    """
    lines: list[str] = []
    fields = []
    for name, value in case.inputs.keywords().items():
        if isinstance(value, np.ndarray):
            lines += _array_lines(name, value)
        if value is not None:
            fields.append(f"    {name}={name if isinstance(value, np.ndarray) else value},")
    lines += ["inputs = PlanInputs(", *fields, ")"]
    seed = _poison_seed(case)
    if seed is None:
        lines += [*_before_lines(case), f"case = Case({case.name!r}, inputs, before)"]
    else:
        room = len(case.before.write.write_seed_slot_indices)
        more = f", extras={tuple(case.before.extras)}" if case.before.extras else ""
        lines.append(
            f"case = Case.poisoned({case.name!r}, inputs, write_req_capacity={room}, seed={seed}{more})"
        )
    lines.append("assert_conforms(implementation, case)")
    return "\n".join([*_imports(implementation, with_plans=seed is None), "", *lines]) + "\n"


def _imports(implementation: Launch | str | None, *, with_plans: bool) -> Iterator[str]:
    yield from ("import numpy as np", "")
    if with_plans:
        yield "from shared_ref import VerifyPlan, WritePlan"
    yield f"from shared_ref.conformance.case import Case, PlanInputs{', Plans' if with_plans else ''}"
    yield "from shared_ref.conformance.snippet import assert_conforms"
    yield _import_line(implementation)


def _import_line(implementation: Launch | str | None) -> str:
    if callable(implementation):
        implementation = _path_of(implementation)
    if implementation is None:
        return _ANY
    module, _, name = implementation.partition(":")
    first, *rest = name.split(".")
    if not rest:
        return f"from {module} import {first} as implementation"
    return f"from {module} import {first}\n\nimplementation = {name}"


def _path_of(implementation: Launch) -> str | None:
    """Where a function can be imported from; None where it cannot."""
    module = getattr(implementation, "__module__", None)
    name = getattr(implementation, "__qualname__", None)
    if not module or module == "__main__" or not name or "<" in name:
        return None
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return f"{module}:{name}" if found is implementation else None


def _name_of(implementation: Launch) -> str:
    return getattr(implementation, "__qualname__", None) or type(implementation).__name__


def _poison_seed(case: Case) -> int | None:
    """The `seed` that `Case.poisoned` has made the plans before the launch from."""
    room, digest = len(case.before.write.write_seed_slot_indices), case.before.digest()
    for seed in range(_SEEDS):
        poisoned = Case.poisoned(
            case.name, case.inputs, write_req_capacity=room, seed=seed, extras=case.before.extras
        )
        if poisoned.before.digest() == digest:
            return seed
    return None


def _before_lines(case: Case) -> Iterator[str]:
    plans = []
    for plan in case.before:
        names = [field.name for field in plan.fields()]
        for name in names:
            yield from _array_lines(name, getattr(plan, name))
        plans.append(f"{type(plan).__name__}({', '.join(f'{name}={name}' for name in names)})")
    for name, array in case.before.extras.items():
        yield from _array_lines(name, array)
    if case.before.extras:
        plans.append(f"{{{', '.join(f'{name!r}: {name}' for name in case.before.extras)}}}")
    yield f"before = Plans({', '.join(plans)})"


def _array_lines(name: str, array: np.ndarray) -> Iterator[str]:
    """Lines that make `name` an array with these cells, dtype and row stride."""
    pattern, exceptions = _pattern(array)
    if pattern is None:
        if array.size > _MOST_CELLS:
            raise ValueError(f"{name} has {array.size:,} cells, too many for a snippet: use Case.save")
        pattern, exceptions = f"np.array({array.tolist()}, np.{array.dtype.name})", []
        if array.size == 0:
            pattern = f"np.zeros({array.shape}, np.{array.dtype.name})"
    if array.ndim == 2 and array.shape[0] > 1 and array.size and not array.flags.c_contiguous:
        rows, width = array.shape
        wide = array.strides[0] // array.itemsize
        yield f"{name} = np.zeros(({rows}, {wide}), np.{array.dtype.name})[:, :{width}]"
        yield f"{name}[:] = {pattern}"
    else:
        yield f"{name} = {pattern}"
    for index in exceptions:
        yield f"{name}[{', '.join(map(str, index))}] = {array[index]}"


def _pattern(array: np.ndarray) -> tuple[str | None, list[tuple[int, ...]]]:
    """An expression for most of the cells, and those that it gets wrong. None for cells without pattern."""
    n, dtype = array.size, array.dtype
    if n <= 8:
        return None, []
    flat = array.ravel()
    first = int(np.median(flat - np.arange(n)))
    shape = "" if array.ndim == 1 else f".reshape({', '.join(map(str, array.shape))})"
    candidates = [(flat[n // 2], f"np.full({array.shape}, {flat[n // 2]}, np.{dtype.name})")]
    if np.iinfo(dtype).min <= first and first + n - 1 <= np.iinfo(dtype).max:
        counting = f"np.arange({first}, {first + n}, dtype=np.{dtype.name}){shape}"
        candidates.append((np.arange(first, first + n, dtype=dtype), counting))
    for cells, expression in candidates:
        wrong = np.flatnonzero(flat != cells)
        if len(wrong) <= min(_MOST_EXCEPTIONS, n // 2):
            return expression, [_index(int(i), array.shape) for i in wrong]
    return None, []


def _index(i: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (i,) if len(shape) == 1 else (i // math.prod(shape[1:]), i % shape[1])
