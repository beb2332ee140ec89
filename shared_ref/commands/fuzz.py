"""`kvcanary fuzz`: drawn launches, most of them full of corrupt values, until a backend fails on one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from ..backends import Backend
from ..conformance.fuzz import Fuzzed, fuzz
from ..conformance.report import Run, as_json
from .common import (
    EXIT_DIFFERENT,
    BadCall,
    check_writable,
    choose,
    judged_backends,
    print_outcomes,
    progress_bar,
    refuse_unjudged,
    save_failures,
    write_json,
)

SECONDS = 30


@click.command("fuzz")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help=f"Most time to spend.  [default: {SECONDS}, or none with --cases]",
)
@click.option("--cases", type=click.IntRange(min=1), metavar="N", help="Most cases to draw.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    metavar="K",
    show_default=True,
    help="The same cases for the same seed.",
)
@click.option("--plain", is_flag=True, help="Draw neither pages nor optional outputs.")
@judged_backends
@click.pass_context
def fuzz_command(
    context: click.Context,
    seconds: float | None,
    cases: int | None,
    seed: int,
    plain: bool,
    names: tuple[str, ...],
    required: tuple[str, ...],
    paths: tuple[str, ...],
    json_path: Path | None,
) -> None:
    """Draw launches full of corrupt values, and check that every backend builds identical plans.

    Every backend starts from the same poisoned buffers, and whole buffers are compared to the reference.
    At the first difference the case is made as small as it goes and saved in the current directory, to be
    replayed with `kvcanary conform --case`.

    Exit status: 0 identical, 1 a difference, 2 a bad call.
    """
    if seconds is not None and not math.isfinite(seconds):
        raise BadCall(f"--seconds must be a number, got {seconds:g}")
    chosen = choose(names, required, paths)
    if json_path is not None:
        check_writable(json_path)
    if seconds is None and cases is None:
        seconds = SECONDS
    console = Console(highlight=False)
    limits = [f"{seconds:g} seconds"] if seconds is not None else []
    limits += [f"{cases:,} cases"] if cases is not None else []
    console.print(Text(f"Drawn cases of seed {seed}, {' and '.join(limits)} at most"), soft_wrap=True)
    console.print()
    fuzzed = _fuzz_with_progress(chosen, seed=seed, seconds=seconds, cases=cases, plain=plain)
    judged = _judged(fuzzed, {"seed": seed, "plain": plain}, {"seconds": seconds, "cases": cases})
    _print_result(console, fuzzed, judged)
    if json_path is not None:
        write_json(json_path, as_json(judged))
    refuse_unjudged(judged.unjudged, bool(names or required))
    context.exit(0 if fuzzed.is_identical else EXIT_DIFFERENT)


def _fuzz_with_progress(
    chosen: list[Backend], seconds: float | None, cases: int | None, **more: Any
) -> Fuzzed:
    """With a bar of the cases, or where their number is open, of the seconds."""
    total = cases if cases is not None else int(seconds or 0)
    shown = 0
    with progress_bar(total) as advance:

        def note(judged: int, elapsed: float) -> None:
            nonlocal shown
            done = judged if cases is not None else int(elapsed)
            while shown < min(done, total):
                shown += 1
                advance(f"{judged:,} cases")

        return fuzz(chosen, seconds=seconds, cases=cases, on_progress=note, **more)


def _judged(fuzzed: Fuzzed, source: dict[str, Any], limits: dict[str, Any]) -> Run:
    return Run(
        source=source,
        configuration=limits,
        counts={"cases": fuzzed.cases, "layouts": fuzzed.layouts},
        plans_per_step=1,
        outcomes=fuzzed.outcomes,
        saved=save_failures(fuzzed.outcomes),
    )


def _print_result(console: Console, fuzzed: Fuzzed, judged: Run) -> None:
    console.print(Text(f"{fuzzed.cases:,} cases of {fuzzed.layouts} layouts"))
    console.print()
    print_outcomes(console, judged)
