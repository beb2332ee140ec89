"""The staged launchers on JAX arrays: each returns its new outputs in argument order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jax_support import (
    WINDOW,
    assert_plans,
    call_staged,
    jax,
    small_case,
    staged_arguments,
    switched,
)

import kvcanary_jax
from shared_ref.schema import LAUNCH_ENTRIES, LAUNCH_OFFSETS
from shared_ref.validation import plan_arguments

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("x64")]

OFFSETS_OUT = (
    "out_verify_offsets_scratch",
    "out_write_offsets",
    "out_write_seed_slot_indices",
    "out_verify_num_valid",
    "out_verify_enable",
    "out_write_num_valid_reqs",
)
ENTRIES_OUT = (
    "out_verify_slot_indices",
    "out_verify_expected_tokens",
    "out_verify_expected_positions",
    "out_verify_prev_slot_indices",
)


def staged(arguments: dict[str, Any]) -> dict[str, Any]:
    """Both launchers one after the other; the outputs by argument name."""
    out = dict(zip(OFFSETS_OUT, call_staged(LAUNCH_OFFSETS, arguments), strict=True))
    between = {
        "verify_offsets_scratch": out["out_verify_offsets_scratch"],
        "verify_enable": out["out_verify_enable"],
    }
    return out | dict(zip(ENTRIES_OUT, call_staged(LAUNCH_ENTRIES, arguments | between), strict=True))


def plans_in(out: dict[str, Any]) -> Any:
    return tuple(
        plan(**{f.name: out[f.argument] for f in plan.fields()})
        for plan in (kvcanary_jax.VerifyPlan, kvcanary_jax.WritePlan)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        WINDOW,
        {"prefix_lens": np.array([8, 0, 3])},
        {"req_pool_indices": np.array([2**32 + 1, -(2**63), 3]), "prefix_lens": np.array([2, 2, 2**40])},
    ],
    ids=["full", "window", "overflow", "corrupt"],
)
def test_one_after_the_other_equals_the_combined_launch(changes: dict[str, Any]) -> None:
    case = small_case(**changes)
    assert_plans(plans_in(staged(staged_arguments(case))), case.expected())


@pytest.mark.parametrize("x64", [False], indirect=True)
def test_both_in_one_jit_equal_the_combined_launch() -> None:
    case = small_case(**WINDOW)
    arguments = staged_arguments(case)
    arrays = {k: v for k, v in arguments.items() if isinstance(v, jax.Array)}
    out = jax.jit(lambda arrays: staged(arguments | arrays))(arrays)
    assert_plans(plans_in(out), case.expected())
    assert not any(array.is_deleted() for array in arrays.values())


def test_offsets_launcher_returns_its_outputs_in_argument_order() -> None:
    scratch, *rest = call_staged(LAUNCH_OFFSETS, staged_arguments(small_case()))
    assert scratch.tolist() == [0, 3, 3, 5, *[-9] * 4096]
    assert [array.tolist()[:3] for array in rest] == [[0, 1, 1], [22, -1, 11], [5], [1], [3]]
    assert [str(array.dtype) for array in (scratch, *rest)] == ["int64"] * 3 + ["int32"] * 3


def test_entries_launcher_returns_its_columns_in_argument_order() -> None:
    case = small_case()
    columns = call_staged(LAUNCH_ENTRIES, staged_arguments(case) | switched(1))
    assert [array.tolist()[:5] for array in columns] == [
        [20, 21, 22, 10, 11],
        [200, 201, -1, 100, 101],
        [0, 1, 2, 0, 1],
        [-1, 20, 21, -1, 10],
    ]
    assert [str(array.dtype) for array in columns] == ["int64"] * 4


@pytest.mark.parametrize("enable", [0, 1, -3])
def test_the_entries_launcher_trusts_only_the_switch(enable: int) -> None:
    case = small_case()
    columns = call_staged(LAUNCH_ENTRIES, staged_arguments(case) | switched(enable))
    expected = plan_arguments(*(case.expected() if enable else case.before))
    for name, column in zip(ENTRIES_OUT, columns, strict=True):
        np.testing.assert_array_equal(np.asarray(column), expected[name])


def test_each_consumes_its_outputs_and_no_input() -> None:
    arguments = staged_arguments(small_case()) | switched(1)
    inputs = {k: v for k, v in arguments.items() if isinstance(v, jax.Array) and not k.startswith("out_")}
    call_staged(LAUNCH_OFFSETS, arguments)
    assert {name for name in arguments if name.startswith("out_") and arguments[name].is_deleted()} == {
        *OFFSETS_OUT
    }
    call_staged(LAUNCH_ENTRIES, arguments)
    assert all(arguments[name].is_deleted() for name in ENTRIES_OUT)
    assert not any(array.is_deleted() for array in inputs.values())


def test_outputs_take_over_the_former_memory() -> None:
    arguments = staged_arguments(small_case())
    memory = {name: arguments[name].unsafe_buffer_pointer() for name in (*OFFSETS_OUT, *ENTRIES_OUT)}
    out = staged(arguments)
    assert {name: array.unsafe_buffer_pointer() for name, array in out.items()} == memory


def test_a_window_without_a_mapping_is_legal() -> None:
    verify, _ = plans_in(staged(staged_arguments(small_case(swa_window_size=2))))
    assert verify.verify_slot_indices.tolist()[:4] == [21, 22, 10, 11]
    assert verify.verify_prev_slot_indices.tolist()[:4] == [20, 21, -1, 10]
    assert verify.verify_num_valid.tolist() == [4]


def test_outputs_that_mix_refs_and_arrays_are_an_error() -> None:
    arguments = staged_arguments(small_case()) | switched(1)
    ref = jax.new_ref(arguments["out_verify_slot_indices"])
    former = ref[...].tolist()
    with pytest.raises(ValueError, match=r"^kv-canary: .*jax\.Array.*jax\.Ref"):
        call_staged(LAUNCH_ENTRIES, arguments | {"out_verify_slot_indices": ref})
    assert ref[...].tolist() == former
    assert not any(arguments[column].is_deleted() for column in ENTRIES_OUT)


@pytest.mark.parametrize("name", ["verify_offsets_scratch", "verify_enable"])
def test_a_ref_between_the_stages_is_an_error(name: str) -> None:
    arguments = staged_arguments(small_case()) | switched(1)
    with pytest.raises(ValueError, match=rf"^kv-canary: {name} must be a jax\.Array, got .*Ref"):
        call_staged(LAUNCH_ENTRIES, arguments | {name: jax.new_ref(arguments[name])})
    assert not any(arguments[column].is_deleted() for column in ENTRIES_OUT)
