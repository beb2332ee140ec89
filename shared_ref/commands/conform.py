"""`kvcanary conform`: a trace, or one saved case, on every backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from ..backends import Backend
from ..conformance.case import Case
from ..conformance.replay import GROUPS, Replay, ReplayConfig
from ..conformance.report import (
    Run,
    as_json,
    case_sizes,
    settings_table,
)
from ..conformance.runner import Outcome, run
from ..conformance.trace import TraceError, read_trace, shipped_trace_path
from .common import (
    EXIT_DIFFERENT,
    FILE,
    BadCall,
    check_writable,
    choose,
    judged_backends,
    load_case,
    print_outcomes,
    progress_bar,
    refuse_unjudged,
    save_failures,
    write_json,
)


@click.command()
@click.option(
    "--trace",
    type=FILE,
    metavar="FILE",
    help="JSON-lines request trace to play.  [default: the shipped one]",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=ReplayConfig.steps,
    metavar="N",
    show_default=True,
    help="Most server steps to play.",
)
@click.option(
    "--case",
    "case_path",
    type=FILE,
    metavar="FILE",
    help="Judge this one saved case instead of a trace.",
)
@judged_backends
@click.pass_context
def conform(
    context: click.Context,
    trace: Path | None,
    steps: int,
    case_path: Path | None,
    names: tuple[str, ...],
    required: tuple[str, ...],
    paths: tuple[str, ...],
    json_path: Path | None,
) -> None:
    """Replay real traffic and check that every backend builds identical plans.

    Every backend starts from the same poisoned buffers in every step, and whole buffers are compared to
    the reference. A case with a difference is saved in the current directory, to be replayed with --case.

    Exit status: 0 identical, 1 a difference, 2 a bad call.
    """
    given = [
        f"--{name}"
        for name in ("trace", "steps")
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    ]
    if case_path is not None and given:
        raise BadCall(f"--case judges one saved case: it does not go with {' or '.join(given)}")
    chosen = choose(names, required, paths)
    source = _replayed(trace, steps) if case_path is None else _saved(case_path)
    if json_path is not None:
        check_writable(json_path)
    console = Console(highlight=False)
    console.print(Text(source.title), soft_wrap=True)
    console.print(settings_table("Configuration", source.configuration, console.width))
    console.print()
    outcomes = _run_with_progress(chosen, source)
    judged = source.judged(outcomes, saved={} if case_path else save_failures(outcomes))
    _print_result(console, judged)
    if json_path is not None:
        write_json(json_path, as_json(judged))
    refuse_unjudged(judged.unjudged, bool(names or required))
    context.exit(0 if judged.is_identical else EXIT_DIFFERENT)


@dataclasses.dataclass(frozen=True, eq=False)
class _Source:
    """Where a run's cases come from."""

    title: str
    identity: dict[str, Any]
    configuration: dict[str, Any]
    cases: Iterable[Case]
    most_cases: int
    plans_per_step: int
    counts: Callable[[], dict[str, int]]
    """What the cases met so far."""

    def judged(self, outcomes: list[Outcome], saved: dict[str, str]) -> Run:
        return Run(
            source=self.identity,
            configuration=self.configuration,
            counts=self.counts(),
            plans_per_step=self.plans_per_step,
            outcomes=outcomes,
            saved=saved,
        )


def _replayed(trace: Path | None, steps: int) -> _Source:
    path = trace or shipped_trace_path()
    try:
        requests = read_trace(path)
    except TraceError as error:
        raise BadCall(str(error)) from error
    replay = Replay(requests, ReplayConfig(steps=steps))
    shipped = "" if trace else ", which comes with kvcanary"
    return _Source(
        title=f"Trace {path if trace else path.name}{shipped}: {len(requests):,} requests",
        identity={"trace": str(path), "requests": len(requests)},
        configuration=dataclasses.asdict(replay.config),
        cases=(step.case() for step in replay),
        most_cases=steps * len(GROUPS),
        plans_per_step=len(GROUPS),
        counts=lambda: dataclasses.asdict(replay.counts),
    )


def _saved(path: Path) -> _Source:
    case = load_case(path)
    return _Source(
        title=f"Case {case.name!r} of {path}",
        identity={"case": str(path), "name": case.name},
        configuration=case_sizes(case),
        cases=[case],
        most_cases=1,
        plans_per_step=1,
        counts=dict,
    )


def _run_with_progress(chosen: list[Backend], source: _Source) -> list[Outcome]:
    with progress_bar(source.most_cases) as advance:
        return run(chosen, source.cases, on_case=lambda case, outcomes: advance(case.name))


def _print_result(console: Console, judged: Run) -> None:
    if judged.counts:
        console.print(settings_table("Replayed", judged.counts, console.width))
        console.print()
    print_outcomes(console, judged)
