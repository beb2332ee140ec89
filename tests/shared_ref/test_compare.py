"""The judge names the element, its owner, and the contract's rule for it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from shared_ref import VerifyPlan, WritePlan
from shared_ref.conformance.case import Case, PlanInputs, Plans
from shared_ref.conformance.compare import FIRST_DIFFERENCES, Difference, compare

COLUMNS = 16
LUT_LEN = 90  # the last row's slots are 80 to 95


def small_case(**changed: object) -> Case:
    """Seven requests that between them meet every rule of sections 4 and 5."""
    req_to_token = np.arange(6 * COLUMNS, dtype=np.int32).reshape(6, COLUMNS)
    req_to_token[2, 3] = -7
    inputs: dict = {
        #                           pad   out of the table, negative extend, past the table, nothing cached
        "req_pool_indices": np.array([0, 2, 9, 3, 5, 4, 1]),
        "prefix_lens": np.array([5, 6, 3, 2, 18, 0, 3]),
        "extend_seq_lens": np.array([3, 1, 2, -4, 2, 5, 0]),
        "req_to_token": req_to_token,
        "swa_window_size": 4,
        "full_to_swa_index_mapping": 500 - np.arange(LUT_LEN),
        "verify_capacity": 20,
        "req_to_verify_expected_tokens": np.arange(1000, 1025, dtype=np.int32).reshape(5, 5),
        "req_to_verify_expected_tokens_valid_lens": np.array([9, 6, 9, 2, 100, 0, 5]),
        "kv_token_id_vs_position_offset": 1,
    }
    return Case.poisoned("small", PlanInputs(**inputs | changed), write_req_capacity=10)


# Entries of the small case: request 1, positions 2 to 5; request 3, 0 and 1; request 4, 14 and 15;
# request 6, 0 to 2.


class Expectation(NamedTuple):
    field: str
    index: int
    rule: str
    request: int | None = None
    row: int | None = None
    position: int | None = None


PLACES = [
    Expectation("verify_slot_indices", 0, "slot is translate(req_to_token[row, p])", 1, 2, 2),
    Expectation("verify_slot_indices", 1, "section 2: a negative slot is a sentinel", 1, 2, 3),
    Expectation("verify_slot_indices", 3, "slot is translate(req_to_token[row, p])", 1, 2, 5),
    Expectation("verify_slot_indices", 4, "slot is translate(req_to_token[row, p])", 3, 3, 0),
    Expectation("verify_slot_indices", 7, "section 5: a slot past full_to_swa_index_mapping", 4, 5, 15),
    Expectation("verify_slot_indices", 11, "everything behind the entries is left as it was"),
    Expectation("verify_slot_indices", 19, "everything behind the entries is left as it was"),
    Expectation("verify_prev_slot_indices", 0, "also at the start of a window", 1, 2, 2),
    Expectation("verify_prev_slot_indices", 2, "section 2: a negative slot is a sentinel", 1, 2, 4),
    Expectation("verify_prev_slot_indices", 3, "prev slot is translate(req_to_token[row, p - 1])", 1, 2, 5),
    Expectation("verify_prev_slot_indices", 4, "prev slot is -1 at position 0", 3, 3, 0),
    Expectation("verify_prev_slot_indices", 7, "section 5: a slot past full_to_swa_index_mapping", 4, 5, 15),
    Expectation("verify_prev_slot_indices", 12, "everything behind the entries is left as it was"),
    Expectation("verify_expected_positions", 5, "positions start <= p < end ascending", 3, 3, 1),
    Expectation("verify_expected_positions", 13, "everything behind the entries is left as it was"),
    Expectation("verify_expected_tokens", 0, "[row, p + kv_token_id_vs_position_offset]", 1, 2, 2),
    Expectation("verify_expected_tokens", 2, "section 5: expected token is -1", 1, 2, 4),
    Expectation("verify_expected_tokens", 3, "-1 from the request's valid length on", 1, 2, 5),
    Expectation("verify_expected_tokens", 5, "-1 from the request's valid length on", 3, 3, 1),
    Expectation("verify_expected_tokens", 6, "section 5: expected token is -1", 4, 5, 14),
    Expectation("verify_expected_tokens", 14, "everything behind the entries is left as it was"),
    Expectation("verify_num_valid", 0, "verify_num_valid is min(total, verify_capacity)"),
    Expectation("enable", 0, "enable is 1 if total <= verify_capacity, else 0"),
    Expectation("write_offsets", 0, "write_offsets[0] is 0"),
    Expectation("write_offsets", 1, "section 4: row 0 is a padding request", 0, 0),
    Expectation("write_offsets", 2, "plus request r's write_count", 1, 2),
    Expectation("write_offsets", 3, "section 5: a row outside req_to_token counts as padding", 2, 9),
    Expectation("write_offsets", 4, "section 5: a negative extend_seq_lens counts as 0", 3, 3),
    Expectation("write_offsets", 7, "plus request r's write_count", 6, 1),
    Expectation("write_offsets", 8, "every element of write_offsets behind [bs] is 0"),
    Expectation("write_seed_slot_indices", 0, "row 0 is a padding request, and its seed is -1", 0, 0),
    Expectation("write_seed_slot_indices", 1, "the seed is translate(req_to_token[row, end - 1])", 1, 2, 5),
    Expectation("write_seed_slot_indices", 2, "counts as padding, and its seed is -1", 2, 9),
    Expectation("write_seed_slot_indices", 3, "-1 where a request writes nothing", 3, 3),
    Expectation("write_seed_slot_indices", 4, "section 5: positions past req_to_token", 4, 5, 15),
    Expectation("write_seed_slot_indices", 5, "-1 where nothing is cached", 5, 4),
    Expectation("write_seed_slot_indices", 6, "-1 where a request writes nothing", 6, 1),
    Expectation("write_seed_slot_indices", 7, "from bs on are left as they were"),
    Expectation("write_num_valid_reqs", 0, "write_num_valid_reqs is bs"),
]

VARIANTS = [
    (
        {"verify_capacity": 10},
        Expectation("verify_slot_indices", 0, "section 4, enable == 0: the four columns are left"),
    ),
    (
        {"req_to_verify_expected_tokens": None, "req_to_verify_expected_tokens_valid_lens": None},
        Expectation("verify_expected_tokens", 0, "-1 without a table", 1, 2, 2),
    ),
    (
        {"kv_token_id_vs_position_offset": -1},
        Expectation("verify_expected_tokens", 4, "-1 where p + offset is negative", 3, 3, 0),
    ),
    (
        {"prefix_lens": np.array([5, 4, 3, 2, 13, 0, 3])},
        Expectation("write_seed_slot_indices", 1, "section 2: a negative slot is a sentinel", 1, 2, 3),
    ),
    (
        {"swa_window_size": 0, "full_to_swa_index_mapping": None, "verify_capacity": 27},
        Expectation("verify_slot_indices", 1, "slot is translate(req_to_token[row, p])", 1, 2, 1),
    ),
    (
        {"page_size": 2, "full_to_swa_index_mapping": np.arange(200)},
        Expectation("verify_slot_indices", 0, "slot is translate(cell(row, p))", 1, 2, 2),
    ),
    (
        {"page_size": 2, "full_to_swa_index_mapping": np.arange(200)},
        Expectation("verify_prev_slot_indices", 1, "prev slot is translate(cell(row, p - 1))", 1, 2, 3),
    ),
]


def tampered(case: Case, field: str, index: int) -> Plans:
    plans = case.expected()
    plans.buffers()[field][index] ^= 1
    return plans


def assert_named(case: Case, place: Expectation) -> None:
    expected, actual = case.expected(), tampered(case, place.field, place.index)
    (found,) = compare(case, expected, actual)
    assert (found.field, found.count, found.size) == (
        place.field,
        1,
        expected.buffers()[place.field].size,
    )
    (difference,) = found.first
    assert place.rule in difference.rule
    want = int(expected.buffers()[place.field][place.index])
    assert difference == Difference(
        field=place.field,
        index=place.index,
        request=place.request,
        row=place.row,
        position=place.position,
        expected=want,
        actual=want ^ 1,
        untouched=False,
        rule=difference.rule,
    )


@pytest.mark.parametrize("place", PLACES, ids=lambda p: f"{p.field}[{p.index}]")
def test_a_wrong_element_is_named_with_its_owner_and_its_rule(place: Expectation) -> None:
    assert_named(small_case(), place)


@pytest.mark.parametrize(("changed", "place"), VARIANTS, ids=lambda v: "" if isinstance(v, dict) else v.rule)
def test_the_rule_depends_on_the_case(changed: dict, place: Expectation) -> None:
    assert_named(small_case(**changed), place)


def test_every_field_is_among_the_places() -> None:
    fields = [f.name for plan in (VerifyPlan, WritePlan) for f in plan.fields()]
    assert sorted({place.field for place in PLACES}) == sorted(fields)


def test_identical_plans_have_no_difference() -> None:
    case = small_case()
    assert compare(case, case.expected(), case.expected()) == ()


def test_an_element_that_was_never_written_says_so() -> None:
    case = small_case()
    actual = case.expected()
    actual.verify.verify_slot_indices[2] = case.before.verify.verify_slot_indices[2]
    ((difference,),) = [found.first for found in compare(case, case.expected(), actual)]
    assert difference.untouched


def test_what_the_others_follow_from_comes_first() -> None:
    case = small_case()
    wider = Case("wider", small_case(swa_window_size=5).inputs, case.before).expected()
    assert [found.field for found in compare(case, case.expected(), wider)] == [
        "verify_num_valid",
        "verify_expected_positions",
        "verify_slot_indices",
        "verify_expected_tokens",
        "verify_prev_slot_indices",
    ]


def test_the_first_differences_are_described_and_all_are_counted() -> None:
    case = small_case()
    actual = case.expected()
    actual.verify.verify_slot_indices[:11] += 1
    actual.write.write_num_valid_reqs[0] = 0
    columns, number = compare(case, case.expected(), actual)
    assert (columns.field, columns.count, columns.size) == ("verify_slot_indices", 11, 20)
    assert [d.index for d in columns.first] == list(range(FIRST_DIFFERENCES))
    assert (number.field, number.count, number.size) == ("write_num_valid_reqs", 1, 1)
    (columns, _) = compare(case, case.expected(), actual, first=11)
    assert [d.position for d in columns.first] == [2, 3, 4, 5, 0, 1, 14, 15, 0, 1, 2]


@pytest.mark.parametrize(
    ("buffer", "described"),
    [
        (np.zeros(20, np.int32), "int32 [20]"),
        (np.zeros(20, ">i8"), ">i8 [20]"),
        (np.zeros(21, np.int64), "int64 [21]"),
        (np.zeros((20, 1), np.int64), "int64 [20, 1]"),
        ([0] * 20, "list"),
        (None, "NoneType"),
    ],
    ids=["dtype", "byte order", "length", "rank", "type", "missing"],
)
def test_a_buffer_of_the_wrong_kind_is_a_difference(buffer: object, described: str) -> None:
    case = small_case()
    expected = case.expected()
    fields = {f.name: getattr(expected.verify, f.name) for f in VerifyPlan.fields()}
    actual = Plans(VerifyPlan(**fields | {"verify_expected_tokens": buffer}), expected.write)
    (found,) = compare(case, expected, actual)
    assert (found.count, found.size) == (20, 20)
    (difference,) = found.first
    assert difference.index is None
    assert (difference.expected, difference.actual) == ("int64 [20]", described)
    assert difference.rule == "section 3: verify_expected_tokens is int64 [verify_capacity]"


def test_the_length_of_write_offsets_is_named_by_its_own_rule() -> None:
    case = small_case()
    expected = case.expected()
    fields = {f.name: getattr(expected.write, f.name) for f in WritePlan.fields()}
    actual = Plans(expected.verify, WritePlan(**fields | {"write_offsets": np.zeros(10, np.int64)}))
    ((difference,),) = [found.first for found in compare(case, expected, actual)]
    assert difference.rule == "section 3: write_offsets is int64 [write_req_capacity + 1]"


def test_zero_length_columns_compare() -> None:
    case = small_case(verify_capacity=0)
    assert compare(case, case.expected(), case.expected()) == ()
