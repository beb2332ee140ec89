"""What a run measured, as the data that `--json` writes, and the tables and verdicts that follow from it.

The data:

    date, gpu, multiprocessors, cuda, driver, host, versions, settings
    unavailable   {backend: reason}
    failures      [{backend, case, what}]
    cases         {case: {title, entries, bs, mapping, tokens, read_bytes, written_bytes}}
    figures       {backend or "floor": {case: {graph_us, kernel_us, kernels, copies, profiler, host_us,
                  validation_us, wall_us, no_profiler, config, tried, wrong}}}, each where it was measured
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .cases import LONG_TAIL
from .tables import Table, number
from .worker import FLOOR, TORCH

JAX = ("jax-mosaic", "jax-triton", "jax-xla")
BACKENDS = (TORCH, *JAX)
"""Those that run on a GPU, in the tables' order."""
KERNELS_OF_JAX = ("jax-mosaic", "jax-triton")
"""Those with a goal."""

Results = Mapping[str, Any]


class Check(NamedTuple):
    """One goal on one case."""

    goal: str
    case: str
    measured: float
    limit: float
    unit: str

    @property
    def is_met(self) -> bool:
        return self.measured <= self.limit

    @property
    def verdict(self) -> str:
        return "yes" if self.is_met else "no"


LARGE = "torch-triton, 500,000 entries and more, the long tail included, bs 4096 apart: 1.3 x the floor"
SMALL = "torch-triton, fewer entries, no mapping: the floor + 1.0 us"
SMALL_MAPPED = "torch-triton, fewer entries, with a mapping: the floor + 2.0 us"
LARGEST_BATCH = "torch-triton, bs 4096 x 256: 13 us"
KERNEL = "{}: kernel time 1.15 x torch-triton's, every case"
VALIDATION = "validation: 10 us of host time a call"
HOST = "torch-triton, eager launch with validation: 25 us of host time"
GOALS = (LARGE, SMALL, SMALL_MAPPED, LARGEST_BATCH, *map(KERNEL.format, KERNELS_OF_JAX), VALIDATION, HOST)


def figure(results: Results, subject: str, case: str) -> dict[str, Any]:
    """What was measured of a subject on a case; empty if nothing was."""
    return results["figures"].get(subject, {}).get(case, {})


def graph_check(results: Results, case: str) -> Check | None:
    """The goal for torch's time in a graph, or None where the case lacks a figure."""
    sizes = results["cases"][case]
    us, floor = (figure(results, subject, case).get("graph_us") for subject in (TORCH, FLOOR))
    if us is None or floor is None:
        return None
    if sizes["bs"] == 4096:
        return Check(LARGEST_BATCH, case, us, 13.0, "us")
    if sizes["entries"] >= 500_000 or case == LONG_TAIL:
        return Check(LARGE, case, us / floor, 1.3, "x")
    if sizes["mapping"]:
        return Check(SMALL_MAPPED, case, us - floor, 2.0, "us more")
    return Check(SMALL, case, us - floor, 1.0, "us more")


def kernel_check(results: Results, backend: str, case: str) -> Check | None:
    """A JAX backend's kernel time against torch's; None without both, by the same profiler."""
    ours, torchs = figure(results, backend, case), figure(results, TORCH, case)
    if "kernel_us" not in ours or ours["profiler"] != torchs.get("profiler"):
        return None
    return Check(KERNEL.format(backend), case, ours["kernel_us"] / torchs["kernel_us"], 1.15, "x")


def checks(results: Results) -> Iterator[Check]:
    """Every goal on every case that has the figures for it."""
    cases = list(results["cases"])
    for check in (graph_check(results, case) for case in cases):
        if check is not None:
            yield check
    for backend in KERNELS_OF_JAX:
        for check in (kernel_check(results, backend, case) for case in cases):
            if check is not None:
                yield check
    for goal, name, limit in ((VALIDATION, "validation_us", 10.0), (HOST, "host_us", 25.0)):
        for case in cases:
            if (us := figure(results, TORCH, case).get(name)) is not None:
                yield Check(goal, case, us, limit, "us")


def tables(results: Results) -> list[Table]:
    """All of a run, as a reader wants it; without the rows for which there is no figure."""
    made = (make(results) for make in (graph_table, kernel_table, host_table, goals_table))
    return [table for table in made if table.rows]


