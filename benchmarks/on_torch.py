"""The floor and torch's launcher, timed on CUDA: in a graph, by kernel, and on the host.

A graph holds `launches` launches that take turns among the input sets. Its replays are queued behind a
sleeping kernel, so that the GPU never waits for the host, with an event between any two.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from kvcanary_torch import Faults, VerifyPlan, WritePlan, launch_canary_plan_kernels
from kvcanary_torch.launch import TORCH
from shared_ref import plan as numpy_plan
from shared_ref.conformance.case import Case, PlanInputs, Plans
from shared_ref.schema import LAUNCH_PLAN, OPTIONAL_OUTPUTS
from shared_ref.validation import check, plan_arguments

from . import device_time
from .cases import Spec, difference
from .settings import Settings
from .variants import PLAIN, PROFILED, VARIANTS, Variant, inputs_of, wrong_extras, wrong_outputs

Launch = Callable[[], Any]

HEAD_START_CYCLES = 40_000_000
"""About 20 ms, in which the clocks rise and the host queues all replays of a graph."""


def graph_us(launches: Sequence[Launch], settings: Settings) -> float:
    """Median time of one launch inside a CUDA graph, in microseconds."""
    return replayed_us(captured(launches, settings), settings)


def captured(launches: Sequence[Launch], settings: Settings) -> torch.cuda.CUDAGraph:
    """The launches in a CUDA graph, each of them as often as its turn comes."""
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in itertools.islice(itertools.cycle(launches), settings.launches):
            launch()
    return graph


def replayed_us(graph: torch.cuda.CUDAGraph, settings: Settings) -> float:
    """Median time of one launch over replays of a graph, in microseconds."""
    graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(settings.replays + 1)]
    torch.cuda._sleep(HEAD_START_CYCLES)
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    times = [before.elapsed_time(after) for before, after in itertools.pairwise(events)]
    return statistics.median(times) * 1e3 / settings.launches


def host_us(call: Callable[[int], Any], settings: Settings) -> float:
    """Median time that the host spends on one call, over batches of calls that it does not wait for.

    Args:
        call: takes the call's number in its batch.
    """
    times = []
    for _ in range(settings.batches):
        began = time.perf_counter()
        for i in range(settings.batch):
            call(i)
        times.append(time.perf_counter() - began)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return statistics.median(times) * 1e6 / settings.batch


@triton.jit
def floor_kernel(
    cells, mapping, tokens, out_slots, out_tokens, out_positions, out_prev_slots, n, BLOCK: tl.constexpr
):
    """Streams an entry's bytes and nothing else. Grid: programs that share the `n` entries by blocks."""
    for first in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        entry = first + tl.arange(0, BLOCK)
        is_entry = entry < n
        cell = tl.load(cells + entry, is_entry).to(tl.int64)
        slot = cell
        token = cell
        if mapping is not None:
            slot = tl.load(mapping + entry, is_entry)
        if tokens is not None:
            token = tl.load(tokens + entry, is_entry).to(tl.int64)
        tl.store(out_slots + entry, slot, is_entry)
        tl.store(out_tokens + entry, token, is_entry)
        tl.store(out_positions + entry, cell, is_entry)
        tl.store(out_prev_slots + entry, cell + 1, is_entry)


class FloorConfig(NamedTuple):
    """How the floor's launch is cut up."""

    block: int
    warps: int
    programs: int | None
    """A multiprocessor, at most; None: one block a program."""


FLOOR_CONFIGS = (
    FloorConfig(256, 4, 8),
    FloorConfig(256, 4, 16),
    FloorConfig(512, 4, 8),
    FloorConfig(1024, 4, 4),
    FloorConfig(1024, 4, 8),
    FloorConfig(2048, 8, 2),
    FloorConfig(1024, 4, None),
    FloorConfig(2048, 8, None),
)


