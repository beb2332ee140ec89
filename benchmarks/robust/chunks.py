"""Drawn cases in bulk: those of several blocks of a layout, behind each other in a device's memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from shared_ref.conformance.case import Case
from shared_ref.conformance.fuzz_cases import BLOCK, LAYOUTS, ROUNDS, Block, FuzzCases, Layout
from shared_ref.conformance.values import BETWEEN_ROWS

MOST_BLOCKS = 8
"""Of a chunk; a rare layout's has fewer, so that one of each layout is met in `ROUNDS` rounds."""

Tensors = dict[str, torch.Tensor]


class Chunk:
    """Blocks of one layout; case `i` is element `i` of every tensor."""

    def __init__(self, source: FuzzCases, numbers: Sequence[int], device: str) -> None:
        self.source = source
        self.numbers = numbers
        blocks = [source.block(number) for number in numbers]
        self.layout = blocks[0].layout
        arrays = {name: np.concatenate([b.arrays[name] for b in blocks]) for name in blocks[0].arrays}
        self.corrupt = int(_is_corrupt(self.layout, arrays).sum())
        """Cases with a request that has a fault of its own: the row or a length (contract, section 5)."""
        self.inputs = {name: _placed(array, self.layout, device) for name, array in arrays.items()}
        self.before = _before(blocks, device)
        """The plans' buffers before the launches by field, and the optional outputs."""

    @property
    def cases(self) -> int:
        return len(self.numbers) * BLOCK

    def integers(self) -> dict[str, Any]:
        """The launcher's other arguments; None for the optional inputs that are absent."""
        absent = {name: None for name in _OPTIONAL if name not in self.inputs}
        return absent | {
            "swa_window_size": self.layout.window,
            "verify_capacity": self.layout.verify_capacity,
            "kv_token_id_vs_position_offset": self.layout.offset,
            "page_size": self.layout.page_size,
        }

    def index(self, i: int) -> int:
        """The number of case `i` in the sequence of the seed."""
        return self.numbers[i // BLOCK] * BLOCK + i % BLOCK

    def case(self, i: int) -> Case:
        return self.source.case(self.index(i))


_OPTIONAL = (
    "full_to_swa_index_mapping",
    "req_to_verify_expected_tokens",
    "req_to_verify_expected_tokens_valid_lens",
)


def chunks(seed: int, names: Sequence[str], device: str, most_blocks: int = MOST_BLOCKS) -> Iterator[Chunk]:
    """All cases of these layouts, without an end; each layout's chunks have one size, and take turns."""
    source = FuzzCases(seed)
    period = len(source.schedule)
    sizes = {layout.name: min(most_blocks, ROUNDS // layout.every) for layout in LAYOUTS}
    for begin in itertools.count(step=period):
        numbers: dict[str, list[int]] = {name: [] for name in names}
        for number in range(begin, begin + period):
            if (name := source.layout(number).name) in numbers:
                numbers[name].append(number)
        parts = [_parts(found, sizes[name]) for name, found in numbers.items()]
        for turn in itertools.zip_longest(*parts):
            for part in filter(None, turn):
                yield Chunk(source, part, device)


def _parts(numbers: list[int], size: int) -> list[list[int]]:
    return [numbers[i : i + size] for i in range(0, len(numbers) - size + 1, size)]


def _is_corrupt(layout: Layout, arrays: dict[str, np.ndarray]) -> np.ndarray:
    rows, prefix_lens = arrays["req_pool_indices"], arrays["prefix_lens"]
    outside = (rows < 0) | (rows >= layout.table[0])
    lengths = (prefix_lens < 0) | (prefix_lens > layout.positions) | (arrays["extend_seq_lens"] < 0)
    return ((rows != 0) & (outside | lengths)).any(1)


def _placed(array: np.ndarray, layout: Layout, device: str) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array)).to(device)
    if array.ndim != 3 or layout.gap == 0:
        return tensor
    width = array.shape[2]
    shape = (*array.shape[:2], width + layout.gap)
    wide = torch.full(shape, BETWEEN_ROWS, dtype=tensor.dtype, device=device)
    wide[..., :width] = tensor
    return wide[..., :width]


def _before(blocks: Sequence[Block], device: str) -> Tensors:
    """The same for all cases of a block."""
    buffers = [block.before.buffers() for block in blocks]
    return {
        name: torch.from_numpy(np.stack([each[name] for each in buffers]))
        .to(device)
        .repeat_interleave(BLOCK, 0)
        for name in buffers[0]
    }


def different(a: Tensors, b: Tensors) -> torch.Tensor:
    """bool `[cases]`: whether any element differs. The host does not wait."""
    each = [(a[name] != b[name]).flatten(1).any(1) for name in a]
    return torch.stack(each).any(0)


def differs_from_reference(chunk: Chunk, outputs: Tensors, i: int) -> bool:
    """Whether case `i` has not the reference's bytes. Waits for the device."""
    expected = chunk.case(i).expected().buffers()
    return not all(np.array_equal(outputs[name][i].cpu().numpy(), array) for name, array in expected.items())
