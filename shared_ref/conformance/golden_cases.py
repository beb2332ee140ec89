"""The launches of the golden vectors: inputs and poison only, each with its story.

`tests/make_vectors.py` adds the expected bytes, which the literal oracle computes, and writes the set. What
is not said of a launch is that of `BASE`: four requests, few shapes, so that a compiler sees few programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..constants import PLAN_BS_BLOCK_SIZE, VERIFY_OFFSETS_SCRATCH_LEN
from ..plan import VerifyPlan, WritePlan
from ..schema import LAUNCH_ENTRIES, LAUNCH_OFFSETS, LAUNCH_PLAN, OPTIONAL_OUTPUTS
from .case import Case, PlanInputs
from .values import BETWEEN_ROWS, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, counting

ROWS, WIDTH, POOL = 4, 16, 65
PAGE = 8
"""Slots of a page, where a story speaks of pages."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Definition:
    """A vector without its expected bytes."""

    name: str
    story: str
    launcher: str
    arguments: dict[str, Any]
    before: dict[str, np.ndarray]


def definitions() -> Iterator[Definition]:
    """All of them, in the order of the manifest."""
    for group in (
        _page_tables,
        _batches,
        _capacities,
        _windows,
        _translations,
        _tokens,
        _write_rows,
        _rows_and_lengths,
        _cells,
        _staged,
        _pages,
        _totals,
        _faults,
        _staged_pages_and_faults,
    ):
        yield from group()


# What most of them share.


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _counting(first: int, rows: int = ROWS, columns: int = WIDTH) -> np.ndarray:
    return counting((rows, columns), first)


def _table(rows: dict[int, Any] | None = None) -> np.ndarray:
    """Slot 16 * row + position + 1, but for the leading cells of these rows."""
    table = _counting(1)
    for row, cells in (rows or {}).items():
        table[row, : len(cells)] = cells
    return table


MAPPING = 1000 - np.arange(POOL)
"""Of every slot of `_table()`; no slot maps to what could be another slot."""
BASE: dict[str, Any] = {
    "req_pool_indices": _ints(2, 0, 3, 1),
    "prefix_lens": _ints(9, 0, 4, 12),
    "extend_seq_lens": _ints(1, 0, 3, 2),
    "req_to_token": _table(),
    "swa_window_size": 0,
    "full_to_swa_index_mapping": None,
    "verify_capacity": 32,
    "req_to_verify_expected_tokens": None,
    "req_to_verify_expected_tokens_valid_lens": None,
    "kv_token_id_vs_position_offset": 0,
}
WINDOWED: dict[str, Any] = {"swa_window_size": 5, "full_to_swa_index_mapping": MAPPING}
TOKENS: dict[str, Any] = {
    "req_to_verify_expected_tokens": _counting(5000),
    "req_to_verify_expected_tokens_valid_lens": _ints(9, 0, 4, 12),
}


EVERYTHING: dict[str, Any] = {
    "req_pool_indices": _ints(3, 2**32 + 1, 2, 1),
    "prefix_lens": _ints(2**32 + 3, 5, 12, -3),
    "extend_seq_lens": _ints(INT64_MAX, 1, INT64_MAX, INT64_MIN),
    "req_to_token": np.resize(
        np.array([INT32_MAX, INT32_MIN, -1, 0, POOL - 1, POOL], np.int32), (ROWS, WIDTH)
    ),
    "full_to_swa_index_mapping": MAPPING,
    "req_to_verify_expected_tokens": _counting(5000, 3, 7),
    "req_to_verify_expected_tokens_valid_lens": _ints(2**32, 9, INT64_MAX, -1),
    "kv_token_id_vs_position_offset": -1,
}
"""Every kind of fault, and 28 entries."""
PAGED: dict[str, Any] = {"req_to_token": _counting(0, columns=4)[:, ::-1].copy(), "page_size": 4}
"""Page 4 * row + 3 - column: as many positions as the other table has, and no page behind the one before."""
VAST_PAGES: dict[str, Any] = {
    "req_to_token": np.array([[0, 0, 0], [0, 1, 0], [4, 6, -5], [7, INT32_MAX, 8]], np.int32),
    "page_size": INT32_MAX,
    "prefix_lens": _ints(3 * INT32_MAX, 3 * INT32_MAX, 2**31 + 3, 2**32 + 1),
    "swa_window_size": 5,
}


