"""A table of figures, as a terminal, a plain file and a document show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BEGIN, END = "<!-- begin figures -->", "<!-- end figures -->"
"""What figures stand between in a document."""

_FILE_WIDTH = 200
"""Columns of an output that is no terminal."""


class Table(NamedTuple):
    """Cells are text; the first column is aligned left and the others right."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def show(table: Table) -> None:
    """Print it, by rich where that is installed."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable
    except ImportError:
        print(plain(table))
        return
    rich = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
    for i, column in enumerate(table.columns):
        rich.add_column(column, justify="right" if i else "left")
    for row in table.rows:
        rich.add_row(*row)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    console.print(rich)


def plain(table: Table) -> str:
    """The table with its columns under each other."""
    lines = [table.columns, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join([table.title, *(_line(line, widths) for line in lines)])


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])


def markdown(table: Table) -> str:
    """The table for a document, under its title in bold."""
    rule = ["---", *["---:"] * (len(table.columns) - 1)]
    rows = [f"| {' | '.join(cells)} |" for cells in (table.columns, rule, *table.rows)]
    return "\n".join([f"**{table.title}**", "", *rows])


def number(value: float | None) -> str:
    """Three digits, as far as they mean something; nothing for nothing."""
    if value is None:
        return ""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def between_markers(document: str, text: str) -> str:
    """The document with the text between its markers.

    Raises:
        ValueError: it has not one pair of markers.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"the document needs {BEGIN} and then {END}, once each")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
