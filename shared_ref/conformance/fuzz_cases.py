"""Launches full of values that make no sense, drawn by numpy: fast enough for millions, repeatable by number.

Values are free; shapes, static integers and the optional outputs come from `LAYOUTS`, so that a compiler sees
one program for each of them. Cases come in blocks of one layout, whose arrays are drawn together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..constants import PADDING_ROW
from ..schema import OPTIONAL_OUTPUTS
from .case import Case, PlanInputs, Plans
from .values import BETWEEN_ROWS, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, WRAPPING, counting

BLOCK = 64
"""Neighbouring cases that share a layout."""
ROUNDS = 16
"""After so many rounds through the layouts, the rare ones among them, the order begins anew."""


class Layout(NamedTuple):
    """Everything that a compiled launch depends on."""

    name: str
    bs: int = 8
    table: tuple[int, int] = (6, 24)
    """Shape of `req_to_token`."""
    mapping: int | None = None
    """Length of `full_to_swa_index_mapping`; None wants a `window` of 0 or less."""
    tokens: tuple[int, int] | None = None
    """Shape of `req_to_verify_expected_tokens`."""
    window: int = 0
    offset: int = 0
    """`kv_token_id_vs_position_offset`."""
    verify_capacity: int = 64
    spare_write_rows: int = 0
    """`write_req_capacity` beyond the batch."""
    page_size: int = 1
    extras: tuple[str, ...] = ()
    """The optional outputs that the launch gets."""
    gap: int = 0
    """Elements between the rows of the tables."""
    every: int = 1
    """It is met in every so many rounds through the layouts."""

    @property
    def positions(self) -> int:
        """Of a row: the contract's `max_seq_len`."""
        return self.table[1] * self.page_size


_BOTH = tuple(OPTIONAL_OUTPUTS)
_TOTAL, _FAULTS = ((name,) for name in OPTIONAL_OUTPUTS)

LAYOUTS = (
    Layout("full attention", spare_write_rows=2),
    Layout("window", mapping=97, window=3, verify_capacity=16),
    Layout("draft model", tokens=(6, 24), window=-1, offset=1, spare_write_rows=3),
    Layout("window and tokens", 12, mapping=40, tokens=(5, 9), window=5, verify_capacity=40, extras=_BOTH),
    Layout("one request", 1, (3, 24), verify_capacity=24, extras=_TOTAL),
    Layout("no requests", 0, (3, 24), mapping=9, verify_capacity=4, spare_write_rows=2, extras=_BOTH),
    Layout("window of one", mapping=97, window=1, tokens=(4, 40), offset=-1, verify_capacity=6),
    Layout("short mapping", mapping=7, tokens=(2, 12), offset=-1, extras=_FAULTS),
    Layout("mapping of one slot", 5, mapping=1, tokens=(4, 16), window=INT32_MAX, offset=INT32_MAX),
    Layout("no capacity", 5, mapping=65, window=4, verify_capacity=0, extras=_TOTAL),
    Layout("room for one entry", 3, verify_capacity=1, extras=_FAULTS),
    Layout("no rows", 3, (0, 16), mapping=7, tokens=(0, 4), window=2, offset=1, verify_capacity=4),
    Layout("padding row alone", 3, (1, 16), verify_capacity=4, extras=_FAULTS),
    Layout("no columns", 3, (4, 0), mapping=7, tokens=(4, 0), window=2, offset=-1, verify_capacity=4),
    Layout("one column", 4, (4, 1), mapping=7, tokens=(4, 1), offset=INT32_MIN, verify_capacity=2),
    Layout("rows apart", tokens=(7, 20), offset=2, spare_write_rows=1, gap=3),
    Layout("pages of two", 8, (6, 11), 31, (5, 18), 3, 1, 16, 1, 2, _BOTH),
    Layout("pages of three", 8, (6, 8), page_size=3, extras=_TOTAL),
    Layout("pages of sixteen", 5, (4, 2), 70, (3, 30), 20, 0, 80, page_size=16, extras=_FAULTS),
    Layout("pages longer than a prefix", 4, (4, 1), tokens=(4, 70), page_size=64, verify_capacity=128),
    Layout("pages of rows apart", 8, (6, 6), 60, (6, 24), 9, -2, 48, 2, 4, _BOTH, gap=5),
    Layout("vast pages", 4, (4, 3), 40, (3, 9), 7, INT32_MIN, 24, 0, INT32_MAX, _BOTH),
    Layout("entries past int32", 450, (4, 64), verify_capacity=24, page_size=2**18, extras=_TOTAL),
    Layout("long", 3, (4, 700), mapping=1900, tokens=(3, 600), offset=1, verify_capacity=1400, extras=_BOTH),
    Layout("long window", 3, (3, 700), mapping=1900, window=300, verify_capacity=800, gap=1),
    Layout("a batch of 64", 64, (9, 20), 150, window=4, verify_capacity=150),
    Layout("a batch of 65", 65, (9, 20), 150, (8, 20), 6, 1, 200, extras=_BOTH),
    Layout("a batch of 200", 200, (9, 20), 150, (9, 15), verify_capacity=1500, extras=_FAULTS),
    Layout("a batch of 600", 600, (9, 10), 33, (8, 30), 12, 1, 4000, 8, 2, _BOTH, every=4),
    Layout("the largest batch", 4096, (9, 20), 150, window=3, verify_capacity=9000, extras=_BOTH, every=16),
)