def _plan(name: str, story: str, *, spare: int = 2, extras: Sequence[str] = (), **changes: Any) -> Definition:
    """A launch of `launch_canary_plan_kernels`.

    `spare`: write rows beyond the batch; `extras`: the optional outputs that it gets.
    """
    arguments = BASE | changes
    capacity = len(arguments["req_pool_indices"]) + spare
    case = Case.poisoned(name, PlanInputs(**arguments), write_req_capacity=capacity, extras=extras)
    return Definition(
        name=name, story=story, launcher=LAUNCH_PLAN.name, arguments=arguments, before=case.before.buffers()
    )


def _only(request: int, **values: int) -> dict[str, Any]:
    """The base batch's arrays with another value for one request."""
    changed = {name: BASE[name].copy() for name in values}
    for name, value in values.items():
        changed[name][request] = value
    return changed


# Section 4, and the bugs that servers have had.


def _page_tables() -> Iterator[Definition]:
    paged = [PAGE * page + i for page in (5, 2) for i in range(PAGE)]
    yield _plan(
        "prefix-ends-on-a-page-boundary",
        "Prefixes of exactly two pages and of one: the next page is not allocated yet, its cells are 0.",
        prefix_lens=_ints(16, 0, 8, 5),
        req_to_token=_table({2: paged, 3: paged[PAGE:] + [0] * PAGE}),
    )
    far = [PAGE * page + i for page in (3, 8, 9) for i in range(PAGE)][:WIDTH]
    yield _plan(
        "block-id-past-the-pool",
        "A block id past the pool: its slots lie outside the mapping; a framework clips them to the last.",
        prefix_lens=_ints(12, 0, 4, 12),
        req_to_token=_table({2: far}),
        **WINDOWED,
    )
    yield _plan(
        "recycled-row-keeps-a-stale-tail",
        "A recycled row: behind the new request's cells and tokens lie those of its longer former owner.",
        prefix_lens=_ints(6, 0, 4, 12),
        req_to_token=_table({2: range(40, 46)}),
        **TOKENS | {"req_to_verify_expected_tokens_valid_lens": _ints(4, 0, 4, 9)},
    )
    yield _plan(
        "mapping-shorter-than-the-full-pool",
        "A mapping built for fewer slots than the full pool has: every slot past it reads its last element.",
        swa_window_size=5,
        full_to_swa_index_mapping=MAPPING[:40],
    )
    yield _plan(
        "full-pool-index-in-a-window-pool",
        "Both pools number their slots alike, so an index that was not translated, or twice, looks right.",
        swa_window_size=5,
        full_to_swa_index_mapping=np.arange(POOL) * 7 % POOL,
    )
    yield _plan(
        "zero-cells-inside-the-prefix",
        "Cells inside the prefix that nobody filled in: slot 0 is an entry like any, and is translated.",
        req_to_token=_table({2: [33, 34, 0, 0, 37, 0, 39, 40, 0], 3: [0] * 4}),
        **WINDOWED,
    )
    yield _plan(
        "two-requests-share-a-prefix",
        "Two requests share a prompt's slots: each verifies all of them, and continues its own chain.",
        prefix_lens=_ints(9, 0, 8, 12),
        req_to_token=_table({2: [*range(40, 48), 51], 3: range(40, 48)}),
    )
    yield _plan(
        "a-row-twice-in-a-batch",
        "Two requests of a batch name the same row: each reads it for itself.",
        req_pool_indices=_ints(2, 2, 3, 2),
        prefix_lens=_ints(9, 3, 4, 0),
    )
    wide = np.full((ROWS, WIDTH + 5), BETWEEN_ROWS, np.int32)
    wide[:, :WIDTH] = _table()
    wide_tokens = np.full((ROWS, WIDTH + 3), BETWEEN_ROWS, np.int32)
    wide_tokens[:, :WIDTH] = TOKENS["req_to_verify_expected_tokens"]
    yield _plan(
        "row-strided-tables",
        "Both tables are slices of wider ones: from row to row there are more cells than columns.",
        req_to_token=wide[:, :WIDTH],
        **TOKENS | {"req_to_verify_expected_tokens": wide_tokens[:, :WIDTH]},
    )


