"""Plans and launches under JAX's transformations: jit, scan, vmap, shard_map."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
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
from shared_ref import VerifyPlan, WritePlan
from shared_ref.conformance.case import Case, Plans

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("x64")]

KEPT_IN_PART = {
    "verify_slot_indices",
    "verify_expected_tokens",
    "verify_expected_positions",
    "verify_prev_slot_indices",
    "write_seed_slot_indices",
}
"""Fields whose new value may hold elements of the former one."""

LENS = np.array([[3, 5, 2], [8, 8, 8], [0, 1, 1], [2, 0, 8]])
"""Prefix lengths of four steps; the second and the last overflow the capacity."""


def launcher(case: Case) -> Callable[[Any, Any, Any], Any]:
    """The launch as a function of the plans and the prefix lengths."""
    inputs = jax_inputs(case)
    return lambda verify, write, lens: launch((verify, write), inputs | {"prefix_lens": lens})


def each_step(case: Case) -> list[Plans]:
    """The reference's plans after every step of LENS, each from those before."""
    steps, plans = [], case.before
    for lens in LENS:
        inputs = small_case(**case.inputs.keywords() | {"prefix_lens": lens}).inputs
        plans = Case("step", inputs, plans).expected()
        steps.append(plans)
    return steps


def nth(plans: Any, i: int) -> Any:
    """Plans of the i-th batch, as numpy."""
    return jax.tree.map(lambda array: np.asarray(array)[i], plans)


def joined(join: Callable[[Any], Any], *plans: Plans) -> Any:
    """Several batches' plans as one pair of JAX arrays."""
    by_field = [each.buffers() for each in plans]
    merged = {name: join([buffers[name] for buffers in by_field]) for name in by_field[0]}
    return jax_plans(
        Plans(
            VerifyPlan(**{f.name: merged[f.name] for f in VerifyPlan.fields()}),
            WritePlan(**{f.name: merged[f.name] for f in WritePlan.fields()}),
        )
    )


def test_jit_gives_the_same_plan_and_leaves_the_former_alive() -> None:
    case = small_case(**WINDOW)
    former = jax_plans(case.before)
    plans = jax.jit(launcher(case))(*former, on_device(case.inputs.prefix_lens))
    assert plans[0].verify_slot_indices.tolist()[:4] == [1021, 1022, 1010, 1011]
    assert_plans(plans, case.expected())
    assert_plans(former, case.before)


def test_under_jit_donation_is_the_users() -> None:
    case = small_case()
    former = jax_plans(case.before)
    memory = addresses(former)
    step = jax.jit(launcher(case), donate_argnums=(0, 1), keep_unused=True)
    plans = step(*former, on_device(case.inputs.prefix_lens))
    assert deleted(former) == set(buffers(former))
    assert addresses(plans) == memory
    assert_plans(plans, case.expected())


def test_under_jit_donated_fields_that_matter_are_consumed_without_keep_unused() -> None:
    case = small_case()
    former = jax_plans(case.before)
    memory = addresses(former)
    plans = jax.jit(launcher(case), donate_argnums=(0, 1))(*former, on_device(case.inputs.prefix_lens))
    assert deleted(former) >= KEPT_IN_PART
    assert {name: addresses(plans)[name] for name in KEPT_IN_PART} == {n: memory[n] for n in KEPT_IN_PART}
    assert_plans(plans, case.expected())


def test_nested_jit() -> None:
    case = small_case(**WINDOW)
    inner = jax.jit(launcher(case), donate_argnums=(0, 1))

    @jax.jit
    def two_steps(verify: Any, write: Any, first: Any, second: Any) -> Any:
        return inner(*inner(verify, write, first), second)

    former = jax_plans(case.before)
    plans = two_steps(*former, on_device(LENS[0]), on_device(LENS[1]))
    assert_plans(plans, each_step(case)[1])
    assert deleted(former) == set()


