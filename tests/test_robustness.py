"""The robustness run, as far as it needs no GPU: each part does what it says, and sees what is wrong."""

from __future__ import annotations

import copy
import importlib.metadata
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

import kvcanary_torch
from benchmarks import robustness, tables
from benchmarks.robust import backends, calls, fuzz, graphs, memory, parts, sanitizer, threads, watch
from benchmarks.robust.chunks import Chunk, chunks, different, differs_from_reference
from benchmarks.robust.settings import Settings
from shared_ref.conformance.case import Case
from shared_ref.conformance.fuzz_cases import BLOCK, LAYOUTS, FuzzCases

FEW = Settings(device="cpu", workers=2, most_blocks=1, sample=16, silence_s=20.0)
NAMES = ["window and tokens", "pages of rows apart", "a batch of 65"]


def drawn(names: list[str] = NAMES, seed: int = 0) -> list[Chunk]:
    """One chunk of each layout."""
    found = chunks(seed, names, "cpu", 1)
    return [next(found) for _ in names]


@pytest.fixture(scope="module")
def chunk() -> Chunk:
    return drawn()[1]


Message = tuple[str, tuple[Any, ...]]


@pytest.fixture
def messages() -> list[Message]:
    return []


@pytest.fixture
def report(messages: list[Message]) -> Callable[..., None]:
    return lambda kind, *contents: messages.append((kind, contents))


# Chunks.


def test_a_chunk_has_the_cases_of_its_numbers(chunk: Chunk) -> None:
    for i in (0, 1, BLOCK - 1):
        case = FuzzCases(0).case(chunk.index(i))
        assert case.name == f"fuzz 0-{chunk.index(i)}, pages of rows apart"
        arrays = {k: v for k, v in case.inputs.keywords().items() if isinstance(v, np.ndarray)}
        assert arrays.keys() == chunk.inputs.keys()
        for name, array in arrays.items():
            tensor = chunk.inputs[name][i]
            assert np.array_equal(tensor.numpy(), array), name
            assert [s * array.itemsize for s in tensor.stride()] == list(array.strides), name
        for name, array in case.before.buffers().items():
            assert np.array_equal(chunk.before[name][i].numpy(), array), name
        integers = {k: v for k, v in chunk.integers().items() if v is not None}
        assert integers.items() <= case.inputs.keywords().items()


def test_every_layout_comes_in_chunks_of_one_size() -> None:
    source = FuzzCases()
    period = len(source.schedule)
    sizes: dict[str, set[int]] = {}
    cases = 0
    for chunk in chunks(
        0, [layout.name for layout in LAYOUTS if layout.bs <= 8 and layout.every == 1], "cpu"
    ):
        if min(chunk.numbers) >= period:
            break
        sizes.setdefault(chunk.layout.name, set()).add(chunk.cases)
        cases += chunk.cases
    assert set(map(tuple, sizes.values())) == {(8 * BLOCK,)}
    assert cases == len(sizes) * 16 * BLOCK


def test_a_request_with_a_fault_of_its_own_is_corrupt() -> None:
    for chunk in drawn(["full attention", "no requests"]):
        requests = [
            (row, prefix, extend)
            for i in range(chunk.cases)
            for case in [chunk.case(i).inputs]
            for row, prefix, extend in [(case.req_pool_indices, case.prefix_lens, case.extend_seq_lens)]
        ]
        expected = sum(
            any(
                r != 0 and (not 0 <= r < 6 or not 0 <= p <= 24 or e < 0)
                for r, p, e in zip(*map(list, request), strict=True)
            )
            for request in requests
        )
        assert chunk.corrupt == expected
    assert chunk.corrupt == 0  # of the empty batch


def test_any_element_that_differs_counts(chunk: Chunk) -> None:
    for name, tensor in chunk.before.items():
        if tensor[0].numel():
            other = {k: v.clone() for k, v in chunk.before.items()}
            other[name][5].view(-1)[-1] += 1
            flags = different(chunk.before, other)
            assert flags.nonzero().flatten().tolist() == [5], name