class Floor:
    """The least that a kernel of a case's traffic takes: the best of `FLOOR_CONFIGS`.

    The columns are padded to a multiple of 16 entries, as whole vectors need it.
    """

    def __init__(self, spec: Spec, settings: Settings, device: str = "cuda") -> None:
        self.device = device
        self.n = -(-spec.entries // 16) * 16
        self.sets = [self._random_set(spec) for _ in range(settings.sets)]
        self.columns = [torch.full((self.n,), -7, dtype=torch.int64, device=device) for _ in range(4)]
        self.best: FloorConfig | None = None

    def _random_set(self, spec: Spec) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        def column(dtype: torch.dtype) -> torch.Tensor:
            return torch.randint(0, 2**31 - 1, (self.n,), dtype=dtype, device=self.device)

        return (
            column(torch.int32),
            column(torch.int64) if spec.mapping else None,
            column(torch.int32) if spec.tokens else None,
        )

    def check(self) -> str | None:
        """What the kernel gets wrong, or None."""
        cells, mapping, tokens = self.sets[0]
        for config in FLOOR_CONFIGS:
            for column in self.columns:
                column.fill_(-7)
            self._launches(config)[0]()
            cell = cells.long()
            slot, token = cell if mapping is None else mapping, cell if tokens is None else tokens
            expected = (slot, token, cell, cell + 1)
            if not all(torch.equal(c, e.long()) for c, e in zip(self.columns, expected, strict=True)):
                return f"the floor kernel with {config} does not copy its input"
        return None

    def timings(self, settings: Settings) -> dict[str, Any]:
        """`graph_us` of the best configuration, and of all that were tried."""
        tried = {config: graph_us(self._launches(config), settings) for config in FLOOR_CONFIGS}
        self.best = min(tried, key=tried.__getitem__)
        return {
            "graph_us": tried[self.best],
            "config": self.best._asdict(),
            "tried": [config._asdict() | {"graph_us": us} for config, us in tried.items()],
        }

    def kernel_time(self, settings: Settings) -> dict[str, Any]:
        """The best configuration's time, as a profiler sees it."""
        if self.best is None:
            self.timings(settings)
        assert self.best is not None
        return device_time.figures(functools.partial(_run, self._launches(self.best)), settings)

    def _launches(self, config: FloorConfig) -> list[Launch]:
        blocks = triton.cdiv(self.n, config.block)
        if config.programs is not None:
            blocks = min(blocks, config.programs * _multiprocessors())
        kernel = functools.partial(floor_kernel[(blocks,)], BLOCK=config.block, num_warps=config.warps)
        return [functools.partial(kernel, *inputs, *self.columns, self.n) for inputs in self.sets]


def _multiprocessors() -> int:
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


def _run(launches: Sequence[Launch], calls: int) -> None:
    for launch in itertools.islice(itertools.cycle(launches), calls):
        launch()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class TorchPlan:
    """`launch_canary_plan_kernels` on a case: the input sets take turns, one pair of plans is filled."""

    def __init__(self, spec: Spec, settings: Settings, device: str = "cuda") -> None:
        self.spec = spec
        self.verify = VerifyPlan.allocate(verify_capacity=spec.entries, device=device)
        self.write = WritePlan.allocate(write_req_capacity=spec.bs, device=device)
        self.total = torch.zeros(1, dtype=torch.int64, device=device)
        self.faults = Faults.allocate(device=device)
        self.inputs = [_on(device, spec.inputs(seed)) for seed in range(settings.sets)]
        self.launches = {variant: self._launches(variant) for variant in VARIANTS}

    def _launches(self, variant: Variant) -> list[Launch]:
        extras: dict[str, Any] = {"verify_total_out": self.total, "faults_out": self.faults}
        launch = functools.partial(
            launch_canary_plan_kernels,
            verify_plan_out=self.verify,
            write_plan_out=self.write,
            **{name: extras[name] for name in variant.outputs},
        )
        return [functools.partial(launch, **inputs_of(variant, inputs)) for inputs in self.inputs]

    def check(self) -> str | None:
        """How a launch from poisoned plans differs from the reference, or None."""
        return self._wrong(self.spec.case(0), PLAIN)

    def check_variants(self) -> str | None:
        """The same for the launches with options, of which each makes the plan of the plain one."""
        case = self.spec.case(0)
        found = ((variant.name, self._wrong(case, variant)) for variant in VARIANTS)
        return next((f"{name}: {what}" for name, what in found if what is not None), None)

    def _wrong(self, case: Case, variant: Variant) -> str | None:
        for plan, poisoned in zip((self.verify, self.write), case.before, strict=True):
            for field in plan.fields():
                getattr(plan, field.name).copy_(torch.from_numpy(getattr(poisoned, field.name)))
        self.total.fill_(-1)
        self.launches[variant][0]()
        extras = self._extras()
        given = {name: extras[name] for name in variant.outputs}
        return wrong_outputs(case, Plans(*self._plans(), given))

    def timings(self, settings: Settings) -> dict[str, Any]:
        """`graph_us`, `host_us` of an eager launch, and the share `validation_us` of it.

        `wrong` tells how the graph's last plan differs from the reference, None if it does not.
        """
        graph = graph_us(self.launches[PLAIN], settings)
        last = (settings.launches - 1) % len(self.inputs)
        wrong = difference(self.spec.case(last), self._plans())
        return {"graph_us": graph, "wrong": wrong} | self.host_timings(settings)

    def host_timings(self, settings: Settings) -> dict[str, float]:
        sets, launches = len(self.inputs), self.launches[PLAIN]
        defaults = dict.fromkeys(OPTIONAL_OUTPUTS) | {"page_size": 1}
        arguments = [plan_arguments(self.verify, self.write) | defaults | inputs for inputs in self.inputs]
        return {
            "host_us": host_us(lambda i: launches[i % sets](), settings),
            "validation_us": host_us(lambda i: check(LAUNCH_PLAN, TORCH, arguments[i % sets]), settings),
        }

    def variants(self, settings: Settings) -> dict[str, Any]:
        """`variants`: the `graph_us` of each, the median of rounds in which they take turns.

        `wrong` tells what a launch has wrong before them, or the optional outputs after them.
        """
        wrong_before = self.check_variants()
        graphs = {variant: captured(self.launches[variant], settings) for variant in VARIANTS}
        times: dict[str, list[float]] = {variant.name: [] for variant in VARIANTS}
        for _ in range(settings.rounds):
            for variant, graph in graphs.items():
                times[variant.name].append(replayed_us(graph, settings))
        figures = {name: {"graph_us": statistics.median(us)} for name, us in times.items()}
        wrong = wrong_before or wrong_extras(self._extras(), self.spec.entries)
        return {"variants": figures, "wrong": wrong}

    def kernel_time(self, settings: Settings) -> dict[str, Any]:
        """A launch's time on the device, as a profiler sees it."""
        return device_time.figures(functools.partial(_run, self.launches[PLAIN]), settings)

    def variant_kernels(self, settings: Settings) -> dict[str, Any]:
        """`variant_kernels`: the same of a launch with options; `wrong` as for `check_variants`."""
        wrong = self.check_variants()
        figures = {
            variant.name: device_time.figures(functools.partial(_run, self.launches[variant]), settings)
            for variant in PROFILED
        }
        return {"variant_kernels": figures, "wrong": wrong}

    def _plans(self) -> Plans:
        def fetched(cls: Any, plan: Any) -> Any:
            return cls(**{f.name: getattr(plan, f.name).cpu().numpy() for f in cls.fields()})

        return Plans(fetched(numpy_plan.VerifyPlan, self.verify), fetched(numpy_plan.WritePlan, self.write))

    def _extras(self) -> dict[str, np.ndarray]:
        return {
            "verify_total_out": self.total.cpu().numpy(),
            "faults_out": self.faults.buffer.cpu().numpy(),
        }


def _on(device: str, inputs: PlanInputs) -> dict[str, Any]:
    return {
        name: torch.from_numpy(value).to(device) if isinstance(value, np.ndarray) else value
        for name, value in inputs.keywords().items()
    }
