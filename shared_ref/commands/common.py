"""What the commands share: which backends to judge, files, progress, and the ways to end."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..backends import Backend, backends
from ..conformance.case import Case, Plans
from ..conformance.compare import buffers
from ..conformance.kit import ImplementationError, implementation_backend
from ..conformance.report import Run, failure_text, outcomes_table, verdict
from ..conformance.runner import Outcome

EXIT_DIFFERENT = 1
EXIT_BAD_CALL = 2
FILE = click.Path(path_type=Path)


class BadCall(click.ClickException):
    """A call that cannot be carried out, through no fault of a backend."""

    exit_code = EXIT_BAD_CALL


def judged_backends(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say whom to judge and where to report: `names`, `required`, `paths`, `json_path`."""
    options = (
        click.option(
            "--backend",
            "names",
            multiple=True,
            metavar="NAME",
            help="Judge this backend; may be repeated.  [default: all, or none with --impl]",
        ),
        click.option(
            "--require",
            "required",
            multiple=True,
            metavar="NAME",
            help="Judge this backend, and exit 2 if it is unavailable; may be repeated.",
        ),
        click.option(
            "--impl",
            "paths",
            multiple=True,
            metavar="MODULE:FUNCTION",
            help="Judge this function, which takes the launcher's keywords on numpy arrays; may be repeated.",
        ),
        click.option(
            "--json", "json_path", type=FILE, metavar="FILE", help="Write the report to this file too."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def choose(names: Iterable[str], required: Iterable[str], paths: Iterable[str]) -> list[Backend]:
    """The backends to judge in the registry's order, then the implementations from outside."""
    known = backends()
    outside = load(paths)
    required = set(required)
    wanted = {*names, *required} if names or outside else {*known}
    if unknown := sorted((wanted | required) - {*known}):
        raise BadCall(f"unknown backend {', '.join(unknown)}: there are {', '.join(known)}")
    chosen = [backend for name, backend in known.items() if name in wanted] + outside
    reasons = {backend.name: backend.unavailable() for backend in chosen}
    lacking = [f"{name}: {reason}" for name, reason in reasons.items() if reason and name in required]
    if lacking:
        raise BadCall("required, but unavailable: " + "; ".join(lacking))
    if all(reasons.values()):
        raise BadCall("no backend to run: " + "; ".join(f"{name}: {why}" for name, why in reasons.items()))
    return chosen


def load(paths: Iterable[str]) -> list[Backend]:
    """The implementations at these paths."""
    try:
        return [implementation_backend(path) for path in dict.fromkeys(paths)]
    except ImplementationError as error:
        raise BadCall(f"--impl {error}") from error


NO_CASE = "not a case that kvcanary has saved"


def load_case(path: Path) -> Case:
    """A saved case that the reference takes."""
    check_archive(path, NO_CASE)
    try:
        case = Case.load(path)
    except Exception as error:  # numpy raises whatever an array that is none leads it to
        raise BadCall(f"{path}: {NO_CASE}: {error}") from error
    try:
        case.expected()
    except ValueError as error:
        raise BadCall(f"{path}: the reference refuses this case: {error}") from error
    return case


def check_archive(path: Path, what: str) -> None:
    """Refuse what is no `.npz` file, with these words of what it should be."""
    try:
        with path.open("rb") as file:
            is_archive = zipfile.is_zipfile(file)
    except OSError as error:
        raise BadCall(f"{path}: cannot be read: {error.strerror or error}") from error
    if not is_archive:
        raise BadCall(f"{path}: {what}: it is no .npz file")


def check_writable(path: Path) -> None:
    """Find out before the run, rather than after it, that its report cannot be written."""
    try:
        path.open("a").close()
    except OSError as error:
        raise BadCall(f"{path}: cannot be written: {error.strerror or error}") from error


def write_json(path: Path, report: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadCall(f"{path}: cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def progress_bar(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, nothing elsewhere. Yields what to call with the name of each finished piece."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=total)
        yield lambda name: progress.update(task, advance=1, description=f"{name:<24.24}")


def save_failures(outcomes: list[Outcome]) -> dict[str, str]:
    """Save each case that a backend failed on, once. Returns the files by the cases' names."""
    saved: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.failure is None or outcome.failure.case.name in saved:
            continue
        case = outcome.failure.case
        path = _free_path("kvcanary-" + re.sub(r"[^A-Za-z0-9.]+", "-", case.name))
        try:
            case.save(path, _saved(outcome.failure.after))
        except OSError as error:
            click.echo(f"{path}: the case cannot be saved: {error.strerror or error}", err=True)
        else:
            saved[case.name] = str(path)
    return saved


def _saved(after: Plans | None) -> dict[str, np.ndarray] | None:
    """The buffers, if a file can hold them: an implementation may return anything."""
    made = {} if after is None else buffers(after)
    arrays = {k: b for k, b in made.items() if isinstance(b, np.ndarray) and not b.dtype.hasobject}
    return arrays if len(arrays) == len(made) else None


def refuse_unjudged(unjudged: Iterable[str], asked_for: bool) -> None:
    """End with 2 where plain backends that were named got no plain case: nothing is known of them."""
    if asked_for and (names := ", ".join(unjudged)):
        raise BadCall(f"not judged, for every case has pages or optional outputs: {names}")


def _free_path(stem: str) -> Path:
    path, number = Path(f"{stem}.npz"), 2
    while path.exists():
        path, number = Path(f"{stem}-{number}.npz"), number + 1
    return path


def print_outcomes(console: Console, judged: Run) -> None:
    """The table, each failure with the command that replays it, and how many backends came to what."""
    console.print(outcomes_table(judged))
    console.print()
    failures = [(outcome, outcome.failure) for outcome in judged.outcomes if outcome.failure]
    for outcome, failure in failures:
        console.print(failure_text(outcome, failure))
        if path := judged.saved.get(failure.case.name):
            # `--impl` names a function by its path; a backend has a plain name.
            option = "--impl" if ":" in outcome.backend.name else "--backend"
            words = ["kvcanary", "conform", "--case", path, option, outcome.backend.name]
            replay = f"  saved as {path}; to replay it:\n    {shlex.join(words)}"
            console.print(Text(replay), soft_wrap=True)
        console.print()
    verdicts = [verdict(outcome) for outcome in judged.outcomes]
    tally = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
    console.print(Text(f"Result: {tally}", style="bold"))
