"""The judge without an end: drawn launches until an implementation fails, which is then made small.

A library without output; `kvcanary fuzz` is its command.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator

from ..backends import Backend
from .case import Case
from .fuzz_cases import LAYOUTS, PLAIN_LAYOUTS, FuzzCases
from .runner import Failure, Outcome, run
from .shrink import SECONDS, TRIES, shrink

__all__ = ["FuzzCases", "Fuzzed", "fuzz"]


@dataclasses.dataclass(frozen=True, eq=False)
class Fuzzed:
    """What a run came to."""

    outcomes: list[Outcome]
    """Of each backend; a failure's case is the shrunk one."""
    cases: int
    """How many were judged."""
    layouts: int
    """How many layouts they had."""

    @property
    def is_identical(self) -> bool:
        return all(outcome.failure is None for outcome in self.outcomes)


def fuzz(
    backends: Iterable[Backend],
    *,
    seed: int = 0,
    seconds: float | None = None,
    cases: int | None = None,
    plain: bool = False,
    on_progress: Callable[[int, float], None] = lambda cases, seconds: None,
    tries: int = TRIES,
    shrink_seconds: float = SECONDS,
) -> Fuzzed:
    """Judge backends on drawn cases, until one of them fails or the time or the cases are used up.

    Args:
        backends: what to judge, all on the same cases; the unavailable ones get an outcome that says why.
        seed: of the cases: the same ones in the same order for the same seed.
        seconds: most time to spend, or None. The case under way is finished.
        cases: how many to draw, or None.
        plain: draw neither pages nor optional outputs.
        on_progress: called after each case, with the number of cases and the seconds so far.
        tries: most launches to spend on making a failure's case smaller.
        shrink_seconds: most time to spend on that, for each backend that failed.
    """
    source = FuzzCases(seed, PLAIN_LAYOUTS if plain else LAYOUTS)
    began = time.monotonic()
    judged, failed = 0, False

    def drawn() -> Iterator[Case]:
        for case in itertools.islice(source, cases):
            if failed or (seconds is not None and time.monotonic() - began >= seconds):
                return
            yield case

    def note(case: Case, outcomes: list[Outcome]) -> None:
        nonlocal judged, failed
        judged += 1
        failed = any(outcome.failure is not None for outcome in outcomes)
        on_progress(judged, time.monotonic() - began)

    outcomes = run(backends, drawn(), on_case=note)
    for outcome in outcomes:
        if outcome.failure is not None:
            outcome.failure = _shrunk(outcome.backend, outcome.failure, tries, shrink_seconds)
    return Fuzzed(outcomes, judged, len(set(source.layouts(judged))))


def _shrunk(backend: Backend, failure: Failure, tries: int, seconds: float) -> Failure:
    """On a case with a name of its own, since another backend's may shrink to another one."""
    smallest = shrink(backend.launch, failure, tries=tries, seconds=seconds)
    if smallest is failure:
        return failure
    name = f"{failure.case.name}, shrunk for {backend.name}"
    return dataclasses.replace(smallest, case=smallest.case._replace(name=name))
