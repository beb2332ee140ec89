"""Suggested capacities: enough for every healthy step, and no more than one of them needs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_ref import VerifyPlan, WritePlan, launch_canary_plan_kernels_reference
from shared_ref.sizing import Capacities, suggest_capacities

SERVER: dict[str, Any] = {"max_running_requests": 256, "max_seq_len": 8192, "pool_slots": 100_000}


def step(requests: list[list[int]], window: int, capacities: Capacities) -> tuple[int, int]:
    """`enable` and the total of a step in which all requests run; a request is the list of its slots."""
    table = np.zeros((len(requests) + 1, max(map(len, requests), default=0)), np.int32)
    for row, slots in enumerate(requests, start=1):
        table[row, : len(slots)] = slots
    verify = VerifyPlan.allocate(verify_capacity=capacities.verify_capacity)
    total = np.zeros(1, np.int64)
    launch_canary_plan_kernels_reference(
        verify_plan_out=verify,
        write_plan_out=WritePlan.allocate(write_req_capacity=capacities.write_req_capacity),
        req_pool_indices=np.arange(1, len(requests) + 1),
        prefix_lens=np.array([len(slots) for slots in requests], np.int64),
        extend_seq_lens=np.ones(len(requests), np.int64),
        req_to_token=table,
        swa_window_size=window,
        full_to_swa_index_mapping=np.arange(10_000) if window > 0 else None,
        verify_capacity=capacities.verify_capacity,
        req_to_verify_expected_tokens=None,
        req_to_verify_expected_tokens_valid_lens=None,
        kv_token_id_vs_position_offset=0,
        verify_total_out=total,
    )
    return int(verify.enable[0]), int(total[0])


def slots_in_use(requests: list[list[int]], window: int) -> int:
    """Distinct slots that the step reads."""
    return len({slot for slots in requests for slot in (slots[-window:] if window > 0 else slots)})


@st.composite
def prefix_trees(draw: st.DrawFn, shared_prefix_len: int) -> list[list[int]]:
    """Requests, each with the first slots of an earlier one, and behind them slots of its own."""
    requests: list[list[int]] = []
    fresh = iter(range(1, 10_000))
    for _ in range(draw(st.integers(1, 6))):
        earlier = draw(st.sampled_from([[], *requests]))
        shared = draw(st.integers(0, min(shared_prefix_len, len(earlier))))
        own = draw(st.integers(0, 12))
        requests.append(earlier[:shared] + [next(fresh) for _ in range(own)])
    return requests


@given(st.data(), st.integers(0, 12), st.sampled_from([0, -1, 1, 3, 8]), st.booleans())
def test_every_step_of_a_server_with_a_prefix_cache_fits(
    data: st.DataObject, shared_prefix_len: int, window: int, known: bool
) -> None:
    requests = data.draw(prefix_trees(shared_prefix_len))
    capacities = suggest_capacities(
        max_running_requests=len(requests),
        max_seq_len=max(1, *map(len, requests)),
        pool_slots=max(1, slots_in_use(requests, window)),
        swa_window_size=window,
        shared_prefix_len=shared_prefix_len if known else None,
    )
    enable, total = step(requests, window, capacities)
    assert total <= capacities.verify_capacity
    assert enable == 1


def common_prefix(requests: int, shared: int, own: int) -> list[list[int]]:
    """Requests whose first `shared` slots are the same."""
    trunk = list(range(1, shared + 1))
    return [trunk + list(range(100 * i, 100 * i + own)) for i in range(1, requests + 1)]


@pytest.mark.parametrize(
    ("requests", "window", "server", "entries"),
    [
        # 6 + 4 * 5 slots, and the common 6 three times more
        (common_prefix(4, 6, 5), 0, {"max_seq_len": 20, "pool_slots": 26, "shared_prefix_len": 6}, 44),
        (common_prefix(4, 0, 5), 0, {"max_seq_len": 20, "pool_slots": 20, "shared_prefix_len": 0}, 20),
        (common_prefix(4, 20, 0), 0, {"max_seq_len": 20, "pool_slots": 26}, 80),
        (common_prefix(4, 20, 0), 0, {"max_seq_len": 30, "pool_slots": 20}, 80),
        (common_prefix(4, 6, 5), 8, {"max_seq_len": 20, "pool_slots": 100}, 32),
    ],
    ids=["shared", "exclusive", "all shared", "a pool smaller than a request", "window"],
)
def test_the_fullest_step_fits_exactly(
    requests: list[list[int]], window: int, server: dict[str, int], entries: int
) -> None:
    capacities = suggest_capacities(max_running_requests=4, swa_window_size=window, **server)
    assert capacities.verify_capacity == entries
    assert step(requests, window, capacities) == (1, entries)


def test_a_total_past_the_capacity_says_by_how_much() -> None:
    capacities = suggest_capacities(
        max_running_requests=4, max_seq_len=20, pool_slots=26, shared_prefix_len=0
    )
    assert capacities.verify_capacity == 26
    assert step(common_prefix(4, 6, 5), 0, capacities) == (0, 44)


@pytest.mark.parametrize(
    ("server", "verify_capacity"),
    [
        ({}, 256 * 8192),
        ({"shared_prefix_len": 0}, 100_000),
        ({"shared_prefix_len": 1000}, 355_000),
        ({"shared_prefix_len": 10**9}, 256 * 8192),
        ({"swa_window_size": 128}, 256 * 128),
        ({"swa_window_size": 1024, "shared_prefix_len": 0}, 100_000),
        ({"swa_window_size": 1024, "shared_prefix_len": 100}, 125_500),
        ({"swa_window_size": 2**31 - 1}, 256 * 8192),
        ({"swa_window_size": -1}, 256 * 8192),
        ({"pool_slots": 5000}, 256 * 5000),
        ({"max_running_requests": 1}, 8192),
        ({"max_running_requests": 1, "pool_slots": 1, "shared_prefix_len": 0}, 1),
        ({"max_seq_len": np.int32(4096)}, 256 * 4096),
    ],
)
def test_the_verify_capacity_of_a_server(server: dict[str, int], verify_capacity: int) -> None:
    assert suggest_capacities(**SERVER | server).verify_capacity == verify_capacity


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [((), 256), ([1, 2, 4, 8], 256), (iter([8, 512]), 512), ([256], 256), ([np.int64(4096)], 4096)],
)
def test_the_write_rows_are_those_of_the_largest_launch(sizes: Any, rows: int) -> None:
    capacities = suggest_capacities(**SERVER, graph_batch_sizes=sizes)
    assert capacities.write_req_capacity == rows
    assert capacities.verify_capacity == 256 * 8192


def test_the_bytes_are_those_of_both_plans() -> None:
    capacities = suggest_capacities(**SERVER, shared_prefix_len=0)
    verify = VerifyPlan.allocate(verify_capacity=capacities.verify_capacity)
    write = WritePlan.allocate(write_req_capacity=capacities.write_req_capacity)
    held = sum(buffer.nbytes for plan in (verify, write) for buffer in vars(plan).values())
    assert capacities.allocation_bytes == held == 32 * 100_000 + 8 + 16 * 256 + 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_running_requests": 0}, "max_running_requests must be positive, got 0"),
        ({"max_running_requests": 4097}, "max_running_requests must be at most 4096, got 4097"),
        ({"max_seq_len": 0}, "max_seq_len must be positive, got 0"),
        ({"pool_slots": -1}, "pool_slots must be positive, got -1"),
        ({"shared_prefix_len": -1}, "shared_prefix_len must be non-negative, got -1"),
        ({"graph_batch_sizes": [8, 0]}, "graph_batch_sizes must be positive, got 0"),
        ({"graph_batch_sizes": [8, 4097]}, "graph_batch_sizes must be at most 4096, got 4097"),
        ({"pool_slots": 1.5e5}, "pool_slots must be an int, got float"),
        ({"max_seq_len": True}, "max_seq_len must be an int, got bool"),
        ({"swa_window_size": None}, "swa_window_size must be an int, got NoneType"),
        ({"graph_batch_sizes": 5}, "graph_batch_sizes must be a list of ints, got int"),
        ({"graph_batch_sizes": b"ab"}, "graph_batch_sizes must be a list of ints, got bytes"),
        ({"graph_batch_sizes": ["8"]}, "graph_batch_sizes must be an int, got str"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^kv-canary: {re.escape(message)}$"):
        suggest_capacities(**SERVER | changes)


def test_more_entries_than_a_plan_can_have_are_refused() -> None:
    server = {"max_running_requests": 2048, "pool_slots": 2**40}
    most = suggest_capacities(**server, max_seq_len=2**20 - 1).verify_capacity
    assert most == 2**31 - 2048
    with pytest.raises(ValueError, match=r"^kv-canary: a step may have 2147483648 verify entries, more than"):
        suggest_capacities(**server, max_seq_len=2**20)
    assert suggest_capacities(**server, max_seq_len=2**20, swa_window_size=4096).verify_capacity == 2**23
