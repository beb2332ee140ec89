"""Writes the golden vectors: inputs from `golden_cases`, expected bytes and faults from the literal oracle.

    python tests/make_vectors.py                # the set that comes with the package
    python tests/make_vectors.py /tmp/vectors   # elsewhere; the directory must exist

No implementation under test has a part in it. `RULES` says what a launch exercises, told from the oracle's
own numbers: nobody claims by hand that a vector covers a rule.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

# `tests/shared_ref` would pass for the package of that name, since it lies beside this script.
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import oracle

from shared_ref.conformance.golden import (
    Arrays,
    Vector,
    shipped_vectors_path,
    write_vectors,
)
from shared_ref.conformance.golden_cases import Definition, definitions
from shared_ref.schema import OPTIONAL_OUTPUTS

PLAN = "launch_canary_plan_kernels"
OFFSETS = "launch_plan_offsets_kernel"
ENTRIES = "launch_plan_entries_kernel"


class Entry(NamedTuple):
    """One verify entry, and what the oracle looked at for it."""

    request: oracle.Numbers
    position: int
    slot: int
    prev_slot: int
    """Before translation; -1 at position 0."""
    q: int
    valid_len: int
    has_cell: bool
    token: int


class Launch:
    """A launch as the rules look at it."""

    def __init__(self, definition: Definition, expected: Arrays) -> None:
        self.launcher, self.call = definition.launcher, definition.arguments
        self.before, self.expected = definition.before, expected
        self.bs = len(self.call["req_pool_indices"])
        self.max_reqs, self.max_seq_len = oracle.table_size(self.call)
        self.page_size = self.call.get("page_size", 1)
        self.window, self.mapping = self.call["swa_window_size"], self.call["full_to_swa_index_mapping"]
        self.tokens = self.call.get("req_to_verify_expected_tokens")
        self.requests = [oracle.Numbers(r, self.call) for r in range(self.bs)]
        self.active = [r for r in self.requests if r.active]
        self.verifying = [r for r in self.active if r.verify_count]
        self.seeds = [self.slot(r.row, r.end - 1) for r in self.requests if r.has_seed]
        self.total = sum(r.verify_count for r in self.requests)
        columns = self.before.get("verify_slot_indices", self.before.get("out_verify_slot_indices"))
        self.capacity = len(columns) if columns is not None else self.call["verify_capacity"]
        self.fits = self.total <= self.capacity
        self.former_faults, self.faults = (b.get("faults_out") for b in (self.before, expected))
        self.write_rows = len(
            self.before.get("write_seed_slot_indices", self.before.get("out_write_seed_slot_indices", ()))
        )

    def slot(self, row: int, position: int) -> int:
        return oracle.slot_at(row, position, self.call)

    @functools.cached_property
    def entries(self) -> list[Entry]:
        """Those that the columns hold afterwards: none of a launch that does not fit."""
        if self.launcher == OFFSETS or not self.fits:
            return []
        return [self._entry(i, r, p) for i, r in enumerate(self.requests) for p in positions(r)]

    def _entry(self, i: int, request: oracle.Numbers, p: int) -> Entry:
        valid_lens = self.call.get("req_to_verify_expected_tokens_valid_lens")
        rows, columns = (0, 0) if self.tokens is None else self.tokens.shape
        q = p + self.call["kv_token_id_vs_position_offset"]
        return Entry(
            request=request,
            position=p,
            slot=self.slot(request.row, p),
            prev_slot=-1 if p == 0 else self.slot(request.row, p - 1),
            q=q,
            valid_len=0 if self.tokens is None else oracle.cell(valid_lens, i),
            has_cell=request.row < rows and 0 <= q < columns,
            token=oracle.expected_token(i, request.row, p, self.call),
        )

    def values(self, name: str) -> list[int]:
        """Of the requests that are no padding."""
        rows = self.call["req_pool_indices"]
        return [int(v) for row, v in zip(rows, self.call.get(name, ()), strict=False) if row != 0]

    def is_past(self, slot: int) -> bool:
        return self.mapping is not None and slot >= len(self.mapping)

    def counts(self, kind: int) -> bool:
        """Whether the launch has added to a kind of `faults_out`."""
        return self.faults is not None and self.faults[kind, 0] != self.former_faults[kind, 0]

    def places(self) -> list[tuple[int, int]]:
        """Former and new place, unsigned, of each kind that it has added to."""
        return [
            tuple(oracle.unsigned(int(faults[k, 1])) for faults in (self.former_faults, self.faults))
            for k in range(8)
            if self.counts(k)
        ]

    def has_bad_entries(self) -> bool:
        return any(True for r in range(self.bs) for _ in oracle.of_entries(r, self.call))


def positions(r: oracle.Numbers) -> range:
    return range(r.start, r.end) if r.active else range(0)


Predicate = Callable[[Launch], bool]


def staged(launcher: str, holds: Predicate = lambda launch: True) -> Predicate:
    return lambda launch: launch.launcher == launcher and holds(launch)


def of_plan(holds: Predicate) -> Predicate:
    return staged(PLAN, holds)


def some_entry(holds: Callable[[Entry, Launch], bool]) -> Predicate:
    return of_plan(lambda launch: any(holds(entry, launch) for entry in launch.entries))


def some_seed(holds: Callable[[int, Launch], bool]) -> Predicate:
    return of_plan(lambda launch: any(holds(slot, launch) for slot in launch.seeds))


def some_request(holds: Callable[[oracle.Numbers, Launch], bool]) -> Predicate:
    return of_plan(lambda launch: any(holds(r, launch) for r in launch.requests))


def in_pages(holds: Callable[[Entry, Launch], bool]) -> Predicate:
    return some_entry(lambda entry, launch: launch.page_size > 1 and holds(entry, launch))


def counts(kind: int) -> Predicate:
    return of_plan(lambda launch: launch.counts(kind))


def is_strided(table: np.ndarray | None) -> bool:
    return table is not None and not table.flags.c_contiguous


RULES: dict[str, tuple[str, Predicate]] = {
    "2.strides": (
        "req_to_token and req_to_verify_expected_tokens may be row-strided",
        of_plan(lambda x: is_strided(x.call["req_to_token"]) and is_strided(x.tokens)),
    ),
    "2.page-size": (
        "a cell of req_to_token is a page of page_size slots",
        of_plan(lambda x: x.page_size > 1),
    ),
    "4.active.padding": (
        "row 0 is a padding request: no entries, no write_count, seed -1",
        of_plan(
            lambda x: (
                any(
                    r.row == 0 and r.P > 0 and e > 0
                    for r, e in zip(x.requests, x.call["extend_seq_lens"], strict=True)
                )
                or any(r.row == 0 and r.P > 2**62 for r in x.requests)
            )
        ),
    ),
    "4.start.no-window": (
        "start is 0 where swa_window_size <= 0",
        some_request(lambda r, x: x.window <= 0 and r.verify_count > 0),
    ),
    "4.start.cut": (
        "start is P - W where a prefix is longer than the window",
        some_request(lambda r, x: 0 < x.window < r.P and r.verify_count > 0),
    ),
    "4.start.whole": (
        "start is 0 where a prefix is not longer than the window",
        some_request(lambda r, x: x.window >= r.P > 0 and r.active),
    ),
    "4.end.last-column": (
        "a prefix may fill the table",
        some_request(lambda r, x: r.active and r.P == x.max_seq_len > 0),
    ),
    "4.count.none": (
        "a window behind the table has no entries",
        some_request(lambda r, x: r.active and r.end <= r.start and r.P > 0),
    ),
    "4.translate.none": (
        "translate(s) is s without a mapping",
        some_entry(lambda e, x: x.mapping is None and e.slot >= 0),
    ),
    "4.translate.mapping": (
        "translate(s) is mapping[s]",
        some_entry(lambda e, x: x.mapping is not None and 0 <= e.slot < len(x.mapping)),
    ),
    "4.translate.sentinel": (
        "translate(s) is s where s < 0: as a slot, as a predecessor",
        some_entry(lambda e, x: x.mapping is not None and e.slot < 0 and e.position > 0 and e.prev_slot < 0),
    ),
    "4.translate.dummy": (
        "a cell that was never set is slot 0, and is translated",
        some_entry(lambda e, x: x.mapping is not None and e.slot == 0 == e.prev_slot),
    ),
    "4.translate.without-window": (
        "a mapping translates even where swa_window_size <= 0",
        some_entry(lambda e, x: x.mapping is not None and x.window <= 0),
    ),
    "4.cell.page": (
        "cell(row, p) is c * page_size + p % page_size, c the cell of p // page_size",
        in_pages(lambda e, x: e.slot >= x.page_size and e.position % x.page_size > 0),
    ),
    "4.cell.border": (
        "the predecessor of a page's first position is in the page before",
        in_pages(lambda e, x: e.position > e.request.start and e.position % x.page_size == 0),
    ),
    "4.cell.window": (
        "a window may begin inside a page, or on its border",
        in_pages(lambda e, x: 0 < e.position == e.request.start),
    ),
    "4.cell.sentinel": (
        "a negative cell is the slot of every position of its page",
        in_pages(lambda e, x: e.slot < 0 and e.position % x.page_size > 0),
    ),
    "4.cell.dummy": (
        "page 0 has slots like any page",
        in_pages(lambda e, x: 0 < e.slot < x.page_size),
    ),
    "4.cell.past": (
        "a page may lie across the end of the mapping",
        in_pages(lambda e, x: x.is_past(e.slot) and not x.is_past(e.slot - e.position % x.page_size)),
    ),
    "4.cell.seed": (
        "a seed may lie inside a page",
        some_request(lambda r, x: r.has_seed and r.end % x.page_size > 0),
    ),
    "4.cell.tokens": (
        "the token table has no pages",
        in_pages(lambda e, x: e.token >= 0 and e.q >= len(x.call["req_to_token"][0])),
    ),
    "4.cell.wide": (
        "positions and slots need 64 bits",
        in_pages(lambda e, x: e.position >= 2**31 and e.slot >= 2**32),
    ),
    "4.entries.batch-order": (
        "requests in batch order",
        of_plan(lambda x: x.fits and [r.row for r in x.verifying] != sorted({r.row for r in x.verifying})),
    ),
    "4.entries.ascending": (
        "positions start <= p < end ascending",
        of_plan(lambda x: x.fits and any(r.verify_count > 1 for r in x.requests)),
    ),
    "4.prev.first": ("prev slot is -1 at position 0", some_entry(lambda e, x: e.position == 0)),
    "4.prev.inside": (
        "prev slot is that of the position before",
        some_entry(lambda e, x: e.position > e.request.start and e.prev_slot >= 0),
    ),
    "4.prev.before-window": (
        "prev slot at the start of a window is the real predecessor's",
        some_entry(lambda e, x: 0 < e.position == e.request.start and e.prev_slot >= 0),
    ),
    "4.token.no-table": (
        "expected token is -1 without a table",
        some_entry(lambda e, x: x.tokens is None),
    ),
    "4.token.cell": (
        "expected token is the table's cell",
        some_entry(lambda e, x: e.token >= 0 and e.q == e.position),
    ),
    "4.token.offset": (
        "expected token is looked up at p + kv_token_id_vs_position_offset",
        some_entry(lambda e, x: e.token >= 0 and e.q == e.position + 1),
    ),
    "4.token.valid-length": (
        "expected token is -1 from the valid length on, whatever the cell holds",
        some_entry(lambda e, x: e.has_cell and e.q >= e.valid_len),
    ),
    "4.enable.fits": ("enable is 1 where total < verify_capacity", of_plan(lambda x: x.total < x.capacity)),
    "4.enable.exact": (
        "enable is 1 where total == verify_capacity",
        of_plan(lambda x: x.total == x.capacity > 0),
    ),
    "4.enable.overflow": (
        "enable is 0 and the columns stay as they were where total > verify_capacity",
        of_plan(lambda x: x.total > x.capacity > 0),
    ),
    "4.enable.by-one": (
        "one entry too many is too many",
        of_plan(lambda x: x.total == x.capacity + 1),
    ),
    "4.enable.zero-capacity": (
        "columns may have length 0",
        of_plan(lambda x: x.capacity == 0 and x.fits),
    ),
    "4.num-valid": (
        "verify_num_valid is min(total, verify_capacity)",
        of_plan(lambda x: 0 < x.capacity < x.total),
    ),
    "4.total": (
        "verify_total_out is total",
        of_plan(lambda x: "verify_total_out" in x.expected and 0 < x.total <= x.capacity),
    ),
    "4.total.overflow": (
        "verify_total_out is total where that is above verify_capacity, too",
        of_plan(lambda x: "verify_total_out" in x.expected and x.total > x.capacity),
    ),
    "4.tail": (
        "with enable 1 the columns behind the entries are left as they were",
        of_plan(lambda x: 0 < x.total < x.capacity),
    ),
    "4.offsets.sum": (
        "write_offsets is the exclusive prefix sum of write_count, its total at [bs]",
        of_plan(lambda x: sum(r.write_count > 0 for r in x.requests) > 1),
    ),
    "4.offsets.int64": (
        "the sum is 64 bits wide",
        of_plan(lambda x: 2**31 <= sum(r.write_count for r in x.requests) < 2**63),
    ),
    "4.offsets.wrap": (
        "sums wrap in two's complement",
        of_plan(lambda x: sum(r.write_count for r in x.requests) >= 2**63),
    ),
    "4.offsets.behind": (
        "every element of write_offsets behind [bs] is 0",
        of_plan(lambda x: x.write_rows > x.bs),
    ),
    "4.seed.last": (
        "the seed is the slot of the last cached position",
        some_seed(lambda s, x: x.mapping is None and s >= 0),
    ),
    "4.seed.translated": (
        "the seed is translated",
        some_seed(lambda s, x: x.mapping is not None and 0 <= s < len(x.mapping)),
    ),
    "4.seed.sentinel": (
        "a seed that is a sentinel passes through",
        some_seed(lambda s, x: x.mapping is not None and s < 0),
    ),
    "4.seed.nothing-written": (
        "the seed is -1 where a request writes nothing",
        some_request(lambda r, x: r.active and r.E == 0 and r.end > 0),
    ),
    "4.seed.nothing-cached": (
        "the seed is -1 where nothing is cached",
        some_request(lambda r, x: r.active and r.E > 0 and r.P == 0),
    ),
    "4.seed.without-entries": (
        "a request without entries may have a seed",
        some_request(lambda r, x: r.has_seed and r.verify_count == 0),
    ),
    "4.seed.behind": (
        "seeds from bs on are left as they were",
        of_plan(lambda x: x.write_rows > x.bs),
    ),
    "4.num-valid-reqs": (
        "write_num_valid_reqs is bs, padding included",
        some_request(lambda r, x: r.row == 0),
    ),
    "4.legal.empty-batch": ("bs may be 0", of_plan(lambda x: x.bs == 0)),
    "4.legal.all-padding": (
        "a batch may be all padding",
        of_plan(lambda x: x.bs > 0 and all(r.row == 0 for r in x.requests)),
    ),
    "4.legal.no-rows": ("a table may have no rows", of_plan(lambda x: x.max_reqs == 0)),
    "4.legal.no-columns": (
        "a table may have no columns",
        of_plan(lambda x: x.max_seq_len == 0 and len(x.active) > 0),
    ),
    "4.legal.largest-batch": ("a batch may have 4096 requests", of_plan(lambda x: x.bs == 4096)),
    "4.staged.offsets": (
        "the offsets launcher writes the write rows, verify_num_valid, enable",
        staged(OFFSETS, lambda x: x.fits and x.total > 0),
    ),
    "4.staged.scratch": (
        "the scratch's [0 .. bs] is the exclusive prefix sum of verify_count, the rest is left as it was",
        staged(OFFSETS, lambda x: len(x.verifying) > 1),
    ),
    "4.staged.scratch-overflow": (
        "the scratch is written where the entries do not fit, too",
        staged(OFFSETS, lambda x: not x.fits),
    ),
    "4.staged.entries": (
        "the entries launcher writes the columns, and trusts nothing in the scratch",
        staged(ENTRIES, lambda x: len(x.verifying) > 1 and x.fits and x.call["verify_enable"][0] == 1),
    ),
    "4.staged.enabled": (
        "any verify_enable but 0 enables",
        staged(ENTRIES, lambda x: x.fits and x.call["verify_enable"][0] not in (0, 1)),
    ),
    "4.staged.disabled": (
        "the entries launcher writes nothing where verify_enable is 0",
        staged(ENTRIES, lambda x: x.fits and x.total > 0 and x.call["verify_enable"][0] == 0),
    ),
    "4.staged.does-not-fit": (
        "the entries launcher writes nothing where the entries do not fit",
        staged(ENTRIES, lambda x: not x.fits and x.call["verify_enable"][0] != 0),
    ),
    "4.staged.pages": (
        "both staged launchers know pages",
        lambda x: x.launcher != PLAN and x.page_size > 1,
    ),
    "4.staged.offsets-without-mapping": (
        "the offsets launcher takes a window without a mapping",
        staged(OFFSETS, lambda x: x.window > 0 and x.mapping is None),
    ),
    "4.staged.entries-without-mapping": (
        "the entries launcher takes a window without a mapping",
        staged(ENTRIES, lambda x: x.window > 0 and x.mapping is None),
    ),
    "5.row.negative": ("a negative row counts as padding", some_request(lambda r, x: r.row < 0)),
    "5.row.past": (
        "a row >= max_reqs counts as padding",
        some_request(lambda r, x: 0 < x.max_reqs == r.row),
    ),
    "5.row.wide": (
        "a row is compared as int64",
        some_request(lambda r, x: r.row >= 2**32 and 0 < r.row % 2**32 < x.max_reqs),
    ),
    "5.prefix.negative": (
        "a negative prefix_lens counts as 0",
        of_plan(lambda x: any(n < 0 for n in x.values("prefix_lens"))),
    ),
    "5.prefix.smallest": (
        "-2**63 counts as 0 in a window, too",
        of_plan(lambda x: x.window > 0 and -(2**63) in x.values("prefix_lens")),
    ),
    "5.prefix.past": (
        "positions past the table do not exist; the seed is the last column's",
        some_request(lambda r, x: r.has_seed and x.max_seq_len + 1 == r.P and x.window <= 0 and x.fits),
    ),
    "5.prefix.past-in-window": (
        "a window is cut from the given length, not from the table's",
        some_request(lambda r, x: r.verify_count > 0 and x.max_seq_len < r.P and x.window > 0),
    ),
    "5.prefix.wide": (
        "a prefix length is compared as int64",
        some_request(lambda r, x: r.active and r.P >= 2**32 and x.max_seq_len > r.P % 2**32),
    ),
    "5.extend.negative": (
        "a negative extend_seq_lens counts as 0",
        of_plan(lambda x: any(n < 0 for n in x.values("extend_seq_lens"))),
    ),
    "5.slot.past": (
        "a slot past the mapping reads its last element",
        some_entry(lambda e, x: x.is_past(e.slot)),
    ),
    "5.slot.past-before-window": (
        "so does the predecessor before a window",
        some_entry(lambda e, x: 0 < e.position == e.request.start and x.is_past(e.prev_slot)),
    ),
    "5.slot.past-seed": ("so does a seed", some_seed(lambda s, x: x.is_past(s))),
    "5.token.no-row": (
        "expected token is -1 where the token table lacks the row",
        some_entry(
            lambda e, x: (
                x.tokens is not None
                and len(x.tokens) <= e.request.row
                and 0 <= e.q < min(e.valid_len, x.tokens.shape[1])
            )
        ),
    ),
    "5.token.no-column": (
        "expected token is -1 where the token table lacks the column",
        some_entry(lambda e, x: x.tokens is not None and x.tokens.shape[1] <= e.q < e.valid_len),
    ),
    "5.token.negative": (
        "expected token is -1 where p + kv_token_id_vs_position_offset is negative",
        some_entry(lambda e, x: x.tokens is not None and e.q < 0),
    ),
    "5.token.wide": (
        "a valid length is compared as int64",
        some_entry(lambda e, x: e.valid_len > 2**32 and e.valid_len % 2**32 <= e.q and e.has_cell),
    ),
    "5.padding": (
        "a padding request has no faults",
        some_request(lambda r, x: r.row == 0 and x.max_seq_len < r.P),
    ),
    "5.prefix.past-pages": (
        "positions past the table's pages do not exist",
        some_request(lambda r, x: r.has_seed and x.max_seq_len + 1 == r.P and x.page_size > 1),
    ),
    "5.faults.row_outside": ("faults_out counts rows outside req_to_token", counts(0)),
    "5.faults.prefix_negative": ("faults_out counts negative prefix_lens", counts(1)),
    "5.faults.extend_negative": ("faults_out counts negative extend_seq_lens", counts(2)),
    "5.faults.prefix_exceeds": ("faults_out counts prefixes that exceed req_to_token", counts(3)),
    "5.faults.slot_outside": ("faults_out counts entries' slots past the mapping", counts(4)),
    "5.faults.token_outside": ("faults_out counts entries' tokens that no cell holds", counts(5)),
    "5.faults.slot_negative": ("faults_out counts entries' sentinels", counts(6)),
    "5.faults.slot_dummy": ("faults_out counts entries' slots of the dummy page", counts(7)),
    "5.faults.place-lowered": (
        "a place found that is smaller than the former one replaces it, and -1 is no place",
        of_plan(lambda x: any(new < former == 2**64 - 1 for former, new in x.places())),
    ),
    "5.faults.place-kept": (
        "a former place that is smaller than those found stays",
        of_plan(lambda x: any(new == former for former, new in x.places())),
    ),
    "5.faults.place-unsigned": (
        "places are compared as unsigned numbers",
        of_plan(lambda x: any(new < 2**63 <= former < 2**64 - 1 for former, new in x.places())),
    ),
    "5.faults.wrap": (
        "counts wrap",
        of_plan(
            lambda x: x.faults is not None and any(x.faults[k, 0] < x.former_faults[k, 0] for k in range(8))
        ),
    ),
    "5.faults.overflow": (
        "where the entries do not fit, their faults are not counted",
        of_plan(lambda x: x.faults is not None and not x.fits and x.has_bad_entries()),
    ),
    "5.faults.entries-alone": (
        "a predecessor before a window and a seed behind all entries are not counted",
        some_entry(
            lambda e, x: x.faults is not None and 0 < e.position == e.request.start and x.is_past(e.prev_slot)
        ),
    ),
    "5.faults.padding": (
        "a padding request's values are not counted",
        of_plan(
            lambda x: (
                x.faults is not None
                and any(
                    row == 0 and n < 0
                    for row, n in zip(x.call["req_pool_indices"], x.call["prefix_lens"], strict=True)
                )
            )
        ),
    ),
    "5.faults.staged-offsets": (
        "the offsets launcher counts the requests' own faults alone",
        staged(OFFSETS, lambda x: any(x.counts(k) for k in range(4)) and x.has_bad_entries()),
    ),
    "5.faults.staged-entries": (
        "the entries launcher counts the entries' faults alone",
        staged(ENTRIES, lambda x: any(x.counts(k) for k in range(4, 8))),
    ),
    "5.faults.staged-disabled": (
        "the entries launcher counts nothing where verify_enable is 0",
        staged(
            ENTRIES,
            lambda x: x.faults is not None and x.call["verify_enable"][0] == 0 and x.has_bad_entries(),
        ),
    ),
    "5.faults.staged-does-not-fit": (
        "the entries launcher counts nothing where the entries do not fit",
        staged(
            ENTRIES,
            lambda x: (
                x.faults is not None
                and not x.fits
                and x.call["verify_enable"][0] != 0
                and x.has_bad_entries()
            ),
        ),
    ),
}


def made() -> Iterator[Vector]:
    """Every vector of the set."""
    for definition in definitions():
        expected = after(definition)
        launch = Launch(definition, expected)
        yield Vector(
            name=definition.name,
            story=definition.story,
            launcher=definition.launcher,
            rules=tuple(rule for rule, (_, holds) in RULES.items() if holds(launch)),
            fault=oracle.first_fault(**definition.arguments) if definition.launcher == PLAN else None,
            arguments=definition.arguments,
            before=definition.before,
            expected=expected,
        )


def after(definition: Definition) -> Arrays:
    """The buffers as the oracle leaves them."""
    buffers = {name: buffer.copy() for name, buffer in definition.before.items()}
    if definition.launcher == PLAN:
        plan: Any = SimpleNamespace(**buffers)
        extras = {name: buffers[name] for name in OPTIONAL_OUTPUTS if name in buffers}
        oracle.launch_canary_plan_kernels(
            verify_plan_out=plan, write_plan_out=plan, **definition.arguments, **extras
        )
    else:
        getattr(oracle, definition.launcher)(**definition.arguments, **buffers)
    return buffers


def write(directory: Path) -> None:
    write_vectors(directory, {rule: text for rule, (text, _) in RULES.items()}, made())


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else shipped_vectors_path()
    target.mkdir(exist_ok=True)
    for old in target.glob("*.bin"):
        old.unlink()
    write(target)