def test_scan_carries_the_plans_from_step_to_step() -> None:
    case = small_case()
    launch_with = launcher(case)

    def step(plans: Any, lens: Any) -> Any:
        plans = launch_with(*plans, lens)
        return plans, plans

    former = jax_plans(case.before)
    last, every = jax.lax.scan(step, former, on_device(LENS))
    assert every[0].enable.tolist() == [[1], [0], [1], [0]]
    assert every[0].verify_num_valid.tolist() == [[5], [8], [1], [8]]
    expected = each_step(case)
    assert_plans(last, expected[-1])
    for i, plans in enumerate(expected):
        assert_plans(nth(every, i), plans)
    assert deleted(former) == set()


@pytest.mark.parametrize("transform", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_vmap_plans_several_batches_at_once(transform: Any) -> None:
    case = small_case(**WINDOW)
    former = joined(np.stack, *[case.before] * 4)
    plans = transform(jax.vmap(launcher(case)))(*former, on_device(LENS))
    for i, lens in enumerate(LENS):
        batch = small_case(**WINDOW, prefix_lens=lens)
        assert_plans(nth(plans, i), batch.expected())


def test_vmap_from_one_former_pair_leaves_it_alive() -> None:
    case = small_case(**WINDOW)
    former = jax_plans(case.before)
    plans = jax.vmap(launcher(case), in_axes=(None, None, 0))(*former, on_device(LENS))
    for i, lens in enumerate(LENS):
        assert_plans(nth(plans, i), small_case(**WINDOW, prefix_lens=lens).expected())
    assert deleted(former) == set()


def test_vmap_of_plan_takes_every_input_batched() -> None:
    cases = [
        small_case(**WINDOW, prefix_lens=lens, req_pool_indices=np.roll([1, 2, 3], i))
        for i, lens in enumerate(LENS)
    ]
    arrays = {
        k: np.stack([c.inputs.keywords()[k] for c in cases])
        for k, v in cases[0].inputs.keywords().items()
        if isinstance(v, np.ndarray)
    }

    def plan(arrays: dict[str, Any]) -> Any:
        return kvcanary_jax.plan(**arrays, swa_window_size=2, verify_capacity=8, write_req_capacity=5)

    plans = jax.vmap(plan)({name: on_device(array) for name, array in arrays.items()})
    for i, case in enumerate(cases):
        assert_plans(nth(plans, i), case._replace(before=fresh(5)).expected())


def fresh(write_req_capacity: int) -> Plans:
    """What `plan` starts from, for a verify capacity of 8."""
    return Plans(
        VerifyPlan(
            verify_slot_indices=np.zeros(8, np.int64),
            verify_expected_tokens=np.full(8, -1, np.int64),
            verify_expected_positions=np.zeros(8, np.int64),
            verify_prev_slot_indices=np.zeros(8, np.int64),
            verify_num_valid=np.zeros(1, np.int32),
            enable=np.zeros(1, np.int32),
        ),
        WritePlan(
            write_offsets=np.zeros(write_req_capacity + 1, np.int64),
            write_seed_slot_indices=np.zeros(write_req_capacity, np.int64),
            write_num_valid_reqs=np.zeros(1, np.int32),
        ),
    )


@pytest.mark.parametrize("launches", ["launch_canary_plan_kernels", "plan"])
def test_shard_map_plans_each_shards_own_requests(launches: str) -> None:
    devices = jax.devices()
    if len(devices) < 2:
        pytest.skip("needs two devices: XLA_FLAGS=--xla_force_host_platform_device_count=2")
    mesh = jax.sharding.Mesh(np.array(devices[:2]), ("shard",))
    sharded, whole = jax.sharding.PartitionSpec("shard"), jax.sharding.PartitionSpec()
    cases = [small_case(), small_case(req_pool_indices=np.array([3, 1, -1]), prefix_lens=np.array([1, 4, 3]))]
    table = jax_inputs(cases[0])["req_to_token"]
    per_shard = ("req_pool_indices", "prefix_lens", "extend_seq_lens")
    requests = [
        on_device(np.concatenate([case.inputs.keywords()[name] for case in cases])) for name in per_shard
    ]
    plans = joined(np.concatenate, fresh(5), fresh(5))

    def on_shard(plans: Any, table: Any, *requests: Any) -> Any:
        inputs = {"req_to_token": table, **dict(zip(per_shard, requests, strict=True))}
        if launches == "plan":
            return kvcanary_jax.plan(**inputs, verify_capacity=8, write_req_capacity=5)
        no_tokens = small_case(
            req_to_verify_expected_tokens=None, req_to_verify_expected_tokens_valid_lens=None
        )
        return launch(plans, jax_inputs(no_tokens) | inputs)

    step = jax.shard_map(on_shard, mesh=mesh, in_specs=(sharded, whole, *[sharded] * 3), out_specs=sharded)
    new = jax.jit(step)(plans, table, *requests)
    assert new[0].verify_slot_indices.tolist() == [20, 21, 22, 10, 11, 0, 0, 0, 30, 10, 11, 12, 13, 0, 0, 0]
    assert new[0].verify_prev_slot_indices.tolist()[8:13] == [-1, -1, 10, 11, 12]
    assert new[0].verify_num_valid.tolist() == [5, 5]
    assert new[0].enable.tolist() == [1, 1]
    assert new[1].write_offsets.tolist() == [0, 1, 1, 3, 0, 0, 0, 1, 10, 10, 0, 0]
    assert new[1].write_seed_slot_indices.tolist() == [22, -1, 11, 0, 0, 30, 13, -1, 0, 0]
    assert new[1].write_num_valid_reqs.tolist() == [3, 3]
    assert {d for buffer in buffers(new).values() for d in buffer.devices()} == set(devices[:2])


def test_plans_are_pytrees_of_their_fields() -> None:
    plans = jax_plans(small_case().before)
    for plan in plans:
        leaves, structure = jax.tree.flatten(plan)
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(plan)]
        assert paths == [f".{field.name}" for field in type(plan).fields()]
        assert all(leaf is getattr(plan, path[1:]) for leaf, path in zip(leaves, paths, strict=True))
        again = jax.tree.unflatten(structure, leaves)
        assert type(again) is type(plan)
        assert vars(again) == vars(plan)
        assert type(jax.tree.map(np.asarray, plan)) is type(plan)


