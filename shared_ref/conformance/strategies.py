"""Hypothesis strategies for launches: `cases` for whatever compiles per shape, `free_cases` for the rest.

Values are free; shapes, static integers and the optional outputs come from `LAYOUTS`, so that a compiler
sees a bounded number of programs: one a layout and batch size, 31 in all. A failure shrinks to the fewest
requests, the first layout that still fails, tables that count their cells up, and no odd cells. Give
`PLAIN_LAYOUTS` to judge an implementation that knows neither pages nor optional outputs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..constants import PADDING_ROW
from ..schema import OPTIONAL_OUTPUTS
from .case import Case, PlanInputs
from .values import BETWEEN_ROWS, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, WRAPPING, counting

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(
        f"{__name__} needs hypothesis, which is not installed: pip install 'kvcanary[test]'"
    ) from error


class Layout(NamedTuple):
    """Everything a compiled launch depends on but the batch size."""

    name: str
    table: tuple[int, int] = (4, 16)
    """Shape of `req_to_token`."""
    mapping: int | None = None
    """Length of `full_to_swa_index_mapping`; None wants a `window` of 0 or less."""
    tokens: tuple[int, int] | None = None
    """Shape of `req_to_verify_expected_tokens`."""
    window: int = 0
    offset: int = 0
    """`kv_token_id_vs_position_offset`."""
    verify_capacity: int = 16
    spare_write_rows: int = 0
    """`write_req_capacity` beyond the batch."""
    batch_sizes: tuple[int, ...] = (3,)
    """Ascending. Smaller batches are padded."""
    page_size: int = 1
    extras: tuple[str, ...] = ()
    """The optional outputs that the launch gets."""

    @property
    def positions(self) -> int:
        """Of a row: the contract's `max_seq_len`."""
        return self.table[1] * self.page_size


_BOTH = tuple(OPTIONAL_OUTPUTS)

LAYOUTS = (
    Layout("full attention", verify_capacity=64, spare_write_rows=2, batch_sizes=(0, 1, 3, 8)),
    Layout("window", mapping=65, window=3, verify_capacity=8, batch_sizes=(1, 3, 8)),
    Layout("draft model", tokens=(6, 24), window=-1, offset=1, spare_write_rows=3, batch_sizes=(1, 3, 8)),
    Layout(
        "window and tokens",
        mapping=40,
        tokens=(3, 9),
        window=5,
        verify_capacity=12,
        batch_sizes=(0, 3, 8, 40),
        extras=_BOTH,
    ),
    Layout(
        "short mapping",
        mapping=7,
        tokens=(2, 12),
        offset=-1,
        verify_capacity=32,
        batch_sizes=(1, 3, 8),
        extras=("faults_out",),
    ),
    Layout("one slot", mapping=1, tokens=(4, 16), window=INT32_MAX, offset=INT32_MAX),
    Layout(
        "no entries",
        mapping=65,
        window=4,
        verify_capacity=0,
        batch_sizes=(0, 1, 3),
        extras=("verify_total_out",),
    ),
    Layout("long", table=(3, 300), mapping=900, tokens=(3, 300), window=128, offset=1, verify_capacity=300),
    Layout("no rows", table=(0, 16), mapping=7, tokens=(0, 4), window=2, offset=1, verify_capacity=4),
    Layout("padding row alone", table=(1, 16), verify_capacity=4),
    Layout("no columns", table=(4, 0), mapping=7, tokens=(4, 0), window=2, offset=-1, verify_capacity=4),
    Layout("one column", table=(4, 1), mapping=7, tokens=(4, 1), offset=INT32_MIN, verify_capacity=1),
    Layout(
        "pages of two",
        table=(4, 7),
        page_size=2,
        mapping=31,
        tokens=(3, 12),
        window=3,
        offset=1,
        verify_capacity=8,
        spare_write_rows=1,
        batch_sizes=(3, 8),
        extras=_BOTH,
    ),
    Layout("pages of three", table=(4, 5), page_size=3, verify_capacity=24, batch_sizes=(1, 3)),
    Layout(
        "pages of sixteen",
        table=(3, 2),
        page_size=16,
        mapping=70,
        tokens=(3, 30),
        window=20,
        verify_capacity=48,
        extras=("faults_out",),
    ),
)