# The million.


def test_all_subjects_have_the_reference_s_bytes() -> None:
    subjects = backends.torch_subjects("cpu") + backends.jax_subjects("cpu")[0]
    assert [subject.name for subject in subjects][:2] == ["torch-cpu", "torch-cpu, staged"]
    for chunk in drawn():
        inputs = {name: tensor.clone() for name, tensor in chunk.inputs.items()}
        for subject in subjects:
            outputs = subject.launch(chunk)
            assert not any(differs_from_reference(chunk, outputs, i) for i in range(0, chunk.cases, 9))
            assert not different(inputs, chunk.inputs).any()


def test_the_layouts_are_shared_out() -> None:
    shares = fuzz.shares(Settings())
    assert sorted(name for share in shares for name in share) == sorted(layout.name for layout in LAYOUTS)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    # A worker whose layouts draw no corrupt request would never end.
    most = fuzz.shares(Settings(workers=robustness.MOST_WORKERS))
    assert min(map(len, most)) > 1


def test_a_worker_launches_until_it_has_its_share(
    report: Callable[..., None], messages: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "jax_subjects", lambda device: ([], {"jax-mosaic": "no GPU"}))
    fuzz.run(FEW._replace(launches=500), report, NAMES)
    assert ("unavailable", ("jax-mosaic", "no GPU")) in messages
    numbers = {name: counted for kind, (name, counted) in of_kind(messages, "launches")}
    assert list(numbers) == ["torch-cpu", "torch-cpu, staged"]
    combined, staged = numbers.values()
    assert combined["launches"] == combined["cases"] == staged["cases"] == staged["launches"] // 2
    assert combined["corrupt"] + staged["corrupt"] >= 500 / 2
    assert combined["launches"] <= 6 * BLOCK
    assert combined["sampled"] == combined["cases"] // 16
    assert (combined["differences"], staged["differences"]) == (0, 0)
    assert not of_kind(messages, "wrong")


def of_kind(messages: list[Message], kind: str) -> list[Message]:
    return [message for message in messages if message[0] == kind]


