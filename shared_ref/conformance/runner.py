"""The judge: backends against the reference, case by case, every byte of every buffer.

A library without output: `run` reports to a callback, and returns one `Outcome` a backend.
"""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ..backends import Backend
from .case import Case, Launch, PlanInputs, Plans
from .compare import FieldDifferences, buffers, compare


@dataclasses.dataclass(frozen=True, eq=False)
class Failure:
    """What an implementation got wrong: different bytes, changed inputs, or an exception."""

    case: Case
    """The case, its inputs as they were, in arrays of their own."""
    differences: tuple[FieldDifferences, ...] = ()
    changed_inputs: tuple[str, ...] = ()
    """Arguments that the launch wrote to."""
    error: str | None = None
    """Type and text of the exception that the launch raised."""
    after: Plans | None = None
    """What the launch made of the case; None where it raised."""


@dataclasses.dataclass(frozen=True, eq=False)
class Launched:
    """One launch, judged."""

    plans: Plans | None
    """None where the launch raised."""
    seconds: float
    failure: Failure | None


@dataclasses.dataclass(eq=False)
class Outcome:
    """What is known of a backend after a run."""

    backend: Backend
    unavailable: str | None
    """Why it did not run, or None."""
    version: str
    """Of what it runs on; empty where it did not run."""
    entries: int = 0
    """Verify entries of the judged plans, those of plans without overflow."""
    seconds: list[float] = dataclasses.field(default_factory=list)
    """Of each launch, copies to and from its device included."""
    failure: Failure | None = None
    """Its first one: it is not launched again after that."""
    _sha: Any = dataclasses.field(default_factory=hashlib.sha256, repr=False)

    @property
    def is_running(self) -> bool:
        return self.unavailable is None and self.failure is None

    @property
    def plans(self) -> int:
        """Launches, the failed one among them."""
        return len(self.seconds)

    @property
    def median_seconds(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def digest(self) -> str | None:
        """SHA-256 over all bytes of all plans: the buffers in the contract's order, little-endian."""
        built = self.plans - (self.failure is not None and self.failure.error is not None)
        return self._sha.hexdigest() if built else None

    def add(self, launched: Launched, entries: int) -> None:
        """Take a launch into account."""
        self.seconds.append(launched.seconds)
        self.failure = launched.failure
        if launched.plans is not None:
            self.entries += entries
            for buffer in buffers(launched.plans).values():
                if isinstance(buffer, np.ndarray) and not buffer.dtype.hasobject:
                    self._sha.update(buffer.astype(buffer.dtype.newbyteorder("<"), copy=False).tobytes())


def run(
    backends: Iterable[Backend],
    cases: Iterable[Case],
    *,
    on_case: Callable[[Case, list[Outcome]], None] = lambda case, outcomes: None,
) -> list[Outcome]:
    """Judge every backend on every case, each up to its first failure. Ends early where all have failed.

    Args:
        backends: what to judge; the unavailable ones get an outcome that says why.
        cases: launches that break no rule of section 6. May be views of tables that change afterwards.
        on_case: called after each case.

    Raises:
        ValueError: the reference refuses a case.
    """
    outcomes = [_outcome(backend) for backend in backends]
    for case in cases:
        running = [outcome for outcome in outcomes if outcome.is_running]
        if not running:
            break
        running = [outcome for outcome in running if case.is_plain or not outcome.backend.plain]
        expected = case.expected()
        entries = int(expected.verify.verify_num_valid[0]) if expected.verify.enable[0] else 0
        launches = (outcome.backend.launch for outcome in running)
        for outcome, launched in zip(running, _judge_each(launches, case, expected), strict=True):
            outcome.add(launched, entries)
        on_case(case, outcomes)
    return outcomes


def check(launch: Launch, case: Case) -> Failure | None:
    """Hold one implementation against the reference on one case: None if every byte is the same.

    Raises:
        ValueError: the reference refuses the case, because it breaks a rule of section 6.
    """
    expected = case.expected()
    return _judge(launch, case, _copied(case.inputs), expected).failure


def _outcome(backend: Backend) -> Outcome:
    unavailable = backend.unavailable()
    return Outcome(backend, unavailable, version="" if unavailable else backend.version())


def _judge_each(launches: Iterable[Launch], case: Case, expected: Plans) -> Iterator[Launched]:
    inputs = _copied(case.inputs)
    for launch in launches:
        launched = _judge(launch, case, inputs, expected)
        if launched.failure is not None and launched.failure.changed_inputs:
            inputs = _copied(case.inputs)
        yield launched


def _judge(launch: Launch, case: Case, inputs: PlanInputs, expected: Plans) -> Launched:
    """Launch on `inputs`, a copy of the case's: what is written there harms nobody else."""
    timed, plans, error = _Timed(launch), None, None
    try:
        plans = case._replace(inputs=inputs).run(timed)
    except (Exception, SystemExit) as raised:  # whatever an implementation raises is its own failure
        error = told(raised)
    failure = Failure(
        case,
        differences=() if plans is None else compare(case, expected, plans),
        changed_inputs=_changed(case.inputs, inputs),
        error=error,
        after=plans,
    )
    if failure.differences or failure.changed_inputs or failure.error is not None:
        failure = dataclasses.replace(failure, case=case._replace(inputs=_copied(case.inputs)))
        return Launched(plans, timed.seconds, failure)
    return Launched(plans, timed.seconds, None)


def told(raised: BaseException) -> str:
    """Type and text of an exception of somebody else's."""
    try:
        return f"{type(raised).__name__}: {raised}"
    except Exception:  # of its own `__str__`
        return type(raised).__name__


class _Timed:
    """A launch that remembers how long it took."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.seconds = 0.0

    def __call__(self, **arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return self.launch(**arguments)
        finally:
            self.seconds = time.perf_counter() - began


def _copied(inputs: PlanInputs) -> PlanInputs:
    arrays: dict[str, Any] = {k: _copy(v) for k, v in inputs.keywords().items() if isinstance(v, np.ndarray)}
    return dataclasses.replace(inputs, **arrays)


def _copy(array: np.ndarray) -> np.ndarray:
    """A writable copy; that of a row-strided table is row-strided too."""
    if array.ndim != 2 or array.flags.c_contiguous or array.size == 0:
        return array.copy()
    rows, width = array.shape
    wide = np.zeros((rows, array.strides[0] // array.itemsize), array.dtype)
    wide[:, :width] = array
    return wide[:, :width]


def _changed(original: PlanInputs, used: PlanInputs) -> tuple[str, ...]:
    pairs = ((name, value, getattr(used, name)) for name, value in original.keywords().items())
    return tuple(name for name, was, now in pairs if not np.array_equal(was, now))
