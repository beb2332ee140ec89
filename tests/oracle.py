"""A second oracle for small cases: the contract's sections 4 and 5, cell by cell, in plain Python.

It shares no code with `shared_ref`, and no way of working either: no slices, no numpy arithmetic, every
element is read and written on its own as a Python int. A subscript outside its array is an AssertionError.
The functions take the launchers' keywords with numpy arrays, check none of section 6's rules, and fill the
outputs in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def wrapped(n: int) -> int:
    """`n` as a two's complement int64 holds it."""
    n &= 0xFFFF_FFFF_FFFF_FFFF
    return n - 0x1_0000_0000_0000_0000 if n & 0x8000_0000_0000_0000 else n


def cell(array: np.ndarray, *index: int) -> int:
    for i, n in zip(index, array.shape, strict=True):
        assert 0 <= i < n, f"index {index} is outside {array.shape}"
    return int(array[index])


def store(array: np.ndarray, index: int, value: int) -> None:
    assert 0 <= index < array.shape[0], f"index {index} is outside {array.shape}"
    array[index] = value
    assert int(array[index]) == value, f"{value} does not fit {array.dtype}"


def translate(s: int, mapping: np.ndarray | None) -> int:
    if mapping is None or s < 0:
        return s
    return cell(mapping, min(s, mapping.shape[0] - 1))


class Numbers:
    """Section 4's definitions for request `r`."""

    def __init__(self, r: int, call: dict[str, Any]) -> None:
        max_reqs, max_seq_len = call["req_to_token"].shape
        self.row = cell(call["req_pool_indices"], r)
        self.P = max(cell(call["prefix_lens"], r), 0)
        self.E = max(cell(call["extend_seq_lens"], r), 0) if "extend_seq_lens" in call else 0
        W = call["swa_window_size"]
        self.active = self.row != 0 and 0 <= self.row < max_reqs
        self.start = max(self.P - W, 0) if W > 0 else 0
        self.end = min(self.P, max_seq_len)
        self.verify_count = max(self.end - self.start, 0) if self.active else 0
        self.write_count = self.E if self.active else 0
        self.has_seed = self.active and self.E > 0 and self.end > 0


def entries(call: dict[str, Any]) -> Iterator[tuple[int, int, int, int]]:
    """(slot, expected token, position, prev slot) of each verify entry, in order."""
    table, mapping = call["req_to_token"], call["full_to_swa_index_mapping"]
    for r in range(call["req_pool_indices"].shape[0]):
        request = Numbers(r, call)
        if not request.active:
            continue
        p = request.start
        while p < request.end:
            slot = translate(cell(table, request.row, p), mapping)
            prev_slot = -1 if p == 0 else translate(cell(table, request.row, p - 1), mapping)
            yield slot, expected_token(r, request.row, p, call), p, prev_slot
            p += 1


def expected_token(r: int, row: int, p: int, call: dict[str, Any]) -> int:
    tokens = call["req_to_verify_expected_tokens"]
    q = p + call["kv_token_id_vs_position_offset"]
    if tokens is None:
        return -1
    valid_len = cell(call["req_to_verify_expected_tokens_valid_lens"], r)
    exists = row < tokens.shape[0] and q < tokens.shape[1]
    return cell(tokens, row, q) if 0 <= q < valid_len and exists else -1


def total_of(call: dict[str, Any]) -> int:
    total = 0
    for r in range(call["req_pool_indices"].shape[0]):
        total += Numbers(r, call).verify_count
    return total


def write_columns(call: dict[str, Any], slots: Any, tokens: Any, positions: Any, prev_slots: Any) -> None:
    for i, (slot, token, position, prev_slot) in enumerate(entries(call)):
        store(slots, i, slot)
        store(tokens, i, token)
        store(positions, i, position)
        store(prev_slots, i, prev_slot)


def write_rows(call: dict[str, Any], offsets: Any, seeds: Any, num_valid_reqs: Any) -> None:
    bs = call["req_pool_indices"].shape[0]
    running = 0
    for r in range(bs):
        request = Numbers(r, call)
        store(offsets, r, running)
        running = wrapped(running + request.write_count)
        seed = -1
        if request.has_seed:
            last = cell(call["req_to_token"], request.row, request.end - 1)
            seed = translate(last, call["full_to_swa_index_mapping"])
        store(seeds, r, seed)
    store(offsets, bs, running)
    for i in range(bs + 1, offsets.shape[0]):
        store(offsets, i, 0)
    store(num_valid_reqs, 0, bs)