def _batches() -> Iterator[Definition]:
    none = _ints()
    yield _plan(
        "padding-row-with-garbage-lengths",
        "A padding request's lengths are whatever the last batch left there: nothing of it counts.",
        **_only(1, prefix_lens=INT64_MAX, extend_seq_lens=INT64_MIN),
        **TOKENS | {"req_to_verify_expected_tokens_valid_lens": _ints(9, INT64_MAX, 4, 12)},
        **WINDOWED,
        kv_token_id_vs_position_offset=1,
    )
    yield _plan(
        "all-padding-batch",
        "A captured graph replayed for nobody: every request is padding.",
        req_pool_indices=_ints(0, 0, 0, 0),
        prefix_lens=_ints(9, 1, 4, 12),
    )
    yield _plan(
        "empty-batch",
        "No request at all: the offsets and the numbers are written, nothing else.",
        req_pool_indices=none,
        prefix_lens=none,
        extend_seq_lens=none,
    )
    yield _plan(
        "empty-batch-without-write-rows",
        "No request and no room for any: write_offsets has one element.",
        spare=0,
        req_pool_indices=none,
        prefix_lens=none,
        extend_seq_lens=none,
    )
    yield _largest_batch()
    yield _plan(
        "requests-in-batch-order",
        "Rows in descending order: entries follow the batch, not the table.",
        req_pool_indices=_ints(3, 2, 1, 0),
        prefix_lens=_ints(2, 3, 4, 5),
    )
    yield _plan("nothing-cached", "First prefill: nothing to verify, no seed.", prefix_lens=_ints(0, 0, 0, 0))
    yield _plan(
        "nothing-written",
        "A step that writes nothing still verifies, and has no seeds.",
        extend_seq_lens=_ints(0, 0, 0, 0),
    )
    for name, rows, columns in (("rows", 0, WIDTH), ("columns", ROWS, 0)):
        yield _plan(
            f"table-without-{name}",
            f"A table without {name}: nothing can be looked up, and the batch is written all the same.",
            req_to_token=_counting(1, rows, columns),
            **WINDOWED,
        )


def _largest_batch() -> Definition:
    """Prefixes of 0 to 4 in 3 of 16 requests, an extend in all."""
    bs = PLAN_BS_BLOCK_SIZE
    r = np.arange(bs, dtype=np.int64)
    return _plan(
        "largest-batch",
        "4096 requests, most of them padding: the most that one launch plans for.",
        spare=0,
        req_pool_indices=np.where(r % 16 < 13, 0, 1 + r % 3),
        prefix_lens=r * 7 % 5,
        extend_seq_lens=1 + r % 4,
        verify_capacity=2048,
        **WINDOWED,
    )


def _capacities() -> Iterator[Definition]:
    yield _plan("capacity-to-spare", "The columns behind the entries keep what they held.")
    yield _plan(
        "capacity-met-exactly",
        "As many entries as the columns hold: enabled.",
        prefix_lens=_ints(16, 0, 4, 12),
    )
    yield _plan(
        "capacity-missed-by-one",
        "One entry too many: disabled, and not one element of the columns is written.",
        prefix_lens=_ints(16, 0, 5, 12),
    )
    yield _plan(
        "no-capacity-and-no-entries",
        "Columns of length 0, and nothing to verify: enabled.",
        verify_capacity=0,
        prefix_lens=_ints(0, 5, 0, 0),
    )
    yield _plan("no-capacity-for-any-entry", "Columns of length 0, and entries: disabled.", verify_capacity=0)