def _measured(results: Results, name: str) -> dict[str, Any]:
    """The cases for which some subject has this figure, with their sizes."""
    figures = results["figures"].values()
    return {
        case: sizes
        for case, sizes in results["cases"].items()
        if any(name in fields.get(case, {}) for fields in figures)
    }


def graph_table(results: Results) -> Table:
    """Torch against the floor, in a CUDA graph."""
    rows = []
    for case, sizes in _measured(results, "graph_us").items():
        us, floor = (figure(results, subject, case).get("graph_us") for subject in (TORCH, FLOOR))
        check = graph_check(results, case)
        compared = ("", "", "", "")
        if check is not None and us is not None and floor is not None:
            sign = {"x": "{:g} x", "us": "{:g} us", "us more": "+ {:g} us"}[check.unit]
            compared = (f"{us / floor:.2f}", number(us - floor), sign.format(check.limit), check.verdict)
        flag = " (wrong)" if "wrong" in figure(results, TORCH, case) else ""
        rows.append((sizes["title"], f"{sizes['entries']:,}", number(floor), number(us) + flag, *compared))
    columns = ("case", "entries", "floor", "torch-triton", "x floor", "us more", "goal", "met")
    return Table("A plan in a CUDA graph, us", columns, rows)


def kernel_table(results: Results) -> Table:
    """Every backend's kernels, as a profiler sees them."""
    shown = [backend for backend in JAX if results["figures"].get(backend)]
    rows = []
    for case, sizes in (_measured(results, "kernel_us") | _measured(results, "wall_us")).items():
        row = [sizes["title"], *(_kernel(figure(results, subject, case)) for subject in (FLOOR, TORCH))]
        for backend in shown:
            row += [_kernel(figure(results, backend, case)), _ratio(kernel_check(results, backend, case))]
        rows.append(tuple(row))
    pairs = (column for backend in shown for column in (backend, "x torch"))
    return Table("Kernel time of a plan, us", ("case", FLOOR, TORCH, *pairs), rows)


def _kernel(fields: Mapping[str, Any]) -> str:
    """A kernel time, and what else a call launches; the wall time, so called, where no profiler worked."""
    text = number(fields.get("kernel_us"))
    if not text and "wall_us" in fields and "no_profiler" in fields:
        text = f"wall {number(fields['wall_us'])}"
    if fields.get("kernels", 1) != 1 or fields.get("copies", 0) != 0:
        text += f" (kernels {fields['kernels']:g}, copies {fields['copies']:g})"
    return text + " (wrong)" * ("wrong" in fields)


def _ratio(check: Check | None) -> str:
    if check is None:
        return ""
    judged = any(check.goal == KERNEL.format(backend) for backend in KERNELS_OF_JAX)
    return f"{check.measured:.2f}" + (" (over)" if judged and not check.is_met else "")


def host_table(results: Results) -> Table:
    """What a call costs the host."""
    shown = [backend for backend in JAX if results["figures"].get(backend)]
    rows = []
    for case, sizes in _measured(results, "host_us").items():
        torchs = figure(results, TORCH, case)
        eager = [number(torchs.get(name)) for name in ("host_us", "validation_us")]
        jitted = [number(figure(results, backend, case).get("host_us")) for backend in shown]
        rows.append((sizes["title"], *eager, *jitted))
    jitted_columns = (f"{backend}, jitted step" for backend in shown)
    columns = ("case", "torch-triton, eager launch", "validation in it", *jitted_columns)
    return Table("Host time of a call, us", columns, rows)


def goals_table(results: Results) -> Table:
    """Each goal by the case that is furthest from it."""
    found = list(checks(results))
    rows = []
    for goal in GOALS:
        of_goal = [check for check in found if check.goal == goal]
        if not of_goal:
            continue
        worst = max(of_goal, key=lambda check: check.measured / check.limit)
        met = sum(check.is_met for check in of_goal)
        title = results["cases"][worst.case]["title"]
        median = statistics.median(check.measured for check in of_goal)
        worst_text = f"{number(worst.measured)} {worst.unit} ({title})"
        rows.append((goal, number(median), worst_text, f"{met} of {len(of_goal)}", worst.verdict))
    return Table("Goals", ("at most", "median", "worst", "cases that meet it", "met"), rows)


def machine(results: Results) -> str:
    """What the figures were taken on, in one line."""
    parts = [
        results.get("gpu") or "no GPU",
        *(f"{name} {results[name]}" for name in ("driver", "cuda") if results.get(name)),
        *(f"{package} {version}" for package, version in results["versions"].items()),
        results["date"],
    ]
    return ", ".join(parts)