def test_plans_cross_a_jit_border_intact() -> None:
    case = small_case()
    plans = jax.jit(lambda plans: plans)(jax_plans(case.before))
    assert [type(plan) for plan in plans] == [kvcanary_jax.VerifyPlan, kvcanary_jax.WritePlan]
    assert_plans(plans, case.before)


def test_a_jitted_step_is_traced_once_for_all_values() -> None:
    case = small_case()
    traced = []

    @jax.jit
    def step(verify: Any, write: Any, lens: Any) -> Any:
        traced.append(lens.shape)
        return launch((verify, write), jax_inputs(case) | {"prefix_lens": lens})

    plans = jax_plans(case.before)
    for lens in (*LENS, [2**40, -1, 2**31]):
        plans = step(*plans, on_device(np.array(lens)))
    assert traced == [(3,)]


@pytest.mark.parametrize("x64", [False], indirect=True)
def test_work_is_bounded_by_the_capacity_not_by_the_table() -> None:
    """A table of 4099 columns, 16 entries: nothing but the tables themselves is that wide."""
    bs, width, capacity = 3, 4099, 16
    inputs = {
        "req_pool_indices": np.array([2, 0, 1]),
        "prefix_lens": np.array([width, width, width]),
        "extend_seq_lens": np.array([1, 9, 2]),
        "req_to_token": np.zeros((5, width), np.int32),
        "full_to_swa_index_mapping": np.zeros(5000, np.int64),
        "req_to_verify_expected_tokens": np.zeros((5, width), np.int32),
        "req_to_verify_expected_tokens_valid_lens": np.array([width, width, width]),
    }
    step = jax.jit(
        lambda arrays: kvcanary_jax.plan(
            **arrays, swa_window_size=2, verify_capacity=capacity, write_req_capacity=bs
        )
    )
    compiled = step.lower({name: on_device(array) for name, array in inputs.items()}).compile()
    made = re.findall(r"= \w+\[([\d,]*)\]\S* ([\w-]+)\(", compiled.as_text())
    sizes = {(prod(int(n) for n in shape.split(",") if n), operation) for shape, operation in made}
    assert (5 * width, "parameter") in sizes
    assert {
        (n, operation) for n, operation in sizes if n > 8 * capacity and operation != "parameter"
    } == set()