def _windows() -> Iterator[Definition]:
    yield _plan(
        "window-whose-first-predecessor-lies-outside",
        "The chain runs through the whole prefix, so a window's first entry has a predecessor outside it.",
        **WINDOWED,
    )
    yield _plan(
        "window-around-a-prefix-length",
        "Prefixes as long as the window, one token longer, and one shorter.",
        prefix_lens=_ints(5, 0, 6, 4),
        **WINDOWED,
    )
    for name, story, window in (
        ("window-of-one", "Every entry's predecessor lies outside the window.", 1),
        ("largest-window", "A window of 2**31 - 1 cuts nothing off.", INT32_MAX),
    ):
        yield _plan(name, story, **WINDOWED | {"swa_window_size": window})
    yield _plan("negative-window", "A window below 0 is no window.", swa_window_size=INT32_MIN)
    yield _plan(
        "window-past-the-end-of-the-table",
        "A corrupt prefix length moves the window out of the table: no entries, but a seed.",
        **_only(0, prefix_lens=WIDTH + 40),
        **WINDOWED,
    )


def _translations() -> Iterator[Definition]:
    odd_cells = {2: [33, -1, -2, INT32_MIN, -7, -9, 39, 40, -3], 3: [-5, 50, 51, 52]}
    yield _plan(
        "mapping-without-a-window",
        "A mapping that is given translates, whether or not there is a window.",
        full_to_swa_index_mapping=MAPPING,
    )
    yield _plan("sentinels", "Negative cells are sentinels.", req_to_token=_table(odd_cells))
    yield _plan(
        "sentinels-are-not-translated",
        "Negative cells pass by the mapping, as slots, as predecessors and as a seed.",
        req_to_token=_table(odd_cells),
        **WINDOWED,
    )
    extremes = np.resize(_ints(INT64_MAX, INT64_MIN, -1, 0, 2**31, 2**32 + 1), POOL)
    yield _plan(
        "mapping-to-any-int64",
        "Whatever int64 the mapping holds comes through whole: it is not looked up again, nor narrowed.",
        full_to_swa_index_mapping=extremes,
    )
    yield _plan(
        "mapping-of-one-slot",
        "A mapping of one element answers for every slot.",
        swa_window_size=5,
        full_to_swa_index_mapping=_ints(77),
    )


def _tokens() -> Iterator[Definition]:
    def tokens(name: str, story: str, offset: int, **changes: Any) -> Definition:
        return _plan(name, story, **TOKENS | {"kv_token_id_vs_position_offset": offset} | changes)

    yield tokens("tokens-of-a-target-model", "Slot p holds the token of position p.", 0)
    yield tokens(
        "draft-token-of-the-last-position",
        "A draft model's slot p holds the token of p + 1: the last position's is not known yet.",
        1,
    )
    yield tokens(
        "valid-lengths-of-all-sizes",
        "Valid lengths from nothing to the whole table: only cells below them are expected.",
        0,
        req_to_verify_expected_tokens_valid_lens=_ints(0, 16, 2, 16),
    )
    yield tokens(
        "tokens-before-the-first-position",
        "An offset of -1: position 0 has no token, and nothing wraps to the row before.",
        -1,
    )
    yield tokens("largest-token-offset", "An offset of 2**31 - 1: no token is known.", INT32_MAX)
    yield tokens("smallest-token-offset", "An offset of -2**31: every token lies before 0.", INT32_MIN)
    yield tokens(
        "token-table-too-narrow",
        "Valid lengths promise more tokens than the table has columns.",
        1,
        req_to_verify_expected_tokens=_counting(5000, ROWS, 7),
        req_to_verify_expected_tokens_valid_lens=_ints(9, 0, 4, INT64_MAX),
    )
    yield tokens(
        "token-table-too-short",
        "A row of req_to_token that the token table lacks.",
        0,
        req_to_verify_expected_tokens=_counting(5000, 2, WIDTH),
    )
    yield tokens(
        "valid-lengths-that-narrow",
        "Valid lengths that an int32 would make large, or small, or negative.",
        0,
        req_to_verify_expected_tokens_valid_lens=_ints(2**32 + 2, 0, INT64_MIN, 2**31),
    )
    yield tokens(
        "lowest-valid-length-of-a-draft",
        "A valid length of -2**63, from which taking the offset wraps to a large number.",
        1,
        req_to_verify_expected_tokens_valid_lens=_ints(INT64_MIN, 0, INT64_MIN, 12),
    )
    yield tokens(
        "negative-tokens",
        "Token cells below 0: they are expected as they are.",
        0,
        req_to_verify_expected_tokens=_counting(-30, ROWS, WIDTH),
    )
    yield _plan(
        "valid-lengths-without-a-table",
        "Valid lengths mean nothing without a token table.",
        req_to_verify_expected_tokens_valid_lens=_ints(9, 0, 4, 12),
    )
    yield tokens("tokens-of-a-window", "Window, mapping and tokens of a draft model together.", 1, **WINDOWED)


