"""The command line: `kvcanary conform` and `kvcanary doctor`."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import shlex
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

try:
    import click
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
    from rich.text import Text
except ImportError:  # this module is the program's entry and nothing else, so it ends the program
    print("kvcanary: the command line needs click and rich: pip install 'kvcanary[cli]'", file=sys.stderr)
    raise SystemExit(2) from None

from .backends import Backend, backends
from .conformance.case import Case
from .conformance.replay import GROUPS, Replay, ReplayConfig
from .conformance.report import (
    Run,
    as_json,
    case_sizes,
    failure_text,
    outcomes_table,
    settings_table,
    verdict,
    versions,
)
from .conformance.runner import Outcome, run
from .conformance.trace import TraceError, read_trace, shipped_trace_path

EXIT_DIFFERENT = 1
EXIT_BAD_CALL = 2
_FILE = click.Path(path_type=Path)


class BadCall(click.ClickException):
    """A call that cannot be carried out, through no fault of a backend."""

    exit_code = EXIT_BAD_CALL


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvcanary", prog_name="kvcanary")
def main() -> None:
    """Hold implementations of the kv-canary plan against the contract, byte for byte."""


@main.command()
@click.option(
    "--trace",
    type=_FILE,
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
    "--backend",
    "names",
    multiple=True,
    metavar="NAME",
    help="Judge this backend; may be repeated.  [default: all]",
)
@click.option(
    "--require",
    "required",
    multiple=True,
    metavar="NAME",
    help="Judge this backend, and exit 2 if it is unavailable; may be repeated.",
)
@click.option("--json", "json_path", type=_FILE, metavar="FILE", help="Write the report to this file too.")
@click.option(
    "--case",
    "case_path",
    type=_FILE,
    metavar="FILE",
    help="Judge this one saved case instead of a trace.",
)
@click.pass_context
def conform(
    context: click.Context,
    trace: Path | None,
    steps: int,
    names: tuple[str, ...],
    required: tuple[str, ...],
    json_path: Path | None,
    case_path: Path | None,
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
    chosen = _choose(names, required)
    source = _replayed(trace, steps) if case_path is None else _saved(case_path)
    if json_path is not None:
        _check_writable(json_path)
    console = Console(highlight=False)
    console.print(Text(source.title), soft_wrap=True)
    console.print(settings_table("Configuration", source.configuration, console.width))
    console.print()
    outcomes = _run_with_progress(chosen, source)
    judged = source.judged(outcomes, saved={} if case_path else _save_failures(outcomes))
    _print_result(console, judged)
    if json_path is not None:
        _write_json(json_path, judged)
    context.exit(0 if judged.is_identical else EXIT_DIFFERENT)


def _choose(names: Iterable[str], required: Iterable[str]) -> list[Backend]:
    """The backends to judge, in the registry's order."""
    known = backends()
    required = set(required)
    wanted = {*names, *required} if names else {*known}
    if unknown := sorted((wanted | required) - {*known}):
        raise BadCall(f"unknown backend {', '.join(unknown)}: there are {', '.join(known)}")
    chosen = [backend for name, backend in known.items() if name in wanted]
    reasons = {backend.name: backend.unavailable() for backend in chosen}
    lacking = [f"{name}: {reason}" for name, reason in reasons.items() if reason and name in required]
    if lacking:
        raise BadCall("required, but unavailable: " + "; ".join(lacking))
    if all(reasons.values()):
        raise BadCall("no backend to run: " + "; ".join(f"{name}: {why}" for name, why in reasons.items()))
    return chosen


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
    try:
        case = Case.load(path)
    except OSError as error:
        raise BadCall(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # numpy raises whatever a file that is no such .npz leads it to
        why = error if zipfile.is_zipfile(path) else "it is no .npz file"
        raise BadCall(f"{path}: not a case that kvcanary has saved: {why}") from error
    try:
        case.expected()
    except ValueError as error:
        raise BadCall(f"{path}: the reference refuses this case: {error}") from error
    return _Source(
        title=f"Case {case.name!r} of {path}",
        identity={"case": str(path), "name": case.name},
        configuration=case_sizes(case),
        cases=[case],
        most_cases=1,
        plans_per_step=1,
        counts=dict,
    )


def _check_writable(path: Path) -> None:
    """Find out before the run, rather than after it, that its report cannot be written."""
    try:
        path.open("a").close()
    except OSError as error:
        raise BadCall(f"{path}: cannot be written: {error.strerror or error}") from error


def _run_with_progress(chosen: list[Backend], source: _Source) -> list[Outcome]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=source.most_cases)
        return run(
            chosen,
            source.cases,
            on_case=lambda case, outcomes: progress.update(task, advance=1, description=f"{case.name:<24}"),
        )


