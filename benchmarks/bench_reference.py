"""Time the reference, and what else runs on a CPU, in nanoseconds an entry.

    python -m benchmarks.bench_reference

bs 256, prefix 4096: 1,048,576 entries, all columns; without a mapping, with one, and with one and tokens.
The implementations take turns, so that a busy machine is busy for all of them; medians. The reference has
at most 15 ns an entry, 30 with a mapping, and JAX on XLA at most 1.5 times what the reference takes.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import time
from typing import Any

from shared_ref.backends import Backend, backends

from .cases import Spec, chosen, difference
from .settings import Settings
from .tables import Table, number, show

REFERENCE, TORCH, JAX = "numpy", "torch-cpu", "jax-xla"
ROUNDS = 21
SETTINGS = Settings(sets=3)
MOST_NS = {"no mapping": 15, "mapping": 30, "mapping and tokens": 30}
MOST_RATIO = 1.5


def variants() -> dict[str, Spec]:
    """The case with ever more tables."""
    (spec,) = chosen(["256x4k"])
    return {
        "no mapping": spec,
        "mapping": dataclasses.replace(spec, mapping=True),
        "mapping and tokens": dataclasses.replace(spec, mapping=True, tokens=True),
    }


class InPlace:
    """A backend that fills numpy plans in place, on a case: the input sets take turns."""

    def __init__(self, spec: Spec, settings: Settings, backend: Backend) -> None:
        self.backend = backend
        self.case = spec.case(0)
        self.plans = self.case.before.copy()
        self.inputs = [spec.inputs(seed).keywords() for seed in range(settings.sets)]

    def check(self) -> str | None:
        """How a launch differs from the reference, or None."""
        return difference(self.case, self.case.run(self.backend.launch))

    def run(self, calls: int) -> None:
        """That many launches."""
        verify, write = self.plans
        for inputs in itertools.islice(itertools.cycle(self.inputs), calls):
            self.backend.launch(verify_plan_out=verify, write_plan_out=write, **inputs)


def _subjects(spec: Spec, available: dict[str, Backend]) -> dict[str, Any]:
    subjects: dict[str, Any] = {}
    for name, backend in available.items():
        if name == JAX:
            from .on_jax import JaxPlan

            subjects[name] = JaxPlan(spec, SETTINGS, "xla")
        else:
            subjects[name] = InPlace(spec, SETTINGS, backend)
    return subjects


def measure(spec: Spec, available: dict[str, Backend], rounds: int = ROUNDS) -> dict[str, float]:
    """Nanoseconds an entry by backend.

    Raises:
        AssertionError: a plan is not the reference's.
    """
    subjects = _subjects(spec, available)
    for name, subject in subjects.items():
        if (wrong := subject.check()) is not None:
            raise AssertionError(f"{name}: {wrong}")
        subject.run(1)
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            began = time.perf_counter()
            subject.run(1)
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds) * 1e9 / spec.entries for name, seconds in times.items()}


def table(measured: dict[str, dict[str, float]]) -> Table:
    """The figures of each variant, and whether the limits hold."""
    rows = []
    for variant, ns in measured.items():
        most = MOST_NS[variant]
        ratio = ns[JAX] / ns[REFERENCE] if JAX in ns else None
        rows.append(
            (
                variant,
                number(ns[REFERENCE]),
                f"<= {most}: {_yes(ns[REFERENCE] <= most)}",
                number(ns.get(TORCH)),
                number(ns.get(JAX)),
                number(ratio),
                "" if ratio is None else f"<= {MOST_RATIO}: {_yes(ratio <= MOST_RATIO)}",
            )
        )
    columns = ("tables", REFERENCE, "limit", TORCH, JAX, f"x {REFERENCE}", "limit")
    return Table("Nanoseconds an entry on the CPU, bs 256, prefix 4096", columns, rows)


def _yes(holds: bool) -> str:
    return "holds" if holds else "does not hold"


def main() -> None:
    """The command."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    known = backends()
    available = {}
    for name in (REFERENCE, TORCH, JAX):
        backend = known.get(name)
        reason = "no installed package announces it" if backend is None else backend.unavailable()
        if backend is None or reason is not None:
            print(f"unavailable: {name}: {reason}")
        else:
            available[name] = backend
    show(table({variant: measure(spec, available) for variant, spec in variants().items()}))
    if hasattr(os, "getloadavg"):
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
