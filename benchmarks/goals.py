"""What a run is judged by: each goal on every case that has the figures for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .cases import LONG_TAIL
from .results import ONE_KERNEL, Results, figure, graph_cost, kernel_cost, kernel_of
from .variants import FAULTS, PAGES
from .worker import FLOOR, KERNELS_OF_JAX, TORCH


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
FAULTS_COST = "torch-triton with faults_out, every case: 1.10 x the plain launch"
PAGES_COST = "torch-triton with pages of 16, bs 256, prefix 4k: 1.0 x the plain launch, 2% allowed for noise"
FAULTS_KERNEL = "{} with faults_out: kernel time 1.10 x the plain launch's, every case"
ONE_LAUNCH = "{} with faults_out: one kernel and no copy, every case"
GOALS = (
    *(LARGE, SMALL, SMALL_MAPPED, LARGEST_BATCH),
    *map(KERNEL.format, KERNELS_OF_JAX),
    *(VALIDATION, HOST, FAULTS_COST, PAGES_COST),
    *map(FAULTS_KERNEL.format, KERNELS_OF_JAX),
    *map(ONE_LAUNCH.format, ONE_KERNEL),
)
PAGES_CASE = "256x4k"


def checks(results: Results) -> Iterator[Check]:
    """Every goal on every case that has the figures for it."""
    for case in results["cases"]:
        if (check := graph_check(results, case)) is not None:
            yield check
        for backend in KERNELS_OF_JAX:
            if (check := kernel_check(results, backend, case)) is not None:
                yield check
        for goal, name, limit in ((VALIDATION, "validation_us", 10.0), (HOST, "host_us", 25.0)):
            if (us := figure(results, TORCH, case).get(name)) is not None:
                yield Check(goal, case, us, limit, "us")
        yield from variant_checks(results, case)


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


def variant_checks(results: Results, case: str) -> Iterator[Check]:
    """The goals for launches with options."""
    if (ratio := graph_cost(results, case, FAULTS)) is not None:
        yield Check(FAULTS_COST, case, ratio, 1.10, "x")
    if case == PAGES_CASE and (ratio := graph_cost(results, case, PAGES)) is not None:
        yield Check(PAGES_COST, case, ratio, 1.02, "x")
    for backend in ONE_KERNEL:
        ratio = kernel_cost(results, backend, case, FAULTS)
        if ratio is not None and backend in KERNELS_OF_JAX:
            yield Check(FAULTS_KERNEL.format(backend), case, ratio, 1.10, "x")
        fields = kernel_of(results, backend, case, FAULTS)
        if "kernels" in fields:
            launched = fields["kernels"] + fields["copies"]
            yield Check(ONE_LAUNCH.format(backend), case, launched, 1.0, "launched")
