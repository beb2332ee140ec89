"""Every refused call: its exact text, what goes before what, and that no output changed a byte."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import oracle
import pytest
from numpy.lib.stride_tricks import as_strided
from validation_table import (
    ENTRIES,
    FAULTS,
    FRONTENDS,
    IMPOSSIBLE,
    MESSAGES,
    OFFSETS,
    PLAN,
    ROWS,
    VERIFY_FIELDS,
    WRITE_FIELDS,
    Call,
    Fault,
    Frontend,
    Row,
    breakable,
    good_call,
    is_output,
)

from shared_ref import validation
from shared_ref.backends import backends

LAUNCHERS = (PLAN, OFFSETS, ENTRIES)


def available(name: str) -> Frontend:
    """A frontend, or a skip that says why it does not run here."""
    frontend = FRONTENDS[name]
    backend = backends().get(frontend.backend)
    if backend is None:
        pytest.skip(f"no package announces the backend {frontend.backend}")
    if reason := backend.unavailable():
        pytest.skip(reason)
    return frontend


def outputs(frontend: Frontend, call: Call) -> dict[str, bytes | None]:
    return {name: frontend.bytes_of(array) for name, array in call.items() if is_output(name)}


def refusal(frontend: Frontend, launcher: str, call: Call, **more: Any) -> str:
    """The text of the error that a converted call ends in, after a look that it wrote nothing."""
    before = outputs(frontend, call)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the caller compares the whole text
        frontend.launch(launcher, call, **more)
    assert outputs(frontend, call) == before
    return str(caught.value)


def says(frontend: Frontend, row: Row, text: str) -> bool:
    """Whether a refusal has a row's text, with one more sentence where JAX adds it."""
    home, away = frontend.devices()
    message = row.message.replace("{array}", frontend.array_name)
    message = "kv-canary: " + message.replace("{home}", home).replace("{away}", away)
    if row.truncated and frontend.hint_on_truncation:
        return text.startswith(f"{message}. ") and len(text) > len(message) + 20
    return text == message


# One broken rule


@pytest.mark.parametrize(
    ("name", "row"),
    [pytest.param(name, row, id=f"{name}-{row.id}") for name, f in FRONTENDS.items() for row in breakable(f)],
)
def test_broken_rule_is_refused_with_its_message(name: str, row: Row) -> None:
    frontend = available(name)
    call = frontend.convert(good_call(row.launcher) | row.changes)
    text = refusal(frontend, row.launcher, call)
    assert says(frontend, row, text), text


# Two broken rules


def can_be_combined(a: Row, b: Row) -> bool:
    return not (a.changes.keys() & b.involves or b.changes.keys() & a.involves)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", FRONTENDS)
def test_of_two_broken_rules_the_contracts_earlier_one_is_reported(name: str, launcher: str) -> None:
    frontend = available(name)
    good = frontend.convert(good_call(launcher))
    one_each = {(row.order, row.rule): row for row in breakable(frontend, launcher)}
    rows = sorted(one_each.values(), key=lambda row: row.order)
    changes = [frontend.convert(row.changes) for row in rows]
    wrong, pairs = [], 0
    for i, earlier in enumerate(rows):
        for j, later in enumerate(rows[i + 1 :], i + 1):
            if earlier.order == later.order or not can_be_combined(earlier, later):
                continue
            pairs += 1
            text = refusal(frontend, launcher, good | changes[i] | changes[j])
            if not says(frontend, earlier, text):
                wrong.append(f"{earlier.id} and {later.id}: {text}")
    assert pairs > 1000
    assert not wrong, f"{len(wrong)} of {pairs} pairs, such as:\n" + "\n".join(wrong[:10])


# Legal calls


def oracle_outputs(launcher: str, call: Call) -> Call:
    """The outputs after the oracle, from copies."""
    arguments = {
        name: value.copy() if is_output(name) and value is not None else value
        for name, value in call.items()
        if name not in ("req_to_token_stride0", "write_offsets_len", "write_req_capacity")
    }
    launch_arguments = dict(arguments)
    if launcher == PLAN:
        for plan, fields in (("verify_plan_out", VERIFY_FIELDS), ("write_plan_out", WRITE_FIELDS)):
            buffers = {field: launch_arguments.pop(argument) for field, argument in fields.items()}
            launch_arguments[plan] = SimpleNamespace(**buffers)
    getattr(oracle, launcher)(**launch_arguments)
    return {name: array for name, array in arguments.items() if is_output(name) and array is not None}


