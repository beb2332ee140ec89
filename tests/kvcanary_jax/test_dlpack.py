"""Plans and inputs between torch and JAX: the same memory and int64, or a refusal that says what to do."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fresh_python
import numpy as np
import pytest
from jax_support import WINDOW, assert_plans, buffers, jax, jax_inputs, launch, small_case

import kvcanary_jax
import shared_ref
from kvcanary_jax import dlpack
from kvcanary_jax.dlpack import from_dlpack, to_dlpack
from shared_ref.conformance.case import Case, Plans

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import kvcanary_torch  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("x64")]

CHECKOUT = Path(shared_ref.__file__).parents[1]
PAGE = (CHECKOUT / "docs" / "exchange.md").read_text()

BIG = 2**40 + 3
"""A slot that int32 cannot hold: truncated, it is 3."""

ALIGNMENT = 64
"""Bytes; JAX shares host memory only at multiples of this."""


def slots(n: int = 64) -> Any:
    """An int64 tensor at an aligned address."""
    tensor = BIG + torch.arange(n)
    assert tensor.data_ptr() % ALIGNMENT == 0
    return tensor


def as_torch(value: Any) -> Any:
    """A numpy array as a tensor of its own, which torch aligns; anything else as it is."""
    return torch.from_numpy(value).clone() if isinstance(value, np.ndarray) else value


def torch_inputs(case: Case) -> dict[str, Any]:
    """The launcher's arguments without the plans."""
    return {name: as_torch(value) for name, value in case.inputs.keywords().items()}


def torch_plans(plans: Plans) -> tuple[Any, Any]:
    return (
        kvcanary_torch.VerifyPlan(**{k: as_torch(v) for k, v in vars(plans.verify).items()}),
        kvcanary_torch.WritePlan(**{k: as_torch(v) for k, v in vars(plans.write).items()}),
    )


def addresses(plans: Any) -> dict[str, int]:
    """Where every buffer of torch's or JAX's plans lies."""
    return {
        name: b.data_ptr() if isinstance(b, torch.Tensor) else b.unsafe_buffer_pointer()
        for name, b in buffers(plans).items()
    }


# --- One array


@pytest.mark.parametrize("copy", [None, False])
def test_a_tensor_comes_to_jax_in_its_own_memory_and_dtype(copy: bool | None) -> None:
    tensor = slots()
    array = from_dlpack(tensor, copy=copy)
    assert isinstance(array, jax.Array)
    assert array.dtype == np.int64
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    assert array.tolist() == [BIG + i for i in range(64)]


def test_an_array_goes_to_torch_in_its_own_memory_and_dtype() -> None:
    array = from_dlpack(slots(), copy=True)
    tensor = to_dlpack(array, torch.from_dlpack)
    assert tensor.dtype == torch.int64
    assert tensor.data_ptr() == array.unsafe_buffer_pointer()
    assert tensor.tolist() == [BIG + i for i in range(64)]


def test_without_an_importer_an_array_is_left_to_any_framework() -> None:
    array = from_dlpack(slots())
    assert to_dlpack(array) is array
    assert np.from_dlpack(to_dlpack(array)).tolist() == [BIG + i for i in range(64)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.float32])
def test_other_dtypes_stay_what_they_are(dtype: Any) -> None:
    tensor = torch.arange(5).to(dtype)
    array = from_dlpack(tensor)
    assert str(array.dtype) == str(dtype).removeprefix("torch.")
    assert array.tolist() == [0, 1, 2, 3, 4]
    assert to_dlpack(array, torch.from_dlpack).dtype == dtype


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (3, 4), (1, 1)])
def test_shapes_stay_what_they_are(shape: tuple[int, ...]) -> None:
    array = from_dlpack(torch.zeros(shape, dtype=torch.int32))
    assert (array.shape, array.dtype) == (shape, np.int32)
    assert to_dlpack(array, torch.from_dlpack).shape == shape


def gaps_between_rows() -> Any:
    return (BIG + torch.arange(64)).reshape(8, 8)[:, :3]


NEEDS_A_COPY = {
    "unaligned": lambda: slots()[1:],
    "rows with gaps": gaps_between_rows,
    "every other element": lambda: slots()[::2],
    "one element repeated": lambda: slots()[:1].expand(5),
}


@pytest.mark.parametrize("name", NEEDS_A_COPY)
def test_what_jax_cannot_share_is_copied_whole(name: str) -> None:
    tensor = NEEDS_A_COPY[name]()
    expected = tensor.tolist()
    array = from_dlpack(tensor)
    tensor.fill_(0) if name != "one element repeated" else tensor[0].fill_(0)
    assert array.dtype == np.int64
    assert array.tolist() == expected


