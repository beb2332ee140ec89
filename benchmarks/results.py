"""What a run measured, as the data that `--json` writes.

date, gpu, multiprocessors, cuda, driver, host, versions, settings
unavailable   {backend: reason}
failures      [{backend, case, what}]
cases         {case: {title, entries, bs, mapping, tokens, read_bytes, written_bytes}}
figures       {backend or "floor": {case: {graph_us, kernel_us, kernels, copies, profiler, host_us,
              validation_us, wall_us, no_profiler, config, tried, wrong,
              variants: {variant: {graph_us}},
              variant_kernels: {variant: {kernel_us, kernels, copies, profiler, no_profiler}}}}},
              each where it was measured
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .variants import PLAIN, Variant
from .worker import KERNELS_OF_JAX, TORCH

JAX = (*KERNELS_OF_JAX, "jax-xla")
BACKENDS = (TORCH, *JAX)
"""Those that run on a GPU, in the tables' order."""
ONE_KERNEL = (TORCH, *KERNELS_OF_JAX)
"""Those whose launch is one kernel."""

Results = Mapping[str, Any]


def figure(results: Results, subject: str, case: str) -> dict[str, Any]:
    """What was measured of a subject on a case; empty if nothing was."""
    return results["figures"].get(subject, {}).get(case, {})


def graph_us(results: Results, case: str, variant: Variant) -> float | None:
    """Torch's time in a graph, where the variants took turns."""
    return figure(results, TORCH, case).get("variants", {}).get(variant.name, {}).get("graph_us")


def graph_cost(results: Results, case: str, variant: Variant) -> float | None:
    """That time over the plain launch's; None without both."""
    us, plain = graph_us(results, case, variant), graph_us(results, case, PLAIN)
    return None if us is None or plain is None else us / plain


def kernel_of(results: Results, backend: str, case: str, variant: Variant) -> dict[str, Any]:
    """What a profiler said of a variant; empty if nothing."""
    return figure(results, backend, case).get("variant_kernels", {}).get(variant.name, {})


def kernel_cost(results: Results, backend: str, case: str, variant: Variant) -> float | None:
    """A variant's kernel time over the plain launch's; None without both, by the same profiler."""
    ours, plain = (kernel_of(results, backend, case, v) for v in (variant, PLAIN))
    if "kernel_us" not in ours or ours["profiler"] != plain.get("profiler"):
        return None
    return ours["kernel_us"] / plain["kernel_us"]


def measured(results: Results, name: str) -> dict[str, Any]:
    """The cases for which some subject has this figure, with their sizes."""
    figures = results["figures"].values()
    return {
        case: sizes
        for case, sizes in results["cases"].items()
        if any(name in fields.get(case, {}) for fields in figures)
    }


def machine(results: Results) -> str:
    """What the figures were taken on, in one line."""
    parts = [
        results.get("gpu") or "no GPU",
        *(f"{name} {results[name]}" for name in ("driver", "cuda") if results.get(name)),
        *(f"{package} {version}" for package, version in results["versions"].items()),
        results["date"],
    ]
    return ", ".join(parts)