def _save_failures(outcomes: list[Outcome]) -> dict[str, str]:
    """Save each case that a backend failed on, once. Returns the files by the cases' names."""
    saved: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.failure is None or outcome.failure.case.name in saved:
            continue
        case = outcome.failure.case
        path = _free_path("kvcanary-" + re.sub(r"[^A-Za-z0-9.]+", "-", case.name))
        try:
            case.save(path)
        except OSError as error:
            click.echo(f"{path}: the case cannot be saved: {error.strerror or error}", err=True)
        else:
            saved[case.name] = str(path)
    return saved


def _free_path(stem: str) -> Path:
    path, number = Path(f"{stem}.npz"), 2
    while path.exists():
        path, number = Path(f"{stem}-{number}.npz"), number + 1
    return path


def _print_result(console: Console, judged: Run) -> None:
    if judged.counts:
        console.print(settings_table("Replayed", judged.counts, console.width))
        console.print()
    console.print(outcomes_table(judged))
    console.print()
    failures = [(outcome, outcome.failure) for outcome in judged.outcomes if outcome.failure]
    for outcome, failure in failures:
        console.print(failure_text(outcome, failure))
        if path := judged.saved.get(failure.case.name):
            console.print(Text(f"  saved as {path}; to replay it:"), soft_wrap=True)
            console.print(Text(f"    kvcanary conform --case {shlex.quote(path)}"), soft_wrap=True)
        console.print()
    words = [verdict(outcome) for outcome in judged.outcomes]
    tally = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    console.print(Text(f"Result: {tally}", style="bold"))


def _write_json(path: Path, judged: Run) -> None:
    try:
        path.write_text(json.dumps(as_json(judged), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadCall(f"{path}: cannot be written: {error.strerror or error}") from error


@main.command()
def doctor() -> None:
    """Show versions, devices, and for each backend that it is available or why not."""
    console = Console(highlight=False)
    rows = [("python", platform.python_version())]
    rows += [(package, version or "not installed") for package, version in versions().items()]
    _print_section(console, "Versions", rows)
    _print_section(console, "Devices", _devices())
    found = ((backend, backend.unavailable()) for backend in backends().values())
    _print_section(
        console,
        "Backends",
        [(b.name, f"unavailable: {why}" if why else f"available: {b.version()}") for b, why in found],
    )


def _print_section(console: Console, title: str, rows: Iterable[tuple[str, str]]) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for name, value in rows:
        table.add_row(f"  {name}", Text(value))
    console.print(Text(title, style="bold"))
    console.print(table)
    console.print()


def _devices() -> Iterator[tuple[str, str]]:
    yield "CPU", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"
    for framework, devices in (("torch", _torch_devices), ("jax", _jax_devices)):
        try:
            found = devices() or ["no CUDA device"]
        except ModuleNotFoundError as error:
            found = [f"{error.name} is not installed"]
        except Exception as error:  # a broken installation is what a doctor is asked about
            found = [f"{type(error).__name__}: {error}"]
        yield from ((framework, device) for device in found)


def _torch_devices() -> list[str]:
    import torch

    return [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]


def _jax_devices() -> list[str]:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # a look should not take a GPU's memory
    import jax

    return [f"{device} ({device.device_kind})" for device in jax.devices()]
