"""`plan`: the idiomatic form, fresh plans from arrays of either framework and either width."""

from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
from typing import Any

import numpy as np
import pytest
from jax_support import WINDOW, assert_plans, jax, jax_inputs, jax_plans, launch, on_device, small_case

import kvcanary_jax
from shared_ref import Faults, VerifyPlan, WritePlan
from shared_ref.conformance.case import Case, Plans

# pytest matches an error's notes too, and JAX adds one to what is raised while tracing: hence `(?m:$)`.
pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("x64")]

STATIC = (
    "swa_window_size",
    "verify_capacity",
    "write_req_capacity",
    "kv_token_id_vs_position_offset",
)


def blank(verify_capacity: int = 8, write_req_capacity: int = 5) -> Plans:
    """What a fresh plan holds where the contract leaves elements as they were."""
    verify = VerifyPlan.allocate(verify_capacity=verify_capacity)
    write = WritePlan.allocate(write_req_capacity=write_req_capacity)
    for buffer in (*vars(verify).values(), *vars(write).values()):
        buffer.fill(0)
    verify.verify_expected_tokens.fill(-1)
    return Plans(verify, write)


def expected(case: Case) -> Plans:
    return Case(case.name, case.inputs, blank()).expected()


def test_fresh_plans_are_zero_where_nothing_is_planned() -> None:
    case = small_case()
    verify, write = kvcanary_jax.plan(**jax_inputs(case), write_req_capacity=5)
    assert (type(verify), type(write)) == (kvcanary_jax.VerifyPlan, kvcanary_jax.WritePlan)
    assert verify.verify_slot_indices.tolist() == [20, 21, 22, 10, 11, 0, 0, 0]
    assert verify.verify_expected_tokens.tolist() == [200, 201, -1, 100, 101, -1, -1, -1]
    assert verify.verify_expected_positions.tolist() == [0, 1, 2, 0, 1, 0, 0, 0]
    assert verify.verify_prev_slot_indices.tolist() == [-1, 20, 21, -1, 10, 0, 0, 0]
    assert (verify.verify_num_valid.tolist(), verify.enable.tolist()) == ([5], [1])
    assert write.write_offsets.tolist() == [0, 1, 1, 3, 0, 0]
    assert write.write_seed_slot_indices.tolist() == [22, -1, 11, 0, 0]
    assert write.write_num_valid_reqs.tolist() == [3]


def test_an_overflow_leaves_the_columns_blank() -> None:
    case = small_case(prefix_lens=np.array([8, 0, 1]))
    verify, write = kvcanary_jax.plan(**jax_inputs(case), write_req_capacity=5)
    assert (verify.verify_num_valid.tolist(), verify.enable.tolist()) == ([8], [0])
    assert verify.verify_slot_indices.tolist() == [0] * 8
    assert verify.verify_expected_tokens.tolist() == [-1] * 8
    assert verify.verify_expected_positions.tolist() == [0] * 8
    assert verify.verify_prev_slot_indices.tolist() == [0] * 8
    assert write.write_seed_slot_indices.tolist() == [27, -1, 10, 0, 0]


def test_optional_arguments_may_be_left_out() -> None:
    inputs = {
        name: on_device(array)
        for name, array in small_case().inputs.keywords().items()
        if name in ("req_pool_indices", "prefix_lens", "extend_seq_lens", "req_to_token")
    }
    verify, _ = kvcanary_jax.plan(**inputs, verify_capacity=8, write_req_capacity=5)
    assert verify.verify_slot_indices.tolist() == [20, 21, 22, 10, 11, 0, 0, 0]
    assert verify.verify_expected_tokens.tolist() == [-1] * 8


@pytest.mark.parametrize("width", ["int32", "int64"])
@pytest.mark.parametrize("place", [lambda array: array, on_device], ids=["numpy", "jax"])
@pytest.mark.parametrize("window", [{}, WINDOW], ids=["full", "window"])
def test_numpy_and_jax_int32_and_int64_give_the_same_plan(width: str, place: Any, window: Any) -> None:
    case = small_case(**window)
    inputs = {
        k: place(v.astype(width) if v.dtype == np.int64 else v) if isinstance(v, np.ndarray) else v
        for k, v in case.inputs.keywords().items()
    }
    assert_plans(kvcanary_jax.plan(**inputs, write_req_capacity=5), expected(case))