def _write_rows() -> Iterator[Definition]:
    yield _plan("no-write-rows-to-spare", "The batch fills the write plan.", spare=0)
    yield _plan(
        "many-write-rows-to-spare",
        "A small batch in a large write plan: offsets behind it become 0, seeds stay as they were.",
        spare=40,
    )
    yield _plan(
        "offsets-past-int32",
        "Extends whose sum needs more than 32 bits.",
        extend_seq_lens=_ints(INT32_MAX, 9, 2**32 + 1, 1),
    )
    yield _plan(
        "offsets-that-wrap",
        "Extends whose sum passes 2**63 wrap in two's complement.",
        extend_seq_lens=_ints(INT64_MAX, 9, 2, INT64_MAX),
    )


# Section 5.


def _rows_and_lengths() -> Iterator[Definition]:
    yield _plan("negative-row", "A row of -1, which wraps to the last one in Python.", **_row(-1))
    yield _plan("row-past-the-table", "The first row that the table does not have.", **_row(ROWS))
    yield _plan(
        "rows-that-narrow-to-real-ones",
        "Rows that an int32 would take for 1, for 3, for the padding row.",
        req_pool_indices=_ints(2**32 + 1, 2**32 + 3, 2**32, INT64_MIN),
        prefix_lens=_ints(9, 3, 4, 12),
    )
    yield _plan("negative-prefix-length", "It counts as 0.", **_only(0, prefix_lens=-1))
    yield _plan(
        "smallest-prefix-length",
        "It counts as 0 before the window is taken off, which would wrap.",
        **_only(0, prefix_lens=INT64_MIN),
        **WINDOWED,
    )
    yield _plan(
        "prefix-one-past-the-table",
        "One position more than the table has: it does not exist, and the seed is the last column's.",
        **_only(0, prefix_lens=WIDTH + 1),
    )
    yield _plan(
        "prefix-one-past-the-table-in-a-window",
        "The window is cut from the length that was given, not from what the table has.",
        **_only(0, prefix_lens=WIDTH + 1),
        **WINDOWED,
    )
    yield _plan(
        "prefix-lengths-that-narrow",
        "Prefix lengths that an int32 would take for 3, and for a negative number.",
        prefix_lens=_ints(2**32 + 3, 0, 2**31, 0),
    )
    yield _plan(
        "negative-extends",
        "They count as 0: no offset goes down, and no seed is written.",
        extend_seq_lens=_ints(-1, 0, INT64_MIN, 2),
    )


def _row(row: int) -> dict[str, Any]:
    return _only(0, req_pool_indices=row)


def _cells() -> Iterator[Definition]:
    def far(name: str, story: str, position: int, **changes: Any) -> Definition:
        cells = _table()
        cells[2, position] = INT32_MAX
        return _plan(name, story, **WINDOWED | {"req_to_token": cells} | changes)

    yield far("slot-past-the-mapping", "In the window: as a slot, and as a predecessor.", 6)
    yield far("slot-past-the-mapping-before-the-window", "Only as a predecessor.", 3)
    yield far(
        "slot-past-the-mapping-as-a-seed",
        "Only as a seed: the largest prefix length moves the window behind the table.",
        WIDTH - 1,
        **_only(0, prefix_lens=INT64_MAX),
    )
    yield far("slot-past-the-mapping-that-nobody-reads", "Before the window's predecessor: no fault.", 2)
    yield _plan(
        "faults-come-in-batch-order",
        "Three requests with faults: the first one of the batch is the one to report.",
        prefix_lens=_ints(9, -9, WIDTH + 1, 12),
        extend_seq_lens=_ints(-4, -9, 3, -1),
    )
    yield _plan(
        "everything-at-once",
        "Rows, lengths, slots and tokens that make no sense, in one batch.",
        **EVERYTHING,
    )


