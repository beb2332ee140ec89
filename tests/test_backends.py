"""Every registered backend against the reference, every byte of every buffer, on drawn cases.

A backend is what the registry announces; the staged launchers are those of the package behind it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validation_table import ENTRIES, FRONTENDS, INTEGERS, OFFSETS, TENSORS, Call, Frontend

import shared_ref
from shared_ref.backends import Backend, backends
from shared_ref.conformance.case import Case, PlanInputs
from shared_ref.conformance.strategies import LAYOUTS, cases, free_cases

BACKENDS = backends()
IMPLEMENTATIONS = [name for name in BACKENDS if name != "numpy"]
STAGED = [name for name in FRONTENDS if name != "numpy"]
FEW_LAYOUTS = tuple(
    layout._replace(batch_sizes=(3,), verify_capacity=min(layout.verify_capacity, 24))
    for layout in LAYOUTS
    if layout.name in ("full attention", "window and tokens", "short mapping", "one column")
)
"""For the staged launchers, which double the programs; tight, so that entries often do not fit."""
DRAWN = {"torch-cpu": free_cases(), "torch": free_cases()}
"""What compiles nothing can take more than `cases`."""

FIELDS = {
    field.argument: field.name
    for plan in (shared_ref.VerifyPlan, shared_ref.WritePlan)
    for field in plan.fields()
}


def usable(backend: Backend | None) -> None:
    """Skip, and say why, where a backend does not run here."""
    if backend is None:
        pytest.skip("no package announces it")
    if reason := backend.unavailable():
        pytest.skip(reason)


def input_bytes(inputs: PlanInputs) -> dict[str, bytes]:
    return {k: v.tobytes() for k, v in inputs.keywords().items() if isinstance(v, np.ndarray)}


def assert_same_bytes(got: Call, expected: Call) -> None:
    assert got.keys() == expected.keys()
    for name, buffer in expected.items():
        array = np.asarray(got[name])
        assert (array.dtype, array.shape) == (buffer.dtype, buffer.shape), name
        assert array.tobytes() == buffer.tobytes(), f"{name}: {array} is not {buffer}"


def test_the_reference_is_announced_first() -> None:
    assert next(iter(BACKENDS)) == "numpy"
    assert all(backend.name == name for name, backend in BACKENDS.items())


@pytest.mark.parametrize("name", BACKENDS)
def test_backend_says_what_it_runs_on_or_why_it_cannot(name: str) -> None:
    backend = BACKENDS[name]
    reason = backend.unavailable()
    assert reason is None or len(reason) > 10
    if reason is None:
        assert any(character.isdigit() for character in backend.version())


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_backend_equals_the_reference(name: str) -> None:
    backend = BACKENDS[name]
    usable(backend)

    @given(DRAWN.get(name, cases()))
    @settings(max_examples=300)
    def judge(case: Case) -> None:
        before = input_bytes(case.inputs)
        assert_same_bytes(case.run(backend.launch).buffers(), case.expected().buffers())
        assert input_bytes(case.inputs) == before, "the launch changed its inputs"

    judge()


@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_backend_equals_the_reference_on_the_largest_batch(name: str, excess: int) -> None:
    """4096 requests, a tenth of their values corrupt, whose entries just fit or are one too many."""
    backend = BACKENDS[name]
    usable(backend)
    rng = np.random.default_rng(7)
    bs, rows, width = 4096, 500, 90

    def corrupted(values: np.ndarray) -> np.ndarray:
        odd = rng.choice([-1, 2**31, 2**32 + 1, 2**63 - 1, -(2**63)], bs)
        return np.where(rng.random(bs) < 0.1, odd, values)

    inputs = PlanInputs(
        req_pool_indices=corrupted(rng.integers(0, rows, bs)),
        prefix_lens=corrupted(rng.integers(0, width, bs)),
        extend_seq_lens=corrupted(rng.integers(0, 3, bs)),
        req_to_token=rng.integers(-2, 50_000, (rows, width), np.int32),
        swa_window_size=40,
        full_to_swa_index_mapping=rng.permutation(40_000),
        verify_capacity=0,
        req_to_verify_expected_tokens=rng.integers(0, 100_000, (rows - 9, width - 9), np.int32),
        req_to_verify_expected_tokens_valid_lens=corrupted(rng.integers(0, width, bs)),
        kv_token_id_vs_position_offset=1,
    )
    total = oracle.total_of(inputs.keywords())
    assert total > 80_000
    inputs = dataclasses.replace(inputs, verify_capacity=total - excess)
    case = Case.poisoned("largest batch", inputs, write_req_capacity=bs)
    assert_same_bytes(case.run(backend.launch).buffers(), case.expected().buffers())


@pytest.mark.parametrize("total", [2**31, 2**32 + 2])
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_backend_does_not_wrap_a_total_in_int32(name: str, total: int) -> None:
    backend = BACKENDS[name]
    usable(backend)
    bs = 4096
    inputs = PlanInputs(
        req_pool_indices=np.ones(bs, np.int64),
        prefix_lens=np.array([total // bs] * (bs - 1) + [total - total // bs * (bs - 1)]),
        extend_seq_lens=np.ones(bs, np.int64),
        req_to_token=np.arange(2**21 + 4, dtype=np.int32).reshape(2, 2**20 + 2),
        verify_capacity=4,
    )
    case = Case.poisoned("more entries than int32 counts", inputs, write_req_capacity=bs)
    plans = case.run(backend.launch)
    assert_same_bytes(plans.buffers(), case.expected().buffers())
    assert plans.verify.enable.tolist() == [0]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_backend_refuses_what_the_reference_refuses(name: str) -> None:
    backend = BACKENDS[name]
    usable(backend)
    case = Case.poisoned(
        "one request too many",
        PlanInputs(
            req_pool_indices=np.array([1, 1]),
            prefix_lens=np.array([1, 1]),
            extend_seq_lens=np.array([1, 1]),
            req_to_token=np.ones((2, 2), np.int32),
            verify_capacity=4,
        ),
        write_req_capacity=1,
    )
    with pytest.raises(ValueError, match=r"^kv-canary: bs=2 exceeds write_req_capacity=1$"):
        case.run(backend.launch)


# Staged


def staged_calls(case: Case, enable: int) -> tuple[Call, Call]:
    """Both staged launchers' arguments, with buffers of their own."""
    plans = case.before.copy()
    optional = {"page_size": 1, "verify_total_out": None, "faults_out": None}
    everything: Call = (
        optional
        | case.inputs.keywords()
        | plans.extras
        | {
            "out_verify_slot_indices": plans.verify.verify_slot_indices,
            "out_verify_expected_tokens": plans.verify.verify_expected_tokens,
            "out_verify_expected_positions": plans.verify.verify_expected_positions,
            "out_verify_prev_slot_indices": plans.verify.verify_prev_slot_indices,
            "out_verify_num_valid": plans.verify.verify_num_valid,
            "out_verify_enable": plans.verify.enable,
            "out_write_offsets": plans.write.write_offsets,
            "out_write_seed_slot_indices": plans.write.write_seed_slot_indices,
            "out_write_num_valid_reqs": plans.write.write_num_valid_reqs,
            "out_verify_offsets_scratch": np.arange(4097) - 2**40,
            "verify_offsets_scratch": np.arange(4097) - 2**50,
            "verify_enable": np.array([enable], np.int32),
            "req_to_token_stride0": None,
            "write_offsets_len": None,
            "write_req_capacity": None,
        }
    )
    offsets, entries = (
        {name: everything[name] for name in (*TENSORS[launcher], *INTEGERS[launcher])}
        for launcher in (OFFSETS, ENTRIES)
    )
    entries |= {name: array.copy() for name, array in plans.extras.items() if name in entries}
    return offsets, entries


