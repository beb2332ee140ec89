"""How long the GPU works for one call, kernel by kernel, as a profiler's trace tells it.

PyTorch's profiler sees every kernel of its process, JAX's among them, so that both frameworks' kernels
are read with the same instrument. JAX's own is the second choice.
"""

from __future__ import annotations

import functools
import gzip
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .settings import Settings

_KINDS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "copy"}
"""Categories in PyTorch's traces."""


class GpuEvent(NamedTuple):
    """One thing that the GPU did."""

    start_us: float
    us: float
    kind: str
    """`kernel` or `copy`; a memset is a copy."""


class DeviceTime(NamedTuple):
    """What one call costs the GPU: the median over the calls where each launches the same."""

    us: float
    """Of its kernels and copies together, without the gaps between them."""
    kernels: float
    copies: float


def gpu_events(trace: dict[str, Any]) -> list[GpuEvent]:
    """Kernels, copies and memsets of a Chrome trace, by PyTorch's or JAX's profiler, as they began."""
    events = trace["traceEvents"]
    streams = _jax_streams(events)
    found = []
    for event in events:
        if event.get("ph") != "X":
            continue
        kind = _KINDS.get(event.get("cat", ""))
        if (event.get("pid"), event.get("tid")) in streams:
            kind = "copy" if event["name"].lower().startswith(("memcpy", "memset")) else "kernel"
        if kind is not None:
            found.append(GpuEvent(float(event["ts"]), float(event["dur"]), kind))
    return sorted(found)


def _jax_streams(events: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """Process and thread ids that stand for the streams of a GPU."""
    names = [(e, str(e.get("args", {}).get("name", ""))) for e in events if e.get("ph") == "M"]
    gpus = {e["pid"] for e, name in names if e["name"] == "process_name" and name.startswith("/device:GPU")}
    return {
        (e["pid"], e["tid"])
        for e, name in names
        if e["name"] == "thread_name" and e["pid"] in gpus and name.startswith("Stream")
    }


def of_one_call(events: list[GpuEvent], calls: int) -> DeviceTime:
    """The cost of one of `calls` equal calls, from all their events.

    Raises:
        ValueError: fewer kernels than calls.
    """
    kernels = sum(event.kind == "kernel" for event in events)
    if kernels < calls:
        raise ValueError(f"the trace has {kernels} kernels of {calls} calls")
    each, left_over = divmod(len(events), calls)
    if left_over:  # calls that differ
        us = sum(event.us for event in events) / calls
    else:
        times = [event.us for event in events]
        us = statistics.median(sum(times[i : i + each]) for i in range(0, len(times), each))
    return DeviceTime(us, kernels / calls, (len(events) - kernels) / calls)


def _torch_trace(run: Callable[[], None]) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()  # starts CUDA, which is no part of the trace
    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            run()
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text())


def _jax_trace(run: Callable[[], None]) -> dict[str, Any]:
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            run()
        (path,) = Path(folder).glob("**/*.trace.json.gz")
        return json.loads(gzip.decompress(path.read_bytes()))


PROFILERS: dict[str, Callable[[Callable[[], None]], dict[str, Any]]] = {
    "torch.profiler": _torch_trace,
    "jax.profiler": _jax_trace,
}
_started: set[str] = set()
"""Profilers that have had a session: the first one of a process may miss events."""


def figures(run: Callable[[int], None], settings: Settings) -> dict[str, Any]:
    """The device time of a call as a figure's fields, by the first profiler that sees the GPU.

    Args:
        run: launches that many calls and waits for them.
        settings: how many calls to trace, and by what.

    Returns:
        `kernel_us`, `kernels`, `copies` and `profiler`; only `no_profiler`, the reasons, if none works.
    """
    reasons = []
    for name in settings.profilers:
        try:
            us, kernels, copies = _traced(name, run, settings.profiled)
        except Exception as error:  # no such package, no CUPTI, a trace without a GPU in it
            reasons.append(f"{name}: {type(error).__name__}: {error}")
        else:
            return {"kernel_us": us, "kernels": kernels, "copies": copies, "profiler": name}
    return {"no_profiler": "; ".join(reasons)}


def _traced(profiler: str, run: Callable[[int], None], calls: int) -> DeviceTime:
    trace = PROFILERS[profiler]
    if profiler not in _started:
        trace(functools.partial(run, 2))
        _started.add(profiler)
    run(4 * calls)  # until the clocks have risen
    return of_one_call(gpu_events(trace(functools.partial(run, calls))), calls)
