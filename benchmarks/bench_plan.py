"""Time the plan on a CUDA machine: every backend on every case, against the hardware's floor.

    python -m benchmarks.bench_plan [--quick] [--case NAME …] [--backend NAME …] [--step NAME …] [--json FILE]

docs/performance.md says what is measured and how. Exit status: 0, 1 if a plan was not the reference's or a
measurement failed, 2 if nothing could be measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from . import worker
from .cases import CASES, WRITTEN_BYTES, Spec, chosen
from .environment import gpu_and_driver, host, versions
from .figures import tables
from .results import BACKENDS, JAX, machine
from .settings import QUICK, Settings
from .tables import show as show_table
from .worker import FLOOR, TORCH, WHATS, Step

SILENCE_S = 120.0
"""After so long without a word, a worker hangs."""
MOST_WORKERS = 4
"""For one framework: after so many that ended early, what is left is given up."""


class Run:
    """What is known so far."""

    def __init__(self, specs: Sequence[Spec], settings: Settings) -> None:
        self.results: dict[str, Any] = {
            "date": datetime.date.today().isoformat(),
            "driver": found[1] if (found := gpu_and_driver()) else None,
            "host": host(),
            "versions": versions(),
            "settings": settings._asdict(),
            "unavailable": {},
            "failures": [],
            "cases": {spec.name: _sizes(spec) for spec in specs},
            "figures": {},
        }
        self.settings = settings
        self.began = time.monotonic()

    def measure(self, steps: Sequence[Step]) -> None:
        """All steps of one framework, by as many workers as it takes."""
        for _ in range(MOST_WORKERS):
            if not steps:
                return
            steps = self._measure_until_failure(steps)
        for step in {(step.subject, step.case): step for step in steps}.values():
            self._fail(step, f"given up after {MOST_WORKERS} workers that ended early")

    def _measure_until_failure(self, steps: Sequence[Step]) -> list[Step]:
        """The steps that are left when the worker ends: none if all went well."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=worker.serve, args=(there, steps, self.settings), daemon=True)
        process.start()
        there.close()
        left, current = list(steps), None
        reason = f"no word from its process for {SILENCE_S:g} s"
        try:
            while here.poll(SILENCE_S):
                kind, about, content = here.recv()
                if kind == "end":
                    process.join(10)
                    break
                if kind == "begin":
                    current = about
                elif kind == "unavailable":
                    left = [step for step in left if step.subject != about]
                elif kind == "figures":
                    left.remove(about)
                    current = None
                elif kind == "failure":
                    left, current = _without(left, about), None
                self._note(kind, about, content)
        except EOFError:
            process.join(10)
            reason = f"its process ended with exit code {process.exitcode}"
        process.kill()  # if it has not ended
        process.join()
        if current is not None:
            self._fail(current, reason)
            return _without(left, current)
        if left == list(steps):  # it has not even begun
            self._fail(left[0], reason)
            return []
        return left

    def _note(self, kind: str, about: Any, content: Any) -> None:
        """Take a worker's message into account."""
        if kind == "environment":
            self.results |= {name: value for name, value in content.items() if name not in self.results}
        elif kind == "unavailable":
            self.results["unavailable"][about] = content
            self._say(f"{about}: unavailable: {content}")
        elif kind == "wrong":
            self._fields(about)["wrong"] = content
            self._fail(about, f"the plan is wrong: {content}")
        elif kind == "failure":
            self._fail(about, content)
        elif kind == "figures":
            self._fields(about).update(content)
            reason = content.get("no_profiler", "")
            self._say(f"{about.case} {about.subject}: {_rounded(content)} {reason}")

    def _fields(self, step: Step) -> dict[str, Any]:
        return self.results["figures"].setdefault(step.subject, {}).setdefault(step.case, {})

    def _fail(self, step: Step, what: str) -> None:
        self.results["failures"].append({"backend": step.subject, "case": step.case, "what": what})
        self._say(f"{step.case} {step.subject}: FAILED in {step.what}: {what}")

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:5.1f} s] {text}", file=sys.stderr, flush=True)


def _rounded(content: dict[str, Any]) -> dict[str, Any]:
    """The times in it, those of variants too, for a person to read."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, float):
            found[name] = round(value, 2)
        elif isinstance(value, dict) and (inner := _rounded(value)):
            found[name] = inner
    return found


def _without(steps: Iterable[Step], failed: Step) -> list[Step]:
    """The steps but those of the same subject on the same case."""
    return [step for step in steps if (step.subject, step.case) != (failed.subject, failed.case)]


def _sizes(spec: Spec) -> dict[str, Any]:
    return {
        "title": spec.title,
        "entries": spec.entries,
        "bs": spec.bs,
        "mapping": spec.mapping,
        "tokens": spec.tokens,
        "read_bytes": spec.read_bytes,
        "written_bytes": WRITTEN_BYTES,
    }


def steps_of(
    subjects: Sequence[str], specs: Sequence[Spec], whats: Sequence[str] = tuple(WHATS)
) -> list[Step]:
    """One worker's steps, in the order of `WHATS`."""
    return [
        Step(subject, spec.name, what)
        for what, has in WHATS.items()
        for spec in specs
        for subject in subjects
        if what in whats and has(subject)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = _parser().parse_args(arguments)
    # Torch and JAX share the GPU, and a pool that takes most of it would be in the way.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    specs = chosen(options.case)
    settings = QUICK if options.quick else Settings()
    if options.profiler:
        settings = settings._replace(profilers=tuple(options.profiler))
    run = Run(specs, settings)
    wanted = options.backend or BACKENDS
    groups = [(FLOOR, TORCH) if TORCH in wanted else (FLOOR,)]
    groups += [(backend,) for backend in JAX if backend in wanted]
    for subjects in groups:
        run.measure(steps_of(subjects, specs, options.step or tuple(WHATS)))
        if options.json is not None:
            options.json.write_text(json.dumps(run.results, indent=1) + "\n")
    show(run.results)
    if not any(run.results["figures"].values()):
        return 2
    return 1 if run.results["failures"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_plan", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--case", action="append", default=[], choices=[spec.name for spec in CASES], help="may be repeated"
    )
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="besides the floor; likewise")
    parser.add_argument("--step", action="append", choices=tuple(WHATS), help="what to measure; likewise")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and input sets")
    parser.add_argument(
        "--profiler", action="append", choices=Settings().profilers, help="use this one; may be repeated"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    return parser


def show(results: dict[str, Any]) -> None:
    """Print the tables, then what is missing and what went wrong."""
    print(machine(results))
    for table in tables(results):
        print()
        show_table(table)
    for backend, reason in results["unavailable"].items():
        print(f"\nunavailable: {backend}: {reason}")
    for failure in results["failures"]:
        print(f"\nFAILED: {failure['backend']} on {failure['case']}: {failure['what']}")


if __name__ == "__main__":
    raise SystemExit(main())