def test_one_input_may_be_int32_and_another_int64() -> None:
    case = small_case()
    inputs = jax_inputs(case) | {"prefix_lens": case.inputs.prefix_lens.astype(np.int32)}
    assert_plans(kvcanary_jax.plan(**inputs, write_req_capacity=5), expected(case))


def test_numpy_values_past_int32_are_not_truncated() -> None:
    case = small_case(
        req_pool_indices=np.array([2**32 + 1, 0, 1]),
        prefix_lens=np.array([2**40, 1, 2**40]),
        extend_seq_lens=np.array([1, 1, 2**40]),
    )
    verify, write = kvcanary_jax.plan(**case.inputs.keywords(), write_req_capacity=5)
    assert verify.verify_slot_indices.tolist() == [10, 11, 12, 13, 14, 15, 16, 17]
    assert verify.verify_num_valid.tolist() == [8]
    assert write.write_offsets.tolist() == [0, 0, 0, 2**40, 0, 0]
    assert write.write_seed_slot_indices.tolist() == [-1, -1, 17, 0, 0]


def test_under_jit_with_static_capacities() -> None:
    case = small_case(**WINDOW)
    step = jax.jit(kvcanary_jax.plan, static_argnames=STATIC)
    assert_plans(step(**jax_inputs(case), write_req_capacity=5), expected(case))


def test_numpy_arrays_closed_over_by_a_jit_are_not_truncated() -> None:
    case = small_case(prefix_lens=np.array([0, 1, 2**40]))
    constants = case.inputs.keywords()
    rows = constants.pop("req_pool_indices")
    step = jax.jit(lambda rows: kvcanary_jax.plan(**constants, req_pool_indices=rows, write_req_capacity=5))
    verify, _ = step(on_device(rows))
    assert verify.verify_slot_indices.tolist() == [10, 11, 12, 13, 14, 15, 16, 17]
    assert verify.verify_num_valid.tolist() == [8]


@pytest.mark.parametrize("name", ["verify_capacity", "write_req_capacity"])
def test_under_jit_a_traced_capacity_is_refused(name: str) -> None:
    case = small_case()
    sizes = {"verify_capacity": 8, "write_req_capacity": 5}
    inputs = jax_inputs(case)
    with pytest.raises(ValueError, match=rf"^kv-canary: {name} must be an int, got \w*Tracer(?m:$)"):
        jax.jit(lambda n: kvcanary_jax.plan(**inputs | sizes | {name: n}))(sizes[name])


def test_numpy_integers_are_capacities() -> None:
    case = small_case(verify_capacity=np.int64(8))
    plans = kvcanary_jax.plan(**case.inputs.keywords(), write_req_capacity=np.int32(5))
    assert_plans(plans, expected(case))


def test_no_room_for_entries() -> None:
    case = small_case(verify_capacity=0)
    verify, write = kvcanary_jax.plan(**jax_inputs(case), write_req_capacity=3)
    assert (verify.verify_num_valid.tolist(), verify.enable.tolist()) == ([0], [0])
    assert verify.verify_slot_indices.shape == (0,)
    assert write.write_offsets.tolist() == [0, 1, 1, 3]
    assert write.write_seed_slot_indices.tolist() == [22, -1, 11]


def test_no_room_and_no_requests() -> None:
    none = np.empty(0, np.int64)
    verify, write = kvcanary_jax.plan(
        req_pool_indices=none,
        prefix_lens=none,
        extend_seq_lens=none,
        req_to_token=small_case().inputs.req_to_token,
        verify_capacity=0,
        write_req_capacity=0,
    )
    assert (verify.verify_num_valid.tolist(), verify.enable.tolist()) == ([0], [1])
    assert verify.verify_prev_slot_indices.shape == (0,)
    assert write.write_offsets.tolist() == [0]
    assert write.write_seed_slot_indices.shape == (0,)
    assert write.write_num_valid_reqs.tolist() == [0]


@pytest.mark.parametrize("name", ["verify_capacity", "write_req_capacity"])
def test_a_negative_capacity_is_refused(name: str) -> None:
    inputs = jax_inputs(small_case()) | {"write_req_capacity": 5, name: -1}
    with pytest.raises(ValueError, match=f"^kv-canary: {name} must be non-negative, got -1$"):
        kvcanary_jax.plan(**inputs)


