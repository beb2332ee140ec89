"""Draw a run: time over entries for each backend, against the floor.

    python -m benchmarks.plot FILE.json [--output FILE.png]

FILE.json is what `python -m benchmarks.bench_plan --json FILE.json` wrote. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .results import BACKENDS, Results, figure
from .worker import FLOOR

OUTPUT = Path(__file__).parents[1] / "docs" / "performance.png"
PANELS = (
    ("graph_us", "In a CUDA graph: time of a plan"),
    ("kernel_us", "Profiler: GPU time of one call"),
)


class Style(NamedTuple):
    """How a subject is drawn."""

    color: str
    marker: str


STYLES = {  # the palette of Okabe and Ito, which colour-blind readers can tell apart
    FLOOR: Style("#000000", "_"),
    "torch-triton": Style("#0072B2", "o"),
    "jax-mosaic": Style("#D55E00", "s"),
    "jax-triton": Style("#009E73", "^"),
    "jax-xla": Style("#CC79A7", "D"),
}


def draw(results: Results, output: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [panel for panel in PANELS if _has(results, panel[0])] or list(PANELS[:1])
    size = (6.2 * len(panels), 5.4)
    fig, axes = pyplot.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
    for axis, (name, title) in zip(axes[0], panels, strict=True):
        _draw_panel(axis, results, name)
        axis.set_title(title, fontsize=11)
    axes[0][0].set_ylabel("time of one plan (µs)")
    fig.suptitle(f"kv-canary plan on {results.get('gpu') or 'no GPU'}, {results['date']}")
    fig.text(
        0.5,
        0.01,
        "Lines: full attention without tables. Hollow: with a mapping or a token table, or bs 4096.",
        ha="center",
        fontsize=9,
    )
    fig.tight_layout(rect=(0, 0.03, 1, 1))
    fig.savefig(output, dpi=150)
    pyplot.close(fig)


def _has(results: Results, name: str) -> bool:
    return any(name in fields for of_cases in results["figures"].values() for fields in of_cases.values())


def _draw_panel(axis: Any, results: Results, name: str) -> None:
    for subject in (FLOOR, *BACKENDS):
        points = _points(results, subject, name)
        if points:
            _draw_subject(axis, subject, points)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("entries of the plan")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.grid(True, which="major", color="#cccccc", linewidth=0.6)
    axis.set_axisbelow(True)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, loc="upper left")


def _points(results: Results, subject: str, name: str) -> list[tuple[int, float, bool]]:
    """Entries, microseconds, and whether the case is of the plain kind, as the entries grow."""
    points = []
    for case, sizes in results["cases"].items():
        us = figure(results, subject, case).get(name)
        if us is not None:
            is_plain = not (sizes["mapping"] or sizes["tokens"] or sizes["bs"] == 4096)
            points.append((sizes["entries"], us, is_plain))
    return sorted(points)


def _draw_subject(axis: Any, subject: str, points: list[tuple[int, float, bool]]) -> None:
    color, marker = STYLES[subject]
    plain = [(entries, us) for entries, us, is_plain in points if is_plain]
    others = [(entries, us) for entries, us, is_plain in points if not is_plain]
    dashes = "--" if subject == FLOOR else "-"
    size = 12 if marker == "_" else 6
    if plain:
        axis.plot(
            *zip(*plain, strict=True), dashes, color=color, marker=marker, markersize=size, label=subject
        )
    if others:
        label = None if plain else subject
        axis.plot(
            *zip(*others, strict=True),
            linestyle="none",
            color=color,
            marker=marker,
            markersize=size,
            fillstyle="none",
            label=label,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plot",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path, metavar="FILE.json")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE.png")
    options = parser.parse_args(arguments)
    draw(json.loads(options.results.read_text()), options.output)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
