"""What is particular to torch on the CPU: in place, without a copy, strided, on anybody's plan object."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kvcanary_torch
from shared_ref import VerifyPlan, WritePlan
from shared_ref.conformance.case import Case, PlanInputs, Plans
from shared_ref.schema import LAUNCH_ENTRIES, LAUNCH_OFFSETS
from shared_ref.validation import plan_arguments

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

POISON = 7_777_777
SCRATCH_LEN = 4097


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


WINDOW = {"swa_window_size": 2, "full_to_swa_index_mapping": np.arange(40) + 1000}


def tensors(arrays: dict[str, Any]) -> dict[str, Any]:
    """Numpy arrays as tensors of their own; anything else as it is."""
    return {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in arrays.items()}


def tensor_plans(case: Case) -> tuple[kvcanary_torch.VerifyPlan, kvcanary_torch.WritePlan]:
    verify, write = case.before
    return (
        kvcanary_torch.VerifyPlan(**tensors(vars(verify))),
        kvcanary_torch.WritePlan(**tensors(vars(write))),
    )


def launch(verify: Any, write: Any, inputs: dict[str, Any]) -> None:
    returned = kvcanary_torch.launch_canary_plan_kernels(
        verify_plan_out=verify, write_plan_out=write, **inputs
    )
    assert returned is None


def assert_plans(verify: Any, write: Any, expected: Plans) -> None:
    for plan, reference in ((verify, expected.verify), (write, expected.write)):
        for field in reference.fields():
            np.testing.assert_array_equal(
                getattr(plan, field.name).numpy(), getattr(reference, field.name), err_msg=field.name
            )


def test_fills_the_tensors_it_was_given() -> None:
    case = small_case()
    verify, write = tensor_plans(case)
    buffers = [*vars(verify).values(), *vars(write).values()]
    addresses = [buffer.data_ptr() for buffer in buffers]
    launch(verify, write, tensors(case.inputs.keywords()))
    assert [b.data_ptr() for b in (*vars(verify).values(), *vars(write).values())] == addresses
    assert verify.verify_slot_indices[:5].tolist() == [20, 21, 22, 10, 11]
    assert verify.verify_expected_tokens[:5].tolist() == [200, 201, -1, 100, 101]
    assert verify.verify_expected_positions[:5].tolist() == [0, 1, 2, 0, 1]
    assert verify.verify_prev_slot_indices[:5].tolist() == [-1, 20, 21, -1, 10]
    assert write.write_offsets.tolist() == [0, 1, 1, 3, 0, 0]
    assert write.write_seed_slot_indices[:3].tolist() == [22, -1, 11]
    assert_plans(verify, write, case.expected())


def test_fills_views_into_a_bigger_tensor_and_nothing_beside_them() -> None:
    case = small_case()
    wide, narrow = torch.full((64,), POISON, dtype=torch.int64), torch.full((8,), POISON, dtype=torch.int32)
    verify = SimpleNamespace(
        verify_slot_indices=wide[1:9],
        verify_expected_tokens=wide[10:18],
        verify_expected_positions=wide[19:27],
        verify_prev_slot_indices=wide[28:36],
        verify_num_valid=narrow[1:2],
        enable=narrow[3:4],
    )
    write = SimpleNamespace(
        write_offsets=wide[37:43],
        write_seed_slot_indices=wide[44:49],
        write_num_valid_reqs=narrow[5:6],
    )
    launch(verify, write, tensors(case.inputs.keywords()))
    p = POISON
    assert wide.tolist() == [
        *(p, 20, 21, 22, 10, 11, p, p, p),
        *(p, 200, 201, -1, 100, 101, p, p, p),
        *(p, 0, 1, 2, 0, 1, p, p, p),
        *(p, -1, 20, 21, -1, 10, p, p, p),
        *(p, 0, 1, 1, 3, 0, 0),
        *(p, 22, -1, 11, p, p),
        *[p] * 15,
    ]
    assert narrow.tolist() == [p, 5, p, 1, p, 3, p, p]


def test_copies_no_table() -> None:
    """numpy reports its allocations to tracemalloc, torch its operators to a dispatch mode."""
    from torch.utils._python_dispatch import TorchDispatchMode

    operators = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operators.append(str(func))
            return func(*args, **kwargs or {})

    case = small_case()
    inputs = tensors(case.inputs.keywords())
    for name in ("req_to_token", "req_to_verify_expected_tokens"):
        table = torch.zeros((1024, 4096), dtype=torch.int32)
        table[:4, :8] = inputs[name]
        inputs[name] = table
    verify, write = tensor_plans(case)
    with Record():
        launch(verify, write, inputs)
    tracemalloc.start()
    try:
        launch(verify, write, inputs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert set(operators) <= {"aten.detach.default"}, "a view: what `Tensor.numpy` takes"
    assert peak < 200_000, "a table has 16 MiB"
    assert_plans(verify, write, case.expected())


@pytest.mark.parametrize("window", [{}, WINDOW], ids=["full", "window"])
def test_row_strided_tables_give_the_same_plan(window: dict[str, Any]) -> None:
    case = small_case(**window)
    inputs = tensors(case.inputs.keywords())
    for name in ("req_to_token", "req_to_verify_expected_tokens"):
        wider = torch.full((6, 19), -5, dtype=torch.int32)
        wider[1:5, 3:11] = inputs[name]
        inputs[name] = wider[1:5, 3:11]
        assert inputs[name].stride() == (19, 1)
    verify, write = tensor_plans(case)
    launch(verify, write, inputs)
    assert_plans(verify, write, case.expected())


def test_every_second_row_of_a_table_is_a_table() -> None:
    case = small_case()
    inputs = tensors(case.inputs.keywords())
    taller = torch.full((8, 8), -5, dtype=torch.int32)
    taller[::2] = inputs["req_to_token"]
    verify, write = tensor_plans(case)
    launch(verify, write, inputs | {"req_to_token": taller[::2]})
    assert_plans(verify, write, case.expected())


def test_plans_are_read_by_attribute() -> None:
    case = small_case()
    verify, write = tensor_plans(case)
    foreign_verify, foreign_write = SimpleNamespace(**vars(verify)), SimpleNamespace(**vars(write))
    launch(foreign_verify, foreign_write, tensors(case.inputs.keywords()))
    assert_plans(foreign_verify, foreign_write, case.expected())


def staged(verify: Any, write: Any, inputs: dict[str, Any], scratch: Any) -> None:
    """Both staged launchers, one after the other."""
    arguments = inputs | plan_arguments(verify, write)
    arguments |= {
        "out_verify_offsets_scratch": scratch,
        "verify_offsets_scratch": scratch,
        "verify_enable": verify.enable,
    }
    for launcher in (LAUNCH_OFFSETS, LAUNCH_ENTRIES):
        names = [a.name for a in (*launcher.tensors, *launcher.integers) if a.name in arguments]
        assert getattr(kvcanary_torch, launcher.name)(**{name: arguments[name] for name in names}) is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        WINDOW | {"kv_token_id_vs_position_offset": 1},
        {"prefix_lens": np.array([8, 0, 3])},
        {"req_pool_indices": np.array([2**32 + 1, -(2**63), 3]), "prefix_lens": np.array([2, 2, 2**40])},
    ],
    ids=["full", "window", "overflow", "corrupt"],
)
def test_staged_one_after_the_other_equals_the_combined_launch(changes: dict[str, Any]) -> None:
    case = small_case(**changes)
    verify, write = tensor_plans(case)
    staged(verify, write, tensors(case.inputs.keywords()), torch.zeros(SCRATCH_LEN, dtype=torch.int64))
    assert_plans(verify, write, case.expected())


def test_the_scratch_gets_the_prefix_sum_and_no_more() -> None:
    case = small_case()
    scratch = torch.full((SCRATCH_LEN + 3,), POISON, dtype=torch.int64)
    staged(*tensor_plans(case), tensors(case.inputs.keywords()), scratch)
    assert scratch[:4].tolist() == [0, 3, 3, 5]
    assert (scratch[4:] == POISON).all()


def test_a_window_without_a_mapping_is_legal_when_staged() -> None:
    case = small_case(swa_window_size=2)
    verify, write = tensor_plans(case)
    staged(verify, write, tensors(case.inputs.keywords()), torch.zeros(SCRATCH_LEN, dtype=torch.int64))
    assert verify.verify_slot_indices[:4].tolist() == [21, 22, 10, 11]
    assert verify.verify_prev_slot_indices[:4].tolist() == [20, 21, -1, 10]
    assert verify.verify_num_valid.tolist() == [4]


def test_the_entries_launcher_trusts_only_the_switch() -> None:
    """Whatever the scratch holds, the columns are right; with `verify_enable` 0 they are left alone."""
    case = small_case()
    inputs = tensors(case.inputs.keywords())
    scratch = torch.full((SCRATCH_LEN,), 2**62, dtype=torch.int64)
    names = [a.name for a in (*LAUNCH_ENTRIES.tensors, *LAUNCH_ENTRIES.integers)]
    for switch, expected in ((0, case.before), (1, case.expected()), (-3, case.expected())):
        verify, write = tensor_plans(case)
        arguments = inputs | plan_arguments(verify, write)
        arguments |= {"verify_offsets_scratch": scratch}
        arguments |= {"verify_enable": torch.tensor([switch], dtype=torch.int32)}
        kvcanary_torch.launch_plan_entries_kernel(
            **{name: arguments[name] for name in names if name in arguments}
        )
        for column in ("slot_indices", "expected_tokens", "expected_positions", "prev_slot_indices"):
            field = f"verify_{column}"
            assert getattr(verify, field).tolist() == getattr(expected.verify, field).tolist()


def test_torch_compile_keeps_both_launches_in_one_graph_and_sees_what_they_write() -> None:
    """`aot_eager` drops or reorders what a launch that hid its mutations would need."""
    case = small_case(**WINDOW)
    inputs = tensors(case.inputs.keywords())
    combined, in_stages = tensor_plans(case), tensor_plans(case)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(lens: Any, scratch: Any) -> Any:
        launch(*combined, inputs | {"prefix_lens": lens})
        staged(*in_stages, inputs | {"prefix_lens": lens}, scratch)
        return combined[0].verify_slot_indices + in_stages[0].verify_slot_indices

    doubled = step(inputs["prefix_lens"], torch.zeros(SCRATCH_LEN, dtype=torch.int64))
    assert doubled[:4].tolist() == [2042, 2044, 2020, 2022]
    assert_plans(*combined, case.expected())
    assert_plans(*in_stages, case.expected())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("plans", ["swapped", "none"])
def test_torch_compile_refuses_plans_that_are_none(plans: str, backend: str) -> None:
    """An op that writes to nothing would be left out of the graph, and nobody would hear of it."""
    case = small_case()
    inputs = tensors(case.inputs.keywords())
    verify, write = tensor_plans(case) if plans == "none" else tensor_plans(case)[::-1]
    if plans == "none":
        verify = write = SimpleNamespace()
    text = "out_verify_slot_indices must be a torch.Tensor, got NoneType"
    with pytest.raises(Exception, match=text):
        torch.compile(lambda: launch(verify, write, inputs), backend=backend)()
    del inputs["verify_capacity"]
    with pytest.raises(Exception, match=text):
        torch.compile(lambda: kvcanary_torch.plan(**inputs, out=(verify, write)), backend=backend)()


@pytest.mark.parametrize("name", ["verify_capacity", "write_req_capacity"])
def test_torch_compile_refuses_a_negative_capacity_by_its_name(name: str) -> None:
    inputs = tensors(small_case().inputs.keywords()) | {"write_req_capacity": 5, name: -1}
    with pytest.raises(Exception, match=f"kv-canary: {name} must be non-negative, got -1"):
        torch.compile(lambda: kvcanary_torch.plan(**inputs), backend="eager", fullgraph=True)()


@pytest.mark.parametrize("strange", ["on another device", "of another dtype", "with a gradient"])
def test_valid_lens_without_a_token_table_are_not_looked_at(strange: str) -> None:
    case = small_case(req_to_verify_expected_tokens=None)
    lens = {
        "on another device": torch.zeros(3, dtype=torch.int64, device="meta"),
        "of another dtype": torch.zeros(3, dtype=torch.bfloat16),
        "with a gradient": torch.zeros(3, requires_grad=True),
    }[strange]
    verify, write = tensor_plans(case)
    inputs = tensors(case.inputs.keywords()) | {"req_to_verify_expected_tokens_valid_lens": lens}
    launch(verify, write, inputs)
    assert_plans(verify, write, case.expected())


def test_a_call_is_not_taken_for_one_with_other_strides() -> None:
    """The description by which calls are remembered has the strides of what is not contiguous."""
    case = small_case(req_to_verify_expected_tokens=None)
    inputs = tensors(case.inputs.keywords())
    cells = torch.arange(200, dtype=torch.int32)
    for stride in (9, 12):
        table = cells.as_strided((4, 8), (stride, 1))
        verify, write = tensor_plans(case)
        launch(verify, write, inputs | {"req_to_token": table})
        assert verify.verify_slot_indices[:5].tolist() == [
            *range(2 * stride, 2 * stride + 3),
            stride,
            stride + 1,
        ]
    verify, write = tensor_plans(case)
    with pytest.raises(ValueError, match="req_to_token row stride must be at least 8, got 2"):
        launch(verify, write, inputs | {"req_to_token": cells.as_strided((4, 8), (2, 1))})


def test_a_device_without_a_kernel_is_refused() -> None:
    case = small_case()
    verify, write = tensor_plans(case)

    def to_meta(arrays: dict[str, Any]) -> dict[str, Any]:
        return {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in arrays.items()}

    inputs = to_meta(tensors(case.inputs.keywords()))
    verify, write = SimpleNamespace(**to_meta(vars(verify))), SimpleNamespace(**to_meta(vars(write)))
    scratch = torch.zeros(SCRATCH_LEN, dtype=torch.int64, device="meta")
    with pytest.raises(ValueError, match=r"^kv-canary: launch_canary_plan_kernels .*cpu.*cuda.*meta"):
        launch(verify, write, inputs)
    with pytest.raises(ValueError, match=r"^kv-canary: launch_plan_offsets_kernel .*cpu.*cuda.*meta"):
        staged(verify, write, inputs, scratch)


@pytest.mark.parametrize("name", ["req_pool_indices", "req_to_token", "req_to_verify_expected_tokens"])
def test_a_tensor_on_another_device_leaves_the_plans_as_they_were(name: str) -> None:
    case = small_case()
    verify, write = tensor_plans(case)
    inputs = tensors(case.inputs.keywords())
    with pytest.raises(ValueError, match=f"^kv-canary: {name} must be on .* device cpu, got meta$"):
        launch(verify, write, inputs | {name: inputs[name].to("meta")})
    assert_plans(verify, write, case.before)


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")], ids=repr)
def test_allocate_makes_enabled_plans(device: Any) -> None:
    verify = kvcanary_torch.VerifyPlan.allocate(verify_capacity=10, device=device)
    write = kvcanary_torch.WritePlan.allocate(write_req_capacity=3, device=device)
    assert verify.enable.tolist() == [1]
    assert {name: (tuple(t.shape), t.dtype) for name, t in (vars(verify) | vars(write)).items()} == {
        "verify_slot_indices": ((10,), torch.int64),
        "verify_expected_tokens": ((10,), torch.int64),
        "verify_expected_positions": ((10,), torch.int64),
        "verify_prev_slot_indices": ((10,), torch.int64),
        "verify_num_valid": ((1,), torch.int32),
        "enable": ((1,), torch.int32),
        "write_offsets": ((4,), torch.int64),
        "write_seed_slot_indices": ((3,), torch.int64),
        "write_num_valid_reqs": ((1,), torch.int32),
    }
    assert all(t.device.type == "cpu" for t in (vars(verify) | vars(write)).values())


def test_allocate_puts_every_buffer_on_the_device() -> None:
    by_argument = (
        kvcanary_torch.VerifyPlan.allocate(verify_capacity=10, device="meta"),
        kvcanary_torch.WritePlan.allocate(write_req_capacity=3, device=torch.device("meta")),
    )
    with torch.device("meta"):
        by_default = (
            kvcanary_torch.VerifyPlan.allocate(verify_capacity=10),
            kvcanary_torch.WritePlan.allocate(write_req_capacity=3),
        )
    for plan in (*by_argument, *by_default):
        assert {t.device.type for t in vars(plan).values()} == {"meta"}


def test_allocated_plans_share_no_memory() -> None:
    verify = kvcanary_torch.VerifyPlan.allocate(verify_capacity=1)
    write = kvcanary_torch.WritePlan.allocate(write_req_capacity=1)
    addresses = [t.data_ptr() for t in (vars(verify) | vars(write)).values()]
    assert len(set(addresses)) == 9


@pytest.mark.parametrize("capacity", [0, -1])
def test_allocate_refuses_a_capacity_below_one(capacity: int) -> None:
    text = f"^kv-canary: VerifyPlan verify_capacity must be positive, got {capacity}$"
    with pytest.raises(ValueError, match=text):
        kvcanary_torch.VerifyPlan.allocate(verify_capacity=capacity, device="cpu")
    text = f"^kv-canary: WritePlan write_req_capacity must be positive, got {capacity}$"
    with pytest.raises(ValueError, match=text):
        kvcanary_torch.WritePlan.allocate(write_req_capacity=capacity, device="cpu")


def test_allocation_bytes_is_what_allocate_takes() -> None:
    verify = kvcanary_torch.VerifyPlan.allocate(verify_capacity=10)
    write = kvcanary_torch.WritePlan.allocate(write_req_capacity=3)
    assert kvcanary_torch.VerifyPlan.allocation_bytes(10) == 4 * 10 * 8 + 2 * 4
    assert kvcanary_torch.WritePlan.allocation_bytes(3) == (4 + 3) * 8 + 4
    assert sum(t.nbytes for t in vars(verify).values()) == 328
    assert sum(t.nbytes for t in vars(write).values()) == 60


def test_torch_plans_have_the_fields_of_the_numpy_ones() -> None:
    assert kvcanary_torch.VerifyPlan.fields() == VerifyPlan.fields()
    assert kvcanary_torch.WritePlan.fields() == WritePlan.fields()


@pytest.mark.parametrize(
    ("window", "mapping", "answer"),
    [
        (0, None, True),
        (-1, None, True),
        (1, None, False),
        (1, [5, 6], True),
        (1, [], True),
        (0, [5, 6], True),
    ],
)
def test_has_swa_mapping(window: int, mapping: list[int] | None, answer: bool) -> None:
    tensor = None if mapping is None else torch.tensor(mapping, dtype=torch.int64)
    assert kvcanary_torch.has_swa_mapping(window, tensor) is answer