@pytest.mark.parametrize("which", [0, 1], ids=["the first", "another"])
def test_a_difference_is_found_counted_and_saved(
    which: int,
    report: Callable[..., None],
    messages: list[Message],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """In one element of one case, whoever's it is."""
    subjects = backends.torch_subjects("cpu")
    right = subjects[which].launch

    def wrong(chunk: Chunk) -> dict[str, Any]:
        outputs = right(chunk)
        outputs["write_offsets"][7, 1] ^= 2**40
        return outputs

    subjects[which].launch = wrong
    monkeypatch.setattr(fuzz, "torch_subjects", lambda device: subjects)
    monkeypatch.setattr(fuzz, "jax_subjects", lambda device: ([], {}))
    fuzz.run(FEW._replace(launches=1, sample=BLOCK, saved=tmp_path), report, ["window"])
    numbers = {name: counted for kind, (name, counted) in of_kind(messages, "launches")}
    chunks_made = numbers["torch-cpu"]["cases"] // BLOCK
    found = [counted["differences"] for counted in numbers.values()]
    assert found == [chunks_made * (i == which) for i in range(2)]
    said = [contents[0] for _, contents in of_kind(messages, "wrong")]
    name = subjects[which].name
    assert said[0].startswith(f"fuzz 0-{BLOCK + 7}, window: {name} differ from the reference; saved as ")
    assert len(said) == chunks_made
    assert Case.load(tmp_path / f"kvcanary-fuzz-0-{BLOCK + 7}.npz").name == f"fuzz 0-{BLOCK + 7}, window"


def test_inputs_that_change_are_found(
    report: Callable[..., None], messages: list[Message], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    subjects = backends.torch_subjects("cpu")
    right = subjects[1].launch

    def writes(chunk: Chunk) -> dict[str, Any]:
        outputs = right(chunk)
        chunk.inputs["prefix_lens"][3] += 1
        return outputs

    subjects[1].launch = writes
    monkeypatch.setattr(fuzz, "torch_subjects", lambda device: subjects)
    monkeypatch.setattr(fuzz, "jax_subjects", lambda device: ([], {}))
    fuzz.run(FEW._replace(launches=1, saved=tmp_path), report, ["window"])
    said = [contents[0] for _, contents in of_kind(messages, "wrong")]
    assert said[0].startswith(f"fuzz 0-{BLOCK + 3}, window: the inputs changed; saved as ")


# Graphs, threads, memory.


def test_replays_have_the_bytes_of_launches(chunk: Chunk) -> None:
    assert graphs.replay(chunk, "cpu") == (2 * BLOCK, 0)


def test_a_replay_of_former_values_is_found(chunk: Chunk, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a kernel had remembered the prefix lengths of its capture."""
    launch, remembered = graphs.launch, []

    def forgetful(call: dict[str, Any]) -> None:
        remembered.append(call["prefix_lens"].clone())
        launch(call | {"prefix_lens": remembered[0]})

    monkeypatch.setattr(graphs, "launch", forgetful)
    replays, wrong = graphs.replay(chunk, "cpu")
    assert replays == 2 * BLOCK
    assert BLOCK // 2 < wrong < BLOCK


def test_two_threads_have_the_bytes_of_one() -> None:
    assert threads.plan_at_once(drawn(), "cpu") == (3 * 3 * BLOCK, 0)


def test_threads_that_share_a_buffer_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = threads.launch
    shared: dict[str, Any] = {}

    def launches(call: dict[str, Any]) -> None:
        call["write_offsets"] = shared.setdefault(str(call["write_offsets"].shape), call["write_offsets"])
        launch(call)

    monkeypatch.setattr(threads, "launch", launches)
    _, wrong = threads.plan_at_once(drawn(), "cpu")
    assert wrong > 2 * BLOCK


def test_an_error_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(call: dict[str, Any], scratch: Any) -> None:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(threads, "launch_staged", fails)
    with pytest.raises(RuntimeError, match="no kernel image"):
        threads.plan_at_once(drawn(), "cpu")


def test_allocations_run_out_of_memory_and_leave_nothing(chunk: Chunk) -> None:
    outcomes = list(memory.run_out(chunk, "cpu", 5))
    assert len(outcomes) == 15
    assert [outcome for outcome in outcomes if outcome[1]] == []


def test_an_allocation_that_keeps_memory_or_is_not_refused_is_found(
    chunk: Chunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []

    class Hoarder:
        @staticmethod
        def allocate(*, verify_capacity: int, device: str) -> None:
            kept.append(torch.zeros(memory.ROOM // 24, dtype=torch.int64))
            raise MemoryError("out of memory")

    monkeypatch.setattr(kvcanary_torch, "VerifyPlan", Hoarder)
    ((what, complaint), *others) = memory.run_out(chunk, "cpu", 1)
    assert what == "VerifyPlan, 0.5 columns fit"
    assert re.fullmatch(r"\d+(,\d{3})+ bytes left", complaint)
    assert [complaint for _, complaint in others] == ["", ""]
    kept.clear()
    monkeypatch.setattr(kvcanary_torch, "VerifyPlan", SimpleNamespace(allocate=lambda **keywords: None))
    assert [complaint for _, complaint in memory.run_out(chunk, "cpu", 1)] == ["no error", "", ""]


def test_another_error_than_of_memory_is_raised(chunk: Chunk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**keywords: Any) -> None:
        raise RuntimeError("invalid device ordinal")

    monkeypatch.setattr(kvcanary_torch, "VerifyPlan", SimpleNamespace(allocate=fails))
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        list(memory.run_out(chunk, "cpu", 1))


def test_what_is_wrong_with_an_outcome_is_said_and_counted(
    report: Callable[..., None], messages: list[Message]
) -> None:
    parts._count("things", [("one", ""), ("two", "no error"), ("three", "")], report)
    assert messages == [
        ("check", ("things", 1, 0)),
        ("wrong", ("things: two: no error",)),
        ("check", ("things", 2, 1)),
        ("check", ("things", 3, 1)),
    ]


# Bad calls.


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_bad_calls_are_refused(name: str) -> None:
    if name == "jax":
        pytest.importorskip("jax", reason="JAX is not installed")
    rows = len(calls.breakable(calls.FRONTENDS[name]))
    *_, (made, _) = refused = list(calls.refuse(name, "cpu", rows + 200, seed=4))
    assert made == rows + 200
    assert [text for _, wrong in refused for text in wrong] == []


def test_calls_break_several_rules_each_in_the_contract_s_order() -> None:
    judge = calls._Judge(calls.FRONTENDS["numpy"], np.random.default_rng(0))
    drawn = judge.combinations()
    sizes = set()
    for _ in range(200):
        rows = next(drawn)
        sizes.add(len(rows))
        assert len({row.order for row in rows}) == len(rows)
        assert len({row.launcher for row in rows}) == 1
    assert sizes == {2, 3, 4}


def test_a_wrong_message_a_write_and_an_accepted_call_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = calls.FRONTENDS["numpy"]
    row = next(r for r in calls.breakable(frontend) if r.message == "page_size must be positive, got 0")
    assert wrong_of(row) == []

    def refuses(message: str) -> Callable[..., Any]:
        def launch(self: Any, name: str, call: dict[str, Any], **more: Any) -> dict[str, Any]:
            if "writes" in message:
                call["out_write_offsets"][0] = 1
            if message:
                raise ValueError(message.replace("writes", ""))
            return call

        return launch

    text = "kv-canary: page_size must be positive, got 0"
    for message, said in (
        (text.replace("positive", "large"), "page_size must be large, got 0"),
        (f"{text}writes", "a buffer was written to"),
        ("", "no error"),
    ):
        monkeypatch.setattr(calls.Frontend, "launch", refuses(message))
        (found,) = wrong_of(row)
        assert found.startswith("shared_ref, launch_")
        assert found.endswith(said)


def wrong_of(row: Any) -> list[str]:
    return calls._Judge(calls.FRONTENDS["numpy"], np.random.default_rng(0)).wrong([row])


# The sanitizer's script.


def sanitized(*arguments: str, backend: str = "torch-cpu") -> sanitizer.Sanitized:
    return sanitizer.sanitize("none", backend, arguments, lambda: None, 60)


def test_the_script_launches_named_and_drawn_cases() -> None:
    few = sanitized("--count", "40", "--drawn-only")
    assert (few.launches, few.errors) == (120, 0)
    both = sanitized("--count", "0")
    assert both.launches > 300
    assert both.errors == 0


def test_the_script_takes_too_long() -> None:
    with pytest.raises(TimeoutError, match=r"took longer than 0 s"):
        sanitizer.sanitize("none", "torch-cpu", ["--count", "100000"], lambda: None, 0)


def test_a_script_that_ends_early_is_no_result() -> None:
    with pytest.raises(RuntimeError, match="the script ended early with exit code 2"):
        sanitized("--count", "many")


LINE = "torch-triton: 4500 launches, {} differ from the reference\n"


@pytest.mark.parametrize(
    ("output", "exit_code", "errors"),
    [
        (LINE.format(0) + "========= ERROR SUMMARY: 0 errors\n", 0, 0),
        (LINE.format(0) + "========= ERROR SUMMARY: 1 error\n", 99, 1),
        ("combined, x: enable differ\n" + LINE.format(2) + "========= ERROR SUMMARY: 3 errors\n", 99, 5),
        (LINE.format(0), 99, 1),
    ],
)
def test_errors_are_read_from_what_script_and_tool_print(output: str, exit_code: int, errors: int) -> None:
    assert sanitizer.read(output, exit_code)[:2] == (4500, errors)


# Processes.


def well(settings: Settings, report: Callable[..., None]) -> None:
    report("check", "well", settings.seed, 0)


def raises(settings: Settings, report: Callable[..., None]) -> None:
    raise RuntimeError("an illegal memory access was encountered")


def dies(settings: Settings, report: Callable[..., None]) -> None:
    import os

    os._exit(7)


def hangs(settings: Settings, report: Callable[..., None]) -> None:
    report("alive")
    time.sleep(1000)


def test_parts_run_at_once_and_one_that_hangs_or_breaks_is_noted() -> None:
    noted: list[tuple[Any, ...]] = []
    chosen = [watch.Part(function.__name__, function) for function in (well, raises, dies, hangs)]
    began = time.monotonic()
    watch.run_all(chosen, FEW._replace(seed=5, silence_s=8.0), lambda *message: noted.append(message))
    assert time.monotonic() - began < 60
    found = {(part, kind): contents for part, kind, *contents in noted if kind != "alive"}
    assert found[("well", "check")] == ["well", 5, 0]
    (error,) = found[("raises", "failure")]
    assert error.startswith("RuntimeError: an illegal memory access was encountered\n")
    assert found[("dies", "failure")] == ["its process ended with exit code 7"]
    assert found[("hangs", "hang")] == ["no word from it for 8 s"]
    assert len(found) == 4


def test_the_parts_of_a_run() -> None:
    names = [part.name for part in parts.parts(Settings())]
    assert len(set(names)) == len(names)
    assert {"fuzz 1", "fuzz 6", "memcheck torch-triton", "memcheck jax-mosaic", "graphs", "threads"} <= {
        *names
    }
    assert {"memory", "memory of JAX", "bad calls"} <= {*names}


@pytest.mark.parametrize("name", ["graphs", "threads", "memory"])
def test_a_part_reports_what_it_did(
    name: str, report: Callable[..., None], messages: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_layouts", lambda: NAMES)
    settings = FEW._replace(replays=130, threaded=10, allocations=4)
    (part,) = (part for part in parts.parts(settings) if part.name == name)
    part.run(settings, report)
    _, (title, times, wrong) = messages[-1]
    assert times == {"graphs": 4 * BLOCK, "threads": 9 * BLOCK, "memory": 12}[name]
    assert wrong == 0
    assert title


def test_what_needs_a_gpu_says_so(report: Callable[..., None], messages: list[Message]) -> None:
    for part in parts.parts(FEW):
        if part.name.startswith(("memcheck", "initcheck", "memory of")):
            part.run(FEW, report)
    assert [kind for kind, _ in messages] == ["unavailable"] * 5


# The figures.


@pytest.fixture
def results() -> dict[str, Any]:
    """A run that nobody made."""
    numbers = {"launches": 2_000_000, "corrupt": 1_000_001, "cases": 9, "sampled": 4, "differences": 0}
    return {
        "date": "2026-12-24",
        "gpu": "Some GPU",
        "driver": "1.2",
        "host": "some host",
        "versions": {"torch": "2.0"},
        "settings": {"seed": 3},
        "processes": 15,
        "seconds": 200.4,
        "launches": {"torch-triton": numbers, "jax-mosaic": numbers | {"launches": 5}},
        "checks": {"replays": {"times": 20_000, "wrong": 0}, "bad calls": {"times": 7, "wrong": 0}},
        "wrong": [],
        "unavailable": {"jax-xla": "no JAX"},
        "failures": {},
        "hangs": {},
    }


def test_the_tables(results: dict[str, Any]) -> None:
    drawn, others = robustness.tables(results)
    assert [row[:3] for row in drawn.rows] == [
        ("torch-triton", "2,000,000", "1,000,001"),
        ("jax-mosaic", "5", "1,000,001"),
        ("all", "2,000,005", "2,000,002"),
    ]
    assert others.rows == [("bad calls", "7", "0"), ("replays", "20,000", "0")]


def test_a_run_is_sound_if_nothing_is_wrong(results: dict[str, Any]) -> None:
    assert robustness.is_sound(results)
    for change in (
        lambda r: r["launches"]["jax-mosaic"].update(differences=1),
        lambda r: r["checks"]["replays"].update(wrong=1),
        lambda r: r["wrong"].append("the inputs changed"),
        lambda r: r["failures"].update(graphs="it broke"),
        lambda r: r["hangs"].update(graphs="no word"),
    ):
        changed = copy.deepcopy(results)
        change(changed)
        assert not robustness.is_sound(changed)


def test_messages_become_figures() -> None:
    run = robustness.Run(FEW, 3)
    numbers = dict.fromkeys(fuzz.NUMBERS, 1)
    run.note("fuzz 1", "launches", "jax-xla", numbers)
    run.note("fuzz 1", "launches", "jax-xla", numbers | {"launches": 5})
    run.note("fuzz 2", "launches", "jax-xla", numbers | {"launches": 7})
    run.note("graphs", "check", "replays", 4, 1)
    run.note("memory of JAX", "unavailable", "JAX", "no GPU")
    run.note("fuzz 2", "wrong", "all of it")
    run.note("threads", "hang", "no word from it")
    run.note("bad calls", "failure", "it broke")
    assert run.results["launches"] == {"jax-xla": dict.fromkeys(fuzz.NUMBERS, 2) | {"launches": 12}}
    assert run.results["checks"] == {"replays": {"times": 4, "wrong": 1}}
    assert run.results["unavailable"] == {"JAX": "no GPU"}
    assert (run.results["wrong"], run.results["hangs"]) == (["all of it"], {"threads": "no word from it"})
    assert run.results["failures"] == {"bad calls": "it broke"}
    assert run.results["versions"]["torch"] == importlib.metadata.version("torch")


def test_figures_are_put_between_the_markers(results: dict[str, Any], tmp_path: Path) -> None:
    document, data = tmp_path / "robustness.md", tmp_path / "run.json"
    document.write_text(f"# Title\n\n{tables.BEGIN}\nold\n{tables.END}\n\nafter\n")
    data.write_text(json.dumps(results))
    call = ["--results", str(data), "--write", "--document", str(document)]
    assert robustness.main(call) == 0
    text = document.read_text()
    assert text.startswith(f"# Title\n\n{tables.BEGIN}\n\nRun on Some GPU, driver 1.2, torch 2.0, 2026-12-24")
    assert "seed 3. 15 processes, 200 seconds; none hung, none broke off." in text
    assert "| torch-triton | 2,000,000 | 1,000,001 | 9 | 4 | 0 |" in text
    assert "| replays | 20,000 | 0 |" in text
    assert text.endswith(f"**Not tried**\n\n- jax-xla: no JAX\n\n{tables.END}\n\nafter\n")
    results["wrong"].append("one thing\nin detail")
    data.write_text(json.dumps(results))
    assert robustness.main(call) == 1
    assert "**Wrong**\n\n- one thing\n\n" in document.read_text()


def test_a_run_of_nothing_is_no_success(results: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(results | {"launches": {}, "checks": {}}))
    assert robustness.main(["--results", str(tmp_path / "run.json")]) == 2


@pytest.mark.parametrize("document", ["", tables.BEGIN, tables.END + tables.BEGIN])
def test_a_document_without_its_markers_is_refused(results: dict[str, Any], document: str) -> None:
    with pytest.raises(ValueError, match="the document needs"):
        robustness.fill(document, results)


def test_the_document_has_its_markers(results: dict[str, Any]) -> None:
    assert "Some GPU" in robustness.fill(robustness.DOCUMENT.read_text(), results)


def test_the_command_s_options_are_settings() -> None:
    options = robustness._parser().parse_args(
        ["--device", "cpu", "--seed", "9", "--launches", "5", "--quick"]
    )
    settings = robustness._settings(options)
    assert (settings.device, settings.seed, settings.launches) == ("cpu", 9, 5)
    assert settings.replays < Settings().replays
    default = robustness._settings(robustness._parser().parse_args([]))
    assert default == Settings()
    assert default.launches >= 1_000_000
