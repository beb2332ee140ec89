"""A second oracle for small cases: the contract's sections 4 and 5, cell by cell, in plain Python.

It shares no code with `shared_ref`, and no way of working either: no slices, no numpy arithmetic, every
element is read and written on its own as a Python int. A subscript outside its array is an AssertionError.
The functions take the launchers' keywords with numpy arrays, check none of section 6's rules, and fill the
outputs in place. `padding_row` is a keyword too, for the form `plan` (section 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Found = Iterator[tuple[int, int]]
"""(kind, position) of each thing that `faults_out` counts."""


def wrapped(n: int) -> int:
    """`n` as a two's complement int64 holds it."""
    n &= 0xFFFF_FFFF_FFFF_FFFF
    return n - 0x1_0000_0000_0000_0000 if n & 0x8000_0000_0000_0000 else n


def cell(array: np.ndarray, *index: int) -> int:
    for i, n in zip(index, array.shape, strict=True):
        assert 0 <= i < n, f"index {index} is outside {array.shape}"
    return int(array[index])


def unsigned(n: int) -> int:
    """The bits of an int64, read as an unsigned number."""
    return n & 0xFFFF_FFFF_FFFF_FFFF


def store(array: np.ndarray, index: int | tuple[int, int], value: int) -> None:
    place = index if isinstance(index, tuple) else (index,)
    for i, n in zip(place, array.shape, strict=True):
        assert 0 <= i < n, f"index {index} is outside {array.shape}"
    array[place] = value
    assert int(array[place]) == value, f"{value} does not fit {array.dtype}"


def translate(s: int, mapping: np.ndarray | None) -> int:
    if mapping is None or s < 0:
        return s
    return cell(mapping, min(s, mapping.shape[0] - 1))