# Section 4, staged.


def _staged() -> Iterator[Definition]:
    yield _offsets("staged-offsets", "The write rows, the numbers and the scratch.", **WINDOWED)
    yield _offsets(
        "staged-offsets-that-do-not-fit",
        "One entry too many: the scratch is written all the same.",
        verify_capacity=24,
    )
    yield _offsets("staged-offsets-of-a-window-without-a-mapping", "Legal when staged.", swa_window_size=5)
    yield _entries("staged-entries", "The offsets fit, the scratch is garbage.", **WINDOWED | TOKENS)
    yield _entries("staged-entries-disabled", "verify_enable is 0: nothing is written.", enable=0)
    yield _entries("staged-entries-enabled-by-any-number", "verify_enable is not 0.", enable=-1)
    yield _entries(
        "staged-entries-that-do-not-fit",
        "verify_enable says that they fit, the columns do not: nothing is written.",
        verify_capacity=24,
    )
    yield _entries("staged-entries-that-just-fit", "As many entries as columns are long.", verify_capacity=25)
    yield _entries("staged-entries-of-a-window-without-a-mapping", "Legal when staged.", swa_window_size=5)


_STAGED_NAMES = {f.name: f.argument for plan in (VerifyPlan, WritePlan) for f in plan.fields()}


def _staged_buffers(definition: Definition) -> dict[str, np.ndarray]:
    return {_STAGED_NAMES.get(name, name): buffer for name, buffer in definition.before.items()}


def _scratch() -> np.ndarray:
    return np.arange(VERIFY_OFFSETS_SCRATCH_LEN, dtype=np.int64) - 2**40


def _offsets(name: str, story: str, **changes: Any) -> Definition:
    definition = _plan(name, story, **changes)
    buffers = _staged_buffers(definition) | {"out_verify_offsets_scratch": _scratch()}
    names = {t.name for t in LAUNCH_OFFSETS.tensors} | {"swa_window_size", "verify_capacity", "page_size"}
    return dataclasses.replace(
        definition,
        launcher=LAUNCH_OFFSETS.name,
        arguments={k: v for k, v in definition.arguments.items() if k in names},
        before={t.name: buffers[t.name] for t in LAUNCH_OFFSETS.tensors if t.output and t.name in buffers},
    )


def _entries(name: str, story: str, enable: int = 1, **changes: Any) -> Definition:
    definition = _plan(name, story, **changes)
    buffers = _staged_buffers(definition)
    read = {"verify_offsets_scratch": _scratch(), "verify_enable": np.array([enable], np.int32)}
    values = definition.arguments | read
    names = (*LAUNCH_ENTRIES.tensor_names, *LAUNCH_ENTRIES.integer_names)
    return dataclasses.replace(
        definition,
        launcher=LAUNCH_ENTRIES.name,
        arguments={k: values[k] for k in names if k in values},
        before={t.name: buffers[t.name] for t in LAUNCH_ENTRIES.tensors if t.output and t.name in buffers},
    )


# Pages and optional outputs.


