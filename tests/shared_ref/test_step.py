"""A server's step as a case: from any framework's arrays, with any padding row, and back from a file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from other_stacks import NARROW, narrowed, shifted, small_inputs

from shared_ref import VerifyPlan, WritePlan
from shared_ref.conformance import Case, case_of_step
from shared_ref.conformance.explain import explain

INPUTS = small_inputs()


def assert_inputs(case: Case, inputs: Any) -> None:
    for name, value in inputs.keywords().items():
        got = getattr(case.inputs, name)
        assert np.array_equal(got, value), name
        assert getattr(got, "dtype", None) == getattr(value, "dtype", None), name


def test_it_has_the_arguments_of_the_call_and_its_capacities() -> None:
    case = case_of_step("step 7", **INPUTS.keywords(), write_req_capacity=6)
    assert case.name == "step 7"
    assert_inputs(case, INPUTS)
    assert len(case.before.verify.verify_slot_indices) == 12
    assert len(case.before.write.write_seed_slot_indices) == 6


def test_arrays_are_copied() -> None:
    case = case_of_step("step", **INPUTS.keywords(), write_req_capacity=4)
    arrays = [name for name, value in INPUTS.keywords().items() if isinstance(value, np.ndarray)]
    assert len(arrays) == 7
    for name in arrays:
        assert not np.shares_memory(getattr(case.inputs, name), getattr(INPUTS, name))


def test_int32_becomes_what_the_contract_has() -> None:
    case = case_of_step("step", **narrowed(INPUTS, NARROW), write_req_capacity=4)
    assert_inputs(case, INPUTS)


@pytest.mark.parametrize("padding_row", [-1, 2, None])
def test_rows_are_counted_from_one_where_the_padding_row_is_another(padding_row: int | None) -> None:
    case = case_of_step("step", **INPUTS.keywords(), write_req_capacity=4, padding_row=padding_row)
    expected = Case("step", shifted(INPUTS, padding_row), case.before).expected()
    for name, buffer in case.expected().buffers().items():
        assert np.array_equal(buffer, expected.buffers()[name]), name
    rows = case.inputs.req_pool_indices
    assert rows.tolist() == {-1: [1, 0, 3, 0], 2: [1, -1, 0, -1], None: [1, -1, 3, -1]}[padding_row]


def test_the_greatest_row_stays_outside() -> None:
    rows = np.array([2**63 - 1, -(2**63), 1, 0])
    inputs = small_inputs(req_pool_indices=rows)
    case = case_of_step("step", **inputs.keywords(), write_req_capacity=4, padding_row=None)
    assert case.inputs.req_pool_indices.tolist() == [2**63 - 1, -(2**63), 2, 1]


@pytest.mark.parametrize("call", ["plan", "launcher"])
def test_plans_that_are_filled_say_their_capacities(call: str) -> None:
    verify, write = VerifyPlan.allocate(verify_capacity=12), WritePlan.allocate(write_req_capacity=9)
    keywords: dict[str, Any] = INPUTS.keywords() | {"faults_out": np.zeros((8, 2), np.int64)}
    if call == "plan":
        del keywords["verify_capacity"]
        keywords |= {"out": (verify, write), "verify_total_out": None, "implementation": "xla"}
    else:
        keywords |= {"verify_plan_out": verify, "write_plan_out": write}
    case = case_of_step("step", **keywords)
    assert case.inputs.verify_capacity == 12
    assert len(case.before.write.write_seed_slot_indices) == 9
    assert case.before.extras == {}


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_any_framework_s_arrays_will_do(framework: str) -> None:
    module = pytest.importorskip(framework)
    of = module.tensor if framework == "torch" else module.numpy.asarray
    arguments = narrowed(INPUTS, NARROW)
    arguments = {k: of(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    assert_inputs(case_of_step("step", **arguments, write_req_capacity=4), INPUTS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefix_len": 3, "stream": 4}, "a case knows no prefix_len, stream"),
        ({"prefix_lens": None, "write_req_capacity": None}, "a case needs prefix_lens, write_req_capacity"),
        ({"prefix_lens": np.zeros(4)}, "prefix_lens must have dtype int64, got float64"),
        ({"prefix_lens": np.zeros(3, np.int32)}, "prefix_lens length must be 4, got 3"),
        ({"write_req_capacity": 3}, "bs=4 exceeds write_req_capacity=3"),
        ({"write_req_capacity": 4.5}, "write_req_capacity must be an int, got float"),
        ({"write_req_capacity": -1}, "write_req_capacity must be non-negative, got -1"),
        ({"verify_capacity": -1}, "verify_capacity must be non-negative, got -1"),
        ({"padding_row": 1.5}, "padding_row must be an int, got float"),
        ({"padding_row": False}, "padding_row must be an int, got bool"),
        ({"out": (1, 2, 3)}, "out must be a pair of plans, got tuple"),
        ({"out": 7}, "out must be a pair of plans, got int"),
        ({"out": (1, 2)}, "int has no verify_slot_indices"),
        (
            {"out": (VerifyPlan.allocate(verify_capacity=7), WritePlan.allocate(write_req_capacity=4))},
            "verify_capacity=12 does not match the plan's 7",
        ),
        (
            {"padding_row": None, "req_to_token": np.zeros(4, np.int32)},
            r"req_to_token must be 2-D, got shape \(4,\)",
        ),
    ],
)
def test_what_is_no_call_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^kv-canary: {message}$"):
        case_of_step("step", **INPUTS.keywords() | {"write_req_capacity": 4} | changes)


def test_a_saved_step_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "step.npz"
    case_of_step("step 7", **INPUTS.keywords(), write_req_capacity=6, padding_row=-1).save(path)
    text = explain(Case.load(path))
    assert "step 7" in text
    assert "request 2" in text


def test_vllm_s_metadata_is_a_step() -> None:
    from shared_ref.integrations.vllm import plan_keywords

    metadata = SimpleNamespace(
        query_start_loc=np.array([0, 1, 4], np.int32),
        seq_lens=np.array([6, 3], np.int32),
        block_table_tensor=np.array([[3, 5], [2, 0]], np.int32),
    )
    keywords = plan_keywords(metadata, block_size=4, rows=np.arange(2, dtype=np.int32))
    case = case_of_step("step", **keywords, verify_capacity=8, write_req_capacity=2)
    assert case.expected().verify.verify_slot_indices[:5].tolist() == [12, 13, 14, 15, 20]
