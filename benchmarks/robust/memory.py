"""Allocations that run out of memory: nothing is left of them, and plans that are there keep working."""

from __future__ import annotations

import contextlib
import functools
import resource
from collections.abc import Callable, Iterator
from typing import Any

import torch

import kvcanary_torch

from .backends import combined
from .chunks import Chunk, different

ROOM = 2**28
"""Bytes that are free when an allocation begins."""
_COLUMNS = 4
_NOISE = ROOM // 16
"""Bytes that the host's address space may grow by; the least column is larger."""
_JAX_COLUMNS = (0.5, 2.5)
"""How many columns fit. Few, since JAX waits for seconds before it gives an allocation up."""
_PROGRAM = 2**20
"""Bytes of what JAX keeps of a program that it has compiled."""


def run_out(chunk: Chunk, device: str, times: int) -> tuple[int, int]:
    """Allocate plans, by `allocate` and by `plan`, of which no column or up to three fit.

    Returns:
        Allocations that were refused, and how many of them were not, or left memory or other plans changed.
    """
    plans = combined(chunk)
    tried = wrong = 0
    with _room(device):
        for allocate in _allocations(chunk, device, ROOM):
            _is_refused(allocate, device)  # the first refusals take memory themselves: malloc's next arena
        for i in range(times):
            capacity = int(ROOM / (8 * (i % _COLUMNS + 0.5)))
            for allocate in _allocations(chunk, device, capacity):
                tried += 1
                wrong += not _is_refused(allocate, device)
    wrong += int(different(plans, combined(chunk)).sum())
    return tried, wrong


def _allocations(chunk: Chunk, device: str, capacity: int) -> list[Callable[[], Any]]:
    inputs = {name: tensor[0] for name, tensor in chunk.inputs.items()}
    integers = chunk.integers() | {"verify_capacity": capacity}
    room = chunk.layout.bs + 1
    return [
        lambda: kvcanary_torch.VerifyPlan.allocate(verify_capacity=capacity, device=device),
        # Of its two long fields one fits, or none.
        lambda: kvcanary_torch.WritePlan.allocate(
            write_req_capacity=max(capacity, ROOM // 12), device=device
        ),
        lambda: kvcanary_torch.plan(**inputs, **integers, write_req_capacity=room),
    ]


def _is_refused(allocate: Callable[[], Any], device: str) -> bool:
    """Whether it raises for lack of memory, and gives back what it had."""
    before = _in_use(device)
    try:
        allocate()
    except (MemoryError, RuntimeError) as error:  # torch's own is a RuntimeError
        if "memory" not in str(error).lower():
            raise
    else:
        return False
    return _in_use(device) - before <= (0 if device == "cuda" else _NOISE)


def _in_use(device: str) -> int:
    """Bytes; of the host those of the address space."""
    return torch.cuda.memory_allocated() if device == "cuda" else _address_space()


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


@contextlib.contextmanager
def _room(device: str) -> Iterator[None]:
    """Leave `ROOM` bytes to torch, and a little for what it needs besides."""
    if device == "cuda":
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + ROOM) / total)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def run_out_in_jax(chunk: Chunk) -> tuple[int, int]:
    """The same of JAX on its GPU, whose errors may show when a plan is first used."""
    from kvcanary_jax import VerifyPlan, from_dlpack, plan

    inputs = from_dlpack({name: tensor[0].clone() for name, tensor in chunk.inputs.items()})
    room = chunk.layout.bs + 1
    tried = wrong = 0
    for columns in _JAX_COLUMNS:
        capacity = min(int(_jax_memory()["bytes_limit"] / (8 * columns)), 2**31 - 1)
        integers = chunk.integers() | {"verify_capacity": capacity, "write_req_capacity": room}
        for allocate in (
            functools.partial(VerifyPlan.allocate, verify_capacity=capacity),
            functools.partial(plan, **inputs, **integers),
        ):
            tried += 1
            wrong += not _is_refused_by_jax(allocate)
    return tried, wrong


def _is_refused_by_jax(allocate: Callable[[], Any]) -> bool:
    import jax

    before, arrays = _jax_memory()["bytes_in_use"], len(jax.live_arrays())
    try:
        jax.block_until_ready(jax.tree.leaves(allocate()))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
    else:
        return False
    left = _jax_memory()["bytes_in_use"] - before
    return left < _PROGRAM and len(jax.live_arrays()) == arrays


def _jax_memory() -> dict[str, int]:
    import jax

    return jax.devices()[0].memory_stats()
