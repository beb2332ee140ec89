"""Plans and inputs between torch and JAX on one GPU: in the same memory, in order, and whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_support import ALIGNED, UNALIGNED, OnDevice, torch
from jax_support import assert_plans, buffers, jax, jax_inputs, jax_plans, launch
from named_cases import NAMED_CASES, small_case, with_mapping, with_tokens

import kvcanary_jax
import kvcanary_torch
from kvcanary_jax.dlpack import from_dlpack, to_dlpack
from shared_ref.schema import FaultsFields

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.usefixtures("cuda", "jax_gpu")

BIG = 2**40 + 3
"""A slot that int32 cannot hold: truncated, it is 3."""

CASES = (
    "one request",
    "some of everything",
    "one entry too many",
    "a window and tokens",
    "everything odd",
    "extends whose sum wraps",
)

SLEEP_CYCLES = 600_000_000
"""A third of a second on an H200: far longer than the host takes to exchange a plan."""

RICH = small_case("rich", verify_capacity=150, **with_mapping(), **with_tokens(1))

cases = pytest.mark.parametrize("name", CASES)


def addresses(plans: Any) -> dict[str, int]:
    """Where every buffer of torch's or JAX's plans lies."""
    return {
        name: b.data_ptr() if isinstance(b, torch.Tensor) else b.unsafe_buffer_pointer()
        for name, b in buffers(plans).items()
    }


def on_host(plans: Any) -> Any:
    """torch's plans as objects with arrays of the host. Waits for the current stream."""
    return tuple(
        type(plan)(**{name: tensor.cpu().numpy() for name, tensor in vars(plan).items()}) for plan in plans
    )


@pytest.mark.parametrize("enable_x64", [False, True], ids=["x64-off", "x64-on"])
def test_a_tensor_comes_and_goes_in_its_own_memory_and_dtype(enable_x64: bool) -> None:
    with jax.enable_x64(enable_x64):
        tensor = BIG + torch.arange(100, device="cuda")
        array = from_dlpack(tensor, copy=False)
        again = to_dlpack(array, torch.from_dlpack)
    assert (array.dtype, again.dtype) == (np.int64, torch.int64)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr() == again.data_ptr()
    assert np.asarray(array).tolist() == again.tolist() == [BIG + i for i in range(100)]


@cases
def test_torch_s_plans_are_jax_plans_in_the_same_memory(name: str) -> None:
    case = NAMED_CASES[name]
    theirs = OnDevice(case, ALIGNED)
    theirs.launch()
    plans = from_dlpack((theirs.verify, theirs.write), copy=False)
    assert list(map(type, plans)) == [kvcanary_jax.VerifyPlan, kvcanary_jax.WritePlan]
    assert addresses(plans) == addresses((theirs.verify, theirs.write))
    assert_plans(plans, case.expected())


@cases
def test_jax_plans_are_torch_s_in_the_same_memory(name: str) -> None:
    case = NAMED_CASES[name]
    plans = launch(jax_plans(case.before), jax_inputs(case))
    exported = to_dlpack(plans, torch.from_dlpack)
    assert {buffer.device.type for buffer in buffers(exported).values()} == {"cuda"}
    assert addresses(exported) == addresses(plans)
    assert_plans(on_host(exported), case.expected())


@cases
@pytest.mark.parametrize("placement", [ALIGNED, UNALIGNED], ids=["aligned", "unaligned"])
def test_jax_launches_on_torch_s_tensors(name: str, placement: Any) -> None:
    """Unaligned tensors and rows with gaps are copied: a kernel that saw them as they are would fail."""
    case = NAMED_CASES[name]
    theirs = OnDevice(case, placement)
    keywords = {"verify_plan_out": theirs.verify, "write_plan_out": theirs.write, **theirs.inputs}
    assert_plans(kvcanary_jax.launch_canary_plan_kernels(**from_dlpack(keywords)), case.expected())


@cases
def test_torch_launches_on_jax_s_inputs(name: str) -> None:
    case = NAMED_CASES[name]
    theirs = OnDevice(case)
    kvcanary_torch.launch_canary_plan_kernels(
        verify_plan_out=theirs.verify,
        write_plan_out=theirs.write,
        **to_dlpack(jax_inputs(case), torch.from_dlpack),
    )
    assert_plans(theirs.plans(), case.expected())


def test_faults_go_both_ways() -> None:
    shape = FaultsFields.SHAPE
    faults = kvcanary_torch.Faults(buffer=BIG + torch.arange(16, device="cuda").reshape(shape))
    imported = from_dlpack(faults, copy=False)
    assert type(imported) is kvcanary_jax.Faults
    assert imported.buffer.unsafe_buffer_pointer() == faults.buffer.data_ptr()
    exported = to_dlpack(imported, torch.from_dlpack)
    assert exported.buffer.cpu().numpy().tolist() == (BIG + np.arange(16)).reshape(shape).tolist()


