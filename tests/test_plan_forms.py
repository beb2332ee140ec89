"""`plan` of torch and JAX on the rows and dtypes of other stacks, against the launcher's reference."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from other_stacks import NARROW, narrowed, shifted, small_inputs

from shared_ref import VerifyPlan, WritePlan
from shared_ref.conformance.case import Case, PlanInputs, Plans
from shared_ref.conformance.strategies import LAYOUTS, cases

Form = Callable[..., tuple[Any, ...]]


def fresh(verify_capacity: int, write_req_capacity: int) -> Plans:
    """What `plan` fills: zeros, and tokens that are not checked."""

    def zeros(plan: Any, capacity: int) -> Any:
        return plan(**{f.name: np.zeros(f.length.of(capacity), f.dtype) for f in plan.fields()})

    plans = Plans(zeros(VerifyPlan, verify_capacity), zeros(WritePlan, write_req_capacity))
    plans.verify.verify_expected_tokens[:] = -1
    return plans


def expected(case: Case, padding_row: int | None) -> dict[str, np.ndarray]:
    return case._replace(inputs=shifted(case.inputs, padding_row)).expected().buffers()


def torch_plan(inputs: dict[str, Any], extras: dict[str, np.ndarray], **more: Any) -> dict[str, np.ndarray]:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import kvcanary_torch

    tensors = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in inputs.items()}
    written = {k: torch.from_numpy(v.copy()) for k, v in extras.items()}
    verify, write = kvcanary_torch.plan(**tensors, **written, **more)
    return {k: v.numpy() for k, v in (vars(verify) | vars(write) | written).items()}


def jax_plan(
    inputs: dict[str, Any], extras: dict[str, np.ndarray], implementation: str = "xla", **more: Any
) -> dict[str, np.ndarray]:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    import kvcanary_jax

    with jax.enable_x64(True):
        former = {k: jax.numpy.array(v) for k, v in extras.items()}
    verify, write, *after = kvcanary_jax.plan(**inputs, **former, **more, implementation=implementation)
    buffers = vars(verify) | vars(write) | dict(zip(extras, after, strict=True))
    return {k: np.asarray(v) for k, v in buffers.items()}


FORMS: dict[str, Form] = {"torch": torch_plan, "jax": jax_plan}
form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def assert_same(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert got.keys() == want.keys()
    for name, buffer in want.items():
        assert got[name].dtype == buffer.dtype, name
        np.testing.assert_array_equal(got[name], buffer, err_msg=name)


FEW = [layout for layout in LAYOUTS if layout.batch_sizes != (0,)][:6]
PADDING_ROWS = (0, -1, 2, None)


@form
def test_any_row_can_be_the_padding_row(form: Form) -> None:
    @given(cases(layouts=FEW), st.sampled_from(PADDING_ROWS), st.booleans())
    @settings(max_examples=60)
    def judge(case: Case, padding_row: int | None, with_extras: bool) -> None:
        room = len(case.before.write.write_seed_slot_indices)
        extras = {"verify_total_out": np.array([-5]), "faults_out": np.tile(np.array([[3, -1]]), (8, 1))}
        before = fresh(case.inputs.verify_capacity, room)
        before.extras.update(extras if with_extras else {})
        case = case._replace(before=before)
        got = form(case.inputs.keywords(), before.extras, write_req_capacity=room, padding_row=padding_row)
        assert_same(got, expected(case, padding_row))

    judge()


@form
@pytest.mark.parametrize("names", [*((name,) for name in NARROW), NARROW], ids=lambda names: names[-1])
def test_each_int64_input_may_be_int32(form: Form, names: tuple[str, ...]) -> None:
    inputs = small_inputs()
    case = Case("small", inputs, fresh(12, 6))
    got = form(narrowed(inputs, names), {}, write_req_capacity=6, padding_row=-1)
    assert_same(got, expected(case, -1))
    assert got["verify_slot_indices"].tolist()[:7] == [501, 502, 503, 518, 519, 520, 521]
    assert got["verify_expected_tokens"].tolist()[:7] == [100, 101, 102, 117, 118, 119, -1]


@form
def test_a_padding_row_that_is_none_leaves_row_0_to_a_request(form: Form) -> None:
    inputs = small_inputs(req_pool_indices=np.array([0, 1, 2, 0]), prefix_lens=np.array([2, 0, 1, 1]))
    got = form(inputs.keywords(), {}, write_req_capacity=4, padding_row=None)
    assert got["verify_expected_positions"].tolist()[:4] == [0, 1, 0, 0]
    assert got["verify_num_valid"].tolist() == [4]


@form
def test_plan_takes_block_tables(form: Form) -> None:
    inputs = small_inputs(req_to_token=np.array([[3, 0], [5, 6], [-1, 2]], np.int32), page_size=4)
    case = Case("pages", inputs, fresh(12, 4))
    got = form(inputs.keywords(), {}, write_req_capacity=4, padding_row=-1)
    assert_same(got, expected(case, -1))
    assert got["verify_slot_indices"].tolist()[:7] == [512, 513, 514, -1, -1, -1, 508]


BAD = {
    "no capacity": ({"verify_capacity": None}, "verify_capacity must be an int, got NoneType"),
    "a negative capacity": ({"verify_capacity": -1}, "verify_capacity must be non-negative, got -1"),
    "negative room": ({"write_req_capacity": -1}, "write_req_capacity must be non-negative, got -1"),
    "no room": ({"write_req_capacity": 3}, "bs=4 exceeds write_req_capacity=3"),
    "no page": ({"page_size": 0}, "page_size must be positive, got 0"),
    "a padding row of text": ({"padding_row": "0"}, "padding_row must be an int, got str"),
    "a padding row past int32": ({"padding_row": 2**31}, f"padding_row must fit int32, got {2**31}"),
    "float lengths": (
        {"prefix_lens": np.zeros(4)},
        "prefix_lens must have dtype int64, got float64",
    ),
    "an int64 table": (
        {"req_to_token": np.zeros((3, 8), np.int64)},
        "req_to_token must have dtype int32, got int64",
    ),
    "a batch of two lengths": ({"prefix_lens": np.zeros(3, np.int32)}, "prefix_lens length must be 4, got 3"),
    "a window without a mapping": (
        {"full_to_swa_index_mapping": None},
        "launch_canary_plan_kernels requires full_to_swa_index_mapping when swa_window_size > 0",
    ),
}


@form
@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_says_what_is_wrong(form: Form, name: str) -> None:
    changes, text = BAD[name]
    arguments = small_inputs().keywords() | {"write_req_capacity": 4} | changes
    with pytest.raises(ValueError, match=r"^kv-canary: ") as raised:
        form(arguments, {})
    assert str(raised.value) == f"kv-canary: {text}"


# Torch alone: plans that are there already.


def torch_plans(capacity: int, room: int) -> tuple[Any, Any]:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import kvcanary_torch

    plans = (
        kvcanary_torch.VerifyPlan.allocate(verify_capacity=capacity),
        kvcanary_torch.WritePlan.allocate(write_req_capacity=room),
    )
    for plan in plans:
        for buffer in vars(plan).values():
            buffer.copy_(torch.full_like(buffer, 77))
    return plans


def test_out_is_filled_in_place_and_returned() -> None:
    plans, inputs = torch_plans(12, 6), small_inputs()
    import kvcanary_torch

    addresses = [b.data_ptr() for plan in plans for b in vars(plan).values()]
    arguments = inputs.keywords() | {"verify_capacity": None}
    got = torch_plan(arguments, {}, out=plans, padding_row=-1)
    assert [b.data_ptr() for plan in plans for b in vars(plan).values()] == addresses
    before = Plans(
        *(
            type_(**{k: np.full_like(got[k], 77) for k in vars(p)})
            for type_, p in zip((VerifyPlan, WritePlan), plans, strict=True)
        )
    )
    assert_same(got, expected(Case("out", inputs, before), -1))
    returned = kvcanary_torch.plan(**_tensors(inputs), out=plans, padding_row=-1)
    assert all(a is b for a, b in zip(returned, plans, strict=True))


def _tensors(inputs: PlanInputs) -> dict[str, Any]:
    import torch

    return {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in inputs.keywords().items()}


def test_out_must_be_whole_and_agree_with_the_capacities() -> None:
    import kvcanary_torch

    verify, write = torch_plans(12, 6)
    call = functools.partial(kvcanary_torch.plan, padding_row=-1)
    inputs = _tensors(small_inputs())
    for changes, text in (
        ({"verify_capacity": 11}, "verify_capacity=11 does not match"),
        ({"write_req_capacity": 5}, "out_write_seed_slot_indices length must be 5, got 6"),
        ({"out": (verify, object())}, "out_write_offsets must be a torch.Tensor, got NoneType"),
    ):
        with pytest.raises(ValueError, match=f"^kv-canary: .*{text}"):
            call(**inputs | {"out": (verify, write)} | changes)
    assert all((b == 77).all() for plan in (verify, write) for b in vars(plan).values())


def test_plan_is_one_graph_under_torch_compile() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import kvcanary_torch

    inputs = _tensors(small_inputs())
    faults, total = kvcanary_torch.Faults.allocate(), torch.zeros(1, dtype=torch.int64)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(inputs: dict[str, Any], buffer: Any, total: Any) -> Any:
        verify, write = kvcanary_torch.plan(
            **inputs, write_req_capacity=6, padding_row=-1, faults_out=buffer, verify_total_out=total
        )
        return verify.verify_slot_indices, verify.enable, write.write_offsets

    slots, enable, offsets = step(inputs, faults.buffer, total)
    assert slots.tolist()[:7] == [501, 502, 503, 518, 519, 520, 521]
    assert (enable.tolist(), total.tolist(), offsets.tolist()) == ([1], [7], [0, 1, 1, 3, 3, 0, 0])
    assert faults.buffer[:, 0].tolist() == [0] * 8


@pytest.mark.parametrize("name", ["page_size", "padding_row", "swa_window_size", "verify_capacity"])
def test_under_torch_compile_a_bool_is_no_int_either(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import kvcanary_torch

    inputs = _tensors(small_inputs()) | {"write_req_capacity": 6, name: True}
    step = torch.compile(lambda: kvcanary_torch.plan(**inputs)[0].enable, backend="eager")
    with pytest.raises(Exception, match=f"{name} must be an int, got bool"):
        step()


def test_under_torch_compile_a_bool_is_no_int_for_plans_that_are_there_either() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import kvcanary_torch

    plans = torch_plans(12, 6)
    inputs = _tensors(small_inputs()) | {"page_size": True}
    step = torch.compile(lambda: kvcanary_torch.plan(**inputs, out=plans)[0].enable, backend="eager")
    with pytest.raises(Exception, match="page_size must be an int, got bool"):
        step()
    assert all((b == 77).all() for plan in plans for b in vars(plan).values())


@pytest.mark.parametrize("out", [(), "plans", (1, 2, 3)])
def test_out_is_a_pair(out: Any) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    import kvcanary_torch

    with pytest.raises(ValueError, match=r"^kv-canary: out must be a pair of plans, got (tuple|str)$"):
        kvcanary_torch.plan(**_tensors(small_inputs()), out=out)


@form
def test_faults_without_a_buffer_are_refused(form: Form) -> None:
    arguments = small_inputs().keywords() | {"write_req_capacity": 4, "padding_row": -1}
    with pytest.raises(ValueError, match=r"^kv-canary: faults_out must be a .*, got SimpleNamespace$"):
        form(arguments, {}, faults_out=SimpleNamespace(buffer=None))
