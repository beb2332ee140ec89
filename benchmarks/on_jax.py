"""The jitted launcher with donated plans, as a server's step calls it, timed on JAX's default device."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kvcanary_jax import Faults, VerifyPlan, WritePlan, launch_canary_plan_kernels
from shared_ref import plan as numpy_plan
from shared_ref.conformance.case import Plans

from . import device_time
from .cases import Spec
from .settings import Settings
from .variants import PLAIN, PROFILED, Variant, inputs_of, wrong_extras, wrong_outputs

_EXTRAS: dict[str, Callable[[], Any]] = {"faults_out": Faults.allocate}
"""What a variant of `PROFILED` is given."""


def _step(outputs: tuple[Any, ...], arrays: dict[str, Any], *, names: tuple[str, ...], **static: Any) -> Any:
    return launch_canary_plan_kernels(**dict(zip(names, outputs, strict=True)), **arrays, **static)


class JaxPlan:
    """One implementation on a case: the input sets take turns, each step consumes the former outputs."""

    def __init__(
        self,
        spec: Spec,
        settings: Settings,
        implementation: str,
        variant: Variant = PLAIN,
        sets: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.spec, self.implementation, self.variant = spec, implementation, variant
        self.sets = sets or [_on_device(spec.inputs(seed).keywords()) for seed in range(settings.sets)]
        """The plain variant's arguments."""
        given = [inputs_of(variant, arguments) for arguments in self.sets]
        static = {k: v for k, v in given[0].items() if not isinstance(v, jax.Array)}
        self.inputs = [{k: v for k, v in each.items() if k not in static} for each in given]
        names = ("verify_plan_out", "write_plan_out", *variant.outputs)
        step = functools.partial(_step, names=names, **static, implementation=implementation)
        self.step: Any = jax.jit(step, donate_argnums=0)
        self.outputs: tuple[Any, ...] = (
            VerifyPlan.allocate(verify_capacity=spec.entries),
            WritePlan.allocate(write_req_capacity=spec.bs),
            *(_EXTRAS[name]() for name in variant.outputs),
        )

    def check(self) -> str | None:
        """How a step from poisoned plans differs from the reference, or None."""
        case = self.spec.case(0)
        with jax.enable_x64(True):
            plans = (
                _converted(VerifyPlan, case.before.verify, jnp.array),
                _converted(WritePlan, case.before.write, jnp.array),
            )
        self.outputs = (*plans, *self.outputs[2:])
        self.run(1)
        verify, write = self.outputs[:2]
        plans = Plans(
            _converted(numpy_plan.VerifyPlan, verify, np.asarray),
            _converted(numpy_plan.WritePlan, write, np.asarray),
            self.extras(),
        )
        return wrong_outputs(case, plans)

    def timings(self, settings: Settings) -> dict[str, float]:
        """`host_us` until a step returns, and `wall_us` until its plans are there, one after the other."""
        host, wall = [], []
        self.run(settings.batch)
        for _ in range(settings.batches):
            began = time.perf_counter()
            self._steps(settings.batch)
            returned = time.perf_counter()
            jax.block_until_ready(self.outputs)
            host.append(returned - began)
            wall.append(time.perf_counter() - began)
        scale = 1e6 / settings.batch
        return {"host_us": statistics.median(host) * scale, "wall_us": statistics.median(wall) * scale}

    def kernel_time(self, settings: Settings) -> dict[str, Any]:
        """A step's time on the device, as a profiler sees it."""
        return device_time.figures(self.run, settings)

    def variant_kernels(self, settings: Settings) -> dict[str, Any]:
        """`variant_kernels`: the same of a step with options.

        `wrong` tells what the first step of one has wrong, or the optional outputs after the last.
        """
        subjects = [self, *(self._with(variant, settings) for variant in PROFILED if variant is not PLAIN)]
        figures, wrong = {}, []
        for subject in subjects:
            name = subject.variant.name
            found = subject.check()
            figures[name] = device_time.figures(subject.run, settings)
            found = found or wrong_extras(subject.extras(), self.spec.entries)
            wrong += [] if found is None else [f"{name}: {found}"]
        return {"variant_kernels": figures, "wrong": "; ".join(wrong) or None}

    def _with(self, variant: Variant, settings: Settings) -> JaxPlan:
        return JaxPlan(self.spec, settings, self.implementation, variant, self.sets)

    def run(self, calls: int) -> None:
        """That many steps, and wait for them."""
        self._steps(calls)
        jax.block_until_ready(self.outputs)

    def _steps(self, calls: int) -> None:
        step, inputs, outputs = self.step, self.inputs, self.outputs
        sets = len(inputs)
        for i in range(calls):
            outputs = step(outputs, inputs[i % sets])
        self.outputs = outputs

    def extras(self) -> dict[str, np.ndarray]:
        """The optional outputs of the last step, by argument name."""
        return {
            name: np.asarray(getattr(array, "buffer", array))
            for name, array in zip(self.variant.outputs, self.outputs[2:], strict=True)
        }


def _converted(cls: Any, plan: Any, convert: Callable[[Any], Any]) -> Any:
    """A plan of class `cls` with each buffer of `plan` converted."""
    return cls(**{f.name: convert(getattr(plan, f.name)) for f in cls.fields()})


def _on_device(inputs: Mapping[str, Any]) -> dict[str, Any]:
    with jax.enable_x64(True):
        return {k: jnp.array(v) if isinstance(v, np.ndarray) else v for k, v in inputs.items()}
