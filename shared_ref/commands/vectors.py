"""`kvcanary vectors`: the golden vectors, listed, copied out, and held against implementations."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..backends import Backend
from ..conformance.golden import (
    FORMAT_VERSION,
    LAUNCHERS,
    Vector,
    VectorError,
    VectorResult,
    VectorSet,
    check_vector,
    read_vectors,
    shipped_vectors_path,
)
from ..conformance.report import backend_note, environment, wrongs_json, wrongs_text
from ..schema import LAUNCH_PLAN
from .common import (
    EXIT_DIFFERENT,
    FILE,
    BadCall,
    check_writable,
    choose,
    judged_backends,
    load,
    progress_bar,
    refuse_unjudged,
    write_json,
)

_EXPLAINED = 3
"""Failed vectors of a backend that are explained; all are named, and the JSON explains them all."""
_DIGEST_DIGITS = 10


@click.group()
def vectors() -> None:
    """The golden vectors: launches with the bytes they must end in (docs/conformance.md)."""


@vectors.command("list")
def list_() -> None:
    """Show each vector that comes with kvcanary, with its story."""
    found = _read(None)
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for vector in found.vectors:
        table.add_row(vector.name, Text(vector.story, style="dim"))
    console.print(table)
    console.print()
    size = sum(path.stat().st_size for path in shipped_vectors_path().iterdir())
    console.print(
        f"{len(found.vectors)} vectors of {len(found.rules)} rules, {size / 2**20:.2f} MiB, "
        f"format {FORMAT_VERSION}, contract {found.contract_version}",
        soft_wrap=True,
    )


@vectors.command()
@click.argument("directory", type=FILE, metavar="DIR")
def export(directory: Path) -> None:
    """Copy the vectors that come with kvcanary to DIR, which must not exist yet or be empty.

    Exit status: 0 copied, 2 a bad call.
    """
    try:
        if directory.exists() and any(directory.iterdir()):
            raise BadCall(f"{directory}: there are files already, and none is overwritten")
        shutil.copytree(shipped_vectors_path(), directory, dirs_exist_ok=True)
    except OSError as error:
        raise BadCall(f"{directory}: cannot be written: {error.strerror or error}") from error
    click.echo(f"{len(_read(directory).vectors)} vectors in {directory}")


@vectors.command()
@click.argument("directory", type=FILE, metavar="[DIR]", required=False)
@click.option(
    "--launcher",
    type=click.Choice([*LAUNCHERS]),
    default=LAUNCH_PLAN.name,
    show_default=True,
    help="Whose vectors; those of the staged launchers are for --impl.",
)
@click.option("--only", multiple=True, metavar="VECTOR", help="Judge on this vector; may be repeated.")
@click.option("--plain", is_flag=True, help="Judge on vectors without pages and optional outputs.")
@judged_backends
@click.pass_context
def check(
    context: click.Context,
    directory: Path | None,
    launcher: str,
    only: tuple[str, ...],
    plain: bool,
    names: tuple[str, ...],
    required: tuple[str, ...],
    paths: tuple[str, ...],
    json_path: Path | None,
) -> None:
    """Check that every backend ends in the vectors' bytes; those in DIR, or those that come with kvcanary.

    Exit status: 0 identical, 1 a difference, 2 a bad call.
    """
    found = _read(directory)
    selected = _selected(found.of(launcher), only, plain)
    chosen = _chosen(launcher, names, required, paths)
    if json_path is not None:
        check_writable(json_path)
    verdicts = _judge(chosen, selected)
    console = Console(highlight=False)
    where = f"Vectors of {directory}" if directory else "Vectors, which come with kvcanary"
    console.print(Text(f"{where}: {len(selected)} of {launcher}"), soft_wrap=True)
    console.print()
    _print_verdicts(console, verdicts, _again(directory, launcher))
    if json_path is not None:
        source = {"vectors": str(directory or shipped_vectors_path()), "launcher": launcher}
        write_json(json_path, _as_json(source, found, selected, verdicts))
    unjudged = [v.backend.name for v in verdicts if v.word == "not judged"]
    refuse_unjudged(unjudged, bool(names or required))
    context.exit(0 if all(v.is_identical for v in verdicts) else EXIT_DIFFERENT)


def _read(directory: Path | None) -> VectorSet:
    try:
        return read_vectors(directory)
    except VectorError as error:
        raise BadCall(str(error)) from error


def _selected(vectors: tuple[Vector, ...], only: Iterable[str], plain: bool) -> list[Vector]:
    names = [vector.name for vector in vectors]
    if unknown := [name for name in only if name not in names]:
        raise BadCall(f"there is no vector {', '.join(unknown)} of this launcher: kvcanary vectors list")
    selected = [v for v in vectors if (not only or v.name in only) and (v.is_plain or not plain)]
    if not selected:
        raise BadCall("the set has no such vector of this launcher")
    return selected


def _chosen(
    launcher: str, names: tuple[str, ...], required: tuple[str, ...], paths: tuple[str, ...]
) -> list[Backend]:
    if launcher == LAUNCH_PLAN.name:
        return choose(names, required, paths)
    if names or required or not paths:
        raise BadCall(f"backends announce no {launcher}: name a function with --impl, and no backend")
    return load(paths)


@dataclasses.dataclass(eq=False)
class _Verdict:
    """What is known of a backend."""

    backend: Backend
    unavailable: str | None
    results: list[VectorResult] = dataclasses.field(default_factory=list)

    @property
    def failed(self) -> list[VectorResult]:
        return [result for result in self.results if not result.passed]

    @property
    def is_identical(self) -> bool:
        return not self.failed

    @property
    def word(self) -> str:
        if self.unavailable is not None:
            return "unavailable"
        if not self.results:
            return "not judged"
        return "identical" if self.is_identical else "different"

    @property
    def version(self) -> str:
        return "" if self.unavailable else self.backend.version()

    @property
    def digest(self) -> str | None:
        """SHA-256 over the vectors' digests in hexadecimal, one behind the other."""
        if not self.results:
            return None
        return hashlib.sha256("".join(r.digest or "" for r in self.results).encode()).hexdigest()

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)


