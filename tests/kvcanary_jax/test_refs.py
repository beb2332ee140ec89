"""Plans of `jax.Ref`s: written in place, as the torch launcher writes tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jax_support import (
    WINDOW,
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
from shared_ref.conformance.case import Case
from shared_ref.validation import plan_arguments

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("x64")]


def refs_of(plans: Any) -> Any:
    return jax.tree.map(jax.new_ref, plans)


def values(refs: Any) -> tuple[SimpleNamespace, ...]:
    """What plans of Refs hold."""
    return tuple(SimpleNamespace(**{k: ref[...] for k, ref in vars(plan).items()}) for plan in refs)


def test_refs_are_written_in_place() -> None:
    case = small_case()
    plans, inputs = refs_of(jax_plans(case.before)), jax_inputs(case)
    before = dict(buffers(plans))
    assert launch(plans, inputs) is None
    assert all(buffers(plans)[name] is ref for name, ref in before.items())
    assert plans[0].verify_slot_indices[...].tolist()[:5] == [20, 21, 22, 10, 11]
    assert plans[1].write_offsets[...].tolist() == [0, 1, 1, 3, 0, 0]
    assert_plans(values(plans), case.expected())


def test_refs_keep_what_a_later_step_leaves_alone() -> None:
    case = small_case(**WINDOW)
    plans, inputs = refs_of(jax_plans(case.before)), jax_inputs(case)
    launch(plans, inputs)
    shorter = small_case(**WINDOW, prefix_lens=np.array([1, 0, 0]))
    launch(plans, inputs | {"prefix_lens": on_device(shorter.inputs.prefix_lens)})
    assert plans[0].verify_slot_indices[...].tolist()[:4] == [1020, 1022, 1010, 1011]
    assert_plans(values(plans), Case("second step", shorter.inputs, case.expected()).expected())


def test_refs_that_enter_a_jit_are_written_in_place() -> None:
    case = small_case()
    plans, inputs = refs_of(jax_plans(case.before)), jax_inputs(case)
    returned = []

    @jax.jit
    def step(verify: Any, write: Any) -> None:
        returned.append(launch((verify, write), inputs))

    step(*plans)
    assert returned == [None]
    assert_plans(values(plans), case.expected())


def test_refs_made_inside_a_jit_are_written_in_place() -> None:
    case = small_case()
    inputs = jax_inputs(case)

    @jax.jit
    def step(plans: Any) -> Any:
        refs = refs_of(plans)
        assert launch(refs, inputs) is None
        return jax.tree.map(jax.freeze, refs)

    assert_plans(step(jax_plans(case.before)), case.expected())


def test_refs_in_anybodys_plan_object() -> None:
    case = small_case()
    foreign = tuple(SimpleNamespace(**vars(plan)) for plan in refs_of(jax_plans(case.before)))
    assert launch(foreign, jax_inputs(case)) is None
    assert_plans(values(foreign), case.expected())


@pytest.mark.parametrize("transform", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("array", ["enable", "write_offsets", "verify_slot_indices"])
def test_one_array_among_refs_is_an_error_and_nothing_is_written(array: str, transform: Any) -> None:
    case = small_case()
    arrays, inputs = jax_plans(case.before), jax_inputs(case)
    mixed = tuple(
        type(plan)(**{k: v if k == array else jax.new_ref(v) for k, v in vars(plan).items()})
        for plan in arrays
    )
    with pytest.raises(ValueError, match=r"^kv-canary: .*jax\.Array.*jax\.Ref"):
        transform(lambda: launch(mixed, inputs))()
    refs = tuple(
        SimpleNamespace(**{k: v if k == array else v[...] for k, v in vars(plan).items()}) for plan in mixed
    )
    assert_plans(refs, case.before)


@pytest.mark.parametrize("of_refs", [0, 1], ids=["verify", "write"])
def test_one_plan_of_refs_and_one_of_arrays_is_an_error_and_nothing_is_written(of_refs: int) -> None:
    case = small_case()
    plans = list(jax_plans(case.before))
    arrays = plans[1 - of_refs]
    plans[of_refs] = refs_of(plans[of_refs])
    with pytest.raises(ValueError, match=r"^kv-canary: .*jax\.Array.*jax\.Ref"):
        launch(tuple(plans), jax_inputs(case))
    assert deleted((arrays,)) == set()
    plans[of_refs] = values((plans[of_refs],))[0]
    assert_plans(tuple(plans), case.before)


INPUTS = [
    "req_pool_indices",
    "prefix_lens",
    "extend_seq_lens",
    "req_to_token",
    "full_to_swa_index_mapping",
    "req_to_verify_expected_tokens",
    "req_to_verify_expected_tokens_valid_lens",
]


@pytest.mark.parametrize("name", INPUTS)
def test_a_ref_as_an_input_is_an_error_and_nothing_is_written(name: str) -> None:
    case = small_case(**WINDOW)
    inputs = jax_inputs(case)
    inputs[name] = jax.new_ref(inputs[name])
    arrays, refs = jax_plans(case.before), refs_of(jax_plans(case.before))
    for plans in (arrays, refs):
        with pytest.raises(ValueError, match=rf"^kv-canary: {name} must be a jax\.Array, got .*Ref"):
            launch(plans, inputs)
    assert deleted(arrays) == set()
    assert_plans(values(refs), case.before)


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("dtype", [None, "int32"])
def test_plan_takes_no_ref(name: str, dtype: str | None) -> None:
    case = small_case(**WINDOW)
    array = case.inputs.keywords()[name]
    ref = jax.new_ref(on_device(array.astype(dtype or array.dtype)))
    inputs = jax_inputs(case) | {name: ref}
    with pytest.raises(ValueError, match=rf"^kv-canary: {name} must be a jax\.Array, got .*Ref"):
        kvcanary_jax.plan(**inputs, write_req_capacity=5)


def test_staged_launchers_write_refs_in_place() -> None:
    case = small_case(kv_token_id_vs_position_offset=1)
    plans, inputs = refs_of(jax_plans(case.before)), jax_inputs(case)
    scratch = jax.new_ref(on_device(np.full(4100, -9)))
    out = plan_arguments(*plans)
    shared = {name: inputs[name] for name in INPUTS[:2] + INPUTS[3:5]}
    columns = ("slot_indices", "expected_tokens", "expected_positions", "prev_slot_indices")
    assert (
        kvcanary_jax.launch_plan_offsets_kernel(
            **shared,
            extend_seq_lens=inputs["extend_seq_lens"],
            out_verify_offsets_scratch=scratch,
            out_write_offsets=out["out_write_offsets"],
            out_write_seed_slot_indices=out["out_write_seed_slot_indices"],
            out_verify_num_valid=out["out_verify_num_valid"],
            out_verify_enable=out["out_verify_enable"],
            out_write_num_valid_reqs=out["out_write_num_valid_reqs"],
            swa_window_size=0,
            verify_capacity=8,
        )
        is None
    )
    assert scratch[...].tolist() == [0, 3, 3, 5, *[-9] * 4096]
    assert (
        kvcanary_jax.launch_plan_entries_kernel(
            **shared,
            verify_offsets_scratch=scratch[...],
            verify_enable=plans[0].enable[...],
            **{name: inputs[name] for name in INPUTS[5:]},
            **{f"out_verify_{column}": out[f"out_verify_{column}"] for column in columns},
            kv_token_id_vs_position_offset=1,
            swa_window_size=0,
        )
        is None
    )
    assert_plans(values(plans), case.expected())


def test_a_refused_launch_leaves_refs_as_they_were() -> None:
    case = small_case()
    plans = refs_of(jax_plans(case.before))
    with pytest.raises(ValueError, match="verify_capacity=9 does not match"):
        launch(plans, jax_inputs(case) | {"verify_capacity": 9})
    assert_plans(values(plans), case.before)
