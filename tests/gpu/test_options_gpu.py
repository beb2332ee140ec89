"""The options on the GPU: other stacks' rows and dtypes, pages, totals, and faults that accumulate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_support import OnDevice, torch
from jax_support import jax
from named_cases import NAMED_CASES
from other_stacks import NARROW, narrowed, shifted, small_inputs
from test_jax_gpu import BEST_FIRST, usable

import kvcanary_jax
import kvcanary_torch
from shared_ref import decode_faults
from shared_ref.conformance.case import Case, Plans
from shared_ref.schema import LAUNCH_PLAN, OPTIONAL_OUTPUTS

PADDING_ROWS = (0, -1, 2, None)
NO_FAULTS = np.tile(np.array([[0, -1]]), (8, 1))

padding = pytest.mark.parametrize("padding_row", PADDING_ROWS)
narrow_or_not = pytest.mark.parametrize("narrow", [(), NARROW], ids=["int64", "int32"])

pytestmark = pytest.mark.usefixtures("cuda")


def other_stacks_case() -> Case:
    """Faults of several kinds among its values."""
    inputs = small_inputs(prefix_lens=np.array([3, 9, 7, -1]))
    return Case.poisoned("other stacks", inputs, write_req_capacity=6, extras=OPTIONAL_OUTPUTS)


def expected(case: Case, padding_row: int | None) -> Plans:
    return case._replace(inputs=shifted(case.inputs, padding_row)).expected()


def on_gpu(arrays: dict[str, Any]) -> dict[str, Any]:
    return {k: torch.from_numpy(v).cuda() if isinstance(v, np.ndarray) else v for k, v in arrays.items()}


def assert_buffers(got: dict[str, Any], want: Plans) -> None:
    for name, buffer in want.buffers().items():
        have = got[name]
        np.testing.assert_array_equal(np.asarray(have.cpu() if hasattr(have, "cpu") else have), buffer, name)


@padding
@narrow_or_not
def test_torch_plan_fills_out_from_other_stacks_rows_and_dtypes(
    padding_row: int | None, narrow: tuple[str, ...]
) -> None:
    case = other_stacks_case()
    device = OnDevice(case)
    kvcanary_torch.plan(
        **on_gpu(narrowed(case.inputs, narrow)),
        padding_row=padding_row,
        out=(device.verify, device.write),
        **device.extras,
    )
    assert_buffers(device.tensors(), expected(case, padding_row))


@padding
@narrow_or_not
@pytest.mark.parametrize("implementation", BEST_FIRST)
def test_jax_plan_takes_other_stacks_rows_and_dtypes(
    implementation: str, padding_row: int | None, narrow: tuple[str, ...], jax_gpu: Any
) -> None:
    case = other_stacks_case()
    with jax.enable_x64(True):
        former = {name: jax.numpy.array(array) for name, array in case.before.extras.items()}
    verify, write, *extras = kvcanary_jax.plan(
        **narrowed(case.inputs, narrow),
        write_req_capacity=6,
        padding_row=padding_row,
        **former,
        implementation=usable(implementation),
    )
    want = expected(case, padding_row)
    entries = int(want.verify.verify_num_valid[0])
    assert int(verify.verify_num_valid[0]) == entries
    for name in ("verify_slot_indices", "verify_expected_tokens", "verify_prev_slot_indices"):
        np.testing.assert_array_equal(
            np.asarray(getattr(verify, name))[:entries], getattr(want.verify, name)[:entries], name
        )
    np.testing.assert_array_equal(np.asarray(write.write_offsets), want.write.write_offsets)
    for array, buffer in zip(extras, want.extras.values(), strict=True):
        np.testing.assert_array_equal(np.asarray(array), buffer)


@pytest.mark.parametrize("implementation", BEST_FIRST)
def test_a_jitted_step_without_x64_carries_faults_from_launch_to_launch(
    implementation: str, jax_gpu: Any
) -> None:
    """With donation, three steps; the counts grow, the places stay."""
    case, times = NAMED_CASES["faults of everything"], 3
    with jax.enable_x64(True):
        arrays = {
            k: jax.numpy.array(v) for k, v in case.inputs.keywords().items() if isinstance(v, np.ndarray)
        }
    static = {k: v for k, v in case.inputs.keywords().items() if not isinstance(v, np.ndarray)}

    def step(plans: Any, faults: Any, arrays: Any) -> Any:
        verify, write = plans
        verify, write, faults = kvcanary_jax.launch_canary_plan_kernels(
            verify_plan_out=verify,
            write_plan_out=write,
            **arrays,
            **static,
            faults_out=faults,
            implementation=usable(implementation),
        )
        return (verify, write), faults

    jitted = jax.jit(step, donate_argnums=(0, 1))
    plans = (
        kvcanary_jax.VerifyPlan.allocate(verify_capacity=case.inputs.verify_capacity),
        kvcanary_jax.WritePlan.allocate(write_req_capacity=len(case.before.write.write_seed_slot_indices)),
    )
    faults = kvcanary_jax.Faults.allocate()
    for _ in range(times):
        plans, faults = jitted(plans, faults, arrays)
    once = (
        case._replace(before=Plans(*case.before, {"faults_out": NO_FAULTS})).expected().extras["faults_out"]
    )
    np.testing.assert_array_equal(np.asarray(faults.buffer)[:, 0], times * once[:, 0])
    np.testing.assert_array_equal(np.asarray(faults.buffer)[:, 1], once[:, 1])
    assert (once[:, 0] > 0).all()


def test_faults_accumulate_over_replays_and_are_reset_inside_a_graph() -> None:
    case, times = NAMED_CASES["faults of everything"], 5
    device = OnDevice(case)
    faults = kvcanary_torch.Faults.allocate(device="cuda")
    device.extras = {"faults_out": faults.buffer}
    device.launch()
    torch.cuda.synchronize()
    graph, resetting = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        device.launch()
    with torch.cuda.graph(resetting):
        faults.reset_()
    resetting.replay()
    assert decode_faults(faults.buffer.cpu()) == []
    for _ in range(times):
        graph.replay()
    once = (
        case._replace(before=Plans(*case.before, {"faults_out": NO_FAULTS})).expected().extras["faults_out"]
    )
    got = faults.buffer.cpu().numpy()
    np.testing.assert_array_equal(got[:, 0], times * once[:, 0])
    np.testing.assert_array_equal(got[:, 1], once[:, 1])
    resetting.replay()
    np.testing.assert_array_equal(faults.buffer.cpu().numpy(), NO_FAULTS)


def test_opcheck_passes_with_the_optional_outputs() -> None:
    case = NAMED_CASES["faults of everything"]
    device = OnDevice(case)
    assert set(device.extras) == set(OPTIONAL_OUTPUTS)
    operator = getattr(torch.ops.kvcanary, LAUNCH_PLAN.name)
    torch.library.opcheck(operator, device.values_for(LAUNCH_PLAN))


def test_faults_of_a_batch_of_the_largest_size_are_counted_once_each() -> None:
    """Many programs, each with many faults: no count is lost and none is doubled."""
    rng = np.random.default_rng(5)
    bs, width = 4096, 96
    inputs = small_inputs(
        req_pool_indices=rng.integers(-2, bs + 4, bs),
        prefix_lens=rng.integers(-3, width + 9, bs),
        extend_seq_lens=rng.integers(-1, 3, bs),
        req_to_token=rng.integers(-4, 700, (bs, width), np.int32),
        swa_window_size=0,
        full_to_swa_index_mapping=np.arange(600),
        verify_capacity=bs * width,
        req_to_verify_expected_tokens=rng.integers(0, 9, (bs - 500, 60), np.int32),
        req_to_verify_expected_tokens_valid_lens=rng.integers(-2, 120, bs),
        kv_token_id_vs_position_offset=-2,
    )
    case = Case.poisoned("many faults", inputs, write_req_capacity=bs, extras=OPTIONAL_OUTPUTS)
    device = OnDevice(case)
    device.launch()
    want = case.expected()
    assert want.verify.enable[0] == 1
    assert_buffers(device.tensors(), want)
