"""int64 in and out, with `jax_enable_x64` off as well as on, and what JAX's own indexing would get wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jax_support import WINDOW, assert_plans, jax, jax_inputs, jax_plans, launch, on_device, small_case

import kvcanary_jax
from shared_ref.conformance.case import Case

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("x64")]

HUGE = [2**32 + 1, 2**31, -(2**63)]
"""Truncated to int32 they are 1, -2**31 and 0: a request's row, a negative one, the padding row."""

HINT = r"[^\n]*x64[^\n]*`with jax\.enable_x64\(True\):`"
"""What may have happened to a truncated array, and what to do."""


def eager(case: Case) -> Any:
    return launch(jax_plans(case.before), jax_inputs(case))


def jitted(case: Case) -> Any:
    """All arrays cross the border of one jit a window, so nothing is compiled twice."""
    arrays = {k: v for k, v in jax_inputs(case).items() if isinstance(v, jax.Array)}
    return _STEPS[case.inputs.swa_window_size](jax_plans(case.before), arrays)


def _step(window: int) -> Callable[[Any, Any], Any]:
    static = {"swa_window_size": window, "verify_capacity": 8, "kv_token_id_vs_position_offset": 0}
    missing = {} if window else {"full_to_swa_index_mapping": None}
    return jax.jit(lambda plans, arrays: launch(plans, {**arrays, **missing, **static}))


_STEPS = {window: _step(window) for window in (0, 2)}

everywhere = pytest.mark.parametrize("run", [eager, jitted])


def test_no_call_changes_the_switch(x64: bool) -> None:
    case = small_case()
    inputs = jax_inputs(case)
    kvcanary_jax.plan(**case.inputs.keywords(), write_req_capacity=5)
    launch(jax_plans(case.before), inputs)
    kvcanary_jax.VerifyPlan.allocate(verify_capacity=8)
    jax.jit(lambda plans: launch(plans, inputs))(jax_plans(case.before))
    with pytest.raises(ValueError, match="must be an int"):
        launch(jax_plans(case.before), inputs | {"verify_capacity": "8"})
    with pytest.raises(ValueError, match="must be an int"):
        kvcanary_jax.plan(**case.inputs.keywords(), write_req_capacity="5")
    assert jax.config.jax_enable_x64 is x64
    assert jax.numpy.arange(3).dtype == ("int64" if x64 else "int32")


@everywhere
def test_values_past_int32_come_out_whole(run: Any) -> None:
    mapping = np.arange(40) + 2**40
    case = small_case(
        swa_window_size=2, full_to_swa_index_mapping=mapping, extend_seq_lens=np.array([2**40, 5, 2**33])
    )
    verify, write = run(case)
    assert verify.verify_slot_indices.tolist()[:4] == [2**40 + 21, 2**40 + 22, 2**40 + 10, 2**40 + 11]
    assert verify.verify_prev_slot_indices.tolist()[:4] == [2**40 + 20, 2**40 + 21, -1, 2**40 + 10]
    assert write.write_offsets.tolist() == [0, 2**40, 2**40, 2**40 + 2**33, 0, 0]
    assert write.write_seed_slot_indices.tolist()[:3] == [2**40 + 22, -1, 2**40 + 11]
    assert_plans((verify, write), case.expected())


@everywhere
def test_write_offsets_wrap_in_twos_complement(run: Any) -> None:
    case = small_case(
        req_pool_indices=np.array([2, 3, 1]), extend_seq_lens=np.array([2**63 - 1, 2**63 - 1, 3])
    )
    assert run(case)[1].write_offsets.tolist() == [0, 2**63 - 1, -2, 1, 0, 0]


@everywhere
@pytest.mark.parametrize("row", HUGE)
def test_a_row_past_int32_counts_as_padding(run: Any, row: int) -> None:
    case = small_case(req_pool_indices=np.array([row, 3, row]))
    verify, write = run(case)
    assert (verify.verify_num_valid.tolist(), verify.enable.tolist()) == ([5], [1])
    assert verify.verify_slot_indices.tolist()[:5] == [30, 31, 32, 33, 34]
    assert verify.verify_prev_slot_indices.tolist()[:5] == [-1, 30, 31, 32, 33]
    assert write.write_offsets.tolist() == [0, 0, 9, 9, 0, 0]
    assert write.write_seed_slot_indices.tolist()[:3] == [-1, 34, -1]
    assert_plans((verify, write), case.expected())


@everywhere
@pytest.mark.parametrize(
    ("length", "slots", "seed"),
    [
        (2**32 + 1, [10, 11, 12, 13, 14, 15, 16, 17], 17),
        (2**31, [10, 11, 12, 13, 14, 15, 16, 17], 17),
        (2**63 - 1, [10, 11, 12, 13, 14, 15, 16, 17], 17),
        (-(2**63), [], -1),
        (-(2**32) + 3, [], -1),
    ],
)
def test_a_prefix_past_int32_ends_with_the_table(run: Any, length: int, slots: list[int], seed: int) -> None:
    case = small_case(req_pool_indices=np.array([0, 0, 1]), prefix_lens=np.array([length] * 3))
    verify, write = run(case)
    assert (verify.verify_num_valid.tolist(), verify.enable.tolist()) == ([len(slots)], [1])
    assert verify.verify_slot_indices.tolist()[: len(slots)] == slots
    assert verify.verify_expected_positions.tolist()[: len(slots)] == list(range(len(slots)))
    assert write.write_seed_slot_indices.tolist()[:3] == [-1, -1, seed]
    assert_plans((verify, write), case.expected())