def _judge(chosen: list[Backend], selected: list[Vector]) -> list[_Verdict]:
    verdicts = [_Verdict(backend, backend.unavailable()) for backend in chosen]
    running = [verdict for verdict in verdicts if verdict.unavailable is None]
    pairs = [(v, vector) for v in running for vector in selected if vector.is_plain or not v.backend.plain]
    with progress_bar(len(pairs)) as advance:
        for verdict, vector in pairs:
            verdict.results.append(check_vector(verdict.backend.launch, vector))
            advance(verdict.backend.name)
    return verdicts


def _again(directory: Path | None, launcher: str) -> str:
    words = ["kvcanary", "vectors", "check", *([str(directory)] if directory else [])]
    return shlex.join(words + ([] if launcher == LAUNCH_PLAN.name else ["--launcher", launcher]))


def _print_verdicts(console: Console, verdicts: list[_Verdict], again: str) -> None:
    console.print(_table(verdicts))
    console.print()
    for verdict in verdicts:
        if verdict.unavailable:
            console.print(Text(f"{verdict.backend.name}: {verdict.unavailable}", style="dim"))
        elif verdict.backend.plain:
            console.print(Text(f"{verdict.backend.name}: {backend_note(verdict.backend)}", style="dim"))
    for verdict in verdicts:
        for result in verdict.failed[:_EXPLAINED]:
            _print_failure(console, verdict, result, again)
        if others := verdict.failed[_EXPLAINED:]:
            names = ", ".join(result.vector.name for result in others)
            console.print(Text(f"{verdict.backend.name} failed on {len(others)} more: {names}\n"))
    words = [verdict.word for verdict in verdicts]
    tally = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    console.print(Text(f"Result: {tally}", style="bold"))


def _print_failure(console: Console, verdict: _Verdict, result: VectorResult, again: str) -> None:
    name = verdict.backend.name
    console.print(Text.assemble((name, "bold red"), f" failed on vector {result.vector.name}"))
    console.print(Text(f"  {result.vector.story}", style="dim"))
    console.print(wrongs_text(result))
    option = "--impl" if ":" in name else "--backend"
    console.print(
        Text(f"  to repeat it: {again} --only {result.vector.name} {option} {shlex.quote(name)}\n"),
        soft_wrap=True,
    )


def _table(verdicts: list[_Verdict]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1), header_style="bold"
    )
    table.add_column("backend", overflow="fold")
    table.add_column("version", overflow="fold")
    for name in ("passed", "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("digest", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    for verdict in verdicts:
        if verdict.unavailable is not None:
            table.add_row(verdict.backend.name, "-", "-", "-", "-", Text(verdict.word, style="yellow"), "-")
            continue
        failed = len(verdict.failed)
        table.add_row(
            verdict.backend.name,
            Text(verdict.version),
            str(len(verdict.results) - failed),
            str(failed),
            (verdict.digest or "-")[:_DIGEST_DIGITS],
            Text(verdict.word, style="bold red" if failed else "green"),
            f"{verdict.seconds:.2f}",
        )
    return table


def _as_json(
    source: dict[str, Any], found: VectorSet, selected: list[Vector], verdicts: list[_Verdict]
) -> dict[str, Any]:
    return {
        "environment": environment(),
        "source": source,
        "configuration": {"format_version": FORMAT_VERSION, "contract_version": found.contract_version},
        "counts": {
            "vectors": len(selected),
            "corrupt": sum(vector.fault is not None for vector in selected),
            "rules": len({rule for vector in selected for rule in vector.rules}),
        },
        "identical": all(verdict.is_identical for verdict in verdicts),
        "backends": [_verdict_json(verdict) for verdict in verdicts],
    }


def _verdict_json(verdict: _Verdict) -> dict[str, Any]:
    return {
        "name": verdict.backend.name,
        "version": verdict.version or None,
        "verdict": verdict.word,
        "unavailable": verdict.unavailable,
        "note": backend_note(verdict.backend) or None,
        "passed": len(verdict.results) - len(verdict.failed),
        "failed": len(verdict.failed),
        "sha256": verdict.digest,
        "total_seconds": verdict.seconds,
        "vectors": [
            {
                "name": result.vector.name,
                "passed": result.passed,
                "seconds": result.seconds,
                "sha256": result.digest,
                "expected_sha256": result.vector.digest,
            }
            for result in verdict.results
        ],
        "failures": [
            {"vector": r.vector.name, "rules": list(r.vector.rules), **wrongs_json(r)} for r in verdict.failed
        ],
    }
