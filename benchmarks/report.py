"""Put a run's tables into docs/performance.md, between its two markers.

    python -m benchmarks.report FILE.json [--document FILE.md]

FILE.json is what `python -m benchmarks.bench_plan --json FILE.json` wrote.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from .figures import tables
from .results import Results, machine
from .tables import between_markers, markdown

DOCUMENT = Path(__file__).parents[1] / "docs" / "performance.md"


def text(results: Results) -> str:
    """What stands between the markers."""
    parts = [f"Measured on {machine(results)}; host: {results['host']}. {_method(results)}"]
    parts += [markdown(table) for table in tables(results)]
    missing = [f"- {backend}: {reason}" for backend, reason in results["unavailable"].items()]
    failed = [f"- {f['backend']} on {f['case']}: {f['what']}" for f in results["failures"]]
    for title, lines in (("Unavailable", missing), ("Failed", failed)):
        if lines:
            parts.append("\n".join([f"**{title}**", "", *lines]))
    return "\n\n".join(parts)


def _method(results: Results) -> str:
    settings = results["settings"]
    profilers = {
        fields["profiler"]
        for of_cases in results["figures"].values()
        for fields in of_cases.values()
        if "profiler" in fields
    }
    return (
        f"{settings['sets']} input sets, graphs of {settings['launches']} launches, medians of "
        f"{settings['replays']} replays (with options, of {settings['rounds']} such medians), "
        f"of {settings['profiled']} profiled calls "
        f"({' and '.join(sorted(profilers)) or 'no profiler'}), and of {settings['batches']} batches of "
        f"{settings['batch']} calls for host times."
    )


def fill(document: str, results: Results) -> str:
    """The document with the run between its markers. ValueError: it has not one pair of markers."""
    return between_markers(document, text(results))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path, metavar="FILE.json")
    parser.add_argument("--document", type=Path, default=DOCUMENT, metavar="FILE.md")
    options = parser.parse_args(arguments)
    filled = fill(options.document.read_text(), json.loads(options.results.read_text()))
    options.document.write_text(filled)
    print(f"wrote {options.document}")


if __name__ == "__main__":
    main()
