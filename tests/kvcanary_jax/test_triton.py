"""The Triton kernel as JAX launches it, without a GPU: stand-ins for jax-triton run it in the interpreter.

jax-triton passes a kernel's arguments differently in 0.3 and 0.4; the stand-ins know both ways, and are as
strict about them.
"""

from __future__ import annotations

import sys
import types
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from interpreted import interpreted, run
from jax_support import jax, jax_inputs, jax_plans, on_device
from named_cases import NAMED_CASES

from shared_ref.conformance.case import Case
from shared_ref.conformance.strategies import cases
from shared_ref.validation import plan_arguments

pytest.importorskip("triton", reason="Triton is not installed")

VERSIONS = ("0.3.1", "0.4.1")
MULTIPROCESSORS = 2

CASES = (
    "no requests, no room",
    "no requests, room for three",
    "one request",
    "a table without rows",
    "a table without columns",
    "a table of one column",
    "a mapping of one slot",
    "a token table without columns",
    "some of everything",
    "some of everything, translated and with tokens",
    "one entry too many",
    "no capacity and no entries",
    "write rows to clear past the padded batch",
    "a window of 1",
    "a window past the table's end",
    "a window and tokens",
    "tokens at offset 1",
    "tokens at offset -2147483648",
    "tokens at offset 2147483647",
    "more token rows and columns than positions",
    "everything odd",
    "requests at the borders of chunks",
    "a batch of 600",
)
"""Among them integers of 0, 1 and -2**31, which jax-triton types or compiles in as it likes."""


def plan(version: str, case: Case) -> tuple[dict[str, np.ndarray], list[str]]:
    """In the interpreter's process: the outputs of `kvcanary_jax.triton.plan`, and inputs that changed."""
    stand_in: Any = types.SimpleNamespace(__version__=version, triton_call=_CALLS[version])
    sys.modules["jax_triton"] = stand_in
    import kvcanary_jax.triton as implementation

    optional: dict[str, Any] = {"page_size": 1, "verify_total_out": None, "faults_out": None}
    arguments = optional | jax_inputs(case) | plan_arguments(*jax_plans(case.before))
    arguments |= {name: on_device(array) for name, array in case.before.extras.items()}
    before = {k: np.array(v) for k, v in arguments.items() if isinstance(v, jax.Array)}
    with (
        mock.patch.object(implementation, "jax_triton", stand_in),
        mock.patch.object(implementation, "multiprocessors", return_value=MULTIPROCESSORS),
        jax.enable_x64(True),
    ):
        outputs = implementation.plan(arguments)
    changed = [name for name, array in before.items() if not np.array_equal(array, arguments[name])]
    return {name: np.asarray(array) for name, array in outputs.items()}, changed


def triton_call_0_3(
    *operands: Any,
    kernel: Any,
    out_shape: Any,
    grid: Any,
    num_warps: int,
    input_output_aliases: dict[int, int],
    **constants: Any,
) -> list[jax.Array]:
    """Every output is a parameter after all inputs, also one that is an input's memory.

    `input_output_aliases` counts the arrays among the inputs.
    """
    arguments = [_copied(operand) for operand in operands]
    arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
    outputs: list[Any] = [np.full(s.shape, -7, s.dtype) for s in out_shape]
    for i, o in input_output_aliases.items():
        outputs[o] = arrays[i]
    assert [(o.shape, o.dtype) for o in outputs] == [(s.shape, s.dtype) for s in out_shape]
    _run(kernel, grid, num_warps, [*arguments, *outputs], constants, outputs)
    return [jax.numpy.asarray(output) for output in outputs]


def triton_call_0_4(
    *operands: Any, kernel: Any, out_type: Any, grid: Any, num_warps: int, **constants: Any
) -> list[jax.Array]:
    """Refs among the inputs are written in place; parameters that no input is given for are the outputs."""
    assert out_type == [], "the plan's outputs are Refs"
    arguments = [_copied(operand) for operand in operands]
    written = {i: operand for i, operand in enumerate(operands) if isinstance(operand, jax.Ref)}
    _run(kernel, grid, num_warps, arguments, constants, [arguments[i] for i in written])
    for i, ref in written.items():
        ref[...] = arguments[i]
    return []


_CALLS = dict(zip(VERSIONS, (triton_call_0_3, triton_call_0_4), strict=True))


def _copied(operand: Any) -> Any:
    """What a kernel gets for an operand: memory, or a number, compiled in if it is 1."""
    import triton.language as tl

    if isinstance(operand, jax.Array | jax.Ref):
        return np.array(operand[...])
    assert type(operand) in (int, bool, float), f"jax-triton takes no {type(operand).__name__}"
    return tl.constexpr(1) if operand == 1 else operand


def _run(
    kernel: Any,
    grid: Any,
    num_warps: int,
    arguments: list[Any],
    constants: dict[str, Any],
    outputs: list[Any],
) -> None:
    annotations = kernel.fn.__annotations__
    declared = [name for name in kernel.arg_names if annotations.get(name) == "tl.constexpr"]
    assert len(arguments) == len(kernel.arg_names) - len(declared)
    assert declared == list(kernel.arg_names[len(arguments) :])
    assert constants.keys() == set(declared)
    assert num_warps in (1, 2, 4, 8, 16, 32)
    run(kernel, grid, [*arguments, *(constants[name] for name in declared)], outputs)


def assert_plan_equals_the_reference(version: str, case: Case) -> None:
    outputs, changed = interpreted(plan, version, case)
    after = case.expected()
    expected = plan_arguments(*after) | after.extras
    assert outputs.keys() == expected.keys()
    for name, buffer in expected.items():
        assert outputs[name].dtype == buffer.dtype, name
        np.testing.assert_array_equal(outputs[name], buffer, err_msg=name)
    assert changed == []


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("version", VERSIONS)
def test_plan_equals_the_reference(version: str, name: str) -> None:
    assert_plan_equals_the_reference(version, NAMED_CASES[name])


@pytest.mark.parametrize("version", VERSIONS)
def test_plan_equals_the_reference_on_drawn_cases(version: str) -> None:
    @given(cases())
    @settings(max_examples=10, derandomize=True)
    def judge(case: Case) -> None:
        assert_plan_equals_the_reference(version, case)

    judge()
