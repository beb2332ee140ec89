"""The benchmarks, as far as they need no GPU: cases, the trace's reader, tables, the document, the plot."""

from __future__ import annotations

import copy
import importlib.util
import json
import multiprocessing
import os
import re
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import bench_plan, bench_reference, device_time, figures, report, tables, worker
from benchmarks.cases import CASES, LONG_TAIL, PAGE, Spec, chosen, difference
from benchmarks.settings import Settings
from benchmarks.worker import FLOOR, TORCH, Step
from shared_ref.reference import launch_canary_plan_kernels_reference

ENTRIES = {
    "1x1k": 1024,
    "32x2k": 65536,
    "256x4k": 1048576,
    "256x4k-window": 262144,
    "512x8k-window-tokens": 65536,
    "4x128k": 524288,
    "4096x256": 1048576,
    "512x16k": 8388608,
}
"""The feasibility table's, where they do not depend on drawn lengths."""

SMALL = Spec(
    name="small",
    title="small",
    prefix_lens=np.array([40, 3, 17]),
    window=20,
    mapping=True,
    tokens=True,
)
FEW = Settings(sets=2, batch=2, batches=2, profiled=2)


class TestCases:
    def test_have_the_entries_of_the_feasibility_table(self) -> None:
        entries = {spec.name: spec.entries for spec in CASES}
        drawn = {"256x8k-tokens", LONG_TAIL}
        assert {name: n for name, n in entries.items() if name not in drawn} == ENTRIES
        assert entries.keys() - ENTRIES.keys() == drawn

    def test_drawn_lengths_are_in_their_range(self) -> None:
        (random,), (long_tail,) = chosen(["256x8k-tokens"]), chosen([LONG_TAIL])
        assert random.prefix_lens.min() >= 0
        assert random.prefix_lens.max() <= 8192
        assert 1_000_000 < random.entries < 1_200_000
        *rest, longest = np.sort(long_tail.prefix_lens).tolist()
        assert longest == 131072
        assert len(rest) == 255
        assert rest[0] >= 200
        assert rest[-1] <= 2000

    @pytest.mark.parametrize("spec", [s for s in CASES if s.entries < 2**22], ids=lambda s: s.name)
    def test_inputs_have_no_fault_and_fill_the_plan_exactly(self, spec: Spec) -> None:
        case = spec.case(seed=1)
        plans = case.before.copy()
        launch_canary_plan_kernels_reference(
            verify_plan_out=plans.verify, write_plan_out=plans.write, **case.inputs.keywords(), strict=True
        )
        assert plans.verify.enable[0] == 1
        assert plans.verify.verify_num_valid[0] == spec.entries == case.inputs.verify_capacity
        assert plans.write.write_offsets[-1] == spec.bs
        assert (case.inputs.full_to_swa_index_mapping is not None) == spec.mapping == (spec.window > 0)

    def test_every_token_has_a_slot_of_its_own_in_a_page_of_its_request(self) -> None:
        inputs = SMALL.inputs(0)
        pages: list[int] = []
        for row, n in zip(inputs.req_pool_indices, inputs.prefix_lens, strict=True):
            slots = inputs.req_to_token[row, :n]
            assert (slots % PAGE == np.arange(n) % PAGE).all()
            assert (inputs.req_to_token[row, n:] == 0).all()
            pages += (slots[::PAGE] // PAGE).tolist()
        assert sorted(pages) == list(range(1, len(pages) + 1))

    def test_a_mapping_sends_pages_to_pages(self) -> None:
        mapping = SMALL.inputs(0).full_to_swa_index_mapping
        assert mapping is not None
        pages = mapping.reshape(-1, PAGE)
        assert (pages % PAGE == np.arange(PAGE)).all()
        assert (pages[0] == np.arange(PAGE)).all()
        assert sorted(mapping) == list(range(len(mapping)))

    def test_seeds_give_the_same_lengths_on_other_slots(self) -> None:
        first, again, other = (SMALL.inputs(seed) for seed in (3, 3, 4))
        assert np.array_equal(first.req_to_token, again.req_to_token)
        assert not np.array_equal(first.req_to_token, other.req_to_token)
        assert sorted(first.prefix_lens) == sorted(other.prefix_lens)

    def test_difference_tells_what_is_wrong(self) -> None:
        case = SMALL.case(0)
        plans = case.expected()
        assert difference(case, plans) is None
        right = int(plans.verify.verify_expected_positions[5])
        plans.verify.verify_expected_positions[5] = -3
        assert difference(case, plans) == (
            f"verify_expected_positions differs in 1 of 40 elements, first [5]: expected {right}, got -3"
        )

    def test_are_chosen_by_name_in_the_tables_order(self) -> None:
        assert chosen([]) == list(CASES)
        assert [spec.name for spec in chosen(["4096x256", "1x1k"])] == ["1x1k", "4096x256"]


def torch_event(category: str, start: float, us: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": "a", "pid": 0, "tid": 7, "ts": start, "dur": us}


def jax_metadata(name: str, value: str, pid: int, tid: int | None = None) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "args": {"name": value}} | ({"tid": tid} if tid else {})


def jax_event(name: str, tid: int, start: float, us: float, pid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start, "dur": us}


JAX_TRACE = [
    jax_metadata("process_name", "/device:GPU:0", 1),
    jax_metadata("thread_name", "Stream #13(Kernel,MemcpyD2D)", 1, 13),
    jax_metadata("thread_name", "XLA Ops", 1, 14),
    jax_metadata("thread_name", "CUPTI overhead", 1, 15),
    jax_metadata("process_name", "/host:CPU", 701),
    jax_metadata("thread_name", "Stream #13", 701, 13),
    jax_event("plan_kernel", 13, 50.0, 4.5),
    jax_event("plan_kernel", 13, 10.0, 3.5),
    jax_event("MemcpyD2D", 13, 20.0, 1.0),
    jax_event("MemcpyD2D", 13, 60.0, 1.0),
    jax_event("fusion", 14, 10.0, 3.5),
    jax_event("overhead", 15, 10.0, 3.5),
    jax_event("cuLaunchKernel", 13, 5.0, 100.0, pid=701),
    {},
]


class TestTrace:
    def test_of_torch_is_read_by_category(self) -> None:
        events = [
            torch_event("kernel", 20.5, 3.0),
            torch_event("gpu_memset", 10.0, 1.0),
            torch_event("gpu_memcpy", 15.0, 2.0),
            torch_event("cuda_runtime", 1.0, 50.0),
            {"ph": "i", "cat": "kernel", "name": "no span", "ts": 3},
        ]
        assert device_time.gpu_events({"traceEvents": events}) == [
            (10.0, 1.0, "copy"),
            (15.0, 2.0, "copy"),
            (20.5, 3.0, "kernel"),
        ]

    def test_of_jax_is_read_by_stream(self) -> None:
        assert device_time.gpu_events({"traceEvents": JAX_TRACE}) == [
            (10.0, 3.5, "kernel"),
            (20.0, 1.0, "copy"),
            (50.0, 4.5, "kernel"),
            (60.0, 1.0, "copy"),
        ]

    def test_a_calls_time_is_the_median_of_the_calls_sums(self) -> None:
        events = [
            device_time.GpuEvent(float(i), us, kind)
            for i, (us, kind) in enumerate([(3, "kernel"), (1, "copy")] * 2 + [(90, "kernel"), (1, "copy")])
        ]
        assert device_time.of_one_call(events, 3) == (4.0, 1.0, 1.0)

    def test_calls_that_differ_give_the_mean(self) -> None:
        events = [device_time.GpuEvent(float(i), 2.0, "kernel") for i in range(3)]
        assert device_time.of_one_call(events, 2) == (3.0, 1.5, 0.0)

    def test_a_trace_without_the_kernels_is_refused(self) -> None:
        events = [device_time.GpuEvent(0.0, 1.0, "kernel"), device_time.GpuEvent(1.0, 1.0, "copy")]
        with pytest.raises(ValueError, match=r"1 kernels of 2 calls"):
            device_time.of_one_call(events, 2)

    def test_the_first_profiler_that_works_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(run: Any) -> Any:
            raise RuntimeError("no CUPTI")

        def working(run: Any) -> dict[str, Any]:
            run()
            return {"traceEvents": JAX_TRACE}

        monkeypatch.setattr(device_time, "PROFILERS", {"broken": broken, "working": working})
        monkeypatch.setattr(device_time, "_started", set())
        calls: list[int] = []
        found = device_time.figures(calls.append, FEW._replace(profilers=("broken", "working")))
        assert found == {"kernel_us": 5.0, "kernels": 1.0, "copies": 1.0, "profiler": "working"}
        assert calls == [2, 8, 2]
        none = device_time.figures(calls.append, FEW._replace(profilers=("broken",)))
        assert none == {"no_profiler": "broken: RuntimeError: no CUPTI"}


def sizes(title: str, entries: int, *, bs: int = 8, mapping: bool = False) -> dict[str, Any]:
    return {"title": title, "entries": entries, "bs": bs, "mapping": mapping, "tokens": False}


def graph(us: float) -> dict[str, float]:
    return {"graph_us": us}


def kernel(us: float, **more: Any) -> dict[str, Any]:
    return {"kernel_us": us, "kernels": 1.0, "copies": 0.0, "profiler": "p"} | more


@pytest.fixture
def results() -> dict[str, Any]:
    """A run that nobody made; floor and limits leave no doubt."""
    return {
        "date": "2026-12-24",
        "gpu": "Some GPU",
        "driver": "1.2",
        "cuda": "13.0",
        "host": "some host",
        "versions": {"torch": "2.0"},
        "settings": FEW._asdict(),
        "unavailable": {"jax-xla": "no JAX"},
        "failures": [{"backend": "jax-triton", "case": "small", "what": "it broke"}],
        "cases": {
            "small": sizes("small case", 1000),
            "mapped": sizes("mapped case", 1000, mapping=True),
            "large": sizes("large case", 500_000),
            LONG_TAIL: sizes("long tail", 400_000),
            "wide": sizes("wide case", 1_000_000, bs=4096),
            "none": sizes("unmeasured case", 1),
        },
        "figures": {
            FLOOR: {
                "small": graph(2.0) | kernel(1.5),
                "mapped": graph(2.0),
                "large": graph(10.0),
                LONG_TAIL: graph(4.0),
                "wide": graph(9.0),
            },
            TORCH: {
                "small": graph(2.9) | kernel(2.0) | {"host_us": 20.0, "validation_us": 11.0},
                "mapped": graph(4.1),
                "large": graph(12.5) | kernel(12.0),
                LONG_TAIL: graph(5.0),
                "wide": graph(12.0) | kernel(11.0),
            },
            "jax-mosaic": {
                "small": kernel(2.2) | {"host_us": 60.0, "wall_us": 61.0},
                "large": kernel(15.0, kernels=2.0, copies=1.0),
                "wide": {"no_profiler": "none", "host_us": 60.0, "wall_us": 99.0},
            },
            "jax-triton": {"small": kernel(2.0, profiler="another")},
        },
    }


class TestFigures:
    @pytest.mark.parametrize(
        ("case", "goal", "measured", "verdict"),
        [
            ("small", figures.SMALL, 0.9, "yes"),
            ("mapped", figures.SMALL_MAPPED, 2.1, "no"),
            ("large", figures.LARGE, 1.25, "yes"),
            (LONG_TAIL, figures.LARGE, 1.25, "yes"),
            ("wide", figures.LARGEST_BATCH, 12.0, "yes"),
        ],
    )
    def test_a_case_is_judged_by_its_goal(
        self, results: dict[str, Any], case: str, goal: str, measured: float, verdict: str
    ) -> None:
        check = figures.graph_check(results, case)
        assert check is not None
        assert (check.goal, check.verdict) == (goal, verdict)
        assert check.measured == pytest.approx(measured)

    def test_nothing_is_judged_without_figures(self, results: dict[str, Any]) -> None:
        assert figures.graph_check(results, "none") is None
        assert figures.kernel_check(results, "jax-mosaic", "wide") is None

    def test_kernel_times_of_two_profilers_are_not_compared(self, results: dict[str, Any]) -> None:
        assert figures.kernel_check(results, "jax-triton", "small") is None

    def test_the_graphs_table(self, results: dict[str, Any]) -> None:
        rows = {row[0]: row[1:] for row in figures.graph_table(results).rows}
        assert rows["small case"] == ("1,000", "2.00", "2.90", "1.45", "0.90", "+ 1 us", "yes")
        assert rows["large case"] == ("500,000", "10.0", "12.5", "1.25", "2.50", "1.3 x", "yes")
        assert rows["wide case"][-2:] == ("13 us", "yes")
        assert "unmeasured case" not in rows

    def test_the_kernels_table(self, results: dict[str, Any]) -> None:
        table = figures.kernel_table(results)
        assert table.columns == ("case", FLOOR, TORCH, "jax-mosaic", "x torch", "jax-triton", "x torch")
        rows = {row[0]: row[1:] for row in table.rows}
        assert rows["small case"] == ("1.50", "2.00", "2.20", "1.10", "2.00", "")
        assert rows["large case"] == ("", "12.0", "15.0 (kernels 2, copies 1)", "1.25 (over)", "", "")
        assert rows["wide case"] == ("", "11.0", "wall 99.0", "", "", "")

    def test_the_goals_table_names_the_worst_case(self, results: dict[str, Any]) -> None:
        rows = {row[0]: row[1:] for row in figures.goals_table(results).rows}
        mosaic = figures.KERNEL.format("jax-mosaic")
        assert rows[mosaic] == ("1.18", "1.25 x (large case)", "1 of 2", "no")
        assert rows[figures.VALIDATION] == ("11.0", "11.0 us (small case)", "0 of 1", "no")
        assert rows[figures.HOST][-1] == "yes"

    def test_a_wrong_plan_is_marked(self, results: dict[str, Any]) -> None:
        results["figures"][TORCH]["small"]["wrong"] = "all of it"
        assert figures.graph_table(results).rows[0][3] == "2.90 (wrong)"
        assert figures.kernel_table(results).rows[0][2] == "2.00 (wrong)"

    def test_goals_are_those_of_the_document(self) -> None:
        document = report.DOCUMENT.read_text()
        told = {f"{who}: {most}" for who, most in re.findall(r"^\| (.+) \| (.+) \|$", document, re.MULTILINE)}
        of_torch = {figures.LARGE, figures.SMALL, figures.SMALL_MAPPED, figures.LARGEST_BATCH}
        assert of_torch | {figures.VALIDATION, figures.HOST} <= told
        assert "jax-mosaic and jax-triton, every case: kernel time 1.15 x torch-triton's" in told


class TestReport:
    DOCUMENT = f"# Title\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n"

    def test_fills_the_document_between_its_markers(self, results: dict[str, Any], tmp_path: Path) -> None:
        document, data = tmp_path / "performance.md", tmp_path / "run.json"
        document.write_text(self.DOCUMENT)
        data.write_text(json.dumps(results))
        report.main([str(data), "--document", str(document)])
        text = document.read_text()
        assert text.startswith(f"# Title\n\n{report.BEGIN}\n\nMeasured on Some GPU, driver 1.2, cuda 13.0")
        assert text.endswith(f"- jax-triton on small: it broke\n\n{report.END}\n\nafter\n")
        assert "old" not in text
        assert "| small case | 1,000 | 2.00 | 2.90 | 1.45 | 0.90 | + 1 us | yes |" in text
        assert "- jax-xla: no JAX" in text
        report.main([str(data), "--document", str(document)])
        assert document.read_text() == text

    @pytest.mark.parametrize("document", ["", report.BEGIN, report.END + report.BEGIN, DOCUMENT * 2])
    def test_refuses_a_document_without_its_markers(self, results: dict[str, Any], document: str) -> None:
        with pytest.raises(ValueError, match="once each"):
            report.fill(document, results)

    def test_the_shipped_document_has_them(self, results: dict[str, Any]) -> None:
        assert "small case" in report.fill(report.DOCUMENT.read_text(), results)


def test_the_plot_is_drawn(results: dict[str, Any], tmp_path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    from benchmarks import plot

    data, output = tmp_path / "run.json", tmp_path / "plot.png"
    data.write_text(json.dumps(results))
    plot.main([str(data), "--output", str(output)])
    assert output.read_bytes().startswith(b"\x89PNG")


class TestTables:
    TABLE = tables.Table("Title", ("name", "us"), [("a", "1.25"), ("long name", "10.0")])

    def test_plain_text_aligns_the_columns(self) -> None:
        assert tables.plain(self.TABLE).splitlines() == [
            "Title",
            "name         us",
            "a          1.25",
            "long name  10.0",
        ]

    def test_markdown(self) -> None:
        assert tables.markdown(self.TABLE).splitlines() == [
            "**Title**",
            "",
            "| name | us |",
            "| --- | ---: |",
            "| a | 1.25 |",
            "| long name | 10.0 |",
        ]

    def test_show_prints_every_cell(self, capsys: pytest.CaptureFixture[str]) -> None:
        tables.show(self.TABLE)
        assert {"Title", "long", "10.0", "us"} <= set(capsys.readouterr().out.split())


def serve_and_die(connection: Connection, steps: Sequence[Step], settings: Settings) -> None:
    """A worker that measures, reports a wrong plan, and dies in the midst of the case `deadly`."""
    connection.send(("environment", steps[0].subject, {"gpu": "Some GPU"}))
    for step in steps:
        connection.send(("begin", step, None))
        if step.case == "deadly":
            os._exit(3)
        if step.case == "wrong":
            connection.send(("wrong", step, "all of it"))
        connection.send(("figures", step, {"graph_us": 1.0}))


class TestRun:
    def test_a_workers_death_costs_one_case(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bench_plan.worker, "serve", serve_and_die)
        run = bench_plan.Run([], FEW)
        names = ("first", "deadly", "wrong")
        run.measure([Step(TORCH, name, what) for what in ("timings", "kernel_time") for name in names])
        assert run.results["gpu"] == "Some GPU"
        assert run.results["figures"] == {
            TORCH: {"first": {"graph_us": 1.0}, "wrong": {"graph_us": 1.0, "wrong": "all of it"}}
        }
        said = {(f["case"], f["what"]) for f in run.results["failures"]}
        assert said == {
            ("deadly", "its process ended with exit code 3"),
            ("wrong", "the plan is wrong: all of it"),
        }

    def test_profilers_come_last(self) -> None:
        steps = bench_plan.steps_of((FLOOR, TORCH), CASES[:2])
        assert [step.what for step in steps] == ["timings"] * 4 + ["kernel_time"] * 4
        assert len(set(steps)) == 8

    def test_what_went_wrong_is_printed(
        self, results: dict[str, Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        bench_plan.show(copy.deepcopy(results))
        out = capsys.readouterr().out
        assert "unavailable: jax-xla: no JAX" in out
        assert "FAILED: jax-triton on small: it broke" in out


class Stub:
    """A subject whose plan is wrong, and whose kernel cannot be timed."""

    def check(self) -> str:
        return "all of it"

    def timings(self, settings: Settings) -> dict[str, Any]:
        return {"graph_us": 1.0, "wrong": None}

    def kernel_time(self, settings: Settings) -> dict[str, Any]:
        raise RuntimeError("an illegal memory access")


class TestWorker:
    STEPS = tuple(Step(TORCH, "1x1k", what) for what in ("timings", "kernel_time", "timings"))

    @pytest.fixture(autouse=True)
    def stubs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "_prepared", lambda step, settings: Stub())
        monkeypatch.setattr(worker, "environment", lambda subject: {"gpu": "Some GPU"})

    def test_tells_what_happens_and_ends_at_the_first_exception(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "unavailable", lambda subject: None)
        here, there = multiprocessing.Pipe(duplex=False)
        worker.serve(there, self.STEPS, FEW)
        timings, kernel_time, _ = self.STEPS
        assert [here.recv() for _ in range(7)] == [
            ("environment", TORCH, {"gpu": "Some GPU"}),
            ("begin", timings, None),
            ("wrong", timings, "all of it"),
            ("figures", timings, {"graph_us": 1.0}),
            ("begin", kernel_time, None),
            ("failure", kernel_time, "RuntimeError: an illegal memory access"),
            ("end", None, None),
        ]

    def test_measures_nothing_of_what_is_unavailable(self) -> None:
        here, there = multiprocessing.Pipe(duplex=False)
        worker.serve(there, [Step("no-such-backend", "1x1k", "timings")], FEW)
        reason = "no installed package announces it"
        assert [here.recv(), here.recv()] == [
            ("unavailable", "no-such-backend", reason),
            ("end", None, None),
        ]


class TestSubjects:
    """What is timed on the GPU, on the CPU."""

    def test_torch(self) -> None:
        pytest.importorskip("triton", reason="Triton is not installed")
        from benchmarks.on_torch import TorchPlan

        subject = TorchPlan(SMALL, FEW, device="cpu")
        assert subject.check() is None
        assert subject.host_timings(FEW).keys() == {"host_us", "validation_us"}
        subject.inputs[0]["req_to_token"] += 1
        assert str(subject.check()).startswith("verify_slot_indices differs")

    def test_jax(self) -> None:
        pytest.importorskip("jax", reason="JAX is not installed")
        from benchmarks.on_jax import JaxPlan

        subject = JaxPlan(SMALL, FEW, "xla")
        assert subject.check() is None
        assert subject.timings(FEW).keys() == {"host_us", "wall_us"}
        subject.step = lambda plans, arrays: plans
        assert str(subject.check()).startswith("verify_slot_indices differs")

    def test_the_reference(self) -> None:
        backend = bench_reference.backends()[bench_reference.REFERENCE]
        measured = {"mapping": bench_reference.measure(SMALL, {backend.name: backend}, rounds=2)}
        (row,) = bench_reference.table(measured).rows
        assert row[0] == "mapping"
        assert row[1]
        assert row[3:] == ("", "", "", "")
