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

from benchmarks import bench_plan, bench_reference, device_time, figures, goals, report, tables, worker
from benchmarks.cases import CASES, LONG_TAIL, PAGE, Spec, chosen, difference
from benchmarks.settings import Settings
from benchmarks.variants import FAULTS, PAGES, VARIANTS, Variant, inputs_of, wrong_outputs
from benchmarks.worker import FLOOR, TORCH, WHATS, Step
from shared_ref.conformance.case import Case, PlanInputs, Plans
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


class TestVariants:
    """A batch of two requests in pages 1 and 2, 3 and 7 slots of them, in rows 2 and 1."""

    INPUTS = PlanInputs(
        req_pool_indices=np.array([2, 1]),
        prefix_lens=np.array([3, 7]),
        extend_seq_lens=np.array([1, 1]),
        req_to_token=np.array([[0] * 32, [*range(32, 39), *[0] * 25], [16, 17, 18, *[0] * 29]], np.int32),
        verify_capacity=10,
    )

    def plans(self, **changed: Any) -> Plans:
        """What a launch would have to make of it."""
        case = Case.poisoned("small", self.INPUTS, write_req_capacity=2)
        verify, write = case.expected()
        faults = np.array([[0, -1]] * 8)
        return Plans(verify, write, {"verify_total_out": np.array([10]), "faults_out": faults} | changed)

    def wrong(self, plans: Plans) -> str | None:
        return wrong_outputs(Case.poisoned("small", self.INPUTS, write_req_capacity=2), plans)

    def test_a_table_of_pages_has_a_cell_a_page(self) -> None:
        given = inputs_of(PAGES, self.INPUTS.keywords())
        assert given["page_size"] == PAGE == 16
        assert given["req_to_token"].tolist() == [[0, 0], [2, 0], [1, 0]]
        assert given["req_to_token"].dtype == np.int32
        assert given["prefix_lens"] is self.INPUTS.prefix_lens

    def test_without_pages_the_inputs_are_the_cases(self) -> None:
        assert inputs_of(FAULTS, self.INPUTS.keywords()) == self.INPUTS.keywords()

    @pytest.mark.parametrize("spec", [SMALL, *chosen(["32x2k", "256x4k-window"])], ids=lambda s: s.name)
    @pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
    def test_every_variant_builds_the_plan_of_the_plain_one(self, spec: Spec, variant: Variant) -> None:
        case = spec.case(0)
        extras = {"verify_total_out": np.array([-1]), "faults_out": np.array([[0, -1]] * 8)}
        given = {name: extras[name] for name in variant.outputs}
        plans = case.before.copy()
        launch_canary_plan_kernels_reference(
            verify_plan_out=plans.verify,
            write_plan_out=plans.write,
            **given,
            **inputs_of(variant, case.inputs.keywords()),
        )
        assert wrong_outputs(case, Plans(plans.verify, plans.write, given)) is None

    def test_right_outputs_pass(self) -> None:
        assert self.wrong(self.plans()) is None

    def test_a_wrong_plan_is_told(self) -> None:
        plans = self.plans()
        plans.verify.verify_slot_indices[3] = 5
        assert self.wrong(plans) == (
            "verify_slot_indices differs in 1 of 10 elements, first [3]: expected 32, got 5"
        )

    def test_a_wrong_total_is_told(self) -> None:
        plans = self.plans(verify_total_out=np.array([9]))
        assert self.wrong(plans) == "verify_total_out is [9], of 10 entries"

    def test_faults_are_told(self) -> None:
        plans = self.plans(faults_out=np.array([[0, -1]] * 7 + [[4, 1 << 48 | 5]]))
        assert self.wrong(plans) == (
            "faults_out of a batch without faults: request 1, position 5: slot is of the dummy page; 4 in all"
        )


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


