"""A batch as a picture: requests against positions, and what becomes of each position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..batch import Request, requests
from ..faults import request_faults
from .case import Case


class PlotError(ValueError):
    """A picture that cannot be drawn. The text says why, and what would help."""


class _Style(NamedTuple):
    label: str
    color: str
    hatch: str
    edge: str = "white"


# Okabe and Ito's colours, which differ in lightness too; the hatches tell them apart in grey.
_VERIFIED = _Style("verified", "#0072B2", "")
_UNVERIFIED = _Style("not verified, the plan does not fit", "#FFFFFF", "xxx", "#0072B2")
_WRITTEN = _Style("written in this step", "#E69F00", "///")
_WINDOWED = _Style("cached, windowed out", "#B8D8EA", "...", "#6E98AD")
_PADDING = _Style("padding", "#F0F0F0", "\\\\\\", "#BBBBBB")
_STYLES = (_VERIFIED, _UNVERIFIED, _WINDOWED, _WRITTEN, _PADDING)

_ROW_INCHES, _MOST_INCHES = 0.24, 40.0
_MOST_LABELS = 160
"""Requests whose rows are still named, each."""
_MOST_WRITTEN = 0.35
"""Written tokens behind the longest prefix that are drawn, as a share of it; an arrow stands for more."""
_LEAST_WIDTH = 0.006
"""Of a bar, as a share of the picture: one token of a decode step should be seen."""


class _Bar(NamedTuple):
    style: _Style
    y: int
    first: int
    width: int


def plot(case: Case, path: str | Path, request: int | None = None) -> None:
    """Draw requests against positions: verified, written, windowed out, or padding; and which have faults.

    Args:
        case: the launch to draw.
        path: the picture's file; its suffix gives the format, `.png` for one.
        request: index in the batch of the only request to draw; None for all.

    Raises:
        PlotError: matplotlib is not installed, or does not know the format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError("a plot needs matplotlib: pip install 'kvcanary[plot]'") from error
    arguments = case.inputs.keywords()
    batch = requests(arguments)
    shown = batch if request is None else [batch[request]]
    total = sum(r.verify_count for r in batch)
    height = min(_MOST_INCHES, 1.7 + _ROW_INCHES * max(len(shown), 3))
    figure = Figure(figsize=(10, height), layout="constrained")
    axes = figure.subplots()
    used = _draw(axes, shown, fits=total <= case.inputs.verify_capacity)
    marks = _mark(axes, shown, arguments)
    _label(axes, case, shown, total)
    figure.legend(
        handles=[*map(_patch, used), *marks],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    try:
        figure.savefig(path, dpi=110 if height < _MOST_INCHES / 2 else 80)
    except ValueError as error:
        raise PlotError(str(error)) from error


def _right_end(shown: list[Request]) -> int:
    """One past the last position of the picture."""
    cached = max((r.end for r in shown if r.active), default=0)
    written = max((_write_end(r) for r in shown if r.active), default=0)
    return max(1, min(written, cached + max(4, math.ceil(_MOST_WRITTEN * cached))))


def _write_end(r: Request) -> int:
    return max(r.end, 0) + r.write_count


def _bars(y: int, r: Request, fits: bool, right: int) -> Iterator[_Bar]:
    if not r.active:
        yield _Bar(_PADDING, y, 0, right)
        return
    end = max(r.end, 0)
    yield _Bar(_WINDOWED, y, 0, min(r.start, end))
    yield _Bar(_VERIFIED if fits else _UNVERIFIED, y, r.start, r.verify_count)
    yield _Bar(_WRITTEN, y, end, min(r.write_count, right - end))


def _draw(axes: Any, shown: list[Request], *, fits: bool) -> list[_Style]:
    """Draw the bars. Returns the styles that occur."""
    from matplotlib.collections import PolyCollection

    right = _right_end(shown)
    bars = [bar for y, r in enumerate(shown) for bar in _bars(y, r, fits, right) if bar.width > 0]
    used = [style for style in _STYLES if any(bar.style is style for bar in bars)]
    for style in used:
        boxes = [_box(bar, right) for bar in bars if bar.style is style]
        look: dict[str, Any] = {"facecolor": style.color, "edgecolor": style.edge, "hatch": style.hatch}
        axes.add_collection(PolyCollection(boxes, linewidth=0.4 if len(shown) <= _MOST_LABELS else 0, **look))
    if not shown:
        axes.text(0.5, 0.5, "no requests", transform=axes.transAxes, ha="center", va="center")
    axes.set_xlim(-0.5, right - 0.5 + 0.01 * right)
    axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    return used


def _box(bar: _Bar, right: int) -> list[tuple[float, float]]:
    left, low, high = bar.first - 0.5, bar.y - 0.4, bar.y + 0.4
    end = left + max(bar.width, _LEAST_WIDTH * right)
    return [(left, low), (end, low), (end, high), (left, high)]


def _mark(axes: Any, shown: list[Request], arguments: dict[str, Any]) -> list[Any]:
    """Seeds, predecessors outside the window, faults. Returns the legend's entries of those that occur."""
    seeds = [(r.end - 1, y) for y, r in enumerate(shown) if r.has_seed]
    prevs = [(r.start - 1, y) for y, r in enumerate(shown) if r.verify_count and r.start > 0]
    right = _right_end(shown)
    cut = [(0.98, y) for y, r in enumerate(shown) if r.active and _write_end(r) > right]
    faulty = [y for y, r in enumerate(shown) if next(request_faults(r, arguments), None) is not None]
    kinds = (
        (seeds, "o", "white", "seed of the written tokens", 4),
        (prevs, "|", "black", "predecessor before the window", 8),
        (cut, ">", "black", "goes on past the right edge", 6),
        ([(1.012, y) for y in faulty], "X", "#D55E00", "request with a fault", 7),
    )
    handles = []
    for places, marker, color, label, size in kinds:
        if not places:
            continue
        x, y = zip(*places, strict=True)
        # Of the axes' width, where it is no position.
        at = {"transform": axes.get_yaxis_transform(), "clip_on": False} if marker in ">X" else {}
        (line,) = axes.plot(
            x,
            y,
            linestyle="none",
            marker=marker,
            markerfacecolor=color,
            markeredgecolor="black",
            markeredgewidth=0.8 if marker != "|" else 2,
            markersize=size,
            label=label,
            **at,
        )
        handles.append(line)
    return handles


def _patch(style: _Style) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=style.color, edgecolor=style.edge, hatch=style.hatch, label=style.label)


def _label(axes: Any, case: Case, shown: list[Request], total: int) -> None:
    from matplotlib.ticker import MaxNLocator

    inputs = case.inputs
    window = f"window of {inputs.swa_window_size:,}" if inputs.swa_window_size > 0 else "full attention"
    enable = int(total <= inputs.verify_capacity)
    axes.set_title(
        f"{case.name}\n{window}, {total:,} entries for a capacity of {inputs.verify_capacity:,}: "
        f"enable {enable}",
        fontsize=11,
        loc="left",
    )
    axes.set_xlabel("position")
    axes.set_ylabel("request (row)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    step = max(1, math.ceil(len(shown) / _MOST_LABELS))
    places = range(0, len(shown), step)
    axes.set_yticks(list(places), [_name(shown[y]) for y in places], fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _name(r: Request) -> str:
    return f"{r.index} (padding)" if r.is_padding else f"{r.index} ({r.row})"