TABLE = good_call(PLAN)["req_to_token"]
NO_ROWS, NO_COLUMNS = np.empty((0, 6), np.int32), np.empty((4, 0), np.int32)
EMPTY_BATCH = {
    name: np.empty(0, np.int64)
    for name in ("req_pool_indices", "prefix_lens", "extend_seq_lens", "out_write_seed_slot_indices")
} | {"out_write_offsets": np.array([9])}
NO_VALID_LENS = {"req_to_verify_expected_tokens_valid_lens": np.empty(0, np.int64)}
WITHOUT_TOKENS = {"req_to_verify_expected_tokens": None, "req_to_verify_expected_tokens_valid_lens": None}
NO_ENTRIES = {name: np.empty(0, np.int64) for name in list(VERIFY_FIELDS.values())[:4]}
MOST_POSITIONS = {"req_to_token": np.ones((4, 2**18), np.int32), "page_size": 2**30}
"""2**48 of them."""

LEGAL: list[tuple[str, str, Call, str | None]] = [
    ("as it is", PLAN, {}, None),
    ("as it is", OFFSETS, {}, None),
    ("as it is", ENTRIES, {}, None),
    ("numpy integers", PLAN, {"swa_window_size": np.int64(2), "verify_capacity": np.uint8(8)}, None),
    ("integers of int32's ends", PLAN, {"kv_token_id_vs_position_offset": -(2**31)}, None),
    ("integers of int32's ends", ENTRIES, {"swa_window_size": 2**31 - 1}, None),
    ("no window, no mapping", PLAN, {"swa_window_size": 0, "full_to_swa_index_mapping": None}, None),
    ("window without a mapping", OFFSETS, {"full_to_swa_index_mapping": None}, None),
    ("window without a mapping", ENTRIES, {"full_to_swa_index_mapping": None}, None),
    ("no token table", PLAN, WITHOUT_TOKENS, None),
    ("no token table", ENTRIES, WITHOUT_TOKENS, None),
    *(
        (f"valid lens of {kind} without a token table", launcher, WITHOUT_TOKENS | {valid_lens: array}, needs)
        for launcher in (PLAN, ENTRIES)
        for valid_lens in NO_VALID_LENS
        for kind, array, needs in (
            ("another length", np.zeros(9, np.int64), None),
            ("another dtype", np.zeros(3, np.float32), None),
            ("another shape", np.zeros((3, 1), np.int64), None),
            ("gaps", np.zeros(6, np.int64)[::2], "strides"),
        )
    ),
    ("empty batch", PLAN, EMPTY_BATCH | NO_VALID_LENS, None),
    ("empty batch", OFFSETS, EMPTY_BATCH, None),
    ("no columns to fill", PLAN, NO_ENTRIES | {"verify_capacity": 0}, None),
    ("no columns to fill", OFFSETS, {"verify_capacity": 0}, None),
    ("no columns to fill", ENTRIES, NO_ENTRIES, None),
    ("table without rows", PLAN, {"req_to_token": NO_ROWS}, None),
    ("table without columns", PLAN, {"req_to_token": NO_COLUMNS}, None),
    ("token table without rows", ENTRIES, {"req_to_verify_expected_tokens": NO_ROWS}, None),
    ("token table without columns", ENTRIES, {"req_to_verify_expected_tokens": NO_COLUMNS}, None),
    ("all integers given", OFFSETS, {"write_offsets_len": 5, "write_req_capacity": 4}, None),
    ("stride given", OFFSETS, {"req_to_token_stride0": np.int32(6)}, None),
    *(
        (f"pages of {page_size}", launcher, {"page_size": page_size}, None)
        for launcher in LAUNCHERS
        for page_size in (np.int64(2), 2**31 - 1)
    ),
    *(("as many positions as may be", launcher, MOST_POSITIONS, None) for launcher in LAUNCHERS),
    *(
        (f"no {' and no '.join(names)}", launcher, dict.fromkeys(names), None)
        for launcher, names in (
            (PLAN, ("verify_total_out",)),
            (PLAN, ("faults_out",)),
            (PLAN, ("verify_total_out", "faults_out")),
            (OFFSETS, ("verify_total_out",)),
            (OFFSETS, ("faults_out",)),
            (OFFSETS, ("verify_total_out", "faults_out")),
            (ENTRIES, ("faults_out",)),
        )
    ),
    *(
        ("more entries than fit, and their number", launcher, {"verify_capacity": 3, **columns}, None)
        for launcher, columns in (
            (PLAN, {name: np.arange(3) for name in NO_ENTRIES}),
            (OFFSETS, {}),
        )
    ),
    ("longer scratch", OFFSETS, {"out_verify_offsets_scratch": np.zeros(5000, np.int64)}, None),
    ("longer scratch", ENTRIES, {"verify_offsets_scratch": np.zeros(5000, np.int64)}, None),
    (
        "wide rows, stride given",
        OFFSETS,
        {"req_to_token": np.repeat(TABLE, 2, axis=1)[:, 3:9], "req_to_token_stride0": 12},
        "strides",
    ),
    (
        "one row, whose stride counts as its width",
        OFFSETS,
        {"req_to_token": as_strided(TABLE[:1], strides=(4, 4)), "req_to_token_stride0": 6},
        "strides",
    ),
    (
        "no rows, whose stride counts as their width",
        OFFSETS,
        {"req_to_token": np.repeat(TABLE, 2, axis=1)[:0, :6], "req_to_token_stride0": 6},
        "strides",
    ),
    (
        "no columns, whose stride counts as 1",
        OFFSETS,
        {"req_to_token": TABLE[:, :0], "req_to_token_stride0": 1},
        None,
    ),
    ("one row upside down", PLAN, {"req_to_token": TABLE[:1][::-1]}, "negative strides"),
    ("one element after a gap", PLAN, {"out_verify_enable": np.zeros(4, np.int32)[::4]}, "strides"),
]