PLAIN_LAYOUTS = tuple(layout._replace(extras=()) for layout in LAYOUTS if layout.page_size == 1)
"""Without pages and optional outputs."""


def cases(corrupt: bool | None = None, *, layouts: Sequence[Layout] = LAYOUTS) -> st.SearchStrategy[Case]:
    """Poisoned cases with the shapes and integers of `layouts`.

    Batches of 0 to 8 requests, or several dozens; requests may share a row; tables may be views of wider
    ones; totals are often pushed to the verify capacity or one past it. Extends, and every value of a
    padding request, may be anything that is no fault, so sums wrap.

    Args:
        corrupt: False: no value is a fault (contract, section 5), `strict` accepts the case. True: values
            from all of int64 and int32 are mixed in, so that most cases have faults. None: either.
        layouts: what to draw shapes from.
    """
    return _cases(_by_programs(layouts), corrupt)


def free_cases(
    corrupt: bool | None = None, *, layouts: Sequence[Layout] = LAYOUTS
) -> st.SearchStrategy[Case]:
    """Like `cases`, but windows, offsets and capacities are free too: for what does not compile per shape.

    So are page sizes and optional outputs, if any of `layouts` has some.
    """
    return _cases(_free_layouts(layouts), corrupt)


def _by_programs(layouts: Sequence[Layout]) -> st.SearchStrategy[Layout]:
    """One of the layouts, those with many batch sizes more often."""
    return st.sampled_from([layout for layout in layouts for _ in layout.batch_sizes])


@st.composite
def _free_layouts(draw: st.DrawFn, layouts: Sequence[Layout]) -> Layout:
    layout = draw(_by_programs(layouts))
    if any(other.extras for other in layouts):
        layout = layout._replace(extras=draw(_EXTRAS))
    if any(other.page_size != 1 for other in layouts):
        layout = _paged(layout, draw(_PAGE_SIZES))
    window = draw(_WINDOWS)
    return layout._replace(
        window=window if layout.mapping is not None else min(window, 0),
        offset=draw(_OFFSETS),
        verify_capacity=draw(_VERIFY_CAPACITIES),
        spare_write_rows=draw(_SPARE_WRITE_ROWS),
    )


