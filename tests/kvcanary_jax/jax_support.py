"""A small batch that reads at a glance, and the way between numpy cases and JAX arrays.

Test modules take `jax` from here, so that all of them are skipped where it is not installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvcanary_jax
from shared_ref.conformance.case import Case, PlanInputs, Plans
from shared_ref.schema import Launcher
from shared_ref.validation import plan_arguments

jax = pytest.importorskip("jax", reason="JAX is not installed")

WINDOW = {"swa_window_size": 2, "full_to_swa_index_mapping": np.arange(40) + 1000}


def small_case(**changes: Any) -> Case:
    """Slot of (row, position) is 10 * row + position, token 100 * row + position; plans are poisoned."""
    row, position = np.ogrid[:4, :8]
    inputs = {
        "req_pool_indices": np.array([2, 0, 1]),
        "prefix_lens": np.array([3, 5, 2]),
        "extend_seq_lens": np.array([1, 9, 2]),
        "req_to_token": (10 * row + position).astype(np.int32),
        "verify_capacity": 8,
        "req_to_verify_expected_tokens": (100 * row + position).astype(np.int32),
        "req_to_verify_expected_tokens_valid_lens": np.array([2, 8, 8]),
    }
    return Case.poisoned("small", PlanInputs(**inputs | changes), write_req_capacity=5)


def on_device(value: Any, device: Any = None) -> Any:
    """A numpy array as a JAX array of its own that keeps its dtype; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    with jax.enable_x64(True):
        return jax.numpy.array(value, device=device)


def jax_inputs(case: Case, device: Any = None) -> dict[str, Any]:
    """The launcher's arguments without the plans; the optional outputs among them."""
    arguments = case.inputs.keywords() | case.before.extras
    return {name: on_device(value, device) for name, value in arguments.items()}


def jax_plans(plans: Plans, device: Any = None) -> tuple[kvcanary_jax.VerifyPlan, kvcanary_jax.WritePlan]:
    return (
        kvcanary_jax.VerifyPlan(**{k: on_device(v, device) for k, v in vars(plans.verify).items()}),
        kvcanary_jax.WritePlan(**{k: on_device(v, device) for k, v in vars(plans.write).items()}),
    )


def launch(plans: tuple[Any, Any], inputs: dict[str, Any], **more: Any) -> Any:
    """`launch_canary_plan_kernels` on a pair of plans."""
    verify, write = plans
    return kvcanary_jax.launch_canary_plan_kernels(
        verify_plan_out=verify, write_plan_out=write, **inputs, **more
    )


def staged_arguments(case: Case) -> dict[str, Any]:
    """What the staged launchers take, but for what lies between them; the scratch holds -9."""
    scratch = {"out_verify_offsets_scratch": on_device(np.full(4100, -9))}
    return jax_inputs(case) | plan_arguments(*jax_plans(case.before)) | scratch


def switched(enable: int) -> dict[str, Any]:
    """What lies between the staged launchers: a scratch that holds nonsense, and the switch."""
    return {
        "verify_offsets_scratch": on_device(np.full(4097, 2**62)),
        "verify_enable": on_device(np.array([enable], np.int32)),
    }


def call_staged(launcher: Launcher, arguments: dict[str, Any], **more: Any) -> Any:
    """A staged launcher on those of `arguments` that it takes."""
    names = [a.name for a in (*launcher.tensors, *launcher.integers) if a.name in arguments]
    return getattr(kvcanary_jax, launcher.name)(**{name: arguments[name] for name in names}, **more)


def buffers(plans: tuple[Any, Any]) -> dict[str, Any]:
    """Every buffer of both plans by field name."""
    return {name: buffer for plan in plans for name, buffer in vars(plan).items()}


def addresses(plans: tuple[Any, Any]) -> dict[str, int]:
    return {name: buffer.unsafe_buffer_pointer() for name, buffer in buffers(plans).items()}


def deleted(plans: tuple[Any, Any]) -> set[str]:
    """Names of the fields whose buffers were consumed."""
    return {name for name, buffer in buffers(plans).items() if buffer.is_deleted()}


def assert_plans(got: tuple[Any, Any], expected: Plans) -> None:
    """Every field of the contract: its dtype and its elements; then the optional outputs."""
    got, extras = got[:2], got[2:]
    for (name, array), have in zip(expected.extras.items(), extras, strict=True):
        np.testing.assert_array_equal(np.asarray(have), array, err_msg=name)
    for plan, reference in zip(got, expected, strict=True):
        for field in reference.fields():
            buffer = np.asarray(getattr(plan, field.name))
            assert buffer.dtype == field.dtype, field.name
            np.testing.assert_array_equal(buffer, getattr(reference, field.name), err_msg=field.name)