@pytest.mark.parametrize(
    ("name", "launcher", "changes"),
    [
        pytest.param(name, launcher, changes, id=f"{name}-{launcher}-{what}")
        for name, frontend in FRONTENDS.items()
        for what, launcher, changes, needs in LEGAL
        if needs not in frontend.cannot
    ],
)
def test_legal_call_is_accepted_and_gives_the_oracles_bytes(name: str, launcher: str, changes: Call) -> None:
    frontend = available(name)
    call = good_call(launcher) | changes
    expected = oracle_outputs(launcher, call)
    got = frontend.launch(launcher, frontend.convert(call))
    assert got.keys() == expected.keys()
    for output, array in expected.items():
        assert frontend.bytes_of(got[output]) == array.tobytes(), output


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", FRONTENDS)
def test_a_faults_object_is_counted_in_as_its_array_is(name: str, launcher: str) -> None:
    frontend = available(name)
    changes = {"req_pool_indices": np.array([2, 9, 1]), "extend_seq_lens": np.array([2, -1, 0])}
    call = good_call(launcher)
    call |= {argument: array for argument, array in changes.items() if argument in call}
    call["faults_out"][:] = [0, -1]
    expected = oracle_outputs(launcher, call)["faults_out"]
    converted = frontend.convert(call)
    faults = frontend.plan_class("Faults")(buffer=converted["faults_out"])
    got = frontend.launch(launcher, converted | {"faults_out": faults})["faults_out"]
    assert type(got) is type(faults)
    assert np.asarray(got.buffer).tolist() == expected.tolist()


# strict


def faulty_call(*faults: Fault) -> Call:
    call = good_call(PLAN)
    for fault in faults:
        call[fault.name][fault.index] = fault.value
    return call


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.text)
def test_strict_refuses_a_fault_with_its_message(fault: Fault) -> None:
    text = refusal(FRONTENDS["numpy"], PLAN, faulty_call(fault), strict=True)
    assert text == f"kv-canary: {fault.text}"


def test_of_two_faults_strict_reports_the_contracts_earlier_one() -> None:
    for i, earlier in enumerate(FAULTS):
        for later in FAULTS[i + 1 :]:
            if (earlier.name, earlier.index) == (later.name, later.index):
                continue
            text = refusal(FRONTENDS["numpy"], PLAN, faulty_call(later, earlier), strict=True)
            assert text == f"kv-canary: {earlier.text}", later.text


def test_rules_of_the_call_go_before_strict() -> None:
    numpy = FRONTENDS["numpy"]
    pairs = 0
    for fault in FAULTS:
        for row in breakable(numpy, PLAN):
            if fault.name not in row.involves:
                pairs += 1
                text = refusal(numpy, PLAN, faulty_call(fault) | row.changes, strict=True)
                assert says(numpy, row, text), fault.text
    assert pairs > 1000


def test_strict_accepts_the_good_call() -> None:
    call = good_call(PLAN)
    expected = oracle_outputs(PLAN, call)
    got = FRONTENDS["numpy"].launch(PLAN, call, strict=True)
    assert {name: array.tolist() for name, array in got.items()} == {
        name: array.tolist() for name, array in expected.items()
    }