def assert_staged_equals_the_reference(frontend: Frontend, launcher: str, calls: tuple[Call, Call]) -> None:
    """`calls`: the same arguments twice, since a launch writes to its own."""
    call, reference_call = calls
    expected = FRONTENDS["numpy"].launch(launcher, reference_call)
    got = frontend.launch(launcher, frontend.convert(call))
    assert_same_bytes(got, expected)


@pytest.mark.parametrize("name", STAGED)
def test_staged_launchers_equal_the_reference(name: str) -> None:
    frontend = FRONTENDS[name]
    usable(BACKENDS.get(frontend.backend))

    @given(DRAWN.get(name, cases(layouts=FEW_LAYOUTS)), st.sampled_from([1, 0, -1]), st.booleans())
    @settings(max_examples=150)
    def judge(case: Case, enable: int, with_mapping: bool) -> None:
        if not with_mapping:  # legal here, even with a window
            inputs = dataclasses.replace(case.inputs, full_to_swa_index_mapping=None)
            case = case._replace(inputs=inputs)
        ours, references = staged_calls(case, enable), staged_calls(case, enable)
        for launcher, *calls in zip((OFFSETS, ENTRIES), ours, references, strict=True):
            assert_staged_equals_the_reference(frontend, launcher, (calls[0], calls[1]))

    judge()


@pytest.mark.parametrize(("enable", "excess"), [(0, 0), (1, 1), (-1, 1)])
@pytest.mark.parametrize("name", STAGED)
def test_staged_entries_leave_a_plan_that_is_disabled_or_does_not_fit(
    name: str, enable: int, excess: int
) -> None:
    frontend = FRONTENDS[name]
    usable(BACKENDS.get(frontend.backend))
    inputs = PlanInputs(
        req_pool_indices=np.array([1, 1, 0]),
        prefix_lens=np.array([3, 3, 3]),
        extend_seq_lens=np.array([0, 0, 0]),
        req_to_token=np.ones((2, 4), np.int32),
        verify_capacity=6 - excess,
    )
    _, call = staged_calls(Case.poisoned("too small", inputs, write_req_capacity=3), enable)
    before = {argument: array.copy() for argument, array in call.items() if argument.startswith("out_")}
    assert_same_bytes(frontend.launch(ENTRIES, frontend.convert(call)), before)


@pytest.mark.parametrize("name", STAGED)
def test_staged_launches_one_after_the_other_equal_the_combined_launch(name: str) -> None:
    frontend = FRONTENDS[name]
    usable(BACKENDS.get(frontend.backend))

    @given(DRAWN.get(name, cases(layouts=FEW_LAYOUTS)))
    @settings(max_examples=30)
    def judge(case: Case) -> None:
        offsets, entries = staged_calls(case, 1)
        written: Any = frontend.launch(OFFSETS, frontend.convert(offsets))
        call = frontend.convert(entries)
        call["verify_offsets_scratch"] = written["out_verify_offsets_scratch"]
        call["verify_enable"] = written["out_verify_enable"]
        call["faults_out"] = written.get("faults_out")
        written |= frontend.launch(ENTRIES, call)
        del written["out_verify_offsets_scratch"]
        expected = case.expected().buffers()
        assert_same_bytes({FIELDS.get(name, name): array for name, array in written.items()}, expected)

    judge()
