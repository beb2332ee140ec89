"""The numpy reference against hand-written values and against the second oracle, byte for byte."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections import Counter
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

import shared_ref
from shared_ref import VerifyPlan, WritePlan
from shared_ref.batch import requests
from shared_ref.conformance import strategies
from shared_ref.conformance.case import Case, PlanInputs, Plans
from shared_ref.conformance.strategies import LAYOUTS, PLAIN_LAYOUTS, cases, free_cases
from shared_ref.faults import request_faults

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

TABLE = np.array(
    [
        [0, 0, 0, 0, 0, 0],
        [11, 12, 13, 14, 15, 16],
        [21, 22, 23, 24, 25, 26],
        [31, 32, 33, 34, 35, 36],
    ],
    np.int32,
)
TOKENS = np.array(
    [
        [900, 901, 902, 903],
        [910, 911, 912, 913],
        [920, 921, 922, 923],
    ],
    np.int32,
)
HUNDREDS = np.arange(100, 140)
"""A mapping for the slots of TABLE: slot 14 of the full pool is slot 114 of the window's."""


def int64(values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def case(
    rows: list[int],
    prefix_lens: list[int],
    extend_seq_lens: list[int] | None = None,
    *,
    table: np.ndarray = TABLE,
    window: int = 0,
    mapping: np.ndarray | None = None,
    capacity: int = 8,
    write_req_capacity: int | None = None,
    tokens: np.ndarray | None = None,
    valid_lens: list[int] | None = None,
    offset: int = 0,
    page_size: int = 1,
    extras: tuple[str, ...] = (),
) -> Case:
    inputs = PlanInputs(
        req_pool_indices=int64(rows),
        prefix_lens=int64(prefix_lens),
        extend_seq_lens=int64([0] * len(rows) if extend_seq_lens is None else extend_seq_lens),
        req_to_token=table,
        swa_window_size=window,
        full_to_swa_index_mapping=mapping,
        verify_capacity=capacity,
        req_to_verify_expected_tokens=tokens,
        req_to_verify_expected_tokens_valid_lens=None if valid_lens is None else int64(valid_lens),
        kv_token_id_vs_position_offset=offset,
        page_size=page_size,
    )
    rows_of_plan = len(rows) if write_req_capacity is None else write_req_capacity
    return Case.poisoned("hand-written", inputs, write_req_capacity=rows_of_plan, extras=extras)


def entries(plans: Plans) -> list[tuple[int, int, int, int]]:
    """(slot, expected token, position, prev slot) of the valid entries of an enabled plan."""
    assert plans.verify.enable.tolist() == [1]
    n = plans.verify.verify_num_valid[0]
    columns = (
        plans.verify.verify_slot_indices,
        plans.verify.verify_expected_tokens,
        plans.verify.verify_expected_positions,
        plans.verify.verify_prev_slot_indices,
    )
    return list(zip(*(column[:n].tolist() for column in columns), strict=True))


def assert_same_bytes(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert got.keys() == expected.keys()
    for name, buffer in expected.items():
        assert got[name].dtype == buffer.dtype
        assert got[name].tobytes() == buffer.tobytes(), f"{name}: {got[name]} is not {buffer}"


# Verify entries (section 4)


def test_entries_are_the_cached_positions_of_each_request_in_batch_order() -> None:
    plans = case([2, 1], [1, 3]).expected()
    assert entries(plans) == [(21, -1, 0, -1), (11, -1, 0, -1), (12, -1, 1, 11), (13, -1, 2, 12)]
    assert plans.verify.verify_num_valid.tolist() == [4]


def test_two_requests_on_one_row_each_have_their_entries() -> None:
    assert entries(case([3, 3], [2, 1]).expected()) == [(31, -1, 0, -1), (32, -1, 1, 31), (31, -1, 0, -1)]


def test_window_keeps_the_last_positions_and_their_real_predecessor() -> None:
    plans = case([1], [5], window=2, mapping=HUNDREDS).expected()
    assert entries(plans) == [(114, -1, 3, 113), (115, -1, 4, 114)]


@pytest.mark.parametrize("window", [3, 4, 2**31 - 1])
def test_window_as_long_as_the_prefix_or_longer_starts_at_position_0(window: int) -> None:
    plans = case([1], [3], window=window, mapping=HUNDREDS).expected()
    assert entries(plans) == [(111, -1, 0, -1), (112, -1, 1, 111), (113, -1, 2, 112)]


@pytest.mark.parametrize("window", [0, -1, -(2**31)])
def test_no_window_verifies_the_whole_prefix_and_still_translates(window: int) -> None:
    plans = case([1], [2], [1], window=window, mapping=HUNDREDS).expected()
    assert entries(plans) == [(111, -1, 0, -1), (112, -1, 1, 111)]
    assert plans.write.write_seed_slot_indices.tolist() == [112]


def test_padding_requests_have_no_entries_and_no_writes_whatever_their_values() -> None:
    plans = case([0, 2, 0], [5, 1, INT64_MIN], [3, 1, INT64_MAX]).expected()
    assert entries(plans) == [(21, -1, 0, -1)]
    assert plans.write.write_offsets.tolist() == [0, 0, 1, 1]
    assert plans.write.write_seed_slot_indices.tolist() == [-1, 21, -1]


def test_request_without_a_prefix_has_no_entries() -> None:
    assert entries(case([1, 2], [0, 1]).expected()) == [(21, -1, 0, -1)]


def test_row_strided_tables_read_their_own_cells() -> None:
    wide_table = np.full((4, 9), 77, np.int32)
    wide_table[:, 2:8] = TABLE
    wide_tokens = np.full((3, 6), 88, np.int32)
    wide_tokens[:, 1:5] = TOKENS
    plans = case(
        [2], [6], [1], table=wide_table[:, 2:8], tokens=wide_tokens[:, 1:5], valid_lens=[4]
    ).expected()
    assert plans.verify.verify_slot_indices[:6].tolist() == [21, 22, 23, 24, 25, 26]
    assert plans.verify.verify_expected_tokens[:6].tolist() == [920, 921, 922, 923, -1, -1]
    assert plans.write.write_seed_slot_indices.tolist() == [26]


# translate


def test_negative_slots_are_sentinels_and_pass_through_a_mapping() -> None:
    table = np.array([[0, 0, 0], [-1, -7, -(2**31)]], np.int32)
    plans = case([1], [3], [1], table=table, mapping=HUNDREDS).expected()
    assert entries(plans) == [(-1, -1, 0, -1), (-7, -1, 1, -1), (-(2**31), -1, 2, -7)]
    assert plans.write.write_seed_slot_indices.tolist() == [-(2**31)]


def test_slots_past_the_mapping_read_its_last_element() -> None:
    table = np.array([[0, 0, 0, 0], [1, 2, 3, 2**31 - 1]], np.int32)
    plans = case([1], [4], [1], table=table, mapping=int64([50, 51, 52])).expected()
    assert entries(plans) == [(51, -1, 0, -1), (52, -1, 1, 51), (52, -1, 2, 52), (52, -1, 3, 52)]
    assert plans.write.write_seed_slot_indices.tolist() == [52]


def test_what_the_mapping_holds_is_not_translated_again() -> None:
    table = np.array([[0, 0, 0], [0, 1, 2]], np.int32)
    plans = case([1], [3], table=table, mapping=int64([2, -9, 2**40])).expected()
    assert entries(plans) == [(2, -1, 0, -1), (-9, -1, 1, 2), (2**40, -1, 2, -9)]


def test_without_a_mapping_every_slot_stays_itself() -> None:
    table = np.array([[0, 0], [2**31 - 1, -(2**31)]], np.int32)
    assert entries(case([1], [2], table=table).expected()) == [
        (2**31 - 1, -1, 0, -1),
        (-(2**31), -1, 1, 2**31 - 1),
    ]


# Expected tokens


@pytest.mark.parametrize(
    ("offset", "valid_len", "expected"),
    [
        (0, 4, [910, 911, 912, 913, -1]),
        (0, 2, [910, 911, -1, -1, -1]),
        (0, 0, [-1, -1, -1, -1, -1]),
        (0, -1, [-1, -1, -1, -1, -1]),
        (0, INT64_MIN, [-1, -1, -1, -1, -1]),
        (0, 5, [910, 911, 912, 913, -1]),
        (0, 2**32 + 1, [910, 911, 912, 913, -1]),
        (0, INT64_MAX, [910, 911, 912, 913, -1]),
        (1, 4, [911, 912, 913, -1, -1]),
        (1, 3, [911, 912, -1, -1, -1]),
        (-1, 4, [-1, 910, 911, 912, 913]),
        (-2, 2, [-1, -1, 910, 911, -1]),
        (2**31 - 1, INT64_MAX, [-1, -1, -1, -1, -1]),
        (-(2**31), INT64_MAX, [-1, -1, -1, -1, -1]),
    ],
)
def test_expected_token_is_the_current_cell_at_position_plus_offset(
    offset: int, valid_len: int, expected: list[int]
) -> None:
    plans = case([1], [5], tokens=TOKENS, valid_lens=[valid_len], offset=offset).expected()
    assert [token for _, token, _, _ in entries(plans)] == expected


def test_expected_tokens_of_a_window_are_those_of_its_positions() -> None:
    plans = case([2], [3], window=2, mapping=HUNDREDS, tokens=TOKENS, valid_lens=[3]).expected()
    assert entries(plans) == [(122, 921, 1, 121), (123, 922, 2, 122)]


def test_rows_past_the_token_table_expect_nothing() -> None:
    plans = case([3, 2], [2, 1], tokens=TOKENS, valid_lens=[2, 1]).expected()
    assert entries(plans) == [(31, -1, 0, -1), (32, -1, 1, 31), (21, 920, 0, -1)]


def test_expected_tokens_pass_negative_ids_through() -> None:
    tokens = np.array([[0, 0], [-5, -(2**31)]], np.int32)
    plans = case([1], [2], tokens=tokens, valid_lens=[2]).expected()
    assert entries(plans) == [(11, -5, 0, -1), (12, -(2**31), 1, 11)]


def test_valid_lens_without_a_token_table_are_ignored() -> None:
    assert entries(case([1], [1], valid_lens=[1]).expected()) == [(11, -1, 0, -1)]


# Capacity


def columns(plans: Plans) -> dict[str, np.ndarray]:
    return {name: b for name, b in plans.buffers().items() if name in COLUMN_NAMES}


COLUMN_NAMES = (
    "verify_slot_indices",
    "verify_expected_tokens",
    "verify_expected_positions",
    "verify_prev_slot_indices",
)


def test_entries_that_just_fit_enable_the_plan() -> None:
    plans = case([1, 2], [2, 1], capacity=3).expected()
    assert plans.verify.enable.tolist() == [1]
    assert plans.verify.verify_num_valid.tolist() == [3]
    assert plans.verify.verify_slot_indices.tolist() == [11, 12, 21]


def test_one_entry_too_many_disables_the_plan_and_leaves_its_columns() -> None:
    overflowing = case([1, 2], [2, 2], [1, 1], capacity=3)
    plans = overflowing.expected()
    assert plans.verify.enable.tolist() == [0]
    assert plans.verify.verify_num_valid.tolist() == [3]
    assert_same_bytes(columns(plans), columns(overflowing.before))


def test_overflow_still_fills_the_write_rows() -> None:
    plans = case([1, 2], [2, 2], [4, 1], capacity=3, write_req_capacity=3).expected()
    assert plans.write.write_offsets.tolist() == [0, 4, 5, 0]
    assert plans.write.write_seed_slot_indices[:2].tolist() == [12, 22]
    assert plans.write.write_num_valid_reqs.tolist() == [2]


def test_elements_behind_the_entries_stay_as_they_were() -> None:
    roomy = case([1], [2], capacity=5)
    plans = roomy.expected()
    assert plans.verify.verify_num_valid.tolist() == [2]
    for name, column in columns(plans).items():
        assert column[2:].tobytes() == columns(roomy.before)[name][2:].tobytes()


@pytest.mark.parametrize(("prefix_len", "enable"), [(0, 1), (1, 0), (6, 0)])
def test_columns_of_length_0_are_enabled_only_without_entries(prefix_len: int, enable: int) -> None:
    plans = case([1], [prefix_len], capacity=0).expected()
    assert plans.verify.enable.tolist() == [enable]
    assert plans.verify.verify_num_valid.tolist() == [0]


@pytest.mark.parametrize("total", [2**31, 2**32 + 2])
def test_total_that_would_wrap_in_int32_does_not_fit(total: int) -> None:
    bs = 4096
    prefix_lens = [total // bs] * (bs - 1) + [total - total // bs * (bs - 1)]
    huge = case([1] * bs, prefix_lens, table=np.zeros((2, 2**20 + 2), np.int32), capacity=4)
    plans, scratch = run_offsets(shared_ref.launch_plan_offsets_kernel_reference, huge)
    assert plans.verify.enable.tolist() == [0]
    assert plans.verify.verify_num_valid.tolist() == [4]
    assert scratch[4096] == total
    combined = huge.expected()
    assert combined.verify.enable.tolist() == [0]
    assert_same_bytes(columns(combined), columns(huge.before))


# Write rows


def test_write_offsets_are_the_exclusive_prefix_sum_with_zeros_behind_it() -> None:
    plans = case([1, 0, 2], [1, 1, 1], [3, 9, 2], write_req_capacity=6).expected()
    assert plans.write.write_offsets.tolist() == [0, 3, 3, 5, 0, 0, 0]
    assert plans.write.write_num_valid_reqs.tolist() == [3]


def test_write_offsets_wrap_in_twos_complement() -> None:
    plans = case([1, 2, 3, 1], [0, 0, 0, 0], [INT64_MAX, 2, INT64_MAX, 5]).expected()
    assert plans.write.write_offsets.tolist() == [0, 2**63 - 1, -(2**63) + 1, 0, 5]


def test_seed_is_the_slot_of_the_last_cached_position() -> None:
    plans = case([1, 2], [4, 1], [1, 7]).expected()
    assert plans.write.write_seed_slot_indices.tolist() == [14, 21]


def test_seed_is_translated() -> None:
    plans = case([1], [4], [1], window=1, mapping=HUNDREDS).expected()
    assert plans.write.write_seed_slot_indices.tolist() == [114]


@pytest.mark.parametrize(
    ("row", "prefix_len", "extend_len"), [(1, 3, 0), (1, 3, -1), (1, 0, 2), (1, -1, 2), (0, 3, 2), (4, 3, 2)]
)
def test_request_that_continues_no_chain_has_no_seed(row: int, prefix_len: int, extend_len: int) -> None:
    assert case([row], [prefix_len], [extend_len]).expected().write.write_seed_slot_indices.tolist() == [-1]


def test_seeds_behind_the_batch_stay_as_they_were() -> None:
    roomy = case([1, 0], [2, 2], [1, 1], write_req_capacity=5)
    seeds = roomy.expected().write.write_seed_slot_indices
    assert seeds[:2].tolist() == [12, -1]
    assert seeds[2:].tobytes() == roomy.before.write.write_seed_slot_indices[2:].tobytes()


# Pages

PAGES = np.array([[0, 0, 0], [5, 2, 7], [-4, 0, 3], [9, 8, 6]], np.int32)
"""Pages of slots; with four slots each, page 5 has the slots 20 to 23."""


def test_a_cell_of_pages_is_the_slot_of_its_position_inside_the_page() -> None:
    plans = case([1], [6], [1], table=PAGES, page_size=4).expected()
    assert entries(plans) == [
        (20, -1, 0, -1),
        (21, -1, 1, 20),
        (22, -1, 2, 21),
        (23, -1, 3, 22),
        (8, -1, 4, 23),
        (9, -1, 5, 8),
    ]
    assert plans.write.write_seed_slot_indices.tolist() == [9]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (1, [(109, -1, 5, 108)]),
        (2, [(108, -1, 4, 123), (109, -1, 5, 108)]),
        (3, [(123, -1, 3, 122), (108, -1, 4, 123), (109, -1, 5, 108)]),
    ],
)
def test_a_window_may_begin_anywhere_in_a_page(window: int, expected: list[tuple[int, ...]]) -> None:
    plans = case([1], [6], table=PAGES, page_size=4, window=window, mapping=HUNDREDS).expected()
    assert entries(plans) == expected


def test_negative_pages_are_sentinels_whole_and_page_0_is_translated() -> None:
    plans = case([2], [4], [1], table=PAGES, page_size=2, mapping=HUNDREDS).expected()
    assert entries(plans) == [(-4, -1, 0, -1), (-4, -1, 1, -4), (100, -1, 2, -4), (101, -1, 3, 100)]
    assert plans.write.write_seed_slot_indices.tolist() == [101]


def test_a_page_across_the_end_of_the_mapping_reads_its_last_element_from_there_on() -> None:
    plans = case([1], [3], [1], table=PAGES, page_size=3, mapping=HUNDREDS[:17]).expected()
    assert entries(plans) == [(115, -1, 0, -1), (116, -1, 1, 115), (116, -1, 2, 116)]


def test_positions_end_with_the_last_page() -> None:
    plans = case([3], [7], [1], table=PAGES, page_size=2).expected()
    assert [slot for slot, *_ in entries(plans)] == [18, 19, 16, 17, 12, 13]
    assert plans.write.write_seed_slot_indices.tolist() == [13]
    assert strict(case([3], [7], table=PAGES, page_size=2)) == (
        "kv-canary: request 0: prefix_lens 7 exceeds the 6 positions of req_to_token"
    )


def test_the_token_table_has_no_pages() -> None:
    plans = case([2], [4], table=PAGES, page_size=4, tokens=TOKENS, valid_lens=[4]).expected()
    assert [token for _, token, _, _ in entries(plans)] == [920, 921, 922, 923]


def test_slots_and_positions_of_vast_pages_are_64_bits_wide() -> None:
    table = np.array([[0, 0], [5, 2**31 - 1]], np.int32)
    vast = 2**31 - 1
    staged = case([1], [vast + 1], table=table, page_size=vast, window=2)
    plans = run_entries(shared_ref.launch_plan_entries_kernel_reference, staged, 1)
    assert plans.verify.verify_expected_positions[:2].tolist() == [vast - 1, vast]
    assert plans.verify.verify_slot_indices[:2].tolist() == [6 * vast - 1, vast * vast]
    assert plans.verify.verify_prev_slot_indices[:2].tolist() == [6 * vast - 2, 6 * vast - 1]


# verify_total_out


@pytest.mark.parametrize(("capacity", "num_valid"), [(8, 3), (3, 3), (2, 2), (0, 0)])
def test_total_is_that_of_all_entries_whether_or_not_they_fit(capacity: int, num_valid: int) -> None:
    plans = case([1, 0, 2], [2, 9, 1], capacity=capacity, extras=("verify_total_out",)).expected()
    assert plans.extras["verify_total_out"].tolist() == [3]
    assert plans.verify.verify_num_valid.tolist() == [num_valid]


# faults_out


def counted(faulty: Case, former: tuple[int, int] = (0, -1)) -> dict[str, tuple[int, int]]:
    """Count and place of the kinds of `faults_out` that a launch changes; before it all are `former`."""
    buffer = np.tile(int64(former), (8, 1))
    before = Plans(*faulty.before, {"faults_out": buffer})
    after = faulty._replace(before=before).expected().extras["faults_out"].tolist()
    return {
        kind: (count, place)
        for kind, (count, place) in zip(shared_ref.FAULT_KINDS, after, strict=True)
        if (count, place) != former
    }


def at(request: int, position: int = 0) -> int:
    return request * 2**48 + position


def test_faults_of_requests_are_counted_with_the_first_one_s_place() -> None:
    rows, prefix_lens, extends = [1, -1, 9, 2, 3], [1, -5, 7, 7, 2**40], [-1, 0, -2, 0, 1]
    assert counted(case(rows, prefix_lens, extends, capacity=64)) == {
        "row_outside": (2, at(1)),
        "prefix_negative": (1, at(1)),
        "extend_negative": (2, at(0)),
        "prefix_exceeds": (3, at(2)),
    }


def test_faults_of_cells_are_counted_with_their_positions() -> None:
    table = np.array([[0] * 4, [5, -1, 0, 12], [13, 6, -9, 0]], np.int32)
    tokens = np.array([[0], [7]], np.int32)
    faulty = case(
        [1, 2], [4, 4], table=table, mapping=HUNDREDS[:12], tokens=tokens, valid_lens=[2, 9], capacity=8
    )
    assert counted(faulty) == {
        "slot_outside": (2, at(0, 3)),
        "token_outside": (5, at(0, 1)),
        "slot_negative": (2, at(0, 1)),
        "slot_dummy": (2, at(0, 2)),
    }


def test_the_dummy_page_has_a_page_of_slots() -> None:
    assert counted(case([2], [6], table=PAGES, page_size=2)) == {
        "slot_negative": (2, at(0, 0)),
        "slot_dummy": (2, at(0, 2)),
    }


def test_only_entries_have_faults_of_cells() -> None:
    table = np.array([[0] * 4, [99, 99, 1, 2], [5, 6, 7, 99]], np.int32)
    before_a_window = case([1], [4], table=table, window=2, mapping=HUNDREDS)
    assert counted(before_a_window) == {}
    behind_the_table = case([2], [9], [1], table=table, window=2, mapping=HUNDREDS)
    assert counted(behind_the_table) == {"prefix_exceeds": (1, at(0))}
    assert counted(case([0], [INT64_MIN], [INT64_MIN], table=table)) == {}


def test_entries_that_do_not_fit_have_no_faults() -> None:
    table = np.array([[0] * 2, [-1, 0]], np.int32)
    assert counted(case([1, 1], [2, -3], table=table, capacity=1)) == {"prefix_negative": (1, at(1))}
    assert counted(case([1, 1], [2, -3], table=table, capacity=2)).keys() == {
        "prefix_negative",
        "slot_negative",
        "slot_dummy",
    }


@pytest.mark.parametrize(
    ("former", "after"),
    [
        ((0, -1), (2, at(1))),
        ((5, at(0, 3)), (7, at(0, 3))),
        ((5, at(2)), (7, at(1))),
        ((5, -2), (7, at(1))),
        ((INT64_MAX, INT64_MIN), (INT64_MIN + 1, at(1))),
    ],
)
def test_faults_add_to_those_before_and_the_smallest_unsigned_place_stays(
    former: tuple[int, int], after: tuple[int, int]
) -> None:
    assert counted(case([1, 8, 9], [0, 0, 0]), former) == {"row_outside": after}


def test_plans_are_the_same_with_and_without_optional_outputs() -> None:
    inputs = ([1, 9, 2], [7, -1, 3], [1, 1, -1])
    plain = case(*inputs, capacity=16).expected()
    more = case(*inputs, capacity=16, extras=("verify_total_out", "faults_out")).expected()
    assert plain.extras == {}
    assert_same_bytes({name: more.buffers()[name] for name in plain.buffers()}, plain.buffers())


# Legal extremes of shape


@pytest.mark.parametrize(("capacity", "write_req_capacity"), [(3, 2), (0, 0)])
def test_empty_batch_fills_totals_and_zeros_the_offsets(capacity: int, write_req_capacity: int) -> None:
    empty = case([], [], [], capacity=capacity, write_req_capacity=write_req_capacity)
    plans = empty.expected()
    assert plans.verify.enable.tolist() == [1]
    assert plans.verify.verify_num_valid.tolist() == [0]
    assert plans.write.write_offsets.tolist() == [0] * (write_req_capacity + 1)
    assert plans.write.write_num_valid_reqs.tolist() == [0]
    assert_same_bytes(columns(plans), columns(empty.before))
    seeds = plans.write.write_seed_slot_indices
    assert seeds.tobytes() == empty.before.write.write_seed_slot_indices.tobytes()


def test_batch_of_padding_has_no_entries_and_no_seeds() -> None:
    plans = case([0, 0], [3, 3], [1, 1]).expected()
    assert entries(plans) == []
    assert plans.write.write_offsets.tolist() == [0, 0, 0]
    assert plans.write.write_seed_slot_indices.tolist() == [-1, -1]
    assert plans.write.write_num_valid_reqs.tolist() == [2]


def test_table_without_rows_makes_every_request_padding() -> None:
    table = np.empty((0, 6), np.int32)
    tokens = np.empty((0, 6), np.int32)
    plans = case([0, 1], [3, 3], [1, 1], table=table, tokens=tokens, valid_lens=[3, 3]).expected()
    assert entries(plans) == []
    assert plans.write.write_offsets.tolist() == [0, 0, 0]
    assert plans.write.write_seed_slot_indices.tolist() == [-1, -1]


def test_table_without_columns_has_no_positions_but_counts_the_writes() -> None:
    plans = case([1, 2], [3, 0], [4, 5], table=np.empty((4, 0), np.int32), mapping=HUNDREDS).expected()
    assert entries(plans) == []
    assert plans.write.write_offsets.tolist() == [0, 4, 9]
    assert plans.write.write_seed_slot_indices.tolist() == [-1, -1]


def test_token_table_without_columns_expects_nothing() -> None:
    plans = case([1], [1], tokens=np.empty((4, 0), np.int32), valid_lens=[1]).expected()
    assert entries(plans) == [(11, -1, 0, -1)]


def test_largest_batch_is_planned() -> None:
    full = case([1] * 4096, [1] * 4096, [1] * 4096, capacity=4096)
    plans = full.expected()
    assert entries(plans) == [(11, -1, 0, -1)] * 4096
    assert plans.write.write_offsets.tolist() == list(range(4097))


# Values that make no sense (section 5): the harmless answers


@pytest.mark.parametrize("row", [-1, 4, 5, 2**31, 2**32, 2**32 + 1, -(2**32) + 1, INT64_MAX, INT64_MIN])
def test_row_outside_the_table_counts_as_padding(row: int) -> None:
    plans = case([row, 2], [2, 1], [3, 1], tokens=TOKENS, valid_lens=[2, 1]).expected()
    assert entries(plans) == [(21, 920, 0, -1)]
    assert plans.write.write_offsets.tolist() == [0, 0, 1]
    assert plans.write.write_seed_slot_indices.tolist() == [-1, 21]


@pytest.mark.parametrize("n", [-1, -(2**31), -(2**32) + 1, INT64_MIN])
def test_negative_lengths_count_as_0(n: int) -> None:
    plans = case([1, 2, 3], [n, 2, 1], [1, n, 1]).expected()
    assert entries(plans) == [(21, -1, 0, -1), (22, -1, 1, 21), (31, -1, 0, -1)]
    assert plans.write.write_offsets.tolist() == [0, 1, 1, 2]
    assert plans.write.write_seed_slot_indices.tolist() == [-1, -1, 31]


@pytest.mark.parametrize("prefix_len", [7, 2**31, 2**32 + 1, INT64_MAX])
def test_positions_past_the_table_do_not_exist(prefix_len: int) -> None:
    plans = case([1], [prefix_len], [1]).expected()
    assert [(slot, position) for slot, _, position, _ in entries(plans)] == [
        (11, 0),
        (12, 1),
        (13, 2),
        (14, 3),
        (15, 4),
        (16, 5),
    ]
    assert plans.write.write_seed_slot_indices.tolist() == [16]


def test_window_that_reaches_back_into_the_table_keeps_the_cells_that_exist() -> None:
    plans = case([1], [8], [1], window=3, mapping=HUNDREDS).expected()
    assert entries(plans) == [(116, -1, 5, 115)]


@pytest.mark.parametrize("prefix_len", [8, 2**32 + 5, INT64_MAX])
def test_window_past_the_table_has_no_entries_but_the_seed_of_the_last_cell(prefix_len: int) -> None:
    plans = case([1], [prefix_len], [1], window=2, mapping=HUNDREDS).expected()
    assert entries(plans) == []
    assert plans.write.write_seed_slot_indices.tolist() == [116]


# strict


def strict(faulty: Case) -> str | None:
    """What `strict` says, after a look that it wrote nothing."""
    plans = faulty.before.copy()
    try:
        shared_ref.launch_canary_plan_kernels_reference(
            verify_plan_out=plans.verify,
            write_plan_out=plans.write,
            **faulty.inputs.keywords(),
            **plans.extras,
            strict=True,
        )
    except ValueError as error:
        assert_same_bytes(plans.buffers(), faulty.before.buffers())
        return str(error)
    assert_same_bytes(plans.buffers(), faulty.expected().buffers())
    return None


@pytest.mark.parametrize(
    ("faulty", "text"),
    [
        (case([-1], [1]), "request 0: row -1 is outside req_to_token (4 rows)"),
        (case([1, 4], [1, 1]), "request 1: row 4 is outside req_to_token (4 rows)"),
        (
            case([1], [0], table=np.empty((0, 6), np.int32)),
            "request 0: row 1 is outside req_to_token (0 rows)",
        ),
        (case([1], [-3]), "request 0: prefix_lens -3 is negative"),
        (case([1], [1], [INT64_MIN]), f"request 0: extend_seq_lens {INT64_MIN} is negative"),
        (
            case([0, 1], [9, 7]),
            "request 1: prefix_lens 7 exceeds the 6 positions of req_to_token",
        ),
        (
            case([1], [1], table=np.empty((4, 0), np.int32)),
            "request 0: prefix_lens 1 exceeds the 0 positions of req_to_token",
        ),
        (
            case([1], [3], mapping=int64([7] * 12)),
            "request 0, position 1: slot 12 is outside full_to_swa_index_mapping (12 slots)",
        ),
        (
            case([1], [3], tokens=TOKENS[:, :2], valid_lens=[3]),
            "request 0, position 2: token position 2 is outside req_to_verify_expected_tokens "
            "(3 rows, 2 columns)",
        ),
        (
            case([3], [1], tokens=TOKENS, valid_lens=[1]),
            "request 0, position 0: token position 0 is outside req_to_verify_expected_tokens "
            "(3 rows, 4 columns)",
        ),
        (
            case([1], [1], tokens=TOKENS, valid_lens=[0], offset=-1),
            "request 0, position 0: token position -1 is outside req_to_verify_expected_tokens "
            "(3 rows, 4 columns)",
        ),
    ],
)
def test_strict_names_the_fault_and_writes_nothing(faulty: Case, text: str) -> None:
    assert strict(faulty) == f"kv-canary: {text}"


def test_strict_checks_the_cell_before_a_windows_first_entry() -> None:
    table = np.array([[0] * 4, [1, 99, 2, 3]], np.int32)
    assert strict(case([1], [4], table=table, window=2, mapping=HUNDREDS)) == (
        "kv-canary: request 0, position 1: slot 99 is outside full_to_swa_index_mapping (40 slots)"
    )
    assert strict(case([1], [4], table=table, window=1, mapping=HUNDREDS)) is None


@pytest.mark.parametrize(("extend_len", "reads_the_seed"), [(1, True), (0, False), (-1, False)])
def test_cell_of_a_seed_is_checked_though_it_is_no_entry(extend_len: int, reads_the_seed: bool) -> None:
    table = np.array([[0] * 2, [1, 99]], np.int32)
    call = case([1], [9], [extend_len], table=table, window=2, mapping=HUNDREDS).inputs.keywords()
    (request,) = requests(call)
    slot_fault = "request 0, position 1: slot 99 is outside full_to_swa_index_mapping (40 slots)"
    assert (slot_fault in request_faults(request, call)) is reads_the_seed


def test_strict_takes_slots_before_tokens_and_low_positions_before_high_ones() -> None:
    table = np.array([[0] * 3, [1, 99, 99]], np.int32)
    tokens = np.array([[0] * 1, [5]], np.int32)
    both = case([1], [3], table=table, mapping=HUNDREDS, tokens=tokens, valid_lens=[3])
    assert strict(both) == (
        "kv-canary: request 0, position 1: slot 99 is outside full_to_swa_index_mapping (40 slots)"
    )
    token_first = case([1], [3], table=table, mapping=HUNDREDS, tokens=tokens, valid_lens=[3], offset=1)
    assert strict(token_first) == (
        "kv-canary: request 0, position 0: token position 1 is outside req_to_verify_expected_tokens "
        "(2 rows, 1 columns)"
    )


def test_strict_takes_requests_in_batch_order() -> None:
    assert strict(case([1, -1], [1, 1], [-1, 0])) == "kv-canary: request 0: extend_seq_lens -1 is negative"


@pytest.mark.parametrize(
    "harmless",
    [
        case([0], [INT64_MIN], [INT64_MIN], tokens=TOKENS, valid_lens=[INT64_MAX]),
        case([1], [6], [INT64_MAX]),
        case([1], [4], tokens=TOKENS, valid_lens=[-1]),
        case([3], [4], tokens=TOKENS, valid_lens=[0]),
        case([1], [2], table=np.array([[0, 0], [-(2**31), -1]], np.int32), mapping=int64([1])),
        case([1], [6], tokens=TOKENS, valid_lens=[4], offset=2**31 - 1),
        # Position 0, whose token position is -1, is only the cell before the window: no entry, no token.
        case([1], [3], window=2, mapping=HUNDREDS, tokens=TOKENS, valid_lens=[3], offset=-1),
        case([], []),
    ],
)
def test_strict_accepts_what_is_odd_but_no_fault(harmless: Case) -> None:
    assert strict(harmless) is None


# Against the oracle


@given(free_cases())
@settings(max_examples=400)
def test_reference_equals_the_oracle(drawn: Case) -> None:
    inputs_before = {k: v.tobytes() for k, v in drawn.inputs.keywords().items() if isinstance(v, np.ndarray)}
    expected = drawn.run(oracle.launch_canary_plan_kernels)
    assert_same_bytes(drawn.expected().buffers(), expected.buffers())
    assert inputs_before == {
        k: v.tobytes() for k, v in drawn.inputs.keywords().items() if isinstance(v, np.ndarray)
    }


@given(free_cases())
def test_every_fault_of_every_request_is_the_oracles(drawn: Case) -> None:
    call = drawn.inputs.keywords()
    for request in requests(call):
        assert list(request_faults(request, call)) == list(oracle.faults(request.index, call))


@given(free_cases())
def test_strict_raises_the_oracles_first_fault(drawn: Case) -> None:
    fault = oracle.first_fault(**drawn.inputs.keywords())
    assert strict(drawn) == (None if fault is None else f"kv-canary: {fault}")


# Staged

OFFSETS_INPUTS = (
    "req_pool_indices",
    "prefix_lens",
    "extend_seq_lens",
    "req_to_token",
    "full_to_swa_index_mapping",
    "swa_window_size",
    "verify_capacity",
    "page_size",
)
ENTRIES_INPUTS = (
    "req_pool_indices",
    "prefix_lens",
    "req_to_token",
    "full_to_swa_index_mapping",
    "req_to_verify_expected_tokens",
    "req_to_verify_expected_tokens_valid_lens",
    "kv_token_id_vs_position_offset",
    "swa_window_size",
    "page_size",
)


def offsets_call(inputs: PlanInputs, plans: Plans, scratch: np.ndarray) -> dict[str, Any]:
    return {name: getattr(inputs, name) for name in OFFSETS_INPUTS} | {
        "out_verify_offsets_scratch": scratch,
        "out_write_offsets": plans.write.write_offsets,
        "out_write_seed_slot_indices": plans.write.write_seed_slot_indices,
        "out_verify_num_valid": plans.verify.verify_num_valid,
        "out_verify_enable": plans.verify.enable,
        "out_write_num_valid_reqs": plans.write.write_num_valid_reqs,
        **plans.extras,
    }


def entries_call(inputs: PlanInputs, plans: Plans, scratch: np.ndarray) -> dict[str, Any]:
    return {name: getattr(inputs, name) for name in ENTRIES_INPUTS} | {
        "verify_offsets_scratch": scratch,
        "verify_enable": plans.verify.enable,
        "out_verify_slot_indices": plans.verify.verify_slot_indices,
        "out_verify_expected_tokens": plans.verify.verify_expected_tokens,
        "out_verify_expected_positions": plans.verify.verify_expected_positions,
        "out_verify_prev_slot_indices": plans.verify.verify_prev_slot_indices,
        **{name: array for name, array in plans.extras.items() if name == "faults_out"},
    }


def poisoned_scratch(n: int = 4097) -> np.ndarray:
    return np.arange(n) - 2**40


def run_offsets(launch: Any, drawn: Case, scratch_len: int = 4097) -> tuple[Plans, np.ndarray]:
    plans, scratch = drawn.before.copy(), poisoned_scratch(scratch_len)
    launch(**offsets_call(drawn.inputs, plans, scratch))
    return plans, scratch


def run_entries(launch: Any, drawn: Case, enable: int, scratch: np.ndarray | None = None) -> Plans:
    plans = drawn.before.copy()
    plans.verify.enable[0] = enable
    launch(**entries_call(drawn.inputs, plans, poisoned_scratch() if scratch is None else scratch))
    return plans


def test_offsets_launcher_fills_the_scratch_the_totals_and_the_write_rows() -> None:
    staged = case([1, 0, 2], [4, 4, 2], [1, 1, 3], window=3, mapping=HUNDREDS, write_req_capacity=4)
    plans, scratch = run_offsets(shared_ref.launch_plan_offsets_kernel_reference, staged)
    assert scratch[:4].tolist() == [0, 3, 3, 5]
    assert scratch[4:].tobytes() == poisoned_scratch()[4:].tobytes()
    assert plans.verify.verify_num_valid.tolist() == [5]
    assert plans.verify.enable.tolist() == [1]
    assert plans.write.write_offsets.tolist() == [0, 1, 1, 4, 0]
    assert plans.write.write_seed_slot_indices[:3].tolist() == [114, -1, 122]
    assert plans.write.write_num_valid_reqs.tolist() == [3]
    assert_same_bytes(columns(plans), columns(staged.before))


def test_offsets_launcher_disables_what_does_not_fit() -> None:
    plans, scratch = run_offsets(shared_ref.launch_plan_offsets_kernel_reference, case([1], [3], capacity=2))
    assert plans.verify.enable.tolist() == [0]
    assert plans.verify.verify_num_valid.tolist() == [2]
    assert scratch[:2].tolist() == [0, 3]


def test_offsets_launcher_takes_the_integers_that_the_tensors_say() -> None:
    wide = np.zeros((4, 9), np.int32)
    wide[:, :6] = TABLE
    staged = case([1], [2], [1], table=wide[:, :6], write_req_capacity=3)
    plans, scratch = staged.before.copy(), poisoned_scratch()
    shared_ref.launch_plan_offsets_kernel_reference(
        **offsets_call(staged.inputs, plans, scratch),
        req_to_token_stride0=9,
        write_offsets_len=np.int64(4),
        write_req_capacity=np.int32(3),
    )
    assert plans.write.write_seed_slot_indices[0] == 12


def test_entries_launcher_does_not_trust_the_scratch() -> None:
    staged = case([1, 2], [2, 1])
    garbage = np.full(4097, INT64_MAX)
    plans = run_entries(shared_ref.launch_plan_entries_kernel_reference, staged, 1, garbage)
    assert plans.verify.verify_slot_indices[:3].tolist() == [11, 12, 21]
    assert garbage.tobytes() == np.full(4097, INT64_MAX).tobytes()


@pytest.mark.parametrize("enable", [1, 2, -1, 2**31 - 1, -(2**31)])
def test_entries_launcher_writes_where_enable_is_not_0(enable: int) -> None:
    plans = run_entries(shared_ref.launch_plan_entries_kernel_reference, case([1], [2]), enable)
    assert plans.verify.verify_slot_indices[:2].tolist() == [11, 12]
    assert plans.verify.enable.tolist() == [enable]


@pytest.mark.parametrize(("enable", "capacity"), [(0, 8), (1, 1), (1, 0)])
def test_entries_launcher_leaves_the_columns_of_a_disabled_or_too_short_plan(
    enable: int, capacity: int
) -> None:
    staged = case([1], [2], capacity=capacity)
    plans = run_entries(shared_ref.launch_plan_entries_kernel_reference, staged, enable)
    assert_same_bytes(columns(plans), columns(staged.before))


def test_the_staged_launchers_count_the_requests_faults_and_the_entries() -> None:
    table = np.array([[0] * 2, [-1, 0]], np.int32)
    extras = ("verify_total_out", "faults_out")
    staged = case([1, 7], [2, -3], [0, 0], table=table, extras=extras)
    staged.before.extras["faults_out"][:] = [0, -1]
    plans, _ = run_offsets(shared_ref.launch_plan_offsets_kernel_reference, staged)
    assert plans.extras["verify_total_out"].tolist() == [2]
    of_requests = [[1, at(1)], [1, at(1)], [0, -1], [0, -1]]
    assert plans.extras["faults_out"].tolist() == of_requests + [[0, -1]] * 4
    plans = run_entries(shared_ref.launch_plan_entries_kernel_reference, staged, 1)
    of_entries = [[0, -1], [0, -1], [1, at(0)], [1, at(0, 1)]]
    assert plans.extras["faults_out"].tolist() == [[0, -1]] * 4 + of_entries
    plans = run_entries(shared_ref.launch_plan_entries_kernel_reference, staged, 0)
    assert plans.extras["faults_out"].tolist() == [[0, -1]] * 8


def test_staged_window_without_a_mapping_keeps_the_full_pools_slots() -> None:
    staged = case([1], [4], [1], window=2)
    plans, _ = run_offsets(shared_ref.launch_plan_offsets_kernel_reference, staged)
    assert plans.verify.verify_num_valid.tolist() == [2]
    assert plans.write.write_seed_slot_indices.tolist() == [14]
    plans = run_entries(shared_ref.launch_plan_entries_kernel_reference, staged, 1)
    assert plans.verify.verify_slot_indices[:2].tolist() == [13, 14]
    assert plans.verify.verify_prev_slot_indices[:2].tolist() == [12, 13]


@st.composite
def staged_cases(draw: st.DrawFn) -> Case:
    """Free cases with a window where the combined launch would want a mapping, too."""
    drawn = draw(free_cases())
    window = draw(st.none() | st.integers(-1, 6))
    if window is None:
        return drawn
    return drawn._replace(inputs=dataclasses.replace(drawn.inputs, swa_window_size=window))


@given(staged_cases(), st.integers(4097, 4100))
def test_offsets_reference_equals_the_oracle(drawn: Case, scratch_len: int) -> None:
    plans, scratch = run_offsets(shared_ref.launch_plan_offsets_kernel_reference, drawn, scratch_len)
    expected, expected_scratch = run_offsets(oracle.launch_plan_offsets_kernel, drawn, scratch_len)
    assert_same_bytes(plans.buffers(), expected.buffers())
    assert scratch.tobytes() == expected_scratch.tobytes()


@given(staged_cases(), st.sampled_from([1, 0, 2, -1]))
def test_entries_reference_equals_the_oracle(drawn: Case, enable: int) -> None:
    plans = run_entries(shared_ref.launch_plan_entries_kernel_reference, drawn, enable)
    expected = run_entries(oracle.launch_plan_entries_kernel, drawn, enable)
    assert_same_bytes(plans.buffers(), expected.buffers())


@given(free_cases())
def test_staged_launches_one_after_the_other_equal_the_combined_launch(drawn: Case) -> None:
    plans, scratch = run_offsets(shared_ref.launch_plan_offsets_kernel_reference, drawn)
    shared_ref.launch_plan_entries_kernel_reference(**entries_call(drawn.inputs, plans, scratch))
    assert_same_bytes(plans.buffers(), drawn.expected().buffers())


# Plans (section 3)


def test_allocated_verify_plan_has_the_contracts_buffers() -> None:
    plan = VerifyPlan.allocate(verify_capacity=5)
    assert {name: (b.shape, b.dtype.name) for name, b in vars(plan).items()} == {
        "verify_slot_indices": ((5,), "int64"),
        "verify_expected_tokens": ((5,), "int64"),
        "verify_expected_positions": ((5,), "int64"),
        "verify_prev_slot_indices": ((5,), "int64"),
        "verify_num_valid": ((1,), "int32"),
        "enable": ((1,), "int32"),
    }


def test_fresh_verify_plans_are_enabled_whatever_their_memory_held() -> None:
    held = [np.full(1, 77, np.int32) for _ in range(200)]
    del held
    plans = [VerifyPlan.allocate(verify_capacity=1) for _ in range(100)]
    assert {plan.enable.tolist()[0] for plan in plans} == {1}


def test_allocated_write_plan_has_the_contracts_buffers() -> None:
    plan = WritePlan.allocate(write_req_capacity=5)
    assert {name: (b.shape, b.dtype.name) for name, b in vars(plan).items()} == {
        "write_offsets": ((6,), "int64"),
        "write_seed_slot_indices": ((5,), "int64"),
        "write_num_valid_reqs": ((1,), "int32"),
    }


def test_allocation_bytes_are_those_of_the_buffers() -> None:
    assert VerifyPlan.allocation_bytes(1) == 40
    assert VerifyPlan.allocation_bytes(1000) == 32_008
    assert WritePlan.allocation_bytes(1) == 28
    assert WritePlan.allocation_bytes(256) == 4_108


@pytest.mark.parametrize(("window", "mapping", "has"), [(0, None, True), (-1, None, True), (1, None, False)])
def test_window_without_a_mapping_has_no_swa_mapping(window: int, mapping: object, has: bool) -> None:
    assert shared_ref.has_swa_mapping(window, mapping) is has
    assert shared_ref.has_swa_mapping(window, HUNDREDS) is True


def test_plans_of_another_project_are_filled_by_attribute() -> None:
    class Theirs:
        pass

    ours = case([1], [2], [1]).before.copy()
    verify, write = Theirs(), Theirs()
    vars(verify).update(vars(ours.verify))
    vars(write).update(vars(ours.write))
    inputs = case([1], [2], [1]).inputs.keywords()
    shared_ref.launch_canary_plan_kernels_reference(verify_plan_out=verify, write_plan_out=write, **inputs)
    assert entries(ours) == [(11, -1, 0, -1), (12, -1, 1, 11)]


# The strategies


def test_layouts_ask_a_compiler_for_at_most_32_programs() -> None:
    assert sum(len(layout.batch_sizes) for layout in LAYOUTS) == 31
    assert len({layout.name for layout in LAYOUTS}) == len(LAYOUTS)


@given(cases())
def test_cases_keep_to_the_programs_of_the_layouts(drawn: Case) -> None:
    layout = next(layout for layout in LAYOUTS if drawn.name.startswith(f"{layout.name}, "))
    inputs = drawn.inputs
    bs = len(inputs.req_pool_indices)
    tokens = inputs.req_to_verify_expected_tokens
    mapping = inputs.full_to_swa_index_mapping
    assert bs in layout.batch_sizes
    assert inputs.req_to_token.shape == layout.table
    assert (None if mapping is None else len(mapping)) == layout.mapping
    assert (None if tokens is None else tokens.shape) == layout.tokens
    assert (inputs.swa_window_size, inputs.kv_token_id_vs_position_offset) == (layout.window, layout.offset)
    assert len(drawn.before.verify.verify_slot_indices) == layout.verify_capacity
    assert len(drawn.before.write.write_offsets) == bs + layout.spare_write_rows + 1
    assert inputs.page_size == layout.page_size
    assert tuple(drawn.before.extras) == layout.extras


@given(cases(layouts=PLAIN_LAYOUTS) | free_cases(layouts=PLAIN_LAYOUTS))
def test_plain_layouts_have_neither_pages_nor_optional_outputs(drawn: Case) -> None:
    assert drawn.inputs.page_size == 1
    assert drawn.before.extras == {}


@given(free_cases(corrupt=False))
def test_cases_that_are_not_corrupt_have_no_fault(drawn: Case) -> None:
    assert oracle.first_fault(**drawn.inputs.keywords()) is None


@dataclasses.dataclass
class Reached:
    """What a few hundred cases came to: kinds of faults, and totals next to the capacity."""

    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    totals: Counter[tuple[bool, int]] = dataclasses.field(default_factory=Counter)
    """(has a window, entries beyond the capacity)"""
    counted: Counter[str] = dataclasses.field(default_factory=Counter)
    """Cases whose `faults_out` counts a kind, with pages and without."""


@pytest.fixture(scope="module")
def reached() -> Reached:
    seen = Reached()

    @given(cases())
    @settings(max_examples=2000, derandomize=True, database=None)
    def look(drawn: Case) -> None:
        call = drawn.inputs.keywords()
        for r in range(len(drawn.inputs.req_pool_indices)):
            seen.faults.update(
                kind for text in oracle.faults(r, call) for kind in FAULTS if re.search(kind, text)
            )
        if "faults_out" in drawn.before.extras:
            after = drawn.run(oracle.launch_canary_plan_kernels).extras["faults_out"]
            changed = after[:, 0] != drawn.before.extras["faults_out"][:, 0]
            where = "without pages" if drawn.inputs.page_size == 1 else "in pages"
            seen.counted.update(f"{shared_ref.FAULT_KINDS[k]} {where}" for k in np.flatnonzero(changed))
        if drawn.inputs.verify_capacity > 1:
            excess = oracle.total_of(call) - drawn.inputs.verify_capacity
            seen.totals[drawn.inputs.swa_window_size > 0, excess] += 1

    look()
    return seen


FAULTS = (
    r"row -\d",
    r"row \d{10,} is",
    r"prefix_lens -",
    r"prefix_lens 1[789] exceeds",
    r"prefix_lens \d{10,} exceeds",
    r"extend_seq_lens -",
    r"full_to_swa_index_mapping \(7 slots\)",
    r"full_to_swa_index_mapping \(40 slots\)",
    r"token position -\d",
    r"req_to_verify_expected_tokens \(3 rows, 9 columns\)",
    r"exceeds the 14 positions of req_to_token",
    r"full_to_swa_index_mapping \(31 slots\)",
)


@pytest.mark.parametrize("kind", FAULTS)
def test_cases_reach_every_fault(reached: Reached, kind: str) -> None:
    assert reached.faults[kind] > 0


@pytest.mark.parametrize("where", ["without pages", "in pages"])
@pytest.mark.parametrize("kind", range(8))
def test_cases_reach_every_kind_that_is_counted(reached: Reached, kind: int, where: str) -> None:
    assert reached.counted[f"{shared_ref.FAULT_KINDS[kind]} {where}"] > 0


@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
def test_cases_reach_the_capacity_and_one_entry_more(reached: Reached, windowed: bool, excess: int) -> None:
    assert reached.totals[windowed, excess] > 0


def test_a_failure_shrinks_to_one_request() -> None:
    def reads_row_1(drawn: Case) -> bool:
        return 2**32 + 1 in drawn.inputs.req_pool_indices

    smallest = find(
        cases(layouts=LAYOUTS[:5]),
        reads_row_1,
        settings=settings(max_examples=2000, database=None, derandomize=True),
    ).inputs
    assert smallest.req_pool_indices.tolist() == [2**32 + 1]
    assert (smallest.prefix_lens.tolist(), smallest.extend_seq_lens.tolist()) == ([0], [0])


def test_strategies_without_hypothesis_name_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, strategies.__name__)
    with pytest.raises(ImportError, match=r"pip install 'kvcanary\[test\]'"):
        importlib.import_module(strategies.__name__)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("name", ["req_to_token", "req_to_verify_expected_tokens"])
def test_a_matrix_is_a_table(name: str) -> None:
    """Rows of `np.matrix` stay matrices, of which a slice is no vector."""
    given = case([1, 2], [3, 2], window=2, mapping=HUNDREDS, tokens=TOKENS, valid_lens=[3, 1])
    inputs = dataclasses.replace(given.inputs, **{name: np.asmatrix(getattr(given.inputs, name))})
    got = Case("matrix", inputs, given.before).expected()
    for field, buffer in given.expected().buffers().items():
        assert np.array_equal(got.buffers()[field], buffer), field
