"""The runner: wrong implementations are caught at once, and harm neither the others nor the runner."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from shared_ref import launch_canary_plan_kernels_reference as reference
from shared_ref.backends import NUMPY, Backend
from shared_ref.batch import requests
from shared_ref.conformance.case import Case, PlanInputs
from shared_ref.conformance.runner import Outcome, check, run

COLUMN_FIELDS = (
    "verify_slot_indices",
    "verify_expected_tokens",
    "verify_expected_positions",
    "verify_prev_slot_indices",
)


def backend(launch: Callable[..., Any], name: str = "wrong", **keywords: Any) -> Backend:
    return Backend(name=name, launch=launch, version=lambda: f"{name} 1.0", **keywords)


def make_case(name: str = "windowed", **changed: Any) -> Case:
    """A padding request between three that verify and write, with a window, a mapping and tokens."""
    inputs: dict[str, Any] = {
        "req_pool_indices": np.array([2, 0, 3, 1]),
        "prefix_lens": np.array([9, 4, 3, 6]),
        "extend_seq_lens": np.array([1, 4, 2**31, 0]),
        "req_to_token": np.arange(4 * 12, dtype=np.int32).reshape(4, 12),
        "swa_window_size": 5,
        "full_to_swa_index_mapping": 100 + np.arange(48)[::-1].copy(),
        "verify_capacity": 16,
        "req_to_verify_expected_tokens": np.arange(1000, 1048, dtype=np.int32).reshape(4, 12),
        "req_to_verify_expected_tokens_valid_lens": np.array([8, 12, 3, 6]),
        "kv_token_id_vs_position_offset": 1,
    }
    return Case.poisoned(name, PlanInputs(**inputs | changed), write_req_capacity=6)


def overflowing() -> Case:
    return make_case("overflowing", verify_capacity=12)  # of 13 entries


# Wrong implementations: each is the reference with one rule of section 4 broken.


def with_inputs(**change: Callable[[Any], Any]) -> Callable[..., None]:
    """The reference, told something else."""

    def launch(**arguments: Any) -> None:
        reference(**arguments | {name: f(arguments[name]) for name, f in change.items()})

    return launch


def then(spoil: Callable[[Any, Any, dict[str, Any]], None]) -> Callable[..., None]:
    """The reference, and something more."""

    def launch(*, verify_plan_out: Any, write_plan_out: Any, **inputs: Any) -> None:
        reference(verify_plan_out=verify_plan_out, write_plan_out=write_plan_out, **inputs)
        spoil(verify_plan_out, write_plan_out, inputs)

    return launch


def cut_predecessors(verify: Any, write: Any, inputs: dict[str, Any]) -> None:
    begin = 0
    for r in requests(inputs):
        if r.verify_count:
            verify.verify_prev_slot_indices[begin] = -1
        begin += r.verify_count


def untranslated_seeds(verify: Any, write: Any, inputs: dict[str, Any]) -> None:
    for r in requests(inputs):
        if r.has_seed:
            write.write_seed_slot_indices[r.index] = inputs["req_to_token"][r.row, r.end - 1]


def zeroed_tail(verify: Any, write: Any, inputs: dict[str, Any]) -> None:
    for name in COLUMN_FIELDS:
        getattr(verify, name)[verify.verify_num_valid[0] :] = 0


def stale_offsets(verify: Any, write: Any, inputs: dict[str, Any]) -> None:
    write.write_offsets[len(inputs["prefix_lens"]) + 1 :] = write.write_offsets[len(inputs["prefix_lens"])]


def int32_sums(verify: Any, write: Any, inputs: dict[str, Any]) -> None:
    write.write_offsets[:] = write.write_offsets.astype(np.int32)


def half_written_overflow(verify: Any, write: Any, inputs: dict[str, Any]) -> None:
    if verify.enable[0] == 0:
        verify.verify_expected_positions[:] = np.arange(len(verify.verify_expected_positions))


def enabled_overflow(verify: Any, write: Any, inputs: dict[str, Any]) -> None:
    verify.enable[0] = 1


def seeds_behind_the_batch(verify: Any, write: Any, inputs: dict[str, Any]) -> None:
    write.write_seed_slot_indices[len(inputs["prefix_lens"]) :] = -1


class Wrong(NamedTuple):
    launch: Callable[..., None]
    field: str
    index: int
    owner: tuple[int | None, int | None, int | None]
    """Request, row, position."""
    rule: str
    case: Callable[[], Case] = make_case


WRONG = {
    "window one too long": Wrong(
        with_inputs(swa_window_size=lambda w: w + 1), "verify_slot_indices", 0, (0, 2, 4), "slot is translate"
    ),
    "no mapping": Wrong(
        with_inputs(swa_window_size=lambda w: 0, full_to_swa_index_mapping=lambda m: None),
        "verify_slot_indices",
        0,
        (0, 2, 4),
        "slot is translate(req_to_token[row, p])",
    ),
    "predecessor cut at the window": Wrong(
        then(cut_predecessors), "verify_prev_slot_indices", 0, (0, 2, 4), "also at the start of a window"
    ),
    "seed not translated": Wrong(
        then(untranslated_seeds), "write_seed_slot_indices", 0, (0, 2, 8), "the seed is translate"
    ),
    "valid length ignored": Wrong(
        with_inputs(req_to_verify_expected_tokens_valid_lens=lambda v: v + 100),
        "verify_expected_tokens",
        3,
        (0, 2, 7),
        "-1 from the request's valid length on",
    ),
    "offset's sign": Wrong(
        with_inputs(kv_token_id_vs_position_offset=lambda n: -n),
        "verify_expected_tokens",
        0,
        (0, 2, 4),
        "[row, p + kv_token_id_vs_position_offset]",
    ),
    "tail zeroed": Wrong(
        then(zeroed_tail), "verify_slot_indices", 13, (None, None, None), "behind the entries is left"
    ),
    "offsets stale behind the batch": Wrong(
        then(stale_offsets), "write_offsets", 5, (None, None, None), "behind [bs] is 0"
    ),
    "seeds behind the batch": Wrong(
        then(seeds_behind_the_batch), "write_seed_slot_indices", 4, (None, None, None), "from bs on"
    ),
    "int32 sums": Wrong(
        then(int32_sums),
        "write_offsets",
        3,
        (2, 3, None),
        "plus request r's write_count, in two's complement",
    ),
    "padding told by its length": Wrong(
        with_inputs(req_pool_indices=lambda rows: np.where(rows == 0, 1, rows)),
        "write_offsets",
        2,
        (1, 0, None),
        "row 0 is a padding request, and its write_count is 0",
    ),
    "overflow half written": Wrong(
        then(half_written_overflow),
        "verify_expected_positions",
        0,
        (None, None, None),
        "enable == 0: the four columns are left as they were",
        overflowing,
    ),
    "overflow not noticed": Wrong(
        then(enabled_overflow), "enable", 0, (None, None, None), "enable is 1 if total", overflowing
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_implementation_is_caught_and_explained(wrong: Wrong) -> None:
    (outcome,) = run([backend(wrong.launch)], [wrong.case()])
    assert outcome.failure is not None
    differences = {found.field: found.first[0] for found in outcome.failure.differences}
    difference = differences[wrong.field]
    assert difference.index == wrong.index
    assert (difference.request, difference.row, difference.position) == wrong.owner
    assert wrong.rule in difference.rule


def test_check_judges_one_implementation() -> None:
    assert check(reference, make_case()) is None
    failure = check(then(cut_predecessors), make_case())
    assert failure is not None
    assert [found.field for found in failure.differences] == ["verify_prev_slot_indices"]


def test_a_case_that_breaks_a_rule_is_nobodys_failure() -> None:
    with pytest.raises(ValueError, match=r"^kv-canary: prefix_lens must have dtype int64, got int32$"):
        check(reference, make_case(prefix_lens=np.zeros(4, np.int32)))


def test_every_backend_starts_from_the_same_poison() -> None:
    seen = []

    def spy(*, verify_plan_out: Any, write_plan_out: Any, **inputs: Any) -> None:
        plans = [getattr(verify_plan_out, f.name) for f in verify_plan_out.fields()]
        plans += [getattr(write_plan_out, f.name) for f in write_plan_out.fields()]
        seen.append(b"".join(buffer.tobytes() for buffer in plans))
        reference(verify_plan_out=verify_plan_out, write_plan_out=write_plan_out, **inputs)

    case = make_case()
    run([backend(spy, "one"), backend(spy, "two")], [case])
    assert seen[0] == seen[1] == b"".join(buffer.tobytes() for buffer in case.before.buffers().values())


def test_a_backend_stops_at_its_first_difference_and_the_others_go_on() -> None:
    launches = []

    def wrong_later(**arguments: Any) -> None:
        reference(**arguments)
        launches.append(1)
        if len(launches) == 2:
            arguments["verify_plan_out"].enable[0] = 0

    cases = [make_case(str(i)) for i in range(4)]
    wrong, right = run([backend(wrong_later), NUMPY], cases)
    assert (wrong.plans, right.plans) == (2, 4)
    assert wrong.failure is not None
    assert wrong.failure.case.name == "1"
    assert right.failure is None


def test_the_run_ends_where_nobody_is_left() -> None:
    given = []

    def cases() -> Iterator[Case]:
        for i in range(9):
            given.append(i)
            yield make_case(str(i))

    run([backend(then(zeroed_tail)), backend(reference, "gone", unavailable=lambda: "no chip")], cases())
    assert given == [0, 1]


def test_digest_counts_and_times() -> None:
    cases = [make_case("a"), overflowing(), make_case("c")]
    sha = hashlib.sha256()
    for case in cases:
        for buffer in case.expected().buffers().values():
            sha.update(buffer.astype(buffer.dtype.newbyteorder("<")).tobytes())
    (outcome,) = run([NUMPY], cases)
    assert outcome.digest == sha.hexdigest()
    assert (outcome.plans, outcome.entries) == (3, 2 * 13)  # the overflowing plan has no entries
    assert len(outcome.seconds) == 3
    assert outcome.median_seconds == sorted(outcome.seconds)[1] > 0
    assert outcome.version == NUMPY.version()


def test_a_difference_changes_the_digest() -> None:
    wrong, right = run([backend(then(zeroed_tail)), NUMPY], [make_case()])
    assert wrong.digest != right.digest


def test_an_exception_is_the_backends_failure() -> None:
    def raises(**arguments: Any) -> None:
        raise RuntimeError("no registers left")

    broken, right = run([backend(raises), NUMPY], [make_case(), make_case()])
    assert broken.failure is not None
    assert broken.failure.error == "RuntimeError: no registers left"
    assert broken.failure.differences == ()
    assert (broken.plans, broken.entries, broken.digest) == (1, 0, None)
    assert right.plans == 2


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("raised", "error"),
    [(SystemExit(0), "SystemExit: 0"), (SystemExit(5), "SystemExit: 5"), (Speechless(), "Speechless")],
)
def test_what_an_implementation_raises_does_not_end_the_judgement(raised: BaseException, error: str) -> None:
    def launch(**arguments: Any) -> None:
        raise raised

    broken, right = run([backend(launch), NUMPY], [make_case()])
    assert broken.failure is not None
    assert broken.failure.error == error
    assert right.failure is None


@pytest.mark.parametrize("returned", [1, (1,), (1, 2), (np.zeros(3), 3), (1, 2, 3)])
def test_returning_no_pair_is_the_backends_failure(returned: Any) -> None:
    failure = check(lambda **arguments: returned, make_case())
    assert failure is not None
    assert failure.error == (
        f"TypeError: a launcher returns None or the pair of new plans, got {type(returned).__name__}"
    )


def test_a_plain_backend_gets_plain_cases_alone() -> None:
    def launch(**arguments: Any) -> None:
        assert "page_size" not in arguments
        assert "faults_out" not in arguments
        reference(**arguments)

    paged = make_case("paged", page_size=2)
    counting = Case.poisoned("counting", make_case().inputs, write_req_capacity=6, extras=("faults_out",))
    plain, full = run([backend(launch, plain=True), NUMPY], [paged, counting, make_case()])
    assert (plain.plans, full.plans) == (1, 3)
    assert plain.failure is None
    assert check(launch, paged) is not None


def test_a_failure_has_what_the_launch_made() -> None:
    def launch(**arguments: Any) -> None:
        reference(**arguments)
        arguments["write_plan_out"].write_offsets[0] = 9

    failure = check(launch, make_case())
    assert failure is not None
    assert failure.after is not None
    assert failure.after.write.write_offsets[0] == 9
    assert np.array_equal(
        failure.after.verify.verify_slot_indices, make_case().expected().verify.verify_slot_indices
    )


def test_a_returned_pair_is_judged_instead_of_the_given_plans() -> None:
    case = make_case()
    assert check(lambda **arguments: tuple(case.expected()), case) is None


@pytest.mark.parametrize("make", [lambda b: b.astype(np.int64), lambda b: b.repeat(2), lambda b: b.tolist()])
def test_a_buffer_of_the_wrong_kind_is_a_difference(make: Callable[[np.ndarray], Any]) -> None:
    case = make_case()

    def launch(**arguments: Any) -> Any:
        verify, write = case.expected()
        object.__setattr__(verify, "enable", make(verify.enable))
        return verify, write

    failure = check(launch, case)
    assert failure is not None
    assert [found.field for found in failure.differences] == ["enable"]
    assert failure.differences[0].first[0].rule == "section 3: enable is int32 [1]"


def test_writing_to_the_inputs_is_a_failure_that_nobody_else_feels() -> None:
    def writes(**arguments: Any) -> None:
        reference(**arguments)
        arguments["prefix_lens"][0] += 1
        arguments["req_to_token"][3, 11] = 5

    case = make_case()
    wrong, right = run([backend(writes), NUMPY], [case])
    assert wrong.failure is not None
    assert wrong.failure.changed_inputs == ("prefix_lens", "req_to_token")
    assert wrong.failure.differences == ()
    assert right.failure is None
    for inputs in (case.inputs, wrong.failure.case.inputs):
        assert inputs.prefix_lens[0] == 9
        assert inputs.req_to_token[3, 11] == 47


def test_a_row_strided_table_reaches_the_backend_as_one() -> None:
    strides = []

    def spy(**arguments: Any) -> None:
        strides.append(arguments["req_to_token"].strides)
        reference(**arguments)

    wide = np.zeros((4, 20), np.int32)
    assert check(spy, make_case(req_to_token=wide[:, :12])) is None
    assert strides == [(80, 4)]


def test_a_failure_keeps_tables_that_change_afterwards() -> None:
    case = make_case()
    table = case.inputs.req_to_token
    (outcome,) = run([backend(then(cut_predecessors))], [case])
    table[:] = 0
    assert outcome.failure is not None
    assert outcome.failure.case.inputs.req_to_token[2, 8] == 2 * 12 + 8


def test_an_unavailable_backend_is_reported_with_its_reason() -> None:
    def never(**arguments: Any) -> None:
        raise AssertionError("launched, although unavailable")

    absent, right = run([backend(never, unavailable=lambda: "no chip"), NUMPY], [make_case()])
    assert (absent.unavailable, absent.version, absent.plans) == ("no chip", "", 0)
    assert (absent.failure, absent.median_seconds, absent.digest) == (None, None, None)
    assert right.plans == 1


def test_progress_is_told_after_each_case() -> None:
    told: list[tuple[str, list[int]]] = []

    def on_case(case: Case, outcomes: list[Outcome]) -> None:
        told.append((case.name, [outcome.plans for outcome in outcomes]))

    run([NUMPY], [make_case("a"), make_case("b")], on_case=on_case)
    assert told == [("a", [1]), ("b", [2])]
