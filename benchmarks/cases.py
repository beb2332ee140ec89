"""The batches that are timed: the nine of the feasibility table, and one with a long tail.

Each is a decode step: every request extends its cached prefix by one token, and `verify_capacity` is
exactly the number of entries, so that every element of the columns is written.

Tables are what a paged allocator leaves in a full pool: a request owns whole pages of `PAGE` slots at
random places, page 0 is the dummy's, rows of `req_to_token` are in random order and row 0 is padding.
A mapping sends each page of the pool to another page. So a request's cells lie side by side, and what a
kernel gathers through a mapping comes in runs of a page.

A case has as many input sets as wanted, one a seed: the same lengths in another order, other pages,
other tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from shared_ref.conformance.case import Case, PlanInputs, Plans
from shared_ref.conformance.compare import compare

PAGE = 16
"""Slots of a page."""
VOCABULARY = 2**17
WRITTEN_BYTES = 32
"""Of an entry: four int64 columns."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Spec:
    """A case by its sizes."""

    name: str
    """As `--case` takes it."""
    title: str
    prefix_lens: np.ndarray
    window: int = 0
    mapping: bool = False
    tokens: bool = False

    @property
    def bs(self) -> int:
        return len(self.prefix_lens)

    @property
    def entries(self) -> int:
        lens = self.prefix_lens
        return int((np.minimum(lens, self.window) if self.window > 0 else lens).sum())

    @property
    def read_bytes(self) -> int:
        """Of an entry: its cell, its slot in the mapping, its token."""
        return 4 + 8 * self.mapping + 4 * self.tokens

    def inputs(self, seed: int) -> PlanInputs:
        """One of the case's input sets."""
        rng = np.random.default_rng(seed)
        prefix_lens = rng.permutation(self.prefix_lens)
        rows = 1 + rng.permutation(self.bs)
        pages = -(-prefix_lens // PAGE)
        own_pages = 1 + rng.permutation(int(pages.sum()))
        width = _round_up(int(prefix_lens.max()) + 1, 64)
        table = np.zeros((self.bs + 1, width), np.int32)
        _fill(table, rows, prefix_lens, pages, _slots(own_pages).astype(np.int32))
        tokens = rng.integers(0, VOCABULARY, table.shape, np.int32) if self.tokens else None
        window_pages = np.concatenate([[0], 1 + rng.permutation(len(own_pages))])
        return PlanInputs(
            req_pool_indices=rows,
            prefix_lens=prefix_lens,
            extend_seq_lens=np.ones(self.bs, np.int64),
            req_to_token=table,
            swa_window_size=self.window,
            full_to_swa_index_mapping=_slots(window_pages) if self.mapping else None,
            verify_capacity=self.entries,
            req_to_verify_expected_tokens=tokens,
            req_to_verify_expected_tokens_valid_lens=prefix_lens.copy() if self.tokens else None,
        )

    def case(self, seed: int) -> Case:
        """An input set with poisoned plans to fill."""
        return Case.poisoned(self.name, self.inputs(seed), write_req_capacity=self.bs)


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _slots(pages: np.ndarray) -> np.ndarray:
    """The slots of some pages, int64, in order."""
    return (pages[:, None] * PAGE + np.arange(PAGE)).reshape(-1)


def _fill(
    table: np.ndarray, rows: np.ndarray, lens: np.ndarray, pages: np.ndarray, slots: np.ndarray
) -> None:
    """Give the requests their pages of `slots`, one request after the other."""
    begins = (pages.cumsum() - pages) * PAGE
    for row, n, begin in zip(rows.tolist(), lens.tolist(), begins.tolist(), strict=True):
        table[row, :n] = slots[begin : begin + n]


def difference(case: Case, plans: Plans) -> str | None:
    """The first buffer of `plans` that is not what the reference makes of the case, or None."""
    for field in compare(case, case.expected(), plans, first=1):
        first = field.first[0]
        return (
            f"{field.field} differs in {field.count} of {field.size} elements, first [{first.index}]: "
            f"expected {first.expected}, got {first.actual}"
        )
    return None


def _uniform(bs: int, prefix_len: int) -> np.ndarray:
    return np.full(bs, prefix_len, np.int64)


def _random(bs: int, low: int, high: int) -> np.ndarray:
    """Lengths from `low` to `high`, the same in every run."""
    return np.random.default_rng(7).integers(low, high + 1, bs)


LONG_TAIL = "long-tail"
_LONG_TAIL = np.append(_random(255, 200, 2000), 131072)
CASES = (
    Spec(name="1x1k", title="bs 1, prefix 1k", prefix_lens=_uniform(1, 1024)),
    Spec(name="32x2k", title="bs 32, prefix 2k", prefix_lens=_uniform(32, 2048)),
    Spec(name="256x4k", title="bs 256, prefix 4k", prefix_lens=_uniform(256, 4096)),
    Spec(
        name="256x8k-tokens",
        title="bs 256, prefix 0 to 8k, token table",
        prefix_lens=_random(256, 0, 8192),
        tokens=True,
    ),
    Spec(
        name="256x4k-window",
        title="bs 256, prefix 4k, window 1024",
        prefix_lens=_uniform(256, 4096),
        window=1024,
        mapping=True,
    ),
    Spec(
        name="512x8k-window-tokens",
        title="bs 512, prefix 8k, window 128, token table",
        prefix_lens=_uniform(512, 8192),
        window=128,
        mapping=True,
        tokens=True,
    ),
    Spec(name="4x128k", title="bs 4, prefix 128k", prefix_lens=_uniform(4, 131072)),
    Spec(name="4096x256", title="bs 4096, prefix 256", prefix_lens=_uniform(4096, 256)),
    Spec(name="512x16k", title="bs 512, prefix 16k", prefix_lens=_uniform(512, 16384)),
    Spec(name=LONG_TAIL, title="bs 256, one prefix of 128k, the rest 200 to 2,000", prefix_lens=_LONG_TAIL),
)


def chosen(names: Sequence[str]) -> list[Spec]:
    """The cases of these names in the table's order; all of them for none."""
    return [spec for spec in CASES if not names or spec.name in names]
