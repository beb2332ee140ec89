"""CUDA graphs whose inputs are overwritten between replays, without a wait for any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shared_ref.constants import VERIFY_OFFSETS_SCRATCH_LEN

from .backends import combined, launch, launch_staged
from .chunks import Chunk, Tensors, different, differs_from_reference


def captured(work: Callable[[], None], device: str) -> Callable[[], Any]:
    """What replays the work; on a device without graphs, the work itself."""
    work()
    if device != "cuda":
        return work
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def replay(chunk: Chunk, device: str) -> tuple[int, int]:
    """Replay a graph of each launcher on every case of a chunk, in the same memory.

    The cases come in turns from both ends, so that sound and corrupt ones alternate.

    Returns:
        Replays, and how many of them left other bytes than an eager launch, or than the reference.
    """
    expected = combined(chunk)
    wrong = int(differs_from_reference(chunk, expected, chunk.cases // 2))
    for staged in (False, True):
        found = _replayed(chunk, device, staged=staged)
        wrong += int(different(expected, found).sum())
    return 2 * chunk.cases, wrong


def _replayed(chunk: Chunk, device: str, *, staged: bool) -> Tensors:
    inputs = {name: _like(tensor[0]) for name, tensor in chunk.inputs.items()}
    outputs = {name: tensor[0].clone() for name, tensor in chunk.before.items()}
    scratch = torch.full((VERIFY_OFFSETS_SCRATCH_LEN,), -1, dtype=torch.int64, device=device)
    call = chunk.integers() | inputs | outputs
    _fill(inputs, chunk.inputs, 0)
    again = captured(lambda: launch_staged(call, scratch) if staged else launch(dict(call)), device)
    found = {name: torch.empty_like(tensor) for name, tensor in chunk.before.items()}
    for i in _from_both_ends(chunk.cases):
        _fill(inputs, chunk.inputs, i)
        _fill(outputs, chunk.before, i)
        again()
        for name, tensor in outputs.items():
            found[name][i].copy_(tensor)
    return found


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory of its own with the same strides."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _fill(here: Tensors, stacked: Tensors, i: int) -> None:
    for name, tensor in here.items():
        tensor.copy_(stacked[name][i])


def _from_both_ends(n: int) -> list[int]:
    return [i // 2 if i % 2 == 0 else n - 1 - i // 2 for i in range(n)]