@everywhere
@pytest.mark.parametrize(
    ("length", "slots", "seed"),
    [(9, [1017], 1017), (2**32 + 1, [], 1017), (2**31, [], 1017), (-(2**63), [], -1)],
)
def test_a_window_past_the_table_has_a_seed_and_no_entries(
    run: Any, length: int, slots: list[int], seed: int
) -> None:
    case = small_case(**WINDOW, req_pool_indices=np.array([0, 0, 1]), prefix_lens=np.array([1, 1, length]))
    verify, write = run(case)
    assert verify.verify_num_valid.tolist() == [len(slots)]
    assert verify.verify_slot_indices.tolist()[: len(slots)] == slots
    assert write.write_seed_slot_indices.tolist()[:3] == [-1, -1, seed]
    assert_plans((verify, write), case.expected())


@everywhere
@pytest.mark.parametrize(
    ("length", "count"), [(2**32 + 1, 2**32 + 1), (2**31, 2**31), (-(2**63), 0), (-(2**32) + 1, 0)]
)
def test_an_extend_past_int32_counts_whole(run: Any, length: int, count: int) -> None:
    case = small_case(extend_seq_lens=np.array([length, 1, 2]))
    _, write = run(case)
    assert write.write_offsets.tolist() == [0, count, count, count + 2, 0, 0]
    assert write.write_seed_slot_indices.tolist()[:3] == [22 if count else -1, -1, 11]


@everywhere
@pytest.mark.parametrize(
    ("valid_len", "tokens"),
    [(2**32 + 1, [200, 201, 202]), (2**31, [200, 201, 202]), (-(2**63), [-1, -1, -1])],
)
def test_a_token_count_past_int32_is_taken_whole(run: Any, valid_len: int, tokens: list[int]) -> None:
    case = small_case(req_to_verify_expected_tokens_valid_lens=np.array([valid_len, 8, 8]))
    assert run(case)[0].verify_expected_tokens.tolist()[:3] == tokens


@everywhere
def test_a_slot_past_the_mapping_reads_its_last_element_and_a_sentinel_passes(run: Any) -> None:
    table = np.full((4, 8), 2**31 - 1, np.int32)
    table[1] = -(2**31)
    verify, write = run(small_case(**WINDOW, req_to_token=table))
    assert verify.verify_slot_indices.tolist()[:4] == [1039, 1039, -(2**31), -(2**31)]
    assert write.write_seed_slot_indices.tolist()[:3] == [1039, -1, -(2**31)]


INT64_INPUTS = [
    "req_pool_indices",
    "prefix_lens",
    "extend_seq_lens",
    "full_to_swa_index_mapping",
    "req_to_verify_expected_tokens_valid_lens",
]


@pytest.mark.parametrize("name", INT64_INPUTS)
@pytest.mark.parametrize("transform", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_truncated_input_is_refused_with_a_hint(name: str, transform: Any) -> None:
    case = small_case(**WINDOW)
    inputs = jax_inputs(case)
    truncated = jax.numpy.asarray(case.inputs.keywords()[name], dtype="int32")
    former = jax_plans(case.before)
    text = rf"^kv-canary: {name} must have dtype int64, got int32\. {HINT}"
    with pytest.raises(ValueError, match=text):
        transform(lambda array: launch(former, inputs | {name: array}))(truncated)
    assert_plans(former, case.before)


@pytest.mark.parametrize("x64", [False], indirect=True)
def test_what_numpy_int64_becomes_with_x64_off_is_refused_with_the_hint() -> None:
    """The mistake itself: `jnp.asarray` outside the scope."""
    case = small_case()
    truncated = jax.numpy.asarray(np.array([3, 5, 2**40]))
    text = rf"^kv-canary: prefix_lens must have dtype int64, got int32\. {HINT}"
    with pytest.raises(ValueError, match=text):
        launch(jax_plans(case.before), jax_inputs(case) | {"prefix_lens": truncated})


def test_a_truncated_plan_is_refused_with_a_hint() -> None:
    case = small_case()
    verify, write = jax_plans(case.before)
    truncated = verify.verify_slot_indices.astype("int32")
    plan = kvcanary_jax.VerifyPlan(**vars(verify) | {"verify_slot_indices": truncated})
    text = rf"^kv-canary: out_verify_slot_indices must have dtype int64, got int32\. {HINT}"
    with pytest.raises(ValueError, match=text):
        launch((plan, write), jax_inputs(case))


def test_other_dtypes_get_no_hint() -> None:
    case = small_case()
    for name, dtype, expected in (("prefix_lens", "int16", "int64"), ("req_to_token", "int16", "int32")):
        array = on_device(case.inputs.keywords()[name].astype(dtype))
        with pytest.raises(ValueError, match=f"^kv-canary: {name} must have dtype {expected}, got {dtype}$"):
            launch(jax_plans(case.before), jax_inputs(case) | {name: array})