def write_totals(call: dict[str, Any], num_valid: Any, enable: Any) -> bool:
    total, capacity = total_of(call), call["verify_capacity"]
    store(enable, 0, 1 if total <= capacity else 0)
    store(num_valid, 0, min(total, capacity))
    return total <= capacity


def launch_canary_plan_kernels(*, verify_plan_out: Any, write_plan_out: Any, **call: Any) -> None:
    write_rows(
        call,
        write_plan_out.write_offsets,
        write_plan_out.write_seed_slot_indices,
        write_plan_out.write_num_valid_reqs,
    )
    if write_totals(call, verify_plan_out.verify_num_valid, verify_plan_out.enable):
        write_columns(
            call,
            verify_plan_out.verify_slot_indices,
            verify_plan_out.verify_expected_tokens,
            verify_plan_out.verify_expected_positions,
            verify_plan_out.verify_prev_slot_indices,
        )


def launch_plan_offsets_kernel(**call: Any) -> None:
    write_rows(
        call,
        call["out_write_offsets"],
        call["out_write_seed_slot_indices"],
        call["out_write_num_valid_reqs"],
    )
    write_totals(call, call["out_verify_num_valid"], call["out_verify_enable"])
    bs = call["req_pool_indices"].shape[0]
    running = 0
    for r in range(bs):
        store(call["out_verify_offsets_scratch"], r, running)
        running += Numbers(r, call).verify_count
    store(call["out_verify_offsets_scratch"], bs, running)


def launch_plan_entries_kernel(**call: Any) -> None:
    columns = [
        call["out_verify_slot_indices"],
        call["out_verify_expected_tokens"],
        call["out_verify_expected_positions"],
        call["out_verify_prev_slot_indices"],
    ]
    if cell(call["verify_enable"], 0) != 0 and total_of(call) <= columns[0].shape[0]:
        write_columns(call, *columns)


def first_fault(**call: Any) -> str | None:
    """The text that `strict` raises for, without `kv-canary: `. Takes the plan launcher's keywords."""
    for r in range(call["req_pool_indices"].shape[0]):
        for fault in faults(r, call):
            return fault
    return None


def faults(r: int, call: dict[str, Any]) -> Iterator[str]:
    """Section 5's table for request `r`, in its order."""
    max_reqs, max_seq_len = call["req_to_token"].shape
    mapping, tokens = call["full_to_swa_index_mapping"], call["req_to_verify_expected_tokens"]
    request = Numbers(r, call)
    if request.row == 0:
        return
    if request.row < 0 or request.row >= max_reqs:
        yield f"request {r}: row {request.row} is outside req_to_token ({max_reqs} rows)"
    prefix_len, extend_len = cell(call["prefix_lens"], r), cell(call["extend_seq_lens"], r)
    if prefix_len < 0:
        yield f"request {r}: prefix_lens {prefix_len} is negative"
    if extend_len < 0:
        yield f"request {r}: extend_seq_lens {extend_len} is negative"
    if prefix_len > max_seq_len:
        yield (f"request {r}: prefix_lens {prefix_len} exceeds the {max_seq_len} positions of req_to_token")
    if not request.active:
        return
    of_entries = range(request.start, request.end)
    positions = set(of_entries)
    if request.has_seed:
        positions.add(request.end - 1)
    if of_entries and request.start > 0:
        positions.add(request.start - 1)
    for p in sorted(positions):
        s = cell(call["req_to_token"], request.row, p)
        if mapping is not None and s >= mapping.shape[0]:
            yield (
                f"request {r}, position {p}: slot {s} is outside full_to_swa_index_mapping "
                f"({mapping.shape[0]} slots)"
            )
        if tokens is None or p not in of_entries:
            continue
        rows, cols = tokens.shape
        q = p + call["kv_token_id_vs_position_offset"]
        exists = request.row < rows and 0 <= q < cols
        if q < cell(call["req_to_verify_expected_tokens_valid_lens"], r) and not exists:
            yield (
                f"request {r}, position {p}: token position {q} is outside req_to_verify_expected_tokens "
                f"({rows} rows, {cols} columns)"
            )