PLAIN_LAYOUTS = tuple(layout._replace(extras=()) for layout in LAYOUTS if layout.page_size == 1)
"""For implementations that know neither pages nor optional outputs."""


class Block(NamedTuple):
    """`BLOCK` cases of one layout."""

    seed: int
    first: int
    """Index of the first case."""
    layout: Layout
    arrays: dict[str, np.ndarray]
    """The inputs by argument name, those of the cases behind each other along dimension 0."""
    before: Plans
    """The poisoned plans before each of the launches."""

    def case(self, i: int) -> Case:
        """Number `i` of the block."""
        inputs = PlanInputs(
            **{name: stacked[i] for name, stacked in self.arrays.items()},
            swa_window_size=self.layout.window,
            verify_capacity=self.layout.verify_capacity,
            kv_token_id_vs_position_offset=self.layout.offset,
            page_size=self.layout.page_size,
        )
        return Case(f"fuzz {self.seed}-{self.first + i}, {self.layout.name}", inputs, self.before)


class FuzzCases:
    """An endless sequence of launches, determined by the seed. Any of them can be made alone.

    Args:
        seed: at least 0.
        layouts: what to take shapes from, in turn.
    """

    def __init__(self, seed: int = 0, layouts: Sequence[Layout] = LAYOUTS) -> None:
        self.seed = seed
        self.schedule = [layout for n in range(1, ROUNDS + 1) for layout in layouts if n % layout.every == 0]
        """The layouts of the blocks, until it begins anew."""

    def case(self, index: int) -> Case:
        """The case with this number, from 0."""
        return self.block(index // BLOCK).case(index % BLOCK)

    def __iter__(self) -> Iterator[Case]:
        for number in itertools.count():
            block = self.block(number)
            yield from map(block.case, range(BLOCK))

    def layout(self, number: int) -> Layout:
        """That of a block."""
        return self.schedule[number % len(self.schedule)]

    def layouts(self, cases: int) -> list[Layout]:
        """Those of the blocks that the first cases come from."""
        return [self.layout(number) for number in range(-(-cases // BLOCK))]

    def block(self, number: int) -> Block:
        """Cases `number * BLOCK` and so on."""
        layout = self.layout(number)
        draw = _Draw(np.random.default_rng((self.seed, number)), layout)
        arrays = draw.arrays()
        inputs = PlanInputs(
            **{name: stacked[0] for name, stacked in arrays.items()}, verify_capacity=layout.verify_capacity
        )
        poisoned = Case.poisoned(
            "",
            inputs,
            write_req_capacity=layout.bs + layout.spare_write_rows,
            seed=number % 4,
            extras=layout.extras,
        )
        if number % 4 == 3 and "faults_out" in layout.extras:
            poisoned.before.extras["faults_out"][::2, 0] = INT64_MAX  # these wrap
        return Block(self.seed, number * BLOCK, layout, arrays, poisoned.before)


class _Draw:
    """One block's values. Of each input, some cases have no odd value, some a few, some nothing else."""

    def __init__(self, rng: np.random.Generator, layout: Layout) -> None:
        self.rng = rng
        self.layout = layout

    def arrays(self) -> dict[str, np.ndarray]:
        layout = self.layout
        rows, prefix_lens = self._rows(), self._prefix_lens()
        self._cut_and_stretch(rows, prefix_lens)
        arrays = {
            "req_pool_indices": rows,
            "prefix_lens": prefix_lens,
            "extend_seq_lens": self._odd_among(self.rng.integers(0, 6, rows.shape), (6, 2**62)),
            "req_to_token": self._table(),
        }
        if layout.mapping is not None:
            mapping = 1001 + np.broadcast_to(np.arange(layout.mapping), (BLOCK, layout.mapping))
            arrays["full_to_swa_index_mapping"] = self._odd_among(mapping, (0,), shares=(0, 0, 0.2, 1))
        if layout.tokens is not None:
            columns = layout.tokens[1]
            tokens = self._odd_among(
                _each(counting(layout.tokens, 5001)), (0, -1, INT32_MIN, INT32_MAX), random=0
            )
            lens = self.rng.integers(0, columns + 1, rows.shape)
            arrays["req_to_verify_expected_tokens"] = _apart(tokens, layout.gap)
            arrays["req_to_verify_expected_tokens_valid_lens"] = self._odd_among(
                lens, (columns + 1, columns + 3, *WRAPPING)
            )
        return arrays

    def _rows(self) -> np.ndarray:
        """Odd ones take most of what a request could show, so they are fewer than other odd values."""
        max_reqs = self.layout.table[0]
        sound = self.rng.integers(0, max(max_reqs, 1), (BLOCK, self.layout.bs))
        return self._odd_among(sound, (-2, max_reqs, max_reqs + 1, *WRAPPING), shares=(0, 0, 0.1, 0.3, 0.9))

    def _prefix_lens(self) -> np.ndarray:
        """Up to all of a row, or short ones: the shorter they are, the more of them fit."""
        layout = self.layout
        positions, page_size = layout.positions, layout.page_size
        window = max(layout.window, 1)
        scales = (positions, positions, min(positions, 4), min(positions, 2 * window + 1))
        highest = self.rng.choice(scales, (BLOCK, 1))
        sound = self.rng.integers(0, highest + 1, (BLOCK, layout.bs))
        borders = (window, window + 1, page_size, page_size + 1, positions, positions + 1)
        behind = (positions + window - 1, positions + window, positions + window + 1)
        return self._odd_among(sound, (*borders, *behind, *WRAPPING))

    def _cut_and_stretch(self, rows: np.ndarray, prefix_lens: np.ndarray) -> None:
        """In half of the cases, change prefixes until the entries just fit, or are one more or less.

        Or until they would seem to fit, if int32 counted them.
        """
        layout = self.layout
        longest = min(layout.positions, layout.window) if layout.window > 0 else layout.positions
        capacity = layout.verify_capacity
        targets = self.rng.choice((capacity - 1, capacity, capacity, capacity + 1), (BLOCK, 1))
        if layout.bs * longest > 2**32:
            targets[::2] += 2**32
        is_wanted = (self.rng.random((BLOCK, 1)) < 0.5) & (targets >= 0)
        active = (rows != PADDING_ROW) & (rows >= 0) & (rows < layout.table[0])
        had = _verify_counts(layout, active, prefix_lens)
        counts = np.clip(targets - _sums_before(had), 0, had)
        room = np.where(active, longest - counts, 0)
        counts += np.clip(targets - counts.sum(1, keepdims=True) - _sums_before(room), 0, room)
        np.copyto(prefix_lens, counts, where=is_wanted & (counts != had))

    def _table(self) -> np.ndarray:
        """Cells count up, in half of the cases no further than the mapping; or are sentinels and borders."""
        layout = self.layout
        cells = _each(counting(layout.table, 1))
        pages = (layout.mapping or INT32_MAX) // layout.page_size
        if layout.mapping is not None:
            cells[: BLOCK // 2] %= max(pages, 1)
        borders = (0, -1, -2, -3, INT32_MIN, INT32_MAX, max(pages - 1, 0), pages, min(pages + 1, INT32_MAX))
        odd = self._odd_among(cells, borders, shares=(0, 0, 0.05, 0.3, 1), random=0)
        return _apart(odd, layout.gap)

    def _odd_among(
        self,
        sound: np.ndarray,
        borders: Sequence[int],
        *,
        shares: Sequence[float] = (0, 0.1, 0.3, 1),
        random: float = 0.3,
    ) -> np.ndarray:
        """`sound` with a share of odd values that differs from case to case.

        Args:
            borders: values that are odd here.
            shares: one is drawn for each case.
            random: the part of the odd values that are any of `WRAPPING` or of int64.
        """
        per_case = (BLOCK, *(1 for _ in sound.shape[1:]))
        is_odd = self.rng.random(sound.shape) < self.rng.choice(shares, per_case)
        odd = np.array(borders, sound.dtype)[self.rng.integers(0, len(borders), sound.shape)]
        if random:
            anything = self.rng.integers(INT64_MIN, INT64_MAX, sound.shape, endpoint=True)
            wrapping = np.array(WRAPPING)[self.rng.integers(0, len(WRAPPING), sound.shape)]
            which = self.rng.random(sound.shape)
            odd = np.where(which < random, np.where(which < random / 2, anything, wrapping), odd)
        return np.where(is_odd, odd, sound)


def _each(cells: np.ndarray) -> np.ndarray:
    """The same for every case of a block."""
    return np.repeat(cells[None], BLOCK, axis=0)


def _apart(tables: np.ndarray, gap: int) -> np.ndarray:
    """The tables as views with their rows apart."""
    if gap == 0:
        return tables
    width = tables.shape[2]
    wider = np.full((*tables.shape[:2], width + gap), BETWEEN_ROWS, tables.dtype)
    wider[..., :width] = tables
    return wider[..., :width]


def _verify_counts(layout: Layout, active: np.ndarray, prefix_lens: np.ndarray) -> np.ndarray:
    cached = np.maximum(prefix_lens, 0)
    start = np.maximum(cached - layout.window, 0) if layout.window > 0 else 0
    return np.where(active, np.maximum(np.minimum(cached, layout.positions) - start, 0), 0)


def _sums_before(counts: np.ndarray) -> np.ndarray:
    return counts.cumsum(1) - counts
