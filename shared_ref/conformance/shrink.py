"""A case that an implementation fails on, made as small as it goes while the failure stays."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..batch import requests
from ..plan import VerifyPlan, WritePlan
from .case import Case, Launch, PlanInputs, Plans, PlanType
from .runner import Failure, check

TRIES, SECONDS = 2000, 60.0
"""Launches, and time, that one case is worth. A backend that compiles per shape runs out of time first."""

_OF_REQUESTS = (
    "req_pool_indices",
    "prefix_lens",
    "extend_seq_lens",
    "req_to_verify_expected_tokens_valid_lens",
)
_TABLES = ("req_to_token", "req_to_verify_expected_tokens")
_ARRAYS = (*_OF_REQUESTS, *_TABLES, "full_to_swa_index_mapping")


def shrink(launch: Launch, failure: Failure, *, tries: int = TRIES, seconds: float = SECONDS) -> Failure:
    """The failure on the smallest case that was found: fewer requests, options and cells, smaller values.

    Greedy: what still fails in the same way is kept, until nothing more can go. Plans keep their poison.

    Args:
        launch: the implementation that has failed.
        failure: how, and on which case.
        tries: most launches to spend.
        seconds: most time to spend; the launch under way is not interrupted.
    """
    shrinker = _Shrinker(launch, failure, tries, time.monotonic() + seconds)
    shrinker.run()
    return shrinker.failure


class _Shrinker:
    def __init__(self, launch: Launch, failure: Failure, tries: int, deadline: float) -> None:
        self.launch = launch
        self.failure = failure
        self.kind = _kind(failure)
        self.tries = tries
        self.deadline = deadline

    @property
    def inputs(self) -> PlanInputs:
        return self.failure.case.inputs

    def run(self) -> None:
        before = None
        while before is not self.failure:
            before = self.failure
            self._drop_options()
            self._drop_requests()
            self._shorten()
            self._zero_cells()
            self._lower_values()

    def _fails(self, **changes: Any) -> bool:
        """Whether the case with other inputs, room or optional outputs fails too. It is kept then."""
        case = self.failure.case
        candidate = _changed(case, **changes)
        if self._still(candidate):
            return True
        # Perhaps it fails only where so much of the capacity is used.
        shift = _total(candidate.inputs) - _total(case.inputs)
        capacity = candidate.inputs.verify_capacity + shift
        return shift != 0 and capacity >= 0 and self._still(_changed(candidate, verify_capacity=capacity))

    def _still(self, candidate: Case) -> bool:
        if self.tries <= 0 or time.monotonic() > self.deadline:
            return False
        self.tries -= 1
        try:
            found = check(self.launch, candidate)
        except ValueError:  # the reference refuses it
            return False
        if found is None or _kind(found) != self.kind:
            return False
        self.failure = found
        return True

    def _drop_options(self) -> None:
        for name in self.failure.case.before.extras:
            extras = self.failure.case.before.extras
            self._fails(extras={other: extras[other] for other in extras if other != name})
        if self.inputs.req_to_verify_expected_tokens is not None:
            table, valid_lens = _TABLES[1], _OF_REQUESTS[3]
            self._fails(**{table: None, valid_lens: None}, kv_token_id_vs_position_offset=0)
        if self.inputs.swa_window_size != 0:
            self._fails(swa_window_size=0)
        if self.inputs.full_to_swa_index_mapping is not None:
            self._fails(full_to_swa_index_mapping=None)
            self._fails(full_to_swa_index_mapping=None, swa_window_size=0)
        if self.inputs.page_size != 1:
            self._fails(page_size=1)
        for name in _TABLES:
            table = getattr(self.inputs, name)
            if table is not None and not table.flags.c_contiguous:
                self._fails(**{name: np.ascontiguousarray(table)})

    def _drop_requests(self) -> None:
        size = len(self.inputs.prefix_lens)
        while size:
            begin = 0
            while begin < len(self.inputs.prefix_lens):
                arrays = {name: getattr(self.inputs, name) for name in _OF_REQUESTS}
                gone = slice(begin, begin + size)
                kept = {name: np.delete(a, gone) for name, a in arrays.items() if a is not None}
                if not self._fails(**kept):
                    begin += size
            size //= 2

    def _shorten(self) -> None:
        """Buffers and tables to what is needed of them."""
        bs = len(self.inputs.prefix_lens)
        self._lower(self._room() - bs, lambda n: {"room": bs + n})
        self._lower(self.inputs.verify_capacity, lambda n: {"verify_capacity": n})
        for name in (*_TABLES, "full_to_swa_index_mapping"):
            array = getattr(self.inputs, name)
            for axis in range(0 if array is None else array.ndim):
                self._lower(array.shape[axis], functools.partial(self._cut, name, axis))

    def _cut(self, name: str, axis: int, n: int) -> dict[str, Any]:
        return {name: getattr(self.inputs, name)[(slice(None),) * axis + (slice(n),)].copy()}

    def _room(self) -> int:
        return len(self.failure.case.before.write.write_seed_slot_indices)

    def _zero_cells(self) -> None:
        for name in _ARRAYS:
            array = getattr(self.inputs, name)
            size = 0 if array is None else array.size
            while size:
                for begin in range(0, array.size, size):
                    zeroed = getattr(self.inputs, name).copy()
                    if zeroed.flat[begin : begin + size].any():
                        zeroed.flat[begin : begin + size] = 0
                        self._fails(**{name: zeroed})
                size //= 2

    def _lower_values(self) -> None:
        """Towards 0, what is left of the integers and of the arrays' values."""
        for name in ("swa_window_size", "kv_token_id_vs_position_offset"):
            self._lower(getattr(self.inputs, name), functools.partial(_named, name))
        for name in _ARRAYS:
            array = getattr(self.inputs, name)
            for i in np.flatnonzero(array).tolist() if array is not None else []:
                self._lower(int(array.flat[i]), functools.partial(self._with, name, i))

    def _with(self, name: str, i: int, value: int) -> dict[str, Any]:
        array = getattr(self.inputs, name).copy()
        array.flat[i] = value
        return {name: array}

    def _lower(self, value: int, changes: Callable[[int], dict[str, Any]]) -> None:
        """Bring a number as near to 0 as it goes, in steps that halve; `changes` puts one in its place."""
        sign, size = (1, value) if value > 0 else (-1, -value)
        step = size
        while step:
            while step <= size and self._fails(**changes(sign * (size - step))):
                size -= step
            step //= 2


