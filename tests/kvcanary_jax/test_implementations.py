"""`implementation=`: a name, names tried in order, or the best that works here."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jax_support import (
    assert_plans,
    call_staged,
    jax,
    jax_inputs,
    jax_plans,
    launch,
    small_case,
    staged_arguments,
    switched,
)

import kvcanary_jax
from kvcanary_jax import api, gpu, implementations
from shared_ref.schema import LAUNCH_ENTRIES, LAUNCH_OFFSETS, Launcher

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The implementations, and `broken` which runs nowhere."""
    from kvcanary_jax.implementations import IMPLEMENTATIONS

    broken = IMPLEMENTATIONS["xla"]._replace(unavailable=lambda platform: f"no fuel on {platform}")
    monkeypatch.setitem(IMPLEMENTATIONS, "broken", broken)
    return IMPLEMENTATIONS


def by_launch(implementation: Any) -> Any:
    case = small_case()
    plans = launch(jax_plans(case.before), jax_inputs(case), implementation=implementation)
    assert_plans(plans, case.expected())


def by_plan(implementation: Any) -> Any:
    inputs = jax_inputs(small_case())
    verify, _ = kvcanary_jax.plan(**inputs, write_req_capacity=5, implementation=implementation)
    assert verify.verify_slot_indices.tolist() == [20, 21, 22, 10, 11, 0, 0, 0]


either = pytest.mark.parametrize("run", [by_launch, by_plan])


@either
@pytest.mark.parametrize("implementation", ["xla", ("xla",), ["xla"], None])
def test_xla_can_be_asked_for_or_left_to_choose(run: Callable[[Any], Any], implementation: Any) -> None:
    run(implementation)


@either
@pytest.mark.parametrize("implementation", ["mosiac", ("mosiac", "xla"), "XLA", ""])
def test_an_unknown_name_is_repeated_beside_the_known_ones(
    run: Callable[[Any], Any], implementation: Any, registry: dict[str, Any]
) -> None:
    unknown = implementation if isinstance(implementation, str) else implementation[0]
    with pytest.raises(ValueError, match=r"^kv-canary: implementation ") as caught:
        run(implementation)
    assert all(repr(name) in str(caught.value) for name in registry)
    assert f"got {unknown!r}" in str(caught.value)


@either
@pytest.mark.parametrize("nothing", [(), []])
def test_an_empty_sequence_is_refused(run: Callable[[Any], Any], nothing: Any) -> None:
    with pytest.raises(ValueError, match=r"^kv-canary: implementation must not be empty$"):
        run(nothing)


@either
@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("implementation", ["broken", ("broken",)])
def test_one_that_cannot_run_says_why(run: Callable[[Any], Any], implementation: Any) -> None:
    why = f"'broken' cannot run here: no fuel on {jax.default_backend()}"
    with pytest.raises(ValueError, match=rf"^kv-canary: implementation {re.escape(why)}$"):
        run(implementation)


@either
@pytest.mark.usefixtures("registry")
def test_names_are_tried_in_order(run: Callable[[Any], Any]) -> None:
    run(("broken", "xla"))


