"""Two threads on two streams that plan at once, each into buffers of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import torch

from shared_ref.constants import VERIFY_OFFSETS_SCRATCH_LEN

from .backends import calls_of, combined, fresh, launch, launch_staged
from .chunks import Chunk, Tensors, different


def plan_at_once(chunks: Sequence[Chunk], device: str) -> tuple[int, int]:
    """One thread goes through the chunks with the combined launcher, one backwards with the staged ones.

    Returns:
        Launches, and how many cases have other bytes than after a launch by one thread alone.
    """
    begin = threading.Barrier(2)
    threads = [
        _Planner(chunks, device, begin, staged=False),
        _Planner(list(reversed(chunks)), device, begin, staged=True),
    ]
    if device == "cuda":
        torch.cuda.synchronize()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if device == "cuda":
        torch.cuda.synchronize()
    for thread in threads:
        if thread.error is not None:
            raise thread.error
    wrong = 0
    forwards, backwards = threads[0].outputs, list(reversed(threads[1].outputs))
    for chunk, *found in zip(chunks, forwards, backwards, strict=True):
        alone = combined(chunk)
        wrong += sum(int(different(alone, each).sum()) for each in found)
    return 3 * sum(chunk.cases for chunk in chunks), wrong


class _Planner(threading.Thread):
    def __init__(
        self, chunks: Sequence[Chunk], device: str, begin: threading.Barrier, *, staged: bool
    ) -> None:
        super().__init__(daemon=True)
        self.chunks = chunks
        self.device = device
        self.begin = begin
        self.staged = staged
        self.outputs: list[Tensors] = [fresh(chunk) for chunk in chunks]
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self._stream():
                self._plan()
        except BaseException as error:  # for the thread that waits
            self.error = error

    def _stream(self) -> Any:
        if self.device != "cuda":
            return contextlib.nullcontext()
        return torch.cuda.stream(torch.cuda.Stream())

    def _plan(self) -> None:
        scratch = torch.full((VERIFY_OFFSETS_SCRATCH_LEN,), -1, dtype=torch.int64, device=self.device)
        self.begin.wait(timeout=60)
        for chunk, outputs in zip(self.chunks, self.outputs, strict=True):
            for call in calls_of(chunk, outputs):
                if self.staged:
                    launch_staged(call, scratch)
                else:
                    launch(call)