def test_more_requests_than_room_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^kv-canary: bs=3 exceeds write_req_capacity=2(?m:$)"):
        kvcanary_jax.plan(**jax_inputs(small_case()), write_req_capacity=2)


@pytest.mark.parametrize("place", [lambda array: array, on_device], ids=["numpy", "jax"])
@pytest.mark.parametrize(
    ("name", "dtype", "wanted"),
    [
        ("prefix_lens", "int16", "int64"),
        ("prefix_lens", "float32", "int64"),
        ("req_to_token", "int64", "int32"),
    ],
)
def test_other_dtypes_are_refused(place: Any, name: str, dtype: str, wanted: str) -> None:
    inputs = small_case().inputs.keywords()
    inputs[name] = place(inputs[name].astype(dtype))
    with pytest.raises(ValueError, match=rf"^kv-canary: {name} must have dtype {wanted}, got {dtype}(?m:$)"):
        kvcanary_jax.plan(**inputs, write_req_capacity=5)


@pytest.mark.parametrize("dtype", [">i8", "object"])
def test_numpy_dtypes_that_jax_has_not_are_refused_like_any_other(dtype: str) -> None:
    inputs = small_case().inputs.keywords()
    inputs["prefix_lens"] = inputs["prefix_lens"].astype(dtype)
    with pytest.raises(
        ValueError, match=rf"^kv-canary: prefix_lens must have dtype int64, got {dtype}(?m:$)"
    ):
        kvcanary_jax.plan(**inputs, write_req_capacity=5)


def test_consumes_nothing() -> None:
    inputs = jax_inputs(small_case(**WINDOW))
    kvcanary_jax.plan(**inputs, write_req_capacity=5)
    assert not any(array.is_deleted() for array in inputs.values() if isinstance(array, jax.Array))


def test_new_values_compile_nothing(caplog: pytest.LogCaptureFixture) -> None:
    case = small_case()
    kvcanary_jax.plan(**jax_inputs(case), write_req_capacity=5)
    kvcanary_jax.plan(**case.inputs.keywords(), write_req_capacity=5)
    values = {"req_pool_indices": np.array([3, -7, 2**40]), "prefix_lens": np.array([2**33, 1, 0])}
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
        kvcanary_jax.plan(**jax_inputs(small_case(**values)), write_req_capacity=5)
        kvcanary_jax.plan(**small_case(**values).inputs.keywords(), write_req_capacity=5)
    assert [r.getMessage() for r in caplog.records if "Compiling" in r.getMessage()] == []


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_a_copy_of_a_plan_keeps_int64_without_x64(copied: Any) -> None:
    big = 2**40 + 3
    with jax.enable_x64(True):
        plan = kvcanary_jax.VerifyPlan.allocate(verify_capacity=2)
        plan = dataclasses.replace(plan, verify_slot_indices=plan.verify_slot_indices + big)
        faults = kvcanary_jax.Faults.allocate()
    assert copied(plan).verify_slot_indices.tolist() == [big, big]
    assert copied(faults).buffer.tolist() == [[0, -1]] * 8
    assert (copied(plan).enable.dtype, copied(faults).buffer.dtype) == ("int32", "int64")


def test_a_strict_promotion_of_dtypes_is_the_caller_s_alone() -> None:
    case = small_case()
    with jax.numpy_dtype_promotion("strict"):
        verify, _ = kvcanary_jax.plan(**case.inputs.keywords(), write_req_capacity=5)
    entries = int(verify.verify_num_valid[0])
    expected = case.expected().verify.verify_slot_indices[:entries]
    np.testing.assert_array_equal(np.asarray(verify.verify_slot_indices)[:entries], expected)


# Numpy's arrays belong to the server, which goes on writing to them.