def variants(*us: float) -> dict[str, Any]:
    """Plain, faults_out, verify_total_out, pages, pages and faults_out."""
    names = ("plain", "faults", "total", "pages", "pages_faults")
    return {"variants": {name: graph(each) for name, each in zip(names, us, strict=True)}}


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
            "256x4k": sizes("pages case", 1_048_576),
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
                "wide": graph(12.0) | kernel(11.0) | variants(10.0, 11.5, 10.0, 15.0, 15.0),
                "256x4k": variants(10.0, 10.5, 10.1, 10.19, 11.0)
                | {"variant_kernels": {"plain": kernel(8.0), "faults": kernel(8.4), "pages": kernel(7.6)}},
            },
            "jax-mosaic": {
                "small": kernel(2.2) | {"host_us": 60.0, "wall_us": 61.0},
                "large": kernel(15.0, kernels=2.0, copies=1.0),
                "wide": {"no_profiler": "none", "host_us": 60.0, "wall_us": 99.0},
            },
            "jax-triton": {
                "small": kernel(2.0, profiler="another"),
                "256x4k": {
                    "variant_kernels": {
                        "plain": kernel(4.0),
                        "faults": kernel(5.0, copies=1.0),
                        "pages": kernel(4.0, profiler="another"),
                    }
                },
            },
        },
    }


class TestFigures:
    @pytest.mark.parametrize(
        ("case", "goal", "measured", "verdict"),
        [
            ("small", goals.SMALL, 0.9, "yes"),
            ("mapped", goals.SMALL_MAPPED, 2.1, "no"),
            ("large", goals.LARGE, 1.25, "yes"),
            (LONG_TAIL, goals.LARGE, 1.25, "yes"),
            ("wide", goals.LARGEST_BATCH, 12.0, "yes"),
        ],
    )
    def test_a_case_is_judged_by_its_goal(
        self, results: dict[str, Any], case: str, goal: str, measured: float, verdict: str
    ) -> None:
        check = goals.graph_check(results, case)
        assert check is not None
        assert (check.goal, check.verdict) == (goal, verdict)
        assert check.measured == pytest.approx(measured)

    def test_nothing_is_judged_without_figures(self, results: dict[str, Any]) -> None:
        assert goals.graph_check(results, "none") is None
        assert goals.kernel_check(results, "jax-mosaic", "wide") is None

    def test_kernel_times_of_two_profilers_are_not_compared(self, results: dict[str, Any]) -> None:
        assert goals.kernel_check(results, "jax-triton", "small") is None

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

    def test_the_options_table(self, results: dict[str, Any]) -> None:
        table = figures.options_table(results)
        assert table.columns == (
            *("case", "plain", "faults_out", "x plain", "verify_total_out", "x plain"),
            *("pages of 16", "x plain", "pages and faults_out", "x plain"),
        )
        assert [row[0] for row in table.rows] == ["wide case", "pages case"]
        assert table.rows[1][1:] == (
            *("10.0", "10.5", "1.05", "10.1", "1.01"),
            *("10.2", "1.02", "11.0", "1.10"),
        )

    def test_the_options_kernels_table(self, results: dict[str, Any]) -> None:
        table = figures.option_kernels_table(results)
        assert table.columns == (
            *("case", TORCH, f"{TORCH}, faults_out: x", f"{TORCH}, pages of 16: x"),
            *("jax-triton", "jax-triton, faults_out: x", "jax-triton, pages of 16: x"),
        )
        (row,) = table.rows
        assert row[1:] == ("8.00", "1.05", "0.95", "4.00", "1.25 (kernels 1, copies 1)", "")

    def test_options_are_judged_by_their_goals(self, results: dict[str, Any]) -> None:
        rows = {row[0]: row[1:] for row in figures.goals_table(results).rows}
        assert rows[goals.FAULTS_COST] == ("1.10", "1.15 x (wide case)", "1 of 2", "no")
        assert rows[goals.PAGES_COST] == ("1.02", "1.02 x (pages case)", "1 of 1", "yes")
        assert rows[goals.FAULTS_KERNEL.format("jax-triton")][-1] == "no"
        assert rows[goals.ONE_LAUNCH.format(TORCH)] == ("1.00", "1.00 launched (pages case)", "1 of 1", "yes")
        assert rows[goals.ONE_LAUNCH.format("jax-triton")][1:] == (
            "2.00 launched (pages case)",
            "0 of 1",
            "no",
        )
        assert goals.FAULTS_KERNEL.format("jax-mosaic") not in rows

    def test_pages_may_cost_two_percent(self, results: dict[str, Any]) -> None:
        results["figures"][TORCH]["256x4k"] = variants(10.0, 10.0, 10.0, 10.21, 10.0)
        (check,) = (check for check in goals.checks(results) if check.goal == goals.PAGES_COST)
        assert check.verdict == "no"

    def test_every_goal_has_a_row(self, results: dict[str, Any]) -> None:
        assert {check.goal for check in goals.checks(results)} <= set(goals.GOALS)

    def test_the_goals_table_names_the_worst_case(self, results: dict[str, Any]) -> None:
        rows = {row[0]: row[1:] for row in figures.goals_table(results).rows}
        mosaic = goals.KERNEL.format("jax-mosaic")
        assert rows[mosaic] == ("1.18", "1.25 x (large case)", "1 of 2", "no")
        assert rows[goals.VALIDATION] == ("11.0", "11.0 us (small case)", "0 of 1", "no")
        assert rows[goals.HOST][-1] == "yes"

    def test_a_wrong_plan_is_marked(self, results: dict[str, Any]) -> None:
        results["figures"][TORCH]["small"]["wrong"] = "all of it"
        assert figures.graph_table(results).rows[0][3] == "2.90 (wrong)"
        assert figures.kernel_table(results).rows[0][2] == "2.00 (wrong)"

    def test_goals_are_those_of_the_document(self) -> None:
        document = report.DOCUMENT.read_text()
        told = {f"{who}: {most}" for who, most in re.findall(r"^\| (.+) \| (.+) \|$", document, re.MULTILINE)}
        of_torch = {goals.LARGE, goals.SMALL, goals.SMALL_MAPPED, goals.LARGEST_BATCH}
        of_torch |= {goals.FAULTS_COST, goals.PAGES_COST}
        assert of_torch | {goals.VALIDATION, goals.HOST} <= told
        assert "jax-mosaic and jax-triton, every case: kernel time 1.15 x torch-triton's" in told
        of_jax = goals.FAULTS_KERNEL.format("jax-mosaic and jax-triton")
        assert of_jax in told
        assert goals.ONE_LAUNCH.format("torch-triton, jax-mosaic and jax-triton") in told