def _named(name: str, value: int) -> dict[str, Any]:
    return {name: value}


def _kind(failure: Failure) -> str:
    """What must stay the same of a failure."""
    if failure.error is not None:
        return failure.error.partition(":")[0]
    return "differences" if failure.differences else "changed inputs"


def _total(inputs: PlanInputs) -> int:
    return sum(r.verify_count for r in requests(inputs.keywords()))


def _changed(case: Case, *, room: int | None = None, extras: Any = None, **changes: Any) -> Case:
    inputs = dataclasses.replace(case.inputs, **changes)
    former = case.before
    if room is None:
        # As much to spare as before.
        gone = len(case.inputs.prefix_lens) - len(inputs.prefix_lens)
        room = len(former.write.write_seed_slot_indices) - gone
    verify, write = _first(former.verify, inputs.verify_capacity), _first(former.write, room)
    return Case(case.name, inputs, Plans(verify, write, former.extras if extras is None else extras))


def _first(plan: PlanType, capacity: int) -> PlanType:
    """The plan's first elements, as a plan of this capacity."""
    cls = VerifyPlan if isinstance(plan, VerifyPlan) else WritePlan
    buffers = {f.name: getattr(plan, f.name)[: f.length.of(capacity)] for f in cls.fields()}
    return type(plan)(**buffers)