@pytest.mark.parametrize("name", NEEDS_A_COPY)
def test_what_jax_cannot_share_is_refused_where_a_copy_is_forbidden(name: str) -> None:
    text = "^kv-canary: the array cannot be shared with JAX without a copy: .*copy=None$"
    with pytest.raises(ValueError, match=text):
        from_dlpack(NEEDS_A_COPY[name](), copy=False)


def test_a_gpu_s_alignment_is_asked_of_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.cat([slots(), slots()])
    tensor = tensor[8 if tensor.data_ptr() % 128 == 0 else 0 :]  # at an odd multiple of 64
    monkeypatch.setattr(dlpack, "LEAST_ALIGNMENT", 128)
    with pytest.raises(ValueError, match="without a copy: its address is no multiple of 128"):
        from_dlpack(tensor, copy=False)
    array = from_dlpack(tensor)
    assert array.unsafe_buffer_pointer() != tensor.data_ptr()
    assert array.tolist() == tensor.tolist()


def test_a_copy_that_is_asked_for_is_one() -> None:
    tensor = slots()
    array = from_dlpack(tensor, copy=True)
    again = from_dlpack(array, copy=True)
    exported = to_dlpack(array, torch.from_dlpack, copy=True)
    tensor.zero_()
    exported.zero_()
    for copied in (array, again):
        assert copied.dtype == np.int64
        assert copied.tolist() == [BIG + i for i in range(64)]
    assert again.unsafe_buffer_pointer() != array.unsafe_buffer_pointer()


def test_a_copy_for_export_is_one_of_any_framework_s_array() -> None:
    array, tensor = np.arange(3), torch.arange(3)
    kvcanary_jax.to_dlpack(array, torch.from_dlpack, copy=True)[0] = 99
    kvcanary_jax.to_dlpack(tensor, np.from_dlpack, copy=True)[0] = 99
    assert (array.tolist(), tensor.tolist()) == ([0, 1, 2], [0, 1, 2])


def test_numpy_arrays_come_too_and_read_only_ones() -> None:
    array = np.arange(5) + BIG
    array.flags.writeable = False
    assert from_dlpack(array).tolist() == [BIG, BIG + 1, BIG + 2, BIG + 3, BIG + 4]
    assert from_dlpack(array).dtype == np.int64


def test_memory_lives_as_long_as_either_side() -> None:
    array, tensor = from_dlpack(slots(100_000)), to_dlpack(from_dlpack(slots(100_000)), torch.from_dlpack)
    for _ in range(3):
        torch.zeros(100_000, dtype=torch.int64)  # would take memory that was freed
    assert (array[99_999].item(), tensor[99_999].item()) == (BIG + 99_999, BIG + 99_999)


# --- Plans, faults, keywords


@pytest.mark.parametrize("changes", [{}, WINDOW], ids=["full", "window"])
def test_torch_s_plans_are_jax_plans_in_the_same_memory(changes: dict[str, Any]) -> None:
    case = small_case(**changes)
    filled = torch_plans(case.before)
    kvcanary_torch.launch_canary_plan_kernels(
        verify_plan_out=filled[0], write_plan_out=filled[1], **torch_inputs(case)
    )
    plans = from_dlpack(filled, copy=False)
    assert list(map(type, plans)) == [kvcanary_jax.VerifyPlan, kvcanary_jax.WritePlan]
    assert addresses(plans) == addresses(filled)
    assert_plans(plans, case.expected())


@pytest.mark.parametrize("changes", [{}, WINDOW], ids=["full", "window"])
def test_jax_plans_are_torch_s_in_the_same_memory(changes: dict[str, Any]) -> None:
    case = small_case(**changes)
    plans = launch(from_dlpack(torch_plans(case.before), copy=True), jax_inputs(case))
    exported = to_dlpack(plans, torch.from_dlpack)
    assert {type(buffer) for buffer in buffers(exported).values()} == {torch.Tensor}
    assert addresses(exported) == addresses(plans)
    assert_plans(exported, case.expected())
    verify = kvcanary_torch.VerifyPlan(**vars(exported[0]))
    assert verify.verify_slot_indices.dtype == torch.int64