class TestReport:
    DOCUMENT = f"# Title\n\n{tables.BEGIN}\nold\n{tables.END}\n\nafter\n"

    def test_fills_the_document_between_its_markers(self, results: dict[str, Any], tmp_path: Path) -> None:
        document, data = tmp_path / "performance.md", tmp_path / "run.json"
        document.write_text(self.DOCUMENT)
        data.write_text(json.dumps(results))
        report.main([str(data), "--document", str(document)])
        text = document.read_text()
        assert text.startswith(f"# Title\n\n{tables.BEGIN}\n\nMeasured on Some GPU, driver 1.2, cuda 13.0")
        assert text.endswith(f"- jax-triton on small: it broke\n\n{tables.END}\n\nafter\n")
        assert "old" not in text
        assert "| small case | 1,000 | 2.00 | 2.90 | 1.45 | 0.90 | + 1 us | yes |" in text
        assert "- jax-xla: no JAX" in text
        report.main([str(data), "--document", str(document)])
        assert document.read_text() == text

    @pytest.mark.parametrize("document", ["", tables.BEGIN, tables.END + tables.BEGIN, DOCUMENT * 2])
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
        assert [step.what for step in steps] == [
            *["timings"] * 4,
            *["variants"] * 2,
            *["kernel_time"] * 4,
            *["variant_kernels"] * 2,
        ]
        assert len(set(steps)) == 12

    def test_options_are_measured_of_the_backends_that_are_one_kernel(self) -> None:
        subjects = (FLOOR, TORCH, "jax-mosaic", "jax-triton", "jax-xla")
        steps = bench_plan.steps_of(subjects, CASES[:1], ["variant_kernels", "variants"])
        assert [(step.subject, step.what) for step in steps] == [
            (TORCH, "variants"),
            (TORCH, "variant_kernels"),
            ("jax-mosaic", "variant_kernels"),
            ("jax-triton", "variant_kernels"),
        ]

    def test_says_what_it_measured(self, capsys: pytest.CaptureFixture[str]) -> None:
        run = bench_plan.Run([], FEW)
        content = {"config": {"block": 1}, "variants": {"plain": {"graph_us": 1.234, "profiler": "p"}}}
        run._note("figures", Step(TORCH, "small", "variants"), content)
        assert "small torch-triton: {'variants': {'plain': {'graph_us': 1.23}}}" in capsys.readouterr().err

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

    def test_torch_with_options(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("triton", reason="Triton is not installed")
        from benchmarks import on_torch

        subject = on_torch.TorchPlan(SMALL, FEW, device="cpu")
        turns: list[Any] = []

        def replayed_us(launches: Any, settings: Settings) -> float:
            """The first round takes 1 to 5 us, the second 101 to 105, the third 11 to 15."""
            launches[0]()
            turns.append(launches)
            index = len(turns) - 1
            return (1, 101, 11)[index // 5 % 3] + index % 5

        monkeypatch.setattr(on_torch, "captured", lambda launches, settings: launches)
        monkeypatch.setattr(on_torch, "replayed_us", replayed_us)
        measured = subject.variants(FEW)
        assert measured == variants(11, 12, 13, 14, 15) | {"wrong": None}
        assert turns == [subject.launches[variant] for variant in VARIANTS] * 3

        subject.faults.buffer[7] = subject.faults.buffer.new_tensor([2, 5])
        dummy = (
            "faults_out of a batch without faults: request 0, position 5: slot is of the dummy page; 2 in all"
        )
        assert subject.variants(FEW)["wrong"] == f"faults: {dummy}"

    def test_faults_that_only_a_later_launch_finds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("triton", reason="Triton is not installed")
        from benchmarks import on_torch

        subject = on_torch.TorchPlan(SMALL, FEW, device="cpu")
        last = subject.inputs[1]
        last["req_to_token"][last["req_pool_indices"][0], last["prefix_lens"][0] - 1] = -1
        monkeypatch.setattr(on_torch, "captured", lambda launches, settings: launches)
        monkeypatch.setattr(on_torch, "replayed_us", lambda launches, settings: launches[1]() or 1.0)
        assert subject.check_variants() is None
        assert "slot is negative" in subject.variants(FEW)["wrong"]

    def test_torchs_kernels_with_options(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("triton", reason="Triton is not installed")
        from benchmarks.on_torch import TorchPlan

        subject = TorchPlan(SMALL, FEW, device="cpu")
        monkeypatch.setattr(device_time, "figures", lambda run, settings: run(3) or kernel(2.0))
        assert subject.variant_kernels(FEW) == {
            "variant_kernels": dict.fromkeys(["plain", "faults", "pages"], kernel(2.0)),
            "wrong": None,
        }
        subject.launches[PAGES][0].keywords["req_to_token"] += 1
        assert subject.variant_kernels(FEW)["wrong"].startswith("pages: verify_slot_indices differs")

    def test_jaxs_kernels_with_options(self, monkeypatch: pytest.MonkeyPatch) -> None:
        jax = pytest.importorskip("jax", reason="JAX is not installed")
        from benchmarks import on_jax

        subject = on_jax.JaxPlan(SMALL, FEW, "xla")
        monkeypatch.setattr(device_time, "figures", lambda run, settings: run(3) or kernel(2.0))
        assert subject.variant_kernels(FEW) == {
            "variant_kernels": dict.fromkeys(["plain", "faults", "pages"], kernel(2.0)),
            "wrong": None,
        }
        with jax.enable_x64(True):
            stale = on_jax.Faults(buffer=on_jax.Faults.allocate().buffer.at[6].set(3))
        monkeypatch.setitem(on_jax._EXTRAS, "faults_out", lambda: stale)
        assert str(subject.variant_kernels(FEW)["wrong"]).startswith("faults: faults_out of a batch")

    def test_has_a_method_for_each_of_its_steps(self) -> None:
        pytest.importorskip("triton", reason="Triton is not installed")
        pytest.importorskip("jax", reason="JAX is not installed")
        from benchmarks.on_jax import JaxPlan
        from benchmarks.on_torch import Floor, TorchPlan

        for subject, cls in ((FLOOR, Floor), (TORCH, TorchPlan), ("jax-mosaic", JaxPlan)):
            assert all(callable(getattr(cls, what)) for what, has in WHATS.items() if has(subject))

    def test_jax(self) -> None:
        pytest.importorskip("jax", reason="JAX is not installed")
        from benchmarks.on_jax import JaxPlan

        subject = JaxPlan(SMALL, FEW, "xla")
        assert subject.check() is None
        assert subject.timings(FEW).keys() == {"host_us", "wall_us"}
        subject.step = lambda plans, arrays: plans
        assert str(subject.check()).startswith("enable differs")

    def test_the_reference(self) -> None:
        backend = bench_reference.backends()[bench_reference.REFERENCE]
        measured = {"mapping": bench_reference.measure(SMALL, {backend.name: backend}, rounds=2)}
        (row,) = bench_reference.table(measured).rows
        assert row[0] == "mapping"
        assert row[1]
        assert row[3:] == ("", "", "", "")
