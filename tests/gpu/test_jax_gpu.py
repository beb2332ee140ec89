"""JAX on the GPU: every implementation's bytes, under every transformation, in the plans' own memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from jax_support import (
    addresses,
    assert_plans,
    buffers,
    deleted,
    jax,
    jax_inputs,
    jax_plans,
    launch,
    on_device,
)
from named_cases import NAMED_CASES, small_case, with_mapping, with_tokens

import kvcanary_jax
from kvcanary_jax.implementations import IMPLEMENTATIONS, resolve
from shared_ref import VerifyPlan, WritePlan
from shared_ref.conformance.case import Case, Plans
from shared_ref.conformance.strategies import LAYOUTS, cases

pytestmark = pytest.mark.usefixtures("jax_gpu")

BEST_FIRST = ("mosaic", "triton", "xla")
KERNELS = ("mosaic", "triton")

CASES = (
    "no requests, no room",
    "no requests, room for three",
    "one request",
    "one request, no room to spare",
    "a table without rows",
    "a table of the padding row alone",
    "a table without columns",
    "a table of one column",
    "a mapping of one slot",
    "a token table without rows",
    "some of everything",
    "entries that just fit",
    "one entry too many",
    "no capacity for one entry",
    "write rows to clear past the padded batch",
    "a window of 1",
    "a window past the table's end",
    "a window and tokens",
    "tokens at offset -1",
    "tokens at offset -2147483648",
    "more token rows and columns than positions",
    "odd valid lengths at offset 1",
    "odd rows, window and tokens",
    "odd prefix lengths",
    "odd prefix lengths, window",
    "extends whose sum wraps",
    "odd slots, translated",
    "everything odd",
    "padding longer than a chunk",
    "requests at the borders of chunks",
    "a crowd of short requests",
    "a batch of 600",
    "2**32 entries",
    "pages of four",
    "pages of four, translated and with tokens",
    "pages of three",
    "positions past int32 in vast pages",
    "a total of one entry too many",
    "faults of rows and lengths",
    "faults of everything",
    "faults of everything that does not fit",
)
"""Those of the named cases that are worth a compilation each."""

FEW_LAYOUTS = tuple(layout._replace(batch_sizes=layout.batch_sizes[-1:]) for layout in LAYOUTS)

RICH = small_case("rich", verify_capacity=192, **with_mapping(), **with_tokens(1))
"""Its columns are whole lines of memory: slices of a stack of them are what XLA may give to a kernel."""
CAPACITY = 4096
"""Entries of `LARGE`'s plan: no other array is as long."""
LARGE = small_case("large", verify_capacity=CAPACITY, **with_mapping(), **with_tokens(1))

LENS = np.array([[3, 0, 8, 1, 40, 0, 2, 9], [40] * 8, [2**32 + 1, -1, 0, 0, 2, 0, 0, 0], [0] * 8])
"""Prefix lengths of four steps of `RICH`; the second overflows."""

x64 = pytest.mark.parametrize("x64", [False, True], ids=["x64-off", "x64-on"])


def usable(name: str) -> str:
    """The name of an implementation that runs here; skips, and says why, for another."""
    if name not in IMPLEMENTATIONS:
        pytest.skip(f"there is no implementation {name!r}")
    if reason := IMPLEMENTATIONS[name].unavailable("gpu"):
        pytest.skip(f"{name!r} cannot run here: {reason}")
    return name


@pytest.fixture(params=BEST_FIRST)
def implementation(request: pytest.FixtureRequest, jax_gpu: Any) -> str:
    return usable(request.param)


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, jax_gpu: Any) -> str:
    return usable(request.param)


def launched(case: Case, implementation: str) -> Any:
    return launch(jax_plans(case.before), jax_inputs(case), implementation=implementation)


def launcher(case: Case, implementation: str) -> Callable[[Any, Any, Any], Any]:
    """The launch as a function of the plans and the prefix lengths."""
    inputs = jax_inputs(case)

    def step(verify: Any, write: Any, lens: Any) -> Any:
        return launch((verify, write), inputs | {"prefix_lens": lens}, implementation=implementation)

    return step


def with_lens(lens: np.ndarray, before: Plans = RICH.before) -> Case:
    """`RICH` with other prefix lengths, from any plans."""
    inputs = {**RICH.inputs.keywords(), "prefix_lens": lens}
    return Case("step", type(RICH.inputs)(**inputs), before)


def each_step() -> list[Plans]:
    """The reference's plans after every step of LENS, each from those before."""
    plans = [RICH.before]
    for lens in LENS:
        plans.append(with_lens(lens, plans[-1]).expected())
    return plans[1:]


def nth(plans: Any, i: int) -> Any:
    return jax.tree.map(lambda array: np.asarray(array)[i], plans)


