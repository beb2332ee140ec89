"""What section 4 of the contract derives from each request's metadata, before any slot is looked up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from .constants import PADDING_ROW

Arguments = Mapping[str, Any]
"""A launcher's checked arguments by name; the plans' buffers by their names in the staged launchers."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One request, in Python ints: no value overflows."""

    index: int
    row: int
    is_padding: bool
    prefix_len: int
    """As given, possibly negative or past the table."""
    extend_len: int
    """As given, possibly negative."""
    active: bool
    start: int
    """First position to verify."""
    end: int
    """One past the last cached position that the table has."""

    @property
    def verify_count(self) -> int:
        return max(self.end - self.start, 0) if self.active else 0

    @property
    def write_count(self) -> int:
        return max(self.extend_len, 0) if self.active else 0

    @property
    def has_seed(self) -> bool:
        return self.write_count > 0 and self.end > 0

    def expected_tokens(self, arguments: Arguments) -> tuple[int, np.ndarray]:
        """The expected tokens that this request's entries have: the first such entry, and a run of cells.

        Entries outside the run expect nothing.
        """
        table, offset = (
            arguments["req_to_verify_expected_tokens"],
            arguments["kv_token_id_vs_position_offset"],
        )
        if table is None or self.row >= len(table):
            return 0, np.empty(0, np.int32)
        valid_len = int(arguments["req_to_verify_expected_tokens_valid_lens"][self.index])
        low = max(self.start + offset, 0)
        high = min(self.end + offset, valid_len, table.shape[1])
        return low - offset - self.start, table[self.row, low : max(low, high)]


def max_seq_len(arguments: Arguments) -> int:
    """Positions of a row: `page_size` for each of its cells."""
    return arguments["req_to_token"].shape[1] * arguments.get("page_size", 1)


def cells(arguments: Arguments, row: int, first: int, stop: int) -> np.ndarray:
    """The slots of some positions of a row that the table has, untranslated, int64."""
    table, page_size = arguments["req_to_token"], arguments.get("page_size", 1)
    if page_size == 1 or first >= stop:
        return table[row, first:stop].astype(np.int64)
    positions = np.arange(first, stop)
    pages = table[row, first // page_size : (stop - 1) // page_size + 1].astype(np.int64)
    page = pages[positions // page_size - first // page_size]
    return np.where(page < 0, page, page * page_size + positions % page_size)


def requests(arguments: Arguments) -> list[Request]:
    """The batch, in order. A launcher without `extend_seq_lens` writes nothing."""
    max_reqs, positions = len(arguments["req_to_token"]), max_seq_len(arguments)
    padding_row = arguments.get("padding_row", PADDING_ROW)
    window = arguments["swa_window_size"]
    prefix_lens = arguments["prefix_lens"].tolist()
    extend_lens = (
        arguments["extend_seq_lens"].tolist() if "extend_seq_lens" in arguments else [0] * len(prefix_lens)
    )
    batch = []
    for index, row in enumerate(arguments["req_pool_indices"].tolist()):
        prefix_len = max(prefix_lens[index], 0)
        batch.append(
            Request(
                index=index,
                row=row,
                is_padding=row == padding_row,
                prefix_len=prefix_lens[index],
                extend_len=extend_lens[index],
                active=row != padding_row and 0 <= row < max_reqs,
                start=max(prefix_len - window, 0) if window > 0 else 0,
                end=min(prefix_len, positions),
            )
        )
    return batch