def test_jax_plans_of_torch_s_keywords() -> None:
    case = small_case(**WINDOW)
    keywords = from_dlpack(torch_inputs(case) | {"write_req_capacity": 5, "implementation": ("xla",)})
    assert keywords["implementation"] == ("xla",)
    assert keywords["swa_window_size"] == 2
    verify, write = kvcanary_jax.plan(**keywords)
    expected = case.expected()
    assert verify.verify_slot_indices.tolist()[:4] == expected.verify.verify_slot_indices.tolist()[:4]
    assert write.write_offsets.tolist() == expected.write.write_offsets.tolist()


def test_keywords_hold_plans_and_none() -> None:
    case = small_case(req_to_verify_expected_tokens=None, req_to_verify_expected_tokens_valid_lens=None)
    verify, write = torch_plans(case.before)
    keywords = from_dlpack({"verify_plan_out": verify, "write_plan_out": write, **torch_inputs(case)})
    assert keywords["req_to_verify_expected_tokens"] is None
    assert_plans(kvcanary_jax.launch_canary_plan_kernels(**keywords), case.expected())


def test_torch_launches_on_jax_s_inputs() -> None:
    case = small_case(**WINDOW)
    verify, write = torch_plans(case.before)
    inputs = to_dlpack(jax_inputs(case), torch.from_dlpack)
    kvcanary_torch.launch_canary_plan_kernels(verify_plan_out=verify, write_plan_out=write, **inputs)
    assert_plans((verify, write), case.expected())


def test_any_object_with_the_fields_is_a_plan() -> None:
    case = small_case()
    verify, write = torch_plans(case.before)
    other = SimpleNamespace(**vars(verify), step=7)
    assert_plans((from_dlpack(other), from_dlpack(SimpleNamespace(**vars(write)))), case.before)


def test_faults_go_both_ways() -> None:
    faults = kvcanary_torch.Faults.allocate()
    faults.buffer[4] = torch.tensor([BIG, 5])
    imported = from_dlpack(faults, copy=False)
    assert type(imported) is kvcanary_jax.Faults
    assert imported.buffer.dtype == np.int64
    assert imported.buffer.unsafe_buffer_pointer() == faults.buffer.data_ptr()
    exported = to_dlpack({"faults_out": imported}, torch.from_dlpack)["faults_out"]
    assert exported.buffer.tolist() == [[0, -1]] * 4 + [[BIG, 5]] + [[0, -1]] * 3


def test_torch_s_faults_and_total_go_through_a_jax_launch() -> None:
    case = small_case(prefix_lens=np.array([3, 5, -1]))
    verify, write = torch_plans(case.before)
    keywords = from_dlpack(
        {
            "verify_plan_out": verify,
            "write_plan_out": write,
            **torch_inputs(case),
            "verify_total_out": torch.zeros(1, dtype=torch.int64),
            "faults_out": kvcanary_torch.Faults.allocate(),
        }
    )
    *_, total, faults = to_dlpack(kvcanary_jax.launch_canary_plan_kernels(**keywords), torch.from_dlpack)
    assert total.tolist() == [3]
    assert faults.buffer[:3].tolist() == [[0, -1], [1, 2 << 48], [0, -1]]


# --- What the plans are for


def fingerprint(slot: Any, previous: Any) -> Any:
    """A toy chain: of a token's position in the pool, and its predecessor's fingerprint."""
    return 31 * previous + slot


def verify_in_torch(plan: Any, pool: Any) -> list[int]:
    """Slots whose fingerprint does not follow from their predecessor's."""
    n = int(plan.verify_num_valid[0])
    slot, previous = plan.verify_slot_indices[:n], plan.verify_prev_slot_indices[:n]
    known = torch.where(previous < 0, 0, pool[previous.clamp(min=0)])
    return slot[pool[slot] != fingerprint(slot, known)].tolist()


def verify_in_jax(plan: Any, pool: Any) -> list[int]:
    with jax.enable_x64(True):
        n = int(plan.verify_num_valid[0])
        slot, previous = plan.verify_slot_indices[:n], plan.verify_prev_slot_indices[:n]
        known = jax.numpy.where(previous < 0, 0, pool[jax.numpy.maximum(previous, 0)])
        return slot[pool[slot] != fingerprint(slot, known)].tolist()


def corrupted_pool(case: Case) -> np.ndarray:
    """The fingerprints of the case's requests, but that of slot 21."""
    pool = np.zeros(40, np.int64)
    for row, length in ((2, 3), (1, 2)):
        previous = 0
        for slot in case.inputs.req_to_token[row, :length]:
            previous = pool[slot] = fingerprint(int(slot), previous)
    pool[21] += 1
    return pool