def test_lens_hold_an_overflow_and_corrupt_values() -> None:
    assert [plans.verify.enable.tolist() for plans in each_step()] == [[1], [0], [1], [1]]


@pytest.mark.parametrize("name", CASES)
def test_launch_equals_the_reference(name: str, implementation: str) -> None:
    case = NAMED_CASES[name]
    assert_plans(launched(case, implementation), case.expected())


def test_launch_equals_the_reference_on_drawn_cases(implementation: str) -> None:
    @given(cases(layouts=FEW_LAYOUTS))
    @settings(max_examples=80)
    def judge(case: Case) -> None:
        assert_plans(launched(case, implementation), case.expected())

    judge()


@x64
@pytest.mark.parametrize("transform", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_launch_in_and_out_of_jit(transform: Any, x64: bool, implementation: str) -> None:
    with jax.enable_x64(x64):
        step = transform(launcher(RICH, implementation))
        plans = step(*jax_plans(RICH.before), on_device(RICH.inputs.prefix_lens))
        assert jax.config.jax_enable_x64 is x64
    assert_plans(plans, RICH.expected())


@x64
def test_scan_carries_the_plans_from_step_to_step(x64: bool, implementation: str) -> None:
    with jax.enable_x64(x64):
        launch_with = launcher(RICH, implementation)

        @jax.jit
        def run(plans: Any, lens: Any) -> Any:
            def step(plans: Any, lens: Any) -> Any:
                plans = launch_with(*plans, lens)
                return plans, plans

            return jax.lax.scan(step, plans, lens)

        former = jax_plans(RICH.before)
        last, every = run(former, on_device(LENS))
    for i, plans in enumerate(each_step()):
        assert_plans(nth(every, i), plans)
    assert_plans(last, each_step()[-1])
    assert deleted(former) == set()


@x64
@pytest.mark.parametrize("transform", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_vmap_plans_several_batches_at_once(transform: Any, x64: bool, implementation: str) -> None:
    with jax.enable_x64(x64):
        batched = jax.vmap(launcher(RICH, implementation), in_axes=(None, None, 0))
        former = jax_plans(RICH.before)
        plans = transform(batched)(*former, on_device(LENS))
    for i, lens in enumerate(LENS):
        assert_plans(nth(plans, i), with_lens(lens).expected())
    assert_plans(former, RICH.before)


@x64
def test_shard_map_over_one_device(x64: bool, implementation: str, jax_gpu: Any) -> None:
    mesh = jax.sharding.Mesh(np.array([jax_gpu]), ("shard",))
    sharded, whole = jax.sharding.PartitionSpec("shard"), jax.sharding.PartitionSpec()
    per_request = {
        k: v for k, v in jax_inputs(RICH).items() if k.endswith(("indices", "lens")) and v is not None
    }
    tables = {k: v for k, v in jax_inputs(RICH).items() if k not in per_request and hasattr(v, "dtype")}
    static = {k: v for k, v in RICH.inputs.keywords().items() if isinstance(v, int)}

    def on_shard(plans: Any, tables: Any, per_request: Any) -> Any:
        return launch(plans, {**tables, **per_request, **static}, implementation=implementation)

    def sharded_step(check_vma: bool) -> Any:
        specs = {"in_specs": (sharded, whole, sharded), "out_specs": sharded}
        return jax.jit(jax.shard_map(on_shard, mesh=mesh, check_vma=check_vma, **specs))

    with jax.enable_x64(x64):
        if implementation == "mosaic":  # Pallas takes no Refs there
            with pytest.raises(ValueError, match=r"'mosaic' cannot run here: .* check_vma=False"):
                sharded_step(check_vma=True)(jax_plans(RICH.before), tables, per_request)
        plans = sharded_step(implementation != "mosaic")(jax_plans(RICH.before), tables, per_request)
    assert_plans(plans, RICH.expected())


@x64
def test_plan_makes_fresh_plans(x64: bool, implementation: str) -> None:
    with jax.enable_x64(x64):
        plans = kvcanary_jax.plan(
            **RICH.inputs.keywords(), write_req_capacity=11, implementation=implementation
        )
    zeros = {name: np.zeros_like(buffer) for name, buffer in RICH.before.buffers().items()}
    zeros["verify_expected_tokens"] -= 1
    fresh = Plans(
        VerifyPlan(**{f.name: zeros[f.name] for f in VerifyPlan.fields()}),
        WritePlan(**{f.name: zeros[f.name] for f in WritePlan.fields()}),
    )
    assert_plans(plans, RICH._replace(before=fresh).expected())


def test_an_eager_launch_reuses_the_plans_memory(implementation: str) -> None:
    former, inputs = jax_plans(LARGE.before), jax_inputs(LARGE)
    memory = addresses(former)
    plans = launch(former, inputs, implementation=implementation)
    assert deleted(former) == set(buffers(former))
    assert addresses(plans) == memory
    assert_plans(plans, LARGE.expected())


def test_a_jitted_launch_with_donated_plans_moves_no_plan(kernel: str) -> None:
    former, lens = jax_plans(LARGE.before), on_device(LARGE.inputs.prefix_lens)
    memory = addresses(former)
    step = jax.jit(launcher(LARGE, kernel), donate_argnums=(0, 1), keep_unused=True)
    assert made_of_plan_size(step.lower(*former, lens).compile()) == []
    plans = step(*former, lens)
    assert deleted(former) == set(buffers(former))
    assert addresses(plans) == memory
    assert_plans(plans, LARGE.expected())


def test_a_jitted_launch_on_refs_moves_no_plan(kernel: str) -> None:
    refs, inputs = jax.tree.map(jax.new_ref, jax_plans(LARGE.before)), jax_inputs(LARGE)
    memory = addresses(refs)
    step = jax.jit(lambda verify, write: launch((verify, write), inputs, implementation=kernel))
    assert made_of_plan_size(step.lower(*refs).compile()) == []
    assert step(*refs) is None
    assert addresses(refs) == memory
    assert_plans(held(refs), LARGE.expected())


def made_of_plan_size(compiled: Any) -> list[str]:
    """Instructions of a compiled program that write a verify column and are not the kernel."""
    column = f"s64[{CAPACITY}]"
    lines = compiled.as_text().splitlines()
    assert any(column in line for line in lines)
    makes = re.compile(r" (copy|copy-start|fusion|broadcast|select|dynamic-update-slice|concatenate)\(")
    found = [(line, makes.search(line)) for line in lines]
    return [line.strip() for line, made in found if made and column in line[: made.start()]]


def held(refs: Any) -> Any:
    """What plans of Refs hold."""
    return jax.tree.map(lambda ref: ref[...], refs)


def test_refs_are_written_in_place_step_after_step(implementation: str) -> None:
    refs, inputs = jax.tree.map(jax.new_ref, jax_plans(RICH.before)), jax_inputs(RICH)
    for lens, expected in zip(LENS, each_step(), strict=True):
        step = inputs | {"prefix_lens": on_device(lens)}
        assert launch(refs, step, implementation=implementation) is None
        assert_plans(held(refs), expected)


def test_none_picks_the_best_that_works_here(jax_gpu: Any) -> None:
    usable_here = [name for name in BEST_FIRST if IMPLEMENTATIONS[name].unavailable("gpu") is None]
    assert resolve(None, "plan", "gpu") == usable_here[0]
    if tuple(map(int, jax_gpu.compute_capability.split("."))) >= (9, 0):
        assert usable_here[0] == "mosaic"
    traced = jax.jit(lambda *plans: launch(plans, jax_inputs(RICH))).lower(*jax_plans(RICH.before))
    named = jax.jit(lambda *plans: launch(plans, jax_inputs(RICH), implementation=usable_here[0]))
    assert custom_calls(traced) == custom_calls(named.lower(*jax_plans(RICH.before)))


def custom_calls(lowered: Any) -> list[str]:
    return re.findall(r"stablehlo\.custom_call @(\w+)", lowered.as_text())


@pytest.mark.parametrize("name", KERNELS)
def test_one_that_cannot_run_says_why(name: str) -> None:
    case, host = RICH, jax.devices("cpu")[0]
    former = jax_plans(case.before, host)
    with pytest.raises(ValueError, match=rf"^kv-canary: implementation '{name}' cannot run here: .*cpu"):
        launch(former, jax_inputs(case, host), implementation=name)
    assert_plans(former, case.before)
    plans = launch(former, jax_inputs(case, host), implementation=(name, "xla"))
    assert_plans(plans, case.expected())


@pytest.mark.parametrize(
    "name",
    ["some of everything", "a window and tokens", "everything odd", "a batch of 600", "one entry too many"],
)
@pytest.mark.usefixtures("cuda")
def test_torch_plans_equal_jax_plans_on_the_device(name: str, implementation: str) -> None:
    """Compared where they are: torch takes JAX's arrays by dlpack, and both started from the same plans."""
    pytest.importorskip("triton", reason="Triton is not installed")
    import torch
    from gpu_support import OnDevice

    case = NAMED_CASES[name]
    on_torch = OnDevice(case)
    on_torch.launch()
    plans = jax.block_until_ready(launched(case, implementation))
    of_jax = buffers(plans)
    assert on_torch.tensors().keys() == of_jax.keys()
    for field, tensor in on_torch.tensors().items():
        taken = torch.from_dlpack(of_jax[field])
        assert taken.device == tensor.device
        if taken.numel():
            assert taken.data_ptr() == of_jax[field].unsafe_buffer_pointer(), "a copy"
        assert taken.dtype == tensor.dtype
        assert torch.equal(taken, tensor), field
    written = on_torch.plans()
    assert written.digest() == case.expected().digest()
