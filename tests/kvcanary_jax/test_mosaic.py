"""The Pallas kernel without a GPU: its arithmetic on a machine of numpy, and what it lowers to."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from named_cases import NAMED_CASES
from other_stacks import NARROW, narrowed, shifted, small_inputs

from kvcanary_jax import mosaic
from shared_ref.conformance.case import Case
from shared_ref.schema import PLAN_INPUTS, PLAN_OUTPUTS
from shared_ref.validation import plan_arguments

TILE = 16
PROGRAMS = 3


class NumpyMachine:
    """What `_Machine` does, on numpy arrays; a flat index must be in bounds or negative."""

    def iota(self, n: int) -> jax.Array:
        return jnp.arange(n, dtype=jnp.int32)

    def load(self, ref: np.ndarray, index: jax.Array, other: int) -> jax.Array:
        at = np.asarray(index)
        assert at.max(initial=-1) < ref.size
        return jnp.asarray(np.where(at >= 0, ref.reshape(-1)[np.maximum(at, 0)], other).astype(ref.dtype))

    def store(self, ref: np.ndarray, index: jax.Array, value: Any, combine: str = "") -> None:
        at = np.asarray(index)
        written = at[at >= 0]
        assert written.max(initial=-1) < ref.size
        assert len(np.unique(written)) == len(written)
        values, flat = np.broadcast_to(np.asarray(value), at.shape)[at >= 0], ref.reshape(-1)
        if combine == "add":
            flat[written] += values
        elif combine == "min":
            smallest = np.minimum(flat[written].view(np.uint64), values.view(np.uint64))
            flat[written] = smallest.view(np.int64)
        else:
            assert combine == ""
            flat[written] = values

    def chunk_sums(self, values: jax.Array) -> jax.Array:
        sums = values.reshape(-1, mosaic.WARPGROUP).sum(1)
        return jnp.pad(sums, (0, mosaic.WARPGROUP - len(sums)))

    def scan(self, values: jax.Array) -> jax.Array:
        return jnp.cumsum(values)


def launch(*, verify_plan_out: Any, write_plan_out: Any, **keywords: Any) -> None:
    arguments = plan_arguments(verify_plan_out, write_plan_out) | keywords
    refs: dict[str, Any] = {k: v for k, v in arguments.items() if isinstance(v, np.ndarray)}
    integers = {"page_size": 1, "padding_row": 0}
    integers |= {k: v for k, v in keywords.items() if isinstance(v, int | None)}
    with jax.enable_x64(True), jax.disable_jit():
        planner = mosaic._Program(refs, integers, TILE, NumpyMachine())
        for writer in range(-(-planner.bs // mosaic.WARPGROUP)):
            planner.write_rows(jnp.int32(writer))
        for program in range(PROGRAMS):
            planner.entries(jnp.int32(program), PROGRAMS)


def is_for_the_kernel(case: Case) -> bool:
    """Empty operands and enormous tables are left to XLA."""
    arrays = [v for v in case.inputs.keywords().values() if isinstance(v, np.ndarray)]
    positions = case.inputs.req_to_token.shape[1] * case.inputs.page_size
    arrays += case.before.buffers().values()
    return positions < 2**31 - TILE and all(0 < a.size < 2**24 for a in arrays)


CASES = {name: case for name, case in NAMED_CASES.items() if is_for_the_kernel(case)}


def test_most_named_cases_are_for_the_kernel() -> None:
    assert len(CASES) >= 45


@pytest.mark.parametrize("large_batch", [512, 1], ids=["strided units", "walked units"])
@pytest.mark.parametrize("name", CASES)
def test_arithmetic_equals_the_reference(
    name: str, large_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mosaic, "LARGE_BATCH", large_batch)
    case = CASES[name]
    plans, expected = case.run(launch), case.expected()
    for field, buffer in expected.buffers().items():
        np.testing.assert_array_equal(plans.buffers()[field], buffer, err_msg=field)


@pytest.mark.parametrize("narrow", [(), NARROW], ids=["int64", "int32"])
@pytest.mark.parametrize("padding_row", [0, -1, 2, None])
def test_arithmetic_takes_other_stacks_rows_and_dtypes(
    padding_row: int | None, narrow: tuple[str, ...]
) -> None:
    inputs = small_inputs(prefix_lens=np.array([3, 9, 7, -1]))
    extras = ("verify_total_out", "faults_out")
    case = Case.poisoned("other stacks", inputs, write_req_capacity=6, extras=extras)
    expected = case._replace(inputs=shifted(inputs, padding_row)).expected()
    plans = case.before.copy()
    launch(
        verify_plan_out=plans.verify,
        write_plan_out=plans.write,
        padding_row=padding_row,
        **narrowed(inputs, narrow),
        **plans.extras,
    )
    for field, buffer in expected.buffers().items():
        np.testing.assert_array_equal(plans.buffers()[field], buffer, err_msg=field)


def arguments_of(case: Case) -> dict[str, Any]:
    optional = {"page_size": 1, "verify_total_out": None, "faults_out": None}
    arguments = optional | plan_arguments(*case.before) | case.inputs.keywords() | case.before.extras
    return {k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}


@pytest.mark.parametrize(
    "name",
    [
        "some of everything",
        "a window and tokens",
        "a batch of 600",
        "pages of four, translated and with tokens",
        "pages of three",
        "a total that just fits",
        "faults of everything",
    ],
)
def test_it_lowers_to_one_kernel_that_writes_the_former_plans(name: str) -> None:
    """Lowered where x64 is off, as a user's jit does it."""
    case = NAMED_CASES[name]
    with jax.enable_x64(True):
        arguments = arguments_of(case)
    arrays = {k: v for k, v in arguments.items() if isinstance(v, jax.Array)}
    others = {k: v for k, v in arguments.items() if k not in arrays}

    def step(arrays: dict[str, Any]) -> Any:
        with jax.enable_x64(True):
            return jax.jit(lambda arrays: mosaic.plan(arrays | others))(arrays)

    text = jax.jit(step).trace(arrays).lower(lowering_platforms=("cuda",)).as_text()
    assert len(re.findall(r"custom_call @mosaic_gpu", text)) == 1
    assert text.count("output_operand_alias<") == len(PLAN_OUTPUTS) + len(case.before.extras)


