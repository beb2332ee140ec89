"""The jitted launcher with donated plans, as a server's step calls it, timed on JAX's default device."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kvcanary_jax import VerifyPlan, WritePlan, launch_canary_plan_kernels
from shared_ref import plan as numpy_plan
from shared_ref.conformance.case import PlanInputs, Plans

from . import device_time
from .cases import Spec, difference
from .settings import Settings


def _step(plans: tuple[VerifyPlan, WritePlan], arrays: dict[str, Any], **static: Any) -> Any:
    verify, write = plans
    return launch_canary_plan_kernels(verify_plan_out=verify, write_plan_out=write, **arrays, **static)


class JaxPlan:
    """One implementation on a case: the input sets take turns, each step consumes the former plans."""

    def __init__(self, spec: Spec, settings: Settings, implementation: str) -> None:
        self.spec = spec
        inputs = [spec.inputs(seed) for seed in range(settings.sets)]
        static = {k: v for k, v in inputs[0].keywords().items() if not isinstance(v, np.ndarray)}
        step = functools.partial(_step, **static, implementation=implementation)
        self.step: Any = jax.jit(step, donate_argnums=0)
        self.inputs = [_arrays(each) for each in inputs]
        self.plans: Any = (
            VerifyPlan.allocate(verify_capacity=spec.entries),
            WritePlan.allocate(write_req_capacity=spec.bs),
        )

    def check(self) -> str | None:
        """How a step from poisoned plans differs from the reference, or None."""
        case = self.spec.case(0)
        with jax.enable_x64(True):
            self.plans = (
                _converted(VerifyPlan, case.before.verify, jnp.array),
                _converted(WritePlan, case.before.write, jnp.array),
            )
        self.run(1)
        verify, write = self.plans
        plans = Plans(
            _converted(numpy_plan.VerifyPlan, verify, np.asarray),
            _converted(numpy_plan.WritePlan, write, np.asarray),
        )
        return difference(case, plans)

    def timings(self, settings: Settings) -> dict[str, float]:
        """`host_us` until a step returns, and `wall_us` until its plans are there, one after the other."""
        host, wall = [], []
        self.run(settings.batch)
        for _ in range(settings.batches):
            began = time.perf_counter()
            self._steps(settings.batch)
            returned = time.perf_counter()
            jax.block_until_ready(self.plans)
            host.append(returned - began)
            wall.append(time.perf_counter() - began)
        scale = 1e6 / settings.batch
        return {"host_us": statistics.median(host) * scale, "wall_us": statistics.median(wall) * scale}

    def kernel_time(self, settings: Settings) -> dict[str, Any]:
        """A step's time on the device, as a profiler sees it."""
        return device_time.figures(self.run, settings)

    def run(self, calls: int) -> None:
        """That many steps, and wait for them."""
        self._steps(calls)
        jax.block_until_ready(self.plans)

    def _steps(self, calls: int) -> None:
        step, inputs, plans = self.step, self.inputs, self.plans
        sets = len(inputs)
        for i in range(calls):
            plans = step(plans, inputs[i % sets])
        self.plans = plans


def _converted(cls: Any, plan: Any, convert: Callable[[Any], Any]) -> Any:
    """A plan of class `cls` with each buffer of `plan` converted."""
    return cls(**{f.name: convert(getattr(plan, f.name)) for f in cls.fields()})


def _arrays(inputs: PlanInputs) -> dict[str, jax.Array]:
    with jax.enable_x64(True):
        return {k: jnp.array(v) for k, v in inputs.keywords().items() if isinstance(v, np.ndarray)}
