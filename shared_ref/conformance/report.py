"""A run as a person reads it (rich) and as a CI system does (JSON)."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import platform
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..backends import Backend
from ..schema import OPTIONAL_OUTPUTS
from .case import Case
from .compare import FieldDifferences
from .explain import difference_text
from .runner import Failure, Outcome

PACKAGES = ("kvcanary", "numpy", "torch", "triton", "jax", "jaxlib", "jax-triton", "click", "rich")
"""Distributions whose versions a report states."""

_DIGEST_DIGITS = 10
"""With these, a table of everyday numbers fits 80 columns."""
_ERROR_LINES = 6
"""Of an exception's text: JAX's can fill a screen. The JSON has it all."""
_WIDE = 100
"""Columns of a console that fits three settings in a line."""


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A run with what it ran on."""

    source: Mapping[str, Any]
    """The trace, or the case's file."""
    configuration: Mapping[str, Any]
    """Sizes of the replay, or of the case."""
    counts: Mapping[str, int]
    """What the replay met; empty for a case."""
    plans_per_step: int
    outcomes: list[Outcome]
    saved: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """File that holds a failed case, by the case's name."""

    @property
    def is_identical(self) -> bool:
        return all(outcome.failure is None for outcome in self.outcomes)

    @property
    def unjudged(self) -> list[str]:
        """Names of the backends that got no case."""
        return [o.backend.name for o in self.outcomes if verdict(o) == "not judged"]

    def steps(self, outcome: Outcome) -> int:
        """Steps that a backend has planned, the last one perhaps in part."""
        return -(-outcome.plans // self.plans_per_step)


def verdict(outcome: Outcome) -> str:
    """One or two words on a backend."""
    if outcome.unavailable is not None:
        return "unavailable"
    failure = outcome.failure
    if failure is None:
        return "identical" if outcome.plans else "not judged"
    if failure.error is not None:
        return "raised"
    return "different" if failure.differences else "wrote inputs"


def versions() -> dict[str, str | None]:
    """Version of each of `PACKAGES`, None where it is not installed. Imports none of them."""
    return {package: _version(package) for package in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def case_sizes(case: Case) -> dict[str, int | str]:
    """A case's configuration, in the contract's words."""
    inputs = case.inputs
    mapping, tokens = inputs.full_to_swa_index_mapping, inputs.req_to_verify_expected_tokens
    max_reqs, columns = inputs.req_to_token.shape
    return {
        "bs": len(inputs.req_pool_indices),
        "max_reqs": max_reqs,
        "max_seq_len": columns * inputs.page_size,
        "swa_window_size": inputs.swa_window_size,
        "lut_len": "no mapping" if mapping is None else len(mapping),
        "token_table": "no tokens" if tokens is None else " x ".join(map(str, tokens.shape)),
        "verify_capacity": inputs.verify_capacity,
        "write_req_capacity": len(case.before.write.write_seed_slot_indices),
        "token_offset": inputs.kv_token_id_vs_position_offset,
        "page_size": inputs.page_size,
    }


def settings_table(title: str, values: Mapping[str, Any], width: int) -> RenderableType:
    """Names and values, read down the columns; as many columns as `width` characters hold."""
    columns = 3 if width >= _WIDE else 2
    cells = [(name.replace("_", " "), _number(value)) for name, value in values.items()]
    length = -(-len(cells) // columns)
    table = Table.grid(padding=(0, 1))
    for column in range(columns):
        table.add_column(style="dim")
        table.add_column(justify="right")
        if column < columns - 1:
            table.add_column(width=2)
    chunks = [cells[i : i + length] for i in range(0, len(cells), length)]
    for row in itertools.zip_longest(*chunks, fillvalue=("", "")):
        gapped = [(*pair, "") for pair in row]
        table.add_row(*itertools.chain.from_iterable(gapped[:-1]), *row[-1])
    return Group(Text(title, style="bold"), Padding(table, (0, 0, 0, 2), expand=False))


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(_number, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def outcomes_table(run: Run) -> RenderableType:
    """One line a backend, unavailable ones too, and below what a reader should know of each."""
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1), header_style="bold"
    )
    table.add_column("backend", no_wrap=True)
    table.add_column("version", overflow="fold")
    for name in ("steps", "entries"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("digest", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("ms/plan", justify="right", no_wrap=True)
    notes = Table.grid(padding=(0, 2, 0, 0))
    notes.add_column(no_wrap=True)
    for outcome in run.outcomes:
        table.add_row(*_outcome_cells(run, outcome))
        if note := outcome.unavailable or backend_note(outcome.backend):
            notes.add_row(outcome.backend.name, Text(note, style="dim"))
    return Group(table, Padding(notes, (1, 0, 0, 0), expand=False)) if notes.row_count else table


def backend_note(backend: Backend) -> str:
    """What a reader of a backend's figures should know."""
    return "; ".join(
        filter(None, [backend.note, "judged without pages and optional outputs" * backend.plain])
    )


def _outcome_cells(run: Run, outcome: Outcome) -> tuple[str | Text, ...]:
    word = verdict(outcome)
    name, said = outcome.backend.name, Text(word, style=_VERDICT_STYLES.get(word, "bold red"))
    median = outcome.median_seconds
    if median is None:
        return name, "-", "-", "-", "-", said, "-"
    return (
        name,
        Text(outcome.version),
        f"{run.steps(outcome):,}",
        f"{outcome.entries:,}",
        (outcome.digest or "-")[:_DIGEST_DIGITS],
        said,
        f"{1000 * median:,.2f}",
    )


_VERDICT_STYLES = {"identical": "green", "unavailable": "yellow"}


def failure_text(outcome: Outcome, failure: Failure) -> RenderableType:
    """What a backend did wrong, so that a person can act on it."""
    return Group(
        Text.assemble((outcome.backend.name, "bold red"), f" failed on case {failure.case.name!r}"),
        wrongs_text(failure),
    )


class Wrongs(Protocol):
    """What there is to say of a launch that went wrong."""

    @property
    def error(self) -> str | None: ...
    @property
    def changed_inputs(self) -> tuple[str, ...]: ...
    @property
    def differences(self) -> tuple[FieldDifferences, ...]: ...


def wrongs_text(wrongs: Wrongs) -> RenderableType:
    """An exception, inputs that were written to, and the first differences of each buffer."""
    parts: list[RenderableType] = []
    if wrongs.error is not None:
        lines = wrongs.error.splitlines()
        cut = ["..."] if len(lines) > _ERROR_LINES else []
        if any(
            f"unexpected keyword argument '{name}'" in wrongs.error
            for name in ("page_size", *OPTIONAL_OUTPUTS)
        ):
            cut.append("To leave out pages and optional outputs: --plain, or Backend(plain=True).")
        parts.append(_indented("the launch raised " + "\n".join(lines[:_ERROR_LINES] + cut), 2))
    if wrongs.changed_inputs:
        parts.append(_indented(f"the launch wrote to its inputs: {', '.join(wrongs.changed_inputs)}", 2))
    for buffer in wrongs.differences:
        parts += _buffer_text(buffer)
    return Group(*parts)


def _buffer_text(buffer: FieldDifferences) -> Iterable[RenderableType]:
    yield _indented(f"{buffer.field}: {buffer.count:,} of {buffer.size:,} elements differ", 2)
    for rule, differences in itertools.groupby(buffer.first, key=lambda difference: difference.rule):
        for difference in differences:
            yield _indented(difference_text(difference), 4)
        yield _indented(rule, 6, style="italic")


def _indented(text: str, columns: int, style: str = "") -> RenderableType:
    return Padding(Text(text, style=style), (0, 0, 0, columns), expand=False)


def as_json(run: Run) -> dict[str, Any]:
    """The run as plain data: environment, source, sizes, counts, and everything known of each backend."""
    return {
        "environment": environment(),
        "source": dict(run.source),
        "configuration": dict(run.configuration),
        "counts": dict(run.counts),
        "identical": run.is_identical,
        "backends": [_outcome_json(run, outcome) for outcome in run.outcomes],
    }


def environment() -> dict[str, Any]:
    """What a run runs on, as plain data."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions(),
    }


def wrongs_json(wrongs: Wrongs) -> dict[str, Any]:
    """`wrongs_text` as plain data."""
    return {
        "error": wrongs.error,
        "changed_inputs": list(wrongs.changed_inputs),
        "differences": [dataclasses.asdict(buffer) for buffer in wrongs.differences],
    }


def _outcome_json(run: Run, outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.backend.name,
        "version": outcome.version or None,
        "verdict": verdict(outcome),
        "unavailable": outcome.unavailable,
        "note": backend_note(outcome.backend) or None,
        "steps": run.steps(outcome),
        "plans": outcome.plans,
        "entries": outcome.entries,
        "sha256": outcome.digest,
        "median_seconds": outcome.median_seconds,
        "total_seconds": sum(outcome.seconds),
        "failure": _failure_json(run, outcome.failure) if outcome.failure else None,
    }


def _failure_json(run: Run, failure: Failure) -> dict[str, Any]:
    return {
        "case": failure.case.name,
        "saved_as": run.saved.get(failure.case.name),
        **wrongs_json(failure),
    }