def _pages() -> Iterator[Definition]:
    yield _plan(
        "pages-of-four",
        "A block table: prefixes end one token into a page, at its end, and inside; tokens lie one by one.",
        prefix_lens=_ints(9, 0, 4, 11),
        **PAGED,
        **TOKENS,
    )
    yield _plan(
        "window-in-pages",
        "A window begins on a page's border, with its predecessor in the page before; another inside a page.",
        **PAGED,
        **WINDOWED,
    )
    pages = PAGED["req_to_token"].copy()
    pages[2, :2], pages[1, 1:3] = (-7, 0), (INT32_MIN, 0)
    yield _plan(
        "sentinel-and-dummy-pages",
        "A negative cell is the slot of its whole page, and page 0 is a page like any.",
        **PAGED | {"req_to_token": pages},
        full_to_swa_index_mapping=MAPPING,
    )
    yield _plan(
        "page-across-the-end-of-the-mapping",
        "A page whose first two slots the mapping has, and whose last two it does not.",
        **PAGED,
        **WINDOWED | {"full_to_swa_index_mapping": MAPPING[:42]},
    )
    yield _plan(
        "prefix-one-past-the-pages",
        "Five pages of three: no sixteenth position exists, and the seed is the last page's last slot.",
        **_only(0, prefix_lens=16),
        req_to_token=_counting(0, columns=5),
        page_size=3,
    )
    yield _plan(
        "positions-past-int32",
        "Pages so large that positions, slots and places need 64 bits.",
        **VAST_PAGES,
        full_to_swa_index_mapping=MAPPING,
        extras=tuple(OPTIONAL_OUTPUTS),
    )


def _totals() -> Iterator[Definition]:
    yield _plan(
        "total-of-an-overflow",
        "One entry too many: the total says so, where verify_num_valid stops at the capacity.",
        prefix_lens=_ints(16, 0, 5, 12),
        extras=("verify_total_out",),
    )


def _faults() -> Iterator[Definition]:
    faults = ("faults_out",)
    yield _plan(
        "faults-of-every-kind", "Each kind is counted, on top of what there was.", **EVERYTHING, extras=faults
    )
    yield _plan(
        "faults-of-an-overflow",
        "The entries do not fit: only the requests' own faults count, those of an inactive one among them.",
        **EVERYTHING | {"verify_capacity": 27, "extend_seq_lens": _ints(INT64_MAX, -1, 0, INT64_MIN)},
        extras=tuple(OPTIONAL_OUTPUTS),
    )
    cells = _table()
    cells[2, 3], cells[3, 15] = INT32_MAX, -1
    yield _plan(
        "faults-of-cells-that-are-no-entries",
        "A predecessor before a window, a seed behind all entries, a padding request: not counted.",
        prefix_lens=_ints(9, -9, WIDTH + 40, 12),
        req_to_token=cells,
        **WINDOWED,
        extras=faults,
    )
    definition = _plan(
        "faults-on-top-of-former-ones",
        "Counts wrap; of a former place and a new one the smaller stays, and -1 is the largest.",
        **EVERYTHING | {"req_to_verify_expected_tokens_valid_lens": _ints(2**32, 9, 9, -1)},
        extras=faults,
    )
    definition.before["faults_out"][:] = [
        *((INT64_MAX, -1), (7, 0), (1, 5 << 48), (0, -1)),
        *((2, -2), (3, 2 << 48), (4, 1), (INT64_MIN, 2**62)),
    ]
    yield definition


def _staged_pages_and_faults() -> Iterator[Definition]:
    yield _offsets(
        "staged-offsets-of-pages",
        "The total and the requests' own faults, not those of cells.",
        **PAGED | {"req_to_token": _counting(-9, columns=4)},
        req_pool_indices=_ints(2, -1, 3, 1),
        prefix_lens=_ints(9, 0, 17, 12),
        extend_seq_lens=_ints(1, -1, 3, -2),
        swa_window_size=5,
        extras=tuple(OPTIONAL_OUTPUTS),
    )
    yield _entries(
        "staged-entries-of-vast-pages",
        "Slots of 64 bits, and the faults of cells, not the requests' own.",
        **VAST_PAGES,
        req_pool_indices=_ints(2, 9, 3, 1),
        extras=("faults_out",),
    )
    yield _entries(
        "staged-faults-disabled",
        "verify_enable is 0: nothing is counted.",
        enable=0,
        **EVERYTHING,
        extras=("faults_out",),
    )
    yield _entries(
        "staged-faults-of-entries-that-do-not-fit",
        "verify_enable says that they fit, the columns do not: nothing is counted.",
        **EVERYTHING | {"verify_capacity": 27},
        extras=("faults_out",),
    )
