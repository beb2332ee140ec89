"""Every way to launch on the cases of a chunk: torch call by call, JAX in one scan over them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

import kvcanary_torch
from shared_ref.backends import backends
from shared_ref.constants import VERIFY_OFFSETS_SCRATCH_LEN
from shared_ref.schema import (
    LAUNCH_ENTRIES,
    LAUNCH_OFFSETS,
    OPTIONAL_OUTPUTS,
    VerifyPlanFields,
    WritePlanFields,
)

from .chunks import Chunk, Tensors

Launched = Callable[[Chunk], Tensors]
"""Launches on every case of a chunk, from its poisoned buffers; these as they are afterwards."""

_VERIFY = [f.name for f in VerifyPlanFields.fields()]
_WRITE = [f.name for f in WritePlanFields.fields()]
_ARGUMENTS = {f.name: f.argument for plan in (VerifyPlanFields, WritePlanFields) for f in plan.fields()}


class Subject:
    """A backend, as a chunk is given to it."""

    def __init__(self, name: str, launch: Launched, calls: int = 1) -> None:
        self.name = name
        self.launch = launch
        self.calls = calls
        """Launches for each case."""


def torch_subjects(device: str) -> list[Subject]:
    """The combined launcher, and the two staged ones after each other: kernels of their own on CUDA."""
    name = "torch-triton" if device == "cuda" else "torch-cpu"
    return [Subject(name, combined), Subject(f"{name}, staged", staged, calls=2)]


def jax_subjects(device: str) -> tuple[list[Subject], dict[str, str]]:
    """Those whose arrays are on this device, and why the others are not there."""
    found, missing = [], {}
    for name, backend in backends().items():
        if name.startswith("jax-"):
            if (reason := _unavailable(backend.unavailable, device)) is not None:
                missing[name] = reason
            else:
                found.append(Subject(name, Scan(name.removeprefix("jax-"))))
    return found, missing


def _unavailable(reason: Callable[[], str | None], device: str) -> str | None:
    if (why := reason()) is not None:
        return why
    import jax

    is_here = jax.default_backend() == {"cuda": "gpu"}.get(device, device)
    return None if is_here else f"JAX's default device is {jax.devices()[0]}, not {device}"


def calls_of(chunk: Chunk, outputs: Tensors) -> Iterator[dict[str, Any]]:
    """The keywords of `launch_canary_plan_kernels` for each case, with views into `outputs`."""
    integers = chunk.integers()
    names = [*chunk.inputs, *outputs]
    views = [tensor.unbind(0) for tensor in (*chunk.inputs.values(), *outputs.values())]
    for values in zip(*views, strict=True):
        yield integers | dict(zip(names, values, strict=True))


def launch(call: dict[str, Any]) -> None:
    """One combined launch; the plans are taken out of the keywords."""
    verify = SimpleNamespace(**{name: call.pop(name) for name in _VERIFY})
    write = SimpleNamespace(**{name: call.pop(name) for name in _WRITE})
    kvcanary_torch.launch_canary_plan_kernels(verify_plan_out=verify, write_plan_out=write, **call)


def launch_staged(call: dict[str, Any], scratch: torch.Tensor) -> None:
    """The same by the staged launchers."""
    values = {_ARGUMENTS.get(name, name): value for name, value in call.items()}
    values |= {"out_verify_offsets_scratch": scratch, "verify_offsets_scratch": scratch}
    values["verify_enable"] = call["enable"]
    for launcher, function in (
        (LAUNCH_OFFSETS, kvcanary_torch.launch_plan_offsets_kernel),
        (LAUNCH_ENTRIES, kvcanary_torch.launch_plan_entries_kernel),
    ):
        names = (*launcher.tensor_names, *launcher.integer_names)
        function(**{name: values[name] for name in names if name in values})


def fresh(chunk: Chunk) -> Tensors:
    return {name: tensor.clone() for name, tensor in chunk.before.items()}


def combined(chunk: Chunk) -> Tensors:
    outputs = fresh(chunk)
    for call in calls_of(chunk, outputs):
        launch(call)
    return outputs


def staged(chunk: Chunk) -> Tensors:
    """The scratch holds what the case before has left there."""
    outputs = fresh(chunk)
    device = outputs["enable"].device
    scratch = torch.full((VERIFY_OFFSETS_SCRATCH_LEN,), -1, dtype=torch.int64, device=device)
    for call in calls_of(chunk, outputs):
        launch_staged(call, scratch)
    return outputs


class Scan:
    """`launch_canary_plan_kernels` of JAX inside a jitted `lax.scan` over a chunk's cases."""

    def __init__(self, implementation: str) -> None:
        self.implementation = implementation
        self.program = functools.cache(self._program)
        """By layout: its chunks have one size."""

    def __call__(self, chunk: Chunk) -> Tensors:
        import jax

        from kvcanary_jax import VerifyPlan, WritePlan, from_dlpack, to_dlpack

        with jax.enable_x64(True):
            before = from_dlpack(chunk.before)
            verify = VerifyPlan(**{name: before.pop(name) for name in _VERIFY})
            write = WritePlan(**{name: before.pop(name) for name in _WRITE})
            program = self.program(chunk.layout.name, tuple(chunk.integers().items()))
            outputs = program((verify, write), from_dlpack(chunk.inputs) | before)
        verify, write, *extras = to_dlpack(tuple(outputs), torch.from_dlpack)
        names = [name for name in OPTIONAL_OUTPUTS if name in chunk.before]
        return vars(verify) | vars(write) | dict(zip(names, extras, strict=True))

    def _program(self, name: str, integers: tuple) -> Any:
        import jax

        from kvcanary_jax import launch_canary_plan_kernels

        static = dict(integers) | {"implementation": self.implementation}

        def step(carry: None, case: Any) -> Any:
            (verify, write), arrays = case
            return carry, launch_canary_plan_kernels(
                verify_plan_out=verify, write_plan_out=write, **arrays, **static
            )

        return jax.jit(lambda plans, arrays: jax.lax.scan(step, None, (plans, arrays))[1])