@pytest.mark.parametrize("empty", ["verify_capacity", "bs", "table"])
def test_empty_operands_are_left_to_xla(empty: str) -> None:
    case = NAMED_CASES["some of everything"]
    with jax.enable_x64(True):
        arguments = arguments_of(case)
        if empty == "verify_capacity":
            arguments["verify_capacity"] = 0
            for name in mosaic.COLUMNS:
                arguments[name] = arguments[name][:0]
        elif empty == "bs":
            for name in PLAN_INPUTS:
                if name.endswith(("indices", "lens")) and arguments[name] is not None:
                    arguments[name] = arguments[name][:0]
        else:
            arguments["req_to_token"] = arguments["req_to_token"][:, :0]
        got, expected = mosaic.plan(arguments), mosaic.xla.plan(arguments)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


@pytest.mark.parametrize("bs", [3, 600])
def test_a_table_whose_last_unit_could_pass_int32_is_xla_s(bs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel(Exception):
        pass

    def kernel(*arguments: Any, **keywords: Any) -> None:
        raise Kernel

    monkeypatch.setattr(mosaic.xla, "plan", lambda arguments: "xla")
    monkeypatch.setattr(mosaic.pl, "kernel", kernel)
    ones = np.ones(bs, np.int64)
    lens = dict.fromkeys(("req_pool_indices", "prefix_lens", "extend_seq_lens"), ones)
    inputs = small_inputs(**lens, req_to_verify_expected_tokens_valid_lens=ones, swa_window_size=0)
    case = Case.poisoned("vast", inputs, write_req_capacity=bs)
    arguments = {"verify_total_out": None, "faults_out": None, "page_size": 1} | inputs.keywords()
    arguments |= plan_arguments(*case.before)
    with jax.enable_x64(True):
        arguments = {k: jnp.array(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
        monkeypatch.setattr(mosaic, "max_seq_len", lambda arguments: 2**31 - 256)
        assert mosaic.plan(arguments) == "xla"
        monkeypatch.setattr(mosaic, "max_seq_len", lambda arguments: 2**31 - 257)
        with pytest.raises(Kernel):
            mosaic.plan(arguments)