def slot_at(row: int, p: int, call: dict[str, Any]) -> int:
    """Section 4's `cell(row, p)`."""
    page_size = call.get("page_size", 1)
    page = cell(call["req_to_token"], row, p // page_size)
    if page < 0:
        return page
    return page * page_size + p % page_size


def table_size(call: dict[str, Any]) -> tuple[int, int]:
    """`max_reqs` and `max_seq_len`."""
    rows, columns = call["req_to_token"].shape
    return rows, columns * call.get("page_size", 1)


class Numbers:
    """Section 4's definitions for request `r`."""

    def __init__(self, r: int, call: dict[str, Any]) -> None:
        max_reqs, max_seq_len = table_size(call)
        self.row = cell(call["req_pool_indices"], r)
        self.P = max(cell(call["prefix_lens"], r), 0)
        self.E = max(cell(call["extend_seq_lens"], r), 0) if "extend_seq_lens" in call else 0
        W = call["swa_window_size"]
        self.is_padding = self.row == call.get("padding_row", 0)
        self.active = not self.is_padding and 0 <= self.row < max_reqs
        self.start = max(self.P - W, 0) if W > 0 else 0
        self.end = min(self.P, max_seq_len)
        self.verify_count = max(self.end - self.start, 0) if self.active else 0
        self.write_count = self.E if self.active else 0
        self.has_seed = self.active and self.E > 0 and self.end > 0


def entries(call: dict[str, Any]) -> Iterator[tuple[int, int, int, int]]:
    """(slot, expected token, position, prev slot) of each verify entry, in order."""
    mapping = call["full_to_swa_index_mapping"]
    for r in range(call["req_pool_indices"].shape[0]):
        request = Numbers(r, call)
        if not request.active:
            continue
        p = request.start
        while p < request.end:
            slot = translate(slot_at(request.row, p, call), mapping)
            prev_slot = -1 if p == 0 else translate(slot_at(request.row, p - 1, call), mapping)
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
            last = slot_at(request.row, request.end - 1, call)
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
    if call.get("verify_total_out") is not None:
        store(call["verify_total_out"], 0, total)
    return total <= capacity


def launch_canary_plan_kernels(*, verify_plan_out: Any, write_plan_out: Any, **call: Any) -> None:
    write_rows(
        call,
        write_plan_out.write_offsets,
        write_plan_out.write_seed_slot_indices,
        write_plan_out.write_num_valid_reqs,
    )
    add_faults(call, of_request)
    if write_totals(call, verify_plan_out.verify_num_valid, verify_plan_out.enable):
        write_columns(
            call,
            verify_plan_out.verify_slot_indices,
            verify_plan_out.verify_expected_tokens,
            verify_plan_out.verify_expected_positions,
            verify_plan_out.verify_prev_slot_indices,
        )
        add_faults(call, of_entries)


def launch_plan_offsets_kernel(**call: Any) -> None:
    write_rows(
        call,
        call["out_write_offsets"],
        call["out_write_seed_slot_indices"],
        call["out_write_num_valid_reqs"],
    )
    write_totals(call, call["out_verify_num_valid"], call["out_verify_enable"])
    add_faults(call, of_request)
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
        add_faults(call, of_entries)


def add_faults(call: dict[str, Any], found: Callable[[int, dict[str, Any]], Found]) -> None:
    """Add what is found to `faults_out`, one thing at a time."""
    given = call.get("faults_out")
    if given is None:
        return
    counted = getattr(given, "buffer", given)
    for r in range(call["req_pool_indices"].shape[0]):
        for kind, position in found(r, call):
            store(counted, (kind, 0), wrapped(cell(counted, kind, 0) + 1))
            place = r * 2**48 + position
            if place < unsigned(cell(counted, kind, 1)):
                store(counted, (kind, 1), place)


def of_request(r: int, call: dict[str, Any]) -> Found:
    """What section 5 counts of request `r` itself."""
    max_reqs, max_seq_len = table_size(call)
    request = Numbers(r, call)
    prefix_len, extend_len = cell(call["prefix_lens"], r), cell(call["extend_seq_lens"], r)
    if request.is_padding:
        return
    if request.row < 0 or request.row >= max_reqs:
        yield 0, 0
    if prefix_len < 0:
        yield 1, 0
    if extend_len < 0:
        yield 2, 0
    if prefix_len > max_seq_len:
        yield 3, 0


def of_entries(r: int, call: dict[str, Any]) -> Found:
    """What section 5 counts of request `r`'s entries."""
    request = Numbers(r, call)
    if not request.active:
        return
    p = request.start
    while p < request.end:
        slot = slot_at(request.row, p, call)
        if lies_past_mapping(slot, call):
            yield 4, p
        if lacks_token(r, request.row, p, call):
            yield 5, p
        if slot < 0:
            yield 6, p
        if 0 <= slot < call.get("page_size", 1):
            yield 7, p
        p += 1


def lies_past_mapping(slot: int, call: dict[str, Any]) -> bool:
    mapping = call["full_to_swa_index_mapping"]
    return mapping is not None and slot >= mapping.shape[0]


def lacks_token(r: int, row: int, p: int, call: dict[str, Any]) -> bool:
    """Whether an entry's token is current, and the token table has no cell for it."""
    tokens = call.get("req_to_verify_expected_tokens")
    if tokens is None:
        return False
    q = p + call["kv_token_id_vs_position_offset"]
    exists = row < tokens.shape[0] and 0 <= q < tokens.shape[1]
    return not exists and q < cell(call["req_to_verify_expected_tokens_valid_lens"], r)


def first_fault(**call: Any) -> str | None:
    """The text that `strict` raises for, without `kv-canary: `. Takes the plan launcher's keywords."""
    for r in range(call["req_pool_indices"].shape[0]):
        for fault in faults(r, call):
            return fault
    return None


def faults(r: int, call: dict[str, Any]) -> Iterator[str]:
    """Section 5's table for request `r`, in its order."""
    max_reqs, max_seq_len = table_size(call)
    request = Numbers(r, call)
    if request.is_padding:
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
    verified = range(request.start, request.end)
    positions = set(verified)
    if request.has_seed:
        positions.add(request.end - 1)
    if verified and request.start > 0:
        positions.add(request.start - 1)
    for p in sorted(positions):
        s = slot_at(request.row, p, call)
        if lies_past_mapping(s, call):
            lut_len = call["full_to_swa_index_mapping"].shape[0]
            yield (
                f"request {r}, position {p}: slot {s} is outside full_to_swa_index_mapping ({lut_len} slots)"
            )
        if p in verified and lacks_token(r, request.row, p, call):
            rows, cols = call["req_to_verify_expected_tokens"].shape
            q = p + call["kv_token_id_vs_position_offset"]
            yield (
                f"request {r}, position {p}: token position {q} is outside req_to_verify_expected_tokens "
                f"({rows} rows, {cols} columns)"
            )
