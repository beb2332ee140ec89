"""Allocations that run out of memory: nothing is left of them, and plans that are there keep working."""

from __future__ import annotations

import contextlib
import functools
import resource
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
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

Outcome = tuple[str, str]
"""A call that had too little memory, and what was wrong with it; empty: nothing."""


def run_out(chunk: Chunk, device: str, times: int) -> Iterator[Outcome]:
    """Allocate plans, by `allocate` and by `plan`, of which no column or up to three fit.

    Wrong are a call that is not refused, or leaves memory, and a plan made before that is another one after.
    """
    plans = combined(chunk)
    with _room(device):
        for allocate in _allocations(chunk, device, ROOM).values():
            _complaint(allocate, device)  # the first refusals take memory themselves: malloc's next arena
        for i in range(times):
            columns = i % _COLUMNS + 0.5
            for name, allocate in _allocations(chunk, device, int(ROOM / (8 * columns))).items():
                yield f"{name}, {columns} columns fit", _complaint(allocate, device)
    if changed := int(different(plans, combined(chunk)).sum()):
        yield "plans of before", f"{changed} have changed"


def _allocations(chunk: Chunk, device: str, capacity: int) -> dict[str, Callable[[], Any]]:
    inputs = {name: tensor[0] for name, tensor in chunk.inputs.items()}
    integers = chunk.integers() | {"verify_capacity": capacity}
    room = chunk.layout.bs + 1
    return {
        "VerifyPlan": lambda: kvcanary_torch.VerifyPlan.allocate(verify_capacity=capacity, device=device),
        # Of its two long fields one fits, or none.
        "WritePlan": lambda: kvcanary_torch.WritePlan.allocate(
            write_req_capacity=max(capacity, ROOM // 12), device=device
        ),
        "plan": lambda: kvcanary_torch.plan(**inputs, **integers, write_req_capacity=room),
    }


def _complaint(allocate: Callable[[], Any], device: str) -> str:
    """What is wrong, unless it raises for lack of memory and gives back what it had."""
    before = _in_use(device)
    try:
        allocate()
    except (MemoryError, RuntimeError) as error:  # torch's own is a RuntimeError
        if "memory" not in str(error).lower():
            raise
    else:
        return "no error"
    left = _in_use(device) - before
    return f"{left:,} bytes left" if left > (0 if device == "cuda" else _NOISE) else ""


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


def run_out_in_jax(chunk: Chunk) -> Iterator[Outcome]:
    """The same of JAX on its GPU, whose errors may show when a plan is first used.

    `plan` is one jitted function. When such a function of several results runs out of memory, XLA keeps those
    that it had got, whatever it computes (JAX 0.11.2): that much `plan` may leave.
    """
    import jax

    from kvcanary_jax import VerifyPlan, WritePlan, from_dlpack, plan

    inputs = from_dlpack({name: tensor[0].clone() for name, tensor in chunk.inputs.items()})
    call = functools.partial(plan, **inputs, **chunk.integers() | {"write_req_capacity": chunk.layout.bs + 1})
    before = call()
    limit = _jax_memory()["bytes_limit"]
    for columns in _JAX_COLUMNS:
        most = min(int(limit / (8 * columns)), 2**31 - 1)
        allocate = functools.partial(VerifyPlan.allocate, verify_capacity=most)
        yield f"VerifyPlan, {columns} columns fit", _complaint_of_jax(allocate)
    allocate = functools.partial(WritePlan.allocate, write_req_capacity=int(limit / 12))
    yield "WritePlan, one column fits", _complaint_of_jax(allocate)
    for columns in _JAX_COLUMNS:
        most = min(int(limit / (8 * columns)), 2**31 - 1)
        yield (
            f"plan, {columns} columns fit",
            _complaint_of_jax(functools.partial(call, verify_capacity=most), 4 * 8 * most),
        )
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(call()), strict=True)
    if changed := sum(not np.array_equal(a, b) for a, b in pairs):
        yield "a plan of before", f"{changed} fields have changed"


def _complaint_of_jax(allocate: Callable[[], Any], kept: int = 0) -> str:
    """As `_complaint`. `kept`: bytes that XLA may keep."""
    import jax

    before, arrays = _jax_memory()["bytes_in_use"], len(jax.live_arrays())
    try:
        jax.block_until_ready(jax.tree.leaves(allocate()))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
    else:
        return "no error"
    if alive := len(jax.live_arrays()) - arrays:
        return f"{alive} arrays left"
    left = _jax_memory()["bytes_in_use"] - before
    return f"{left:,} bytes left" if left > kept + _PROGRAM else ""


def _jax_memory() -> dict[str, int]:
    import jax

    return jax.devices()[0].memory_stats()
