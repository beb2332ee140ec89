"""Parts of the robustness run on the GPU, a little of each; `python -m benchmarks.robustness` does more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from benchmarks.robust import calls, fuzz, graphs, memory, sanitizer, threads
from benchmarks.robust.chunks import Chunk, chunks
from benchmarks.robust.settings import Settings
from shared_ref.backends import backends
from shared_ref.conformance.fuzz_cases import BLOCK, LAYOUTS

pytestmark = pytest.mark.usefixtures("cuda")

FEW = Settings(most_blocks=1, sample=8)
NAMES = ["window and tokens", "pages of rows apart", "vast pages", "a batch of 65"]


def drawn(names: list[str], seed: int = 0) -> list[Chunk]:
    """One chunk of each layout."""
    found = chunks(seed, names, "cuda", 1)
    return [next(found) for _ in names]


def test_every_backend_has_the_same_bytes_on_drawn_values(tmp_path: Path) -> None:
    """The JAX ones too, where they run; of the larger layouts one chunk."""
    numbers: dict[str, dict[str, int]] = {}
    wrong: list[str] = []

    def report(kind: str, *contents: Any) -> None:
        if kind == "launches":
            numbers[contents[0]] = contents[1]
        elif kind == "wrong":
            wrong.append(contents[0])

    fuzz.run(FEW._replace(launches=6_000, saved=tmp_path), report, NAMES)
    assert wrong == []
    assert {"torch-triton", "torch-triton, staged"} <= numbers.keys()
    assert sum(fields["corrupt"] for fields in numbers.values()) >= 1_000
    assert {fields["differences"] for fields in numbers.values()} == {0}


def test_every_layout_has_the_reference_s_bytes_in_both_launchers(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(fuzz, "jax_subjects", lambda device: ([], {}))
    wrong: list[str] = []
    judge = fuzz._Judge(
        FEW._replace(saved=tmp_path),
        lambda kind, *contents: wrong.append(contents[0]) if kind == "wrong" else None,
        fuzz.torch_subjects("cuda"),
    )
    for chunk in drawn([layout.name for layout in LAYOUTS if layout.every == 1]):
        judge.add(chunk)
    judge.finish()
    assert wrong == []
    assert judge.numbers["torch-triton"]["cases"] >= 25 * BLOCK


def test_graphs_are_replayed_on_values_that_change() -> None:
    for chunk in drawn(NAMES):
        assert graphs.replay(chunk, "cuda") == (2 * BLOCK, 0)


def test_two_threads_plan_at_once() -> None:
    made, wrong = threads.plan_at_once(drawn(NAMES, seed=1), "cuda")
    assert (made, wrong) == (3 * len(NAMES) * BLOCK, 0)


def test_two_threads_make_the_first_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that earlier launches compiled or checked is remembered."""
    from kvcanary_torch import cuda, kernels
    from shared_ref import validation

    drawn_chunks = drawn(NAMES[:2], seed=2)
    monkeypatch.setattr(validation, "_passed", {})
    monkeypatch.setattr(cuda, "_compiled", {})
    for kernel in (kernels.plan_kernel, kernels.offsets_kernel, kernels.entries_kernel):
        kernel.device_caches.clear()
    made, wrong = threads.plan_at_once(drawn_chunks, "cuda")
    assert (made, wrong) == (3 * 2 * BLOCK, 0)


def test_allocations_run_out_of_memory_and_leave_nothing() -> None:
    (chunk,) = drawn(["window and tokens"])
    outcomes = list(memory.run_out(chunk, "cuda", 8))
    assert len(outcomes) == 24
    assert [outcome for outcome in outcomes if outcome[1]] == []


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_bad_calls_are_refused(name: str) -> None:
    if name == "jax":
        pytest.importorskip("jax", reason="JAX is not installed")
    rows = len(calls.breakable(calls.frontend(name, "cuda")))
    refused = list(calls.refuse(name, "cuda", rows + 100, seed=0))
    assert len(refused) == rows + 100
    assert [text for _, wrong in refused for text in wrong] == []


@pytest.mark.parametrize("backend", ["torch-triton", "jax-mosaic", "jax-triton"])
def test_the_sanitizer_s_script_runs_by_itself(backend: str) -> None:
    if reason := backends()[backend].unavailable():
        pytest.skip(reason)
    found = sanitizer.sanitize("none", backend, ["--count", "29", "--drawn-only"], lambda: None, 300)
    assert found.launches >= 29
    assert found.errors == 0
