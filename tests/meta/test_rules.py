"""The table of messages is judged: without any one rule of validation, or with a weaker one, it fails."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import rules
from rules import WEAKENED, Dropped, dropped
from test_validation import LAUNCHERS, LEGAL, can_be_combined, says
from validation_table import (
    FRONTENDS,
    IMPOSSIBLE,
    Call,
    Frontend,
    breakable,
    good_call,
    is_output,
)

from shared_ref import validation

NUMPY = FRONTENDS["numpy"]
PAIRS = 40
"""Of two broken rules each launcher is asked about: every row with this many of those behind it."""

OTHERWISE = {
    "_devices": "numpy arrays have one device; the torch table breaks it, see below",
    "check_capacities": "of torch.compile: tests/kvcanary_torch/test_cpu.py breaks it",
    "pair_of_plans": "of torch's plan, not of a launcher: tests/test_plan_forms.py breaks it",
    "check_capacity:": "of allocate, not of a launcher: tests/test_validation.py breaks it",
}
"""Where a rule is broken with another framework, by the function that has it or that it yields from."""


def breaks(frontend: Frontend) -> Iterator[str]:
    """What of the table a frontend fails, in order. Nothing for the right one."""
    yield from _wrong_messages(frontend)
    yield from _refused(frontend)
    yield from _wrong_order(frontend)


def _says(frontend: Frontend, launcher: str, call: Call, row: Any) -> bool:
    try:
        frontend.launch(launcher, frontend.convert(call))
    except ValueError as error:
        return says(frontend, row, str(error))
    except Exception:  # what a missing rule lets through ends somewhere
        return False
    return False


def _wrong_messages(frontend: Frontend) -> Iterator[str]:
    for row in breakable(frontend):
        if not _says(frontend, row.launcher, good_call(row.launcher) | row.changes, row):
            yield row.id


def _refused(frontend: Frontend) -> Iterator[str]:
    read_only = [
        ("read-only inputs", launcher, frozen_inputs(launcher), "read-only") for launcher in LAUNCHERS
    ]
    for what, launcher, changes, needs in (*LEGAL, *read_only):
        if needs not in frontend.cannot:
            try:
                frontend.launch(launcher, frontend.convert(good_call(launcher) | changes))
            except Exception:
                yield f"{launcher}: {what}"


def frozen_inputs(launcher: str) -> Call:
    arrays = {k: v for k, v in good_call(launcher).items() if isinstance(v, np.ndarray) and not is_output(k)}
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def _wrong_order(frontend: Frontend) -> Iterator[str]:
    for launcher in LAUNCHERS:
        good = good_call(launcher)
        rows = sorted(breakable(frontend, launcher), key=lambda row: row.order)
        for i, earlier in enumerate(rows):
            later = (r for r in rows[i + 1 :] if r.order != earlier.order and can_be_combined(earlier, r))
            for row in itertools.islice(later, PAIRS):
                if not _says(frontend, launcher, good | earlier.changes | row.changes, earlier):
                    yield f"{earlier.id} before {row.id}"


def numpy_under(reference: ModuleType) -> Frontend:
    return dataclasses.replace(NUMPY, package=reference.__name__)


def reason_of(rule: Dropped) -> str | None:
    """Why numpy cannot break a rule."""
    return next((why for name, why in OTHERWISE.items() if name in rule.name), None)


def test_the_rules_as_they_are_pass() -> None:
    assert list(breaks(NUMPY)) == []


def test_dropping_a_rule_fails_the_table(record_property: Any) -> None:
    every = dropped()
    assert len(every) > 30
    breakable_here = [rule for rule in every if reason_of(rule) is None]
    surviving = [rule.name for rule in breakable_here if not any(breaks(numpy_under(rules.without(rule))))]
    count = len(breakable_here) - len(surviving)
    lines = [f"{count} of {len(breakable_here)} dropped validation rules fail the table"]
    lines += [f"    elsewhere: {rule.name}: {why}" for rule in every if (why := reason_of(rule))]
    lines += [f"    no call: {m.launcher}: {m.rule}, for {m.subject}: {m.reason}" for m in IMPOSSIBLE]
    print("\n".join(lines))
    record_property("tally", lines[0])
    assert surviving == []


def test_weakening_a_rule_fails_the_table(record_property: Any) -> None:
    surviving = [mutant.name for mutant in WEAKENED if not any(breaks(numpy_under(rules.weakened(mutant))))]
    tally = f"{len(WEAKENED) - len(surviving)} of {len(WEAKENED)} weakened validation rules fail the table"
    print(tally)
    record_property("tally", tally)
    assert surviving == []


DEVICE_RULES = [rule for rule in dropped() if "_devices" in rule.name]


@pytest.mark.parametrize("rule", DEVICE_RULES, ids=lambda rule: rule.name)
def test_dropping_the_device_rule_fails_the_table_of_torch(
    rule: Dropped, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    frontend = FRONTENDS["torch"]
    patched = sys.modules[f"{rules.without(rule).__package__}.validation"]
    monkeypatch.setattr(validation, "_passed", {})
    monkeypatch.setattr(validation, rule.function, getattr(patched, rule.function))
    monkeypatch.setattr(validation, "_RULES", {k: _current(f) for k, f in validation._RULES.items()})
    assert any(_wrong_messages(frontend))


def _current(rules_of: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `validation`, as it is patched."""
    return getattr(validation, rules_of.__name__)


def test_every_exception_is_of_a_rule() -> None:
    for name in OTHERWISE:
        assert any(name in rule.name for rule in dropped())