def test_a_verify_kernel_of_torch_reads_a_jax_plan_and_the_reverse() -> None:
    case = small_case()
    pool = torch.from_numpy(corrupted_pool(case))
    verify, _ = kvcanary_jax.plan(**case.inputs.keywords(), write_req_capacity=5)
    assert verify_in_torch(to_dlpack(verify, torch.from_dlpack), pool) == [21, 22]
    verify, write = torch_plans(case.before)
    kvcanary_torch.launch_canary_plan_kernels(
        verify_plan_out=verify, write_plan_out=write, **torch_inputs(case)
    )
    assert verify_in_jax(from_dlpack(verify), from_dlpack(pool)) == [21, 22]


# --- Refusals


def donated() -> Any:
    """A plan whose buffers a launch consumed."""
    case = small_case()
    plans = from_dlpack(torch_plans(case.before), copy=True)
    launch(plans, jax_inputs(case))
    return plans[1]


def on_two_devices() -> Any:
    mesh = jax.sharding.Mesh(jax.devices()[:2], "x")
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    return {"prefix_lens": jax.device_put(from_dlpack(slots()), sharding)}


NOT_EXPORTED = {
    "donated": (donated, "out_write_offsets was donated or deleted: pass the array that a launcher"),
    "a Ref": (lambda: jax.new_ref(from_dlpack(slots())), r"the array must be an array, got a jax.Ref: pass"),
    "two devices": (on_two_devices, r"prefix_lens lies on 2 devices: .*addressable_data\(0\)"),
    "a list": (lambda: [1, 2], "to_dlpack takes an array, a plan, a mapping or a tuple, got list$"),
    "half a plan": (lambda: SimpleNamespace(enable=slots()), "to_dlpack takes .*, got SimpleNamespace$"),
}


@pytest.mark.parametrize("name", NOT_EXPORTED)
def test_what_cannot_be_exported_says_why(name: str) -> None:
    make, message = NOT_EXPORTED[name]
    value = make()
    with pytest.raises(ValueError, match=f"^kv-canary: {message}"):
        to_dlpack(value, torch.from_dlpack)


def test_a_traced_array_has_nothing_to_export() -> None:
    step = jax.jit(lambda plan: to_dlpack({"plan": plan}, torch.from_dlpack))
    plan = kvcanary_jax.WritePlan.allocate(write_req_capacity=3)
    with pytest.raises(ValueError, match=r"^kv-canary: out_write_offsets is traced .* outside of jit"):
        step(plan)


class OnAnotherDevice:
    """An array on a device that JAX does not have."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0  # CUDA

    def __dlpack__(self, **keywords: Any) -> Any:
        raise AssertionError

    def clone(self) -> OnAnotherDevice:
        return self


def a_gradient() -> Any:
    return torch.ones(3, requires_grad=True)


NOT_IMPORTED = {
    "a Ref": (
        lambda: {"prefix_lens": jax.new_ref(from_dlpack(slots()))},
        "prefix_lens must be an array, got",
    ),
    "a list": (lambda: [1, 2], "from_dlpack takes an array, a plan, a mapping or a tuple, got list$"),
    "a number": (lambda: 5, "from_dlpack takes an array, a plan, a mapping or a tuple, got int$"),
    "a gradient": (lambda: (0, a_gradient()), r"item 1 cannot be brought into JAX: .*gradient"),
}


@pytest.mark.parametrize("name", NOT_IMPORTED)
def test_what_cannot_be_imported_says_why(name: str) -> None:
    make, message = NOT_IMPORTED[name]
    value = make()
    with pytest.raises(ValueError, match=f"^kv-canary: {message}"):
        from_dlpack(value)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="JAX has a device of that kind here")
def test_a_device_that_jax_does_not_have_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"^kv-canary: prefix_lens cannot be brought into JAX: .*cuda"):
        from_dlpack({"prefix_lens": OnAnotherDevice()})


def test_none_stays_none() -> None:
    assert from_dlpack(None) is None
    assert from_dlpack((None, {})) == (None, {})
    assert to_dlpack(None, torch.from_dlpack) is None


def test_the_exchange_loads_no_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None
import numpy as np
from kvcanary_jax.dlpack import from_dlpack, to_dlpack
print(np.from_dlpack(to_dlpack(from_dlpack(np.array([2**40])))))
"""
    assert fresh_python.run("-c", code) == "[1099511627776]\n"


# --- The page


@pytest.mark.parametrize("block", re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
def test_the_page_s_code_prints_what_its_comments_say(block: str) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block, "docs/exchange.md", "exec"), {})
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)
    assert promised
    assert out.getvalue().splitlines() == promised