MISPLACED = {
    "unaligned": lambda: (BIG + torch.arange(9, device="cuda"))[1:],
    "rows with gaps": lambda: (BIG + torch.arange(64, device="cuda")).reshape(8, 8)[:, :3],
}


@pytest.mark.parametrize("name", MISPLACED)
def test_what_jax_cannot_share_is_copied_or_refused(name: str) -> None:
    tensor = MISPLACED[name]()
    with pytest.raises(ValueError, match=r"^kv-canary: the array cannot be shared with JAX without a copy: "):
        from_dlpack(tensor, copy=False)
    array = from_dlpack(tensor)
    with jax.enable_x64(True):
        more = array + 1  # which XLA refuses at an address that it does not take
    assert np.asarray(more).tolist() == (tensor + 1).tolist()


def test_an_address_of_16_bytes_alignment_is_shared() -> None:
    tensor = (BIG + torch.arange(1000, device="cuda"))[2:]
    array = from_dlpack(tensor, copy=False)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    with jax.enable_x64(True):
        more = array + 1
    assert np.asarray(more).tolist() == [BIG + 3 + i for i in range(998)]


def test_a_copy_is_torch_s_to_write() -> None:
    array = from_dlpack(BIG + torch.arange(100, device="cuda"), copy=True)
    exported = to_dlpack(array, torch.from_dlpack, copy=True)
    exported.zero_()
    torch.cuda.synchronize()
    assert np.asarray(array).tolist() == [BIG + i for i in range(100)]


def test_jax_waits_for_what_torch_still_computes() -> None:
    OnDevice(RICH).launch()  # compiled from here on
    theirs = OnDevice(RICH)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(SLEEP_CYCLES)
        theirs.launch()
        plans = from_dlpack((theirs.verify, theirs.write), copy=False)
    assert_plans(plans, RICH.expected())


def test_torch_waits_for_what_jax_still_computes() -> None:
    with jax.enable_x64(True):
        matrix = jax.numpy.full((4096, 4096), 1 / 4096, jax.numpy.float32)  # its own square
        slow = jax.jit(lambda m: jax.lax.fori_loop(0, 300, lambda i, x: x @ m, m)[0, :100].astype(int) + BIG)
        slow(matrix).block_until_ready()
        array = slow(matrix)
    with torch.cuda.stream(torch.cuda.Stream()):
        tensor = to_dlpack(array, torch.from_dlpack)
        assert (tensor + 1).tolist() == [BIG + 1] * 100


def fingerprint(slot: Any, previous: Any) -> Any:
    """A toy chain: of a token's slot, and its predecessor's fingerprint."""
    return 31 * previous + slot


def test_a_verify_kernel_of_torch_reads_a_jax_plan_and_the_reverse() -> None:
    table = np.zeros((3, 4), np.int32)
    table[1, :3] = 5, 6, 7
    pool = np.zeros(10, np.int64)
    for slot, previous in ((5, 0), (6, 5), (7, 6)):
        pool[slot] = fingerprint(slot, pool[previous])
    pool[6] += 1  # the next one's chain is broken too
    inputs = {
        "req_pool_indices": torch.tensor([1, 2], device="cuda"),
        "prefix_lens": torch.tensor([3, 0], device="cuda"),
        "extend_seq_lens": torch.tensor([1, 2], device="cuda"),
        "req_to_token": torch.from_numpy(table).cuda(),
        "verify_capacity": 3,
        "write_req_capacity": 2,
    }
    on_device = torch.from_numpy(pool).cuda()

    verify, _ = to_dlpack(kvcanary_jax.plan(**from_dlpack(inputs)), torch.from_dlpack)
    slot, previous = verify.verify_slot_indices, verify.verify_prev_slot_indices
    known = torch.where(previous < 0, 0, on_device[previous.clamp(min=0)])
    assert slot[on_device[slot] != fingerprint(slot, known)].tolist() == [6, 7]

    verify, _ = from_dlpack(kvcanary_torch.plan(**inputs))
    ours = from_dlpack(on_device)
    with jax.enable_x64(True):
        slot, previous = verify.verify_slot_indices, verify.verify_prev_slot_indices
        known = jax.numpy.where(previous < 0, 0, ours[jax.numpy.maximum(previous, 0)])
        assert slot[ours[slot] != fingerprint(slot, known)].tolist() == [6, 7]
