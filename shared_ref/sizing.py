"""How large a server's plans have to be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .constants import PLAN_BS_BLOCK_SIZE
from .plan import VerifyPlan, WritePlan
from .validation import fail, python_int

MOST_ENTRIES = 2**31 - 1
"""Longest verify columns: a launcher takes int32."""


class Capacities(NamedTuple):
    """What to allocate for one pool of slots; a model with two pools has plans of its own for each."""

    verify_capacity: int
    """Verify entries."""
    write_req_capacity: int
    """Requests of the write plan."""
    allocation_bytes: int
    """Memory of both plans."""


def suggest_capacities(
    *,
    max_running_requests: int,
    max_seq_len: int,
    pool_slots: int,
    swa_window_size: int = 0,
    shared_prefix_len: int | None = None,
    graph_batch_sizes: Iterable[int] = (),
) -> Capacities:
    """Capacities that no step of a healthy server exceeds, if what is said of it here is true.

    A step that does not fit is not verified at all (`enable` is 0), and nothing else shows it. A capacity
    that is too large costs 32 bytes an entry, and time where a consumer's grid covers all of it.

    Args:
        max_running_requests: R, most requests in a batch, padding not counted; at most 4096.
        max_seq_len: L, most tokens of a request, prompt and answer.
        pool_slots: N, slots of the pool that the plan's slots lie in: with a mapping, the window's pool.
        swa_window_size: W, length of the sliding window; 0 or less for full attention.
        shared_prefix_len: S, most leading tokens that two running requests have in common slots: the length
            of a system prompt, or of the prompt from which several answers are sampled. 0 if the server
            shares no slots (prefix cache off). None: not known, any request may share all of its tokens.
        graph_batch_sizes: batch sizes for which graphs are captured, or a jitted step is compiled.

    **Verify entries.** A request has one entry for each token in its cache, in its window if there is one:
    at most `span = min(L, W, N)`. So a batch has at most `R * span` entries.

    The pool bounds it too, but not by N: with a prefix cache, R requests that share their first S tokens
    have `R * S` entries in S slots. What a request has behind its first S tokens lies in slots of its own.
    Of the shared slots, those that are read are at least as many as any one request reads. So N slots
    bear at most `N + (R - 1) * min(S, span)` entries, which is N only if nothing is shared.

    `verify_capacity` is the smaller of the two. With S unknown it is `R * span`. Where that is too much,
    say what S is, or begin with less and learn from `verify_total_out` what the steps need.

    Lengths that are corrupt can claim more, up to `write_req_capacity * min(L, W)`. Such a step is not
    verified, but its faults are counted (`faults_out`), and so is its total.

    **Write rows.** A row a request of the launch, padding included: R, or the largest captured batch if that
    is larger, since capturing it launches it.

    Returns:
        The capacities, and the bytes that both plans take.

    Raises:
        ValueError: a number is no int or out of its range, or more entries are possible than a plan can have.
    """
    requests = _number("max_running_requests", max_running_requests, 1, PLAN_BS_BLOCK_SIZE)
    slots = _number("pool_slots", pool_slots, 1)
    span = min(_number("max_seq_len", max_seq_len, 1), slots)
    if (window := _number("swa_window_size", swa_window_size)) > 0:
        span = min(span, window)
    shared = span
    if shared_prefix_len is not None:
        shared = min(span, _number("shared_prefix_len", shared_prefix_len, 0))
    entries = min(requests * span, slots + (requests - 1) * shared)
    if entries > MOST_ENTRIES:
        fail(
            f"a step may have {entries} verify entries, more than the {MOST_ENTRIES} that a plan can have: "
            "give the swa_window_size or the shared_prefix_len, or fewer max_running_requests"
        )
    if isinstance(graph_batch_sizes, str | bytes) or not isinstance(graph_batch_sizes, Iterable):
        fail(f"graph_batch_sizes must be a list of ints, got {type(graph_batch_sizes).__name__}")
    captured = [_number("graph_batch_sizes", n, 1, PLAN_BS_BLOCK_SIZE) for n in graph_batch_sizes]
    rows = max([requests, *captured])
    allocation_bytes = VerifyPlan.allocation_bytes(entries) + WritePlan.allocation_bytes(rows)
    return Capacities(entries, rows, allocation_bytes)


def _number(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    n = python_int(name, value)
    if most is not None and n > most:
        fail(f"{name} must be at most {most}, got {n}")
    if least is not None and n < least:
        fail(f"{name} must be {'positive' if least else 'non-negative'}, got {n}")
    return n
