"""A run's figures as the tables that a reader wants."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from .goals import GOALS, KERNEL, Check, checks, graph_check, kernel_check
from .results import (
    JAX,
    ONE_KERNEL,
    Results,
    figure,
    graph_cost,
    graph_us,
    kernel_cost,
    kernel_of,
    measured,
)
from .tables import Table, number
from .variants import FAULTS, PAGES, PAGES_FAULTS, PLAIN, TOTAL
from .worker import FLOOR, KERNELS_OF_JAX, TORCH


def tables(results: Results) -> list[Table]:
    """All of a run, as a reader wants it; without the rows for which there is no figure."""
    makers = (graph_table, options_table, kernel_table, option_kernels_table, host_table, goals_table)
    return [table for table in (make(results) for make in makers) if table.rows]


def graph_table(results: Results) -> Table:
    """Torch against the floor, in a CUDA graph."""
    rows = []
    for case, sizes in measured(results, "graph_us").items():
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


def options_table(results: Results) -> Table:
    """Torch's launches with options against the plain one, in a CUDA graph."""
    rows = []
    for case, sizes in measured(results, "variants").items():
        row = [sizes["title"], number(graph_us(results, case, PLAIN))]
        for variant in (FAULTS, TOTAL, PAGES, PAGES_FAULTS):
            row += [number(graph_us(results, case, variant)), _times(graph_cost(results, case, variant))]
        rows.append(tuple(row))
    options = ("faults_out", "verify_total_out", "pages of 16", "pages and faults_out")
    pairs = (column for option in options for column in (option, "x plain"))
    return Table("Options: a plan of torch-triton in a CUDA graph, us", ("case", "plain", *pairs), rows)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def kernel_table(results: Results) -> Table:
    """Every backend's kernels, as a profiler sees them."""
    shown = [backend for backend in JAX if results["figures"].get(backend)]
    rows = []
    for case, sizes in (measured(results, "kernel_us") | measured(results, "wall_us")).items():
        row = [sizes["title"], *(_kernel(figure(results, subject, case)) for subject in (FLOOR, TORCH))]
        for backend in shown:
            row += [_kernel(figure(results, backend, case)), _ratio(kernel_check(results, backend, case))]
        rows.append(tuple(row))
    pairs = (column for backend in shown for column in (backend, "x torch"))
    return Table("Kernel time of a plan, us", ("case", FLOOR, TORCH, *pairs), rows)


def option_kernels_table(results: Results) -> Table:
    """The same by kernel time, for the backends that are one kernel."""
    with_them = measured(results, "variant_kernels")
    shown = [b for b in ONE_KERNEL if any(kernel_of(results, b, case, PLAIN) for case in with_them)]
    rows = []
    for case, sizes in with_them.items():
        row = [sizes["title"]]
        for backend in shown:
            row.append(_kernel(kernel_of(results, backend, case, PLAIN)))
            for variant in (FAULTS, PAGES):
                ratio = _times(kernel_cost(results, backend, case, variant))
                row.append(ratio + _launched(kernel_of(results, backend, case, variant)))
        rows.append(tuple(row))
    columns = (
        f"{backend}{option}" for backend in shown for option in ("", ", faults_out: x", ", pages of 16: x")
    )
    return Table("Options: kernel time of a plan, us, and times that", ("case", *columns), rows)


def _kernel(fields: Mapping[str, Any]) -> str:
    """A kernel time, and what else a call launches; the wall time, so called, where no profiler worked."""
    text = number(fields.get("kernel_us"))
    if not text and "wall_us" in fields and "no_profiler" in fields:
        text = f"wall {number(fields['wall_us'])}"
    return text + _launched(fields) + " (wrong)" * ("wrong" in fields)


def _launched(fields: Mapping[str, Any]) -> str:
    """What a call launches, unless it is one kernel."""
    if fields.get("kernels", 1) == 1 and fields.get("copies", 0) == 0:
        return ""
    return f" (kernels {fields['kernels']:g}, copies {fields['copies']:g})"


def _ratio(check: Check | None) -> str:
    if check is None:
        return ""
    judged = any(check.goal == KERNEL.format(backend) for backend in KERNELS_OF_JAX)
    return f"{check.measured:.2f}" + (" (over)" if judged and not check.is_met else "")


def host_table(results: Results) -> Table:
    """What a call costs the host."""
    shown = [backend for backend in JAX if results["figures"].get(backend)]
    rows = []
    for case, sizes in measured(results, "host_us").items():
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
