"""The command `kvcanary explain`."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.text import Text

from ..conformance.case import Case, Plans
from ..conformance.explain import explain as explained
from ..conformance.explain import load_plans, request_at
from ..conformance.explain_plot import PlotError, plot
from .common import FILE, BadCall, check_archive, load_case

_NEITHER = "neither plans nor a case"


@click.command()
@click.argument("case_path", type=FILE, metavar="CASE.npz")
@click.option("--request", type=int, metavar="R", help="Only this request, by its index in the batch.")
@click.option(
    "--other",
    "other_path",
    type=FILE,
    metavar="OTHER.npz",
    help="Plans to compare with what the contract asks for, or another case to compare the inputs with.",
)
@click.option("--plot", "plot_path", type=FILE, metavar="FILE.png", help="Draw requests against positions.")
def explain(case_path: Path, request: int | None, other_path: Path | None, plot_path: Path | None) -> None:
    """Show a saved case as a person reads it: what each request verifies and writes, why, and its faults.

    CASE.npz is a case that `kvcanary conform` or `kvcanary fuzz` has saved, with what the implementation
    made of it. The first differences are shown, each with the rule that it breaks. OTHER.npz holds other
    plans to compare, one array for each buffer, named `after.<field>`; or it is another case.

    Exit status: 0 shown, 2 a bad call.
    """
    case = load_case(case_path)
    other = _after(case_path) if other_path is None else _other(other_path)
    try:
        if request is not None:
            request_at(case, request)
        text = explained(case, request, other=other)
    except ValueError as error:
        raise BadCall(str(error)) from error
    if plot_path is not None:
        _draw(case, plot_path, request)
    Console(highlight=False).print(_styled(text), end="", soft_wrap=True)


def _other(path: Path) -> Plans | Case:
    """The plans of a file, or the case."""
    check_archive(path, _NEITHER)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            is_case = any(name.startswith("before.") for name in arrays)
        return Case.load(path) if is_case else load_plans(path)
    except Exception as error:  # numpy raises whatever an array that is none leads it to
        raise BadCall(f"{path}: {_NEITHER}: {error}") from error


def _after(path: Path) -> Plans | None:
    """What an implementation made of the case, if its file has that."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            has_plans = any(name.startswith("after.") for name in arrays)
        return load_plans(path) if has_plans else None
    except Exception as error:  # as above
        raise BadCall(f"{path}: what an implementation made of the case is damaged: {error}") from error


def _draw(case: Case, path: Path, request: int | None) -> None:
    if path.is_dir():
        raise BadCall(f"{path}: is a directory")
    try:
        plot(case, path, request)
    except PlotError as error:
        raise BadCall(str(error)) from error
    except OSError as error:
        raise BadCall(f"{path}: cannot be written: {error.strerror or error}") from error


def _styled(text: str) -> Text:
    """The text with headings and faults picked out."""
    styled = Text()
    for line in text.splitlines(keepends=True):
        if line[:1] not in (" ", "\n", "."):
            styled.append(line, style="bold")
        elif line.lstrip().startswith(("fault ", "request ")):
            styled.append(line, style="red")
        elif line.lstrip().startswith("section "):
            styled.append(line, style="italic")
        else:
            styled.append(line)
    return styled
