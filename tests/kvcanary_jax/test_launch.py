"""Eager launches on JAX arrays: a new pair for the former one, whose memory it takes over."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jax_support import (
    WINDOW,
    addresses,
    assert_plans,
    buffers,
    deleted,
    jax,
    jax_inputs,
    jax_plans,
    launch,
    on_device,
    small_case,
)

import kvcanary_jax

# An unusable donation is a warning in JAX.
pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("x64")]

FIELDS = {
    "verify_slot_indices",
    "verify_expected_tokens",
    "verify_expected_positions",
    "verify_prev_slot_indices",
    "verify_num_valid",
    "enable",
    "write_offsets",
    "write_seed_slot_indices",
    "write_num_valid_reqs",
}


def test_returns_the_new_pair() -> None:
    case = small_case()
    verify, write = launch(jax_plans(case.before), jax_inputs(case))
    assert (type(verify), type(write)) == (kvcanary_jax.VerifyPlan, kvcanary_jax.WritePlan)
    former = case.before.verify
    assert verify.verify_slot_indices.tolist() == [20, 21, 22, 10, 11, *former.verify_slot_indices[5:]]
    assert verify.verify_expected_tokens.tolist()[:5] == [200, 201, -1, 100, 101]
    assert verify.verify_expected_positions.tolist()[:5] == [0, 1, 2, 0, 1]
    assert verify.verify_prev_slot_indices.tolist()[:5] == [-1, 20, 21, -1, 10]
    assert (verify.verify_num_valid.tolist(), verify.enable.tolist()) == ([5], [1])
    assert write.write_offsets.tolist() == [0, 1, 1, 3, 0, 0]
    assert write.write_seed_slot_indices.tolist()[:3] == [22, -1, 11]
    assert write.write_num_valid_reqs.tolist() == [3]
    assert_plans((verify, write), case.expected())


def test_consumes_every_former_field_and_no_input() -> None:
    case = small_case(**WINDOW)
    former, inputs = jax_plans(case.before), jax_inputs(case)
    launch(former, inputs)
    assert deleted(former) == FIELDS
    assert not any(a.is_deleted() for a in inputs.values() if isinstance(a, jax.Array))


def test_takes_over_the_former_memory() -> None:
    case = small_case()
    former = jax_plans(case.before)
    memory = addresses(former)
    assert addresses(launch(former, jax_inputs(case))) == memory


def test_memory_stays_over_many_steps() -> None:
    case = small_case()
    plans, inputs = jax_plans(case.before), jax_inputs(case)
    memory = addresses(plans)
    for lens in ([1, 1, 1], [8, 8, 8], [3, 5, 2]):
        plans = launch(plans, inputs | {"prefix_lens": on_device(np.array(lens))})
    assert addresses(plans) == memory


@pytest.mark.parametrize(
    "mistake",
    [
        {"verify_capacity": 9},
        {"swa_window_size": 1},
        {"prefix_lens": np.array([3, 5, 2], np.int32)},
        {"implementation": "mosiac"},
        {"implementation": ()},
    ],
    ids=lambda mistake: next(iter(mistake)),
)
def test_a_refused_call_consumes_nothing(mistake: dict[str, Any]) -> None:
    case = small_case()
    former, inputs = jax_plans(case.before), jax_inputs(case)
    with pytest.raises(ValueError, match=r"^kv-canary: "):
        launch(former, inputs | {name: on_device(value) for name, value in mistake.items()})
    assert deleted(former) == set()
    assert_plans(former, case.before)


def test_plans_are_read_by_attribute() -> None:
    case = small_case()
    foreign = tuple(SimpleNamespace(**vars(plan)) for plan in jax_plans(case.before))
    plans = launch(foreign, jax_inputs(case))
    assert [type(plan) for plan in plans] == [kvcanary_jax.VerifyPlan, kvcanary_jax.WritePlan]
    assert_plans(plans, case.expected())
    assert deleted(foreign) == FIELDS


def test_runs_where_the_arrays_are() -> None:
    devices = jax.devices()
    if len(devices) < 2:
        pytest.skip("needs two devices: XLA_FLAGS=--xla_force_host_platform_device_count=2")
    case = small_case()
    plans = launch(jax_plans(case.before, devices[1]), jax_inputs(case, devices[1]))
    assert {device for buffer in buffers(plans).values() for device in buffer.devices()} == {devices[1]}
    assert_plans(plans, case.expected())


def test_new_values_compile_nothing(caplog: pytest.LogCaptureFixture, x64: bool) -> None:
    case = small_case(**WINDOW)
    plans = launch(jax_plans(case.before), jax_inputs(case))
    others = small_case(
        **WINDOW,
        req_pool_indices=np.array([3, -7, 2**40]),
        prefix_lens=np.array([2**33, 1, 0]),
        extend_seq_lens=np.array([0, -1, 2**62]),
    )
    others_inputs = jax_inputs(others)
    taller = jax_inputs(small_case(**WINDOW, req_to_token=np.zeros((30 + x64, 8), np.int32)))
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
        plans = launch(plans, others_inputs)
        assert not [r.getMessage() for r in caplog.records if "Compiling" in r.getMessage()]
        launch(plans, taller)
    assert [r for r in caplog.records if "Compiling" in r.getMessage()], "a new shape compiles"


@pytest.mark.parametrize("name", ["VerifyPlan", "WritePlan"])
def test_allocate_makes_int64_plans_on_a_device(name: str) -> None:
    plan, device = getattr(kvcanary_jax, name), jax.devices()[-1]
    capacity = {"VerifyPlan": "verify_capacity", "WritePlan": "write_req_capacity"}[name]
    allocated = vars(plan.allocate(**{capacity: 6}, device=device))
    shapes = {field: (array.shape, str(array.dtype)) for field, array in allocated.items()}
    assert (
        shapes
        == {
            "VerifyPlan": {
                "verify_slot_indices": ((6,), "int64"),
                "verify_expected_tokens": ((6,), "int64"),
                "verify_expected_positions": ((6,), "int64"),
                "verify_prev_slot_indices": ((6,), "int64"),
                "verify_num_valid": ((1,), "int32"),
                "enable": ((1,), "int32"),
            },
            "WritePlan": {
                "write_offsets": ((7,), "int64"),
                "write_seed_slot_indices": ((6,), "int64"),
                "write_num_valid_reqs": ((1,), "int32"),
            },
        }[name]
    )
    assert {d for array in allocated.values() for d in array.devices()} == {device}
    assert sum(array.nbytes for array in allocated.values()) == plan.allocation_bytes(6)


def test_allocation_bytes() -> None:
    assert kvcanary_jax.VerifyPlan.allocation_bytes(10) == 4 * 10 * 8 + 2 * 4
    assert kvcanary_jax.WritePlan.allocation_bytes(3) == (4 + 3) * 8 + 4


def test_allocated_plans_are_enabled_and_launch() -> None:
    case = small_case()
    verify = kvcanary_jax.VerifyPlan.allocate(verify_capacity=8)
    write = kvcanary_jax.WritePlan.allocate(write_req_capacity=5)
    assert verify.enable.tolist() == [1]
    verify, write = launch((verify, write), jax_inputs(case))
    assert verify.verify_slot_indices.tolist()[:5] == [20, 21, 22, 10, 11]
    assert write.write_offsets.tolist() == [0, 1, 1, 3, 0, 0]


@pytest.mark.parametrize("capacity", [0, -1])
def test_allocate_refuses_a_capacity_below_one(capacity: int) -> None:
    text = f"^kv-canary: VerifyPlan verify_capacity must be positive, got {capacity}$"
    with pytest.raises(ValueError, match=text):
        kvcanary_jax.VerifyPlan.allocate(verify_capacity=capacity)
    text = f"^kv-canary: WritePlan write_req_capacity must be positive, got {capacity}$"
    with pytest.raises(ValueError, match=text):
        kvcanary_jax.WritePlan.allocate(write_req_capacity=capacity)


def test_valid_lens_without_a_token_table_may_be_anywhere() -> None:
    devices = jax.devices()
    if len(devices) < 2:
        pytest.skip("needs two devices: XLA_FLAGS=--xla_force_host_platform_device_count=2")
    case = small_case(req_to_verify_expected_tokens=None)
    inputs = jax_inputs(case) | {
        "req_to_verify_expected_tokens_valid_lens": on_device(np.zeros(3, np.int64), devices[1])
    }
    plans = launch(jax_plans(case.before), inputs)
    assert_plans(plans, case.expected())