def _paged(layout: Layout, page_size: int) -> Layout:
    """The layout with about as many positions on pages of another size, and a mapping of a page at least."""
    rows, columns = layout.table
    return layout._replace(
        page_size=page_size,
        table=(rows, -(-columns * layout.page_size // page_size)),
        mapping=None if layout.mapping is None else max(layout.mapping, page_size),
    )


_WINDOWS = st.integers(0, 17) | st.sampled_from((-1, INT32_MIN, INT32_MAX))
_OFFSETS = st.integers(-3, 3) | st.integers(INT32_MIN, INT32_MAX)
_VERIFY_CAPACITIES = st.integers(0, 64)
_SPARE_WRITE_ROWS = st.integers(0, 3)
_PAGE_SIZES = st.sampled_from((1, 1, 2, 3, 5, 16))
_EXTRAS = st.sampled_from(((), *((name,) for name in OPTIONAL_OUTPUTS), _BOTH))
_CORRUPT = st.booleans()
_SENTINELS = st.booleans()
_STRIDED = st.booleans()
_SIZES = st.integers(0, max(len(layout.batch_sizes) for layout in LAYOUTS) - 1)
"""Which of a layout's batch sizes: the same draw for all, so that the shrinker can swap layouts."""
_CROWDS = st.booleans()
_POISON_SEEDS = st.integers(0, 3)


@dataclasses.dataclass(frozen=True)
class _Request:
    row: int
    prefix_len: int
    extend_len: int
    valid_len: int

    def verified(self, layout: Layout) -> range:
        """The positions of the entries."""
        if not PADDING_ROW < self.row < layout.table[0]:
            return range(0)
        prefix_len = max(self.prefix_len, 0)
        start = max(prefix_len - layout.window, 0) if layout.window > 0 else 0
        return range(start, max(start, min(prefix_len, layout.positions)))


_PADDING = _Request(PADDING_ROW, 0, 0, 0)


@st.composite
def _cases(draw: st.DrawFn, layouts: st.SearchStrategy[Layout], corrupt: bool | None) -> Case:
    layout = draw(layouts)
    if corrupt is None:
        corrupt = draw(_CORRUPT)
    batch = _batch(draw, layout, corrupt)
    table, largest_cell = counting(layout.table, 1), INT32_MAX
    if layout.mapping is not None and not corrupt:
        pages = layout.mapping // layout.page_size
        largest_cell = pages - 1
        table %= pages
    if draw(_SENTINELS):
        table[:, ::3] = -1 - table[:, ::3] % 3
    _scatter(draw, table, largest_cell)
    mapping = tokens = valid_lens = None
    if layout.mapping is not None:
        mapping = counting((layout.mapping,), 1001).astype(np.int64)
        _scatter(draw, mapping, INT64_MAX)
    if layout.tokens is not None:
        tokens = counting(layout.tokens, 5001)
        if draw(_SENTINELS):
            tokens[:, 1::3] *= -1
        _scatter(draw, tokens, INT32_MAX)
        tokens = _perhaps_strided(draw, tokens)
        valid_lens = np.array([r.valid_len for r in batch], np.int64)
    inputs = PlanInputs(
        req_pool_indices=np.array([r.row for r in batch], np.int64),
        prefix_lens=np.array([r.prefix_len for r in batch], np.int64),
        extend_seq_lens=np.array([r.extend_len for r in batch], np.int64),
        req_to_token=_perhaps_strided(draw, table),
        swa_window_size=layout.window,
        full_to_swa_index_mapping=mapping,
        verify_capacity=layout.verify_capacity,
        req_to_verify_expected_tokens=tokens,
        req_to_verify_expected_tokens_valid_lens=valid_lens,
        kv_token_id_vs_position_offset=layout.offset,
        page_size=layout.page_size,
    )
    return Case.poisoned(
        f"{layout.name}, bs {len(batch)}",
        inputs,
        write_req_capacity=len(batch) + layout.spare_write_rows,
        seed=draw(_POISON_SEEDS),
        extras=layout.extras,
    )


def _batch(draw: st.DrawFn, layout: Layout, corrupt: bool) -> list[_Request]:
    size = layout.batch_sizes[min(draw(_SIZES), len(layout.batch_sizes) - 1)]
    token_width = layout.tokens[1] if layout.tokens is not None else 0
    drawn = draw(_request_lists(layout.table[0], layout.positions, token_width, corrupt))
    batch = [r for r in drawn if r is not None][:size]
    if len(batch) > 2 and draw(_CROWDS):
        batch = (batch * size)[:size]
    total = draw(_totals(layout.verify_capacity))
    if corrupt:
        if total == layout.verify_capacity:
            batch = _fitting(batch, layout)
    else:
        if total is not None:
            batch = _with_total(batch, layout, total)
        batch = [_within_token_table(r, layout) for r in batch]
    return batch + [_PADDING] * (size - len(batch))


@functools.cache
def _totals(verify_capacity: int) -> st.SearchStrategy[int | None]:
    return st.sampled_from((None, verify_capacity, verify_capacity + 1))


@functools.cache
def _request_lists(
    rows: int, positions: int, token_width: int, corrupt: bool
) -> st.SearchStrategy[list[_Request | None]]:
    """Requests, and None where one has been shrunk away: the shrinker deletes no long run of choices."""
    anything = st.sampled_from(WRAPPING) | st.integers(INT64_MIN, INT64_MAX)
    last_row = max(rows - 1, 0)
    active_row = st.integers(min(1, last_row), last_row)
    prefix_len = st.integers(0, positions)
    extend_len = st.integers(0, 5) | st.sampled_from((2**31, 2**32 + 1, 2**62, INT64_MAX))
    valid_len = st.integers(0, token_width)
    any_row = st.integers(0, last_row)
    requests = [st.builds(_Request, any_row, prefix_len, extend_len, valid_len)]
    if corrupt:
        odd_row = st.sampled_from((-1, -2, rows, rows + 1)) | anything
        odd_prefix_len = st.integers(positions - 1, positions + 20) | anything
        odd_extend_len = extend_len | anything
        odd_valid_len = st.integers(token_width + 1, token_width + 3) | anything
        requests.append(st.builds(_Request, odd_row, prefix_len, odd_extend_len, odd_valid_len))
        requests.append(st.builds(_Request, active_row, odd_prefix_len, odd_extend_len, valid_len))
        requests.append(st.builds(_Request, active_row, prefix_len, odd_extend_len, odd_valid_len))
    else:
        requests.append(st.builds(_Request, st.just(PADDING_ROW), anything, anything, anything))
        requests.append(
            st.builds(_Request, active_row, st.integers(min(1, positions), positions), extend_len, valid_len)
        )
    return st.lists(st.one_of(st.none(), *requests), min_size=3, max_size=8)


def _fitting(batch: list[_Request], layout: Layout) -> list[_Request]:
    """The leading requests whose entries fit."""
    ends = itertools.accumulate(len(r.verified(layout)) for r in batch)
    return [r for r, end in zip(batch, ends, strict=True) if end <= layout.verify_capacity]


def _with_total(batch: list[_Request], layout: Layout, total: int) -> list[_Request]:
    """The batch with prefixes cut, then stretched, until it has `total` verify entries, if it can."""
    longest = min(layout.positions, layout.window) if layout.window > 0 else layout.positions
    counts: list[int] = []
    for r in batch:
        counts.append(min(len(r.verified(layout)), total - sum(counts)))
    for i, r in enumerate(batch):
        if r.row != PADDING_ROW:
            counts[i] = min(longest, counts[i] + total - sum(counts))
    return [
        r if len(r.verified(layout)) == n else dataclasses.replace(r, prefix_len=n)
        for r, n in zip(batch, counts, strict=True)
    ]


def _within_token_table(r: _Request, layout: Layout) -> _Request:
    """The request without a current token that the token table has no cell for."""
    if layout.tokens is None or not r.verified(layout):
        return r
    first = r.verified(layout).start + layout.offset
    has_row = r.row < layout.tokens[0]
    return r if has_row and first >= 0 else dataclasses.replace(r, valid_len=min(r.valid_len, first))


def _scatter(draw: st.DrawFn, array: np.ndarray, largest: int) -> None:
    """Overwrite a few cells with values up to `largest`."""
    if array.size:
        smallest = int(np.iinfo(array.dtype).min)
        for index, value in draw(_scattered(array.size, smallest, largest)).items():
            array.flat[index] = value


@functools.cache
def _scattered(size: int, smallest: int, largest: int) -> st.SearchStrategy[dict[int, int]]:
    values = st.integers(-3, min(largest, 100)) | st.sampled_from((0, smallest, largest))
    return st.dictionaries(st.integers(0, size - 1), values, max_size=6)


def _perhaps_strided(draw: st.DrawFn, table: np.ndarray) -> np.ndarray:
    """The table, or a view with its cells into a wider one."""
    if not draw(_STRIDED):
        return table
    rows, width = table.shape
    wider = np.full((rows, width + 3), BETWEEN_ROWS, table.dtype)
    wider[:, 2 : width + 2] = table
    return wider[:, 2 : width + 2]