@either
def test_none_takes_the_first_that_can_run(
    run: Callable[[Any], Any], registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def plan(arguments: Any) -> Any:
        ran.append("last")
        return xla.plan(arguments)

    xla = registry["xla"]
    for name in registry:
        monkeypatch.setitem(registry, name, xla._replace(unavailable=lambda platform: "on strike"))
    last = f"last, for {run.__name__}"  # what an earlier test compiled would run untraced
    monkeypatch.setitem(registry, last, xla._replace(plan=plan))
    run(None)
    assert ran == ["last"]


@either
def test_where_none_can_run_each_reason_is_given(
    run: Callable[[Any], Any], registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, entry in registry.items():
        reason = f"{name} is on strike"
        monkeypatch.setitem(
            registry, name, entry._replace(unavailable=lambda platform, reason=reason: reason)
        )
    with pytest.raises(ValueError, match=r"^kv-canary: ") as caught:
        run(None)
    for name in registry:
        assert f"{name!r} cannot run here: {name} is on strike" in str(caught.value)


@either
@pytest.mark.parametrize("implementation", ["mosaic", "triton"])
def test_kernels_for_a_gpu_say_why_they_cannot_run_on_a_cpu(
    run: Callable[[Any], Any], implementation: str
) -> None:
    if jax.default_backend() != "cpu":
        pytest.skip(f"JAX's default platform here is {jax.default_backend()}")
    why = f"^kv-canary: implementation '{implementation}' cannot run here: it needs a CUDA GPU .* on cpu$"
    with pytest.raises(ValueError, match=why):
        run(implementation)


staged = pytest.mark.parametrize("launcher", [LAUNCH_OFFSETS, LAUNCH_ENTRIES], ids=lambda each: each.name)


@staged
def test_staged_launchers_refuse_an_unknown_name(launcher: Launcher) -> None:
    arguments = staged_arguments(small_case()) | switched(1)
    with pytest.raises(ValueError, match=r"^kv-canary: implementation must be one of .*'xla', got 'mosiac'$"):
        call_staged(launcher, arguments, implementation="mosiac")


@staged
def test_staged_launchers_run_on_the_first_that_has_them(launcher: Launcher) -> None:
    arguments = staged_arguments(small_case()) | switched(1)
    with pytest.raises(
        ValueError, match=r"^kv-canary: implementation 'mosaic' cannot run here: it has no staged launchers$"
    ):
        call_staged(launcher, arguments, implementation="mosaic")
    outputs = call_staged(launcher, arguments, implementation=("mosaic", "xla"))
    assert outputs[0].tolist()[:4] == ([0, 3, 3, 5] if launcher is LAUNCH_OFFSETS else [20, 21, 22, 10])


# While JAX traces, nobody knows where the work will run.


@pytest.mark.parametrize(
    ("default_device", "platform"),
    [(None, "tpu"), ("cpu", "cpu"), (SimpleNamespace(platform="gpu"), "gpu")],
)
def test_while_tracing_none_goes_by_the_default_device(
    default_device: Any, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def traced(array: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(api.jax, "config", SimpleNamespace(jax_default_device=default_device))
            patched.setattr(api.jax, "default_backend", lambda: "tpu")
            found.append(api._platform(array))
        return array

    jax.eval_shape(traced, np.zeros(3, np.int32))
    assert found == [platform]


def test_a_kernel_s_arrays_are_fenced_off_and_its_batches_are_launched_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the barriers XLA has let a kernel write to a slice of a larger array, and lost what it left."""
    calls = []

    def compute(arguments: dict[str, Any]) -> dict[str, Any]:
        calls.append(arguments["x"].shape)
        return {"out": arguments["x"] + arguments["n"]}

    monkeypatch.setitem(sys.modules, "kvcanary_jax.stub", SimpleNamespace(plan=compute))
    plan = implementations._lazily("stub")
    jaxpr = jax.make_jaxpr(lambda x: plan({"x": x, "n": 1}))(np.zeros(3, np.int32))
    text = str(jaxpr)
    before, _, after = text.partition(" add ")
    assert before.count("optimization_barrier") == 1
    assert after.count("optimization_barrier") == 1
    calls.clear()
    batched = jax.vmap(lambda x: plan({"x": x, "n": 1}))(np.arange(6, dtype=np.int32).reshape(2, 3))
    assert batched["out"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert set(calls) == {(3,)}
    batches = jax.make_jaxpr(jax.vmap(lambda x: plan({"x": x, "n": 1})))(np.zeros((2, 3), np.int32))
    assert "scan" in str(batches)
    assert "scan" not in text


def test_multiprocessors_are_the_cuda_gpu_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def devices(platform: str | None = None) -> list[Any]:
        if platform != "cuda":
            return [SimpleNamespace(core_count=2)]
        if not present:
            raise RuntimeError("Unknown backend cuda")
        return present

    monkeypatch.setattr(gpu.jax, "devices", devices)
    present = [SimpleNamespace(core_count=114)]
    assert gpu.multiprocessors() == 114
    present = [SimpleNamespace()]
    assert gpu.multiprocessors() == 132
    present = []
    assert gpu.multiprocessors() == 132