def test_calls_that_passed_are_not_remembered_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_passed", {})
    monkeypatch.setattr(validation, "_MOST_PASSED", 3)
    frontend, sizes = available("numpy"), []
    for offset in range(8):
        call = good_call(PLAN) | {"kv_token_id_vs_position_offset": offset}
        for _ in range(2):
            frontend.launch(PLAN, frontend.convert(call))
            sizes.append(len(validation._passed))
    assert sizes[:6] == [1, 1, 2, 2, 3, 3]
    assert max(sizes) == 3


# Allocation (section 3)


@pytest.mark.parametrize("n", [0, -1, -(2**31)])
@pytest.mark.parametrize(
    ("plan", "capacity"), [("VerifyPlan", "verify_capacity"), ("WritePlan", "write_req_capacity")]
)
@pytest.mark.parametrize("name", FRONTENDS)
def test_allocate_refuses_a_capacity_below_1(name: str, plan: str, capacity: str, n: int) -> None:
    allocate = available(name).plan_class(plan).allocate
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared below
        allocate(**{capacity: n})
    assert str(caught.value) == f"kv-canary: {plan} {capacity} must be positive, got {n}"


@pytest.mark.parametrize(
    ("n", "message"),
    [
        (True, "must be an int, got bool"),
        (2.5, "must be an int, got float"),
        ("3", "must be an int, got str"),
        (None, "must be an int, got NoneType"),
        (2**31, "must fit int32, got 2147483648"),
    ],
)
@pytest.mark.parametrize("name", FRONTENDS)
def test_allocate_refuses_a_capacity_that_no_launcher_takes(name: str, n: Any, message: str) -> None:
    for plan, capacity in (("VerifyPlan", "verify_capacity"), ("WritePlan", "write_req_capacity")):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared below
            available(name).plan_class(plan).allocate(**{capacity: n})
        assert str(caught.value) == f"kv-canary: {capacity} {message}"


@pytest.mark.parametrize("name", FRONTENDS)
def test_a_numpy_integer_is_a_capacity(name: str) -> None:
    plan = available(name).plan_class("VerifyPlan").allocate(verify_capacity=np.int64(5))
    assert plan.verify_slot_indices.shape == (5,)


@pytest.mark.parametrize("name", FRONTENDS)
def test_allocated_plans_are_accepted(name: str) -> None:
    frontend = available(name)
    verify = frontend.plan_class("VerifyPlan").allocate(verify_capacity=8)
    write = frontend.plan_class("WritePlan").allocate(write_req_capacity=4)
    assert np.asarray(verify.enable).tolist() == [1]
    call = frontend.convert(good_call(PLAN))
    call |= {argument: getattr(verify, field) for field, argument in VERIFY_FIELDS.items()}
    call |= {argument: getattr(write, field) for field, argument in WRITE_FIELDS.items()}
    got = frontend.launch(PLAN, call)
    assert np.asarray(got["out_write_offsets"]).tolist() == [0, 2, 2, 2, 0]


@pytest.mark.parametrize("name", FRONTENDS)
def test_allocated_faults_are_none(name: str) -> None:
    faults = available(name).plan_class("Faults").allocate()
    buffer = np.asarray(faults.buffer)
    assert (buffer.dtype, buffer.tolist()) == (np.int64, [[0, -1]] * 8)


# The table itself


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_table_has_every_message_of_the_contract(launcher: str) -> None:
    broken = {row.rule for row in ROWS if row.launcher == launcher}
    never = {message.rule for message in IMPOSSIBLE if message.launcher == launcher}
    assert broken | never == MESSAGES[launcher]


def test_what_cannot_be_broken_has_a_reason(record_property: Any) -> None:
    for message in IMPOSSIBLE:
        assert message.reason
    for name, frontend in FRONTENDS.items():
        left_out = Counter(row.needs for row in ROWS if row.needs in frontend.cannot)
        count = len(breakable(frontend))
        assert count + left_out.total() == len(ROWS)
        reasons = "".join(f"\n    {n} need {what}: {frontend.cannot[what]}" for what, n in left_out.items())
        print(f"{name}: {count} of {len(ROWS)} rows can be broken{reasons}")
        record_property(name, count)
    print(f"in no framework: {len(IMPOSSIBLE)} messages")
    for message in IMPOSSIBLE:
        print(f"    {message.launcher}: {message.rule}, for {message.subject}: {message.reason}")


def test_frontends_lack_only_what_rows_need() -> None:
    needed = {row.needs for row in ROWS}
    assert {what for frontend in FRONTENDS.values() for what in frontend.cannot} == needed - {None}