def test_what_is_written_to_an_input_after_the_call_is_not_planned() -> None:
    """JAX on a CPU reads the memory that it is given in its turn, which is behind the work that it has."""
    work = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, x: x @ x / 600, x))
    ones = jax.numpy.ones((600, 600))
    memory = np.zeros(4 * 8 + 16, np.int32)
    table = memory[-(memory.ctypes.data // 4) % 16 :][:32].reshape(4, 8)  # JAX wants 64 bytes of alignment
    inputs = small_case().inputs.keywords()
    table[:] = inputs["req_to_token"]
    kvcanary_jax.plan(**inputs | {"req_to_token": table}, write_req_capacity=5)  # compiled
    work(ones).block_until_ready()
    work(ones)
    verify, _ = kvcanary_jax.plan(**inputs | {"req_to_token": table}, write_req_capacity=5)
    table.fill(-1)
    assert verify.verify_slot_indices.tolist() == [20, 21, 22, 10, 11, 0, 0, 0]


def test_numpy_inputs_come_beside_the_array_that_is_on_a_device() -> None:
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices: XLA_FLAGS=--xla_force_host_platform_device_count=2")
    case, second = small_case(), jax.devices()[1]
    inputs = case.inputs.keywords()
    inputs["req_to_token"] = on_device(inputs["req_to_token"], second)
    plans = kvcanary_jax.plan(**inputs, write_req_capacity=5)
    assert {d for array in jax.tree.leaves(plans) for d in array.devices()} == {second}


@pytest.mark.parametrize("dtype", [">i8", "U1"])
def test_a_dtype_that_jax_has_not_is_reported_in_its_turn(dtype: str) -> None:
    inputs = small_case().inputs.keywords() | {"write_req_capacity": 5}
    strange = inputs["prefix_lens"].astype(dtype)
    for changes, message in (
        ({"extend_seq_lens": [1, 9, 2]}, "extend_seq_lens must be a jax.Array, got list"),
        ({"swa_window_size": 3}, "launch_canary_plan_kernels requires full_to_swa_index_mapping when swa_wi"),
        ({"req_pool_indices": np.zeros(3)}, "req_pool_indices must have dtype int64, got float64"),
        ({}, "prefix_lens must have dtype int64, got "),
    ):
        with pytest.raises(ValueError, match=f"^kv-canary: {message}"):
            kvcanary_jax.plan(**inputs | {"prefix_lens": strange} | changes)
    ignored = {
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": strange,
    }
    verify, _ = kvcanary_jax.plan(**inputs | ignored)
    assert verify.verify_expected_tokens.tolist() == [-1] * 8


@pytest.mark.parametrize("faults", [np.zeros((8, 2), np.int64), Faults.allocate()])
def test_numpy_s_outputs_are_refused(faults: Any) -> None:
    """They could not be filled."""
    with pytest.raises(ValueError, match=r"^kv-canary: faults_out must be a jax.Array, got ndarray$"):
        kvcanary_jax.plan(**small_case().inputs.keywords(), write_req_capacity=5, faults_out=faults)


def test_numpy_s_arrays_are_not_taken_for_traced_ones() -> None:
    """Calls that passed are remembered by what is known of their arrays; of traced ones that is little."""
    case = small_case()
    given = case.inputs.keywords()
    static = {name: value for name, value in given.items() if not isinstance(value, np.ndarray)}
    arrays = {name: on_device(value) for name, value in given.items() if name not in static}
    jax.jit(lambda plans, arrays: launch(plans, arrays | static))(jax_plans(case.before), arrays)
    text = r"^kv-canary: out_verify_slot_indices must be a jax.Array, got ndarray$"
    with pytest.raises(ValueError, match=text):
        launch(case.before, given)


def test_a_copied_plan_stays_where_it_is() -> None:
    device = jax.devices()[-1]
    plan = kvcanary_jax.VerifyPlan.allocate(verify_capacity=3, device=device)
    copied = copy.copy(plan)
    assert copied is not plan
    assert all(a is b for a, b in zip(vars(copied).values(), vars(plan).values(), strict=True))
    shapes = jax.eval_shape(lambda plan: plan, plan)
    assert copy.copy(shapes).verify_slot_indices.shape == (3,)


def test_a_plan_of_refs_is_not_pickled() -> None:
    with jax.enable_x64(True):
        refs = kvcanary_jax.Faults(buffer=jax.new_ref(jax.numpy.zeros((8, 2), jax.numpy.int64)))
    with pytest.raises(ValueError, match=r"^kv-canary: a Faults of jax.Ref cannot be pickled"):
        pickle.dumps(refs)
