"""Try everything that must not break a plan, on a CUDA machine, and say how often: a few minutes.

    python -m benchmarks.robustness [--seed K] [--quick] [--device cpu] [--json FILE] [--write]
    python -m benchmarks.robustness --results FILE --write

docs/robustness.md says what is tried and how; `--write` puts the figures into it, between its two markers.
`--results` makes no run: its figures are those that `--json` has written. Exit status: 0, 1 if anything was
wrong or hung, 2 if nothing could be run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .environment import gpu_and_driver, host, versions
from .results import machine
from .robust.settings import QUICK, Settings
from .tables import Table, between_markers, markdown
from .tables import show as show_table

DOCUMENT = Path(__file__).parents[1] / "docs" / "robustness.md"
MOST_WORKERS = 10

Results = dict[str, Any]


class Run:
    """What is known so far, as the data that `--json` writes.

    date, gpu, driver, host, versions, settings, processes, seconds
    launches      {backend: {launches, corrupt, cases, sampled, differences}}
    checks        {title: {times, wrong}}
    wrong         [text], of each thing that was wrong
    unavailable   {what: reason}
    failures      {part: text}, of parts that broke off
    hangs         {part: text}
    """

    def __init__(self, settings: Settings, processes: int, file: Path | None = None) -> None:
        self.file = file
        self.began = time.monotonic()
        found = gpu_and_driver() if settings.device == "cuda" else None
        self.results: Results = {
            "date": datetime.date.today().isoformat(),
            **(dict(zip(("gpu", "driver"), found, strict=True)) if found else {}),
            "host": host(),
            "versions": versions(),
            "settings": {k: v for k, v in settings._asdict().items() if k != "saved"},
            "processes": processes,
            "seconds": 0.0,
            "launches": {},
            "checks": {},
            "wrong": [],
            "unavailable": {},
            "failures": {},
            "hangs": {},
        }
        self.of_parts: dict[str, dict[str, dict[str, int]]] = {}
        """Numbers of each backend, by the part that they come from."""

    def note(self, part: str, kind: str, *contents: Any) -> None:
        """Take a part's message into account."""
        results = self.results
        if kind == "launches":
            backend, numbers = contents
            self.of_parts.setdefault(backend, {})[part] = numbers
            results["launches"][backend] = _sum(self.of_parts[backend].values())
        elif kind == "check":
            title, times, wrong = contents
            results["checks"][title] = {"times": times, "wrong": wrong}
        elif kind == "unavailable":
            what, reason = contents
            results["unavailable"][what] = reason
        elif kind == "wrong":
            results["wrong"].append(contents[0])
            self._say(f"WRONG: {contents[0]}")
        elif kind in ("failure", "hang"):
            results[f"{kind}s"][part] = contents[0]
            self._say(f"{part}: {kind.upper()}: {contents[0]}")
        results["seconds"] = time.monotonic() - self.began
        self._say_sometimes()

    said = 0.0

    def _say_sometimes(self) -> None:
        if time.monotonic() - self.said > 10:
            self.said = time.monotonic()
            launches = _sum(self.results["launches"].values())
            self._say(f"{launches.get('launches', 0):,} launches, {len(self.results['checks'])} other checks")
            self.save()

    def save(self) -> None:
        """Write what is known to the file, also while it runs: a run that is killed leaves its figures."""
        if self.file is not None:
            self.file.write_text(json.dumps(self.results, indent=1) + "\n")

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:5.1f} s] {text}", file=sys.stderr, flush=True)


def _sum(parts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, n in part.items():
            total[name] = total.get(name, 0) + n
    return total


def is_sound(results: Results) -> bool:
    """Whether nothing was wrong, broke off or hung."""
    wrong = [fields["differences"] for fields in results["launches"].values()]
    wrong += [fields["wrong"] for fields in results["checks"].values()]
    return not (any(wrong) or results["wrong"] or results["failures"] or results["hangs"])


def tables(results: Results) -> list[Table]:
    launches = results["launches"]
    rows = {**launches, "all": _sum(launches.values())} if launches else {}
    columns = ("launches", "corrupt", "cases", "sampled", "differences")
    titles = (
        *("backend", "launches", "of a corrupt request", "cases compared"),
        *("with the reference too", "differences"),
    )
    drawn = [
        (name, *(f"{fields[column]:,}" if name != "all" or column != "cases" else "" for column in columns))
        for name, fields in rows.items()
    ]
    others = [
        (title, f"{fields['times']:,}", f"{fields['wrong']:,}")
        for title, fields in sorted(results["checks"].items())
    ]
    return [
        Table("Launches with drawn values", titles, drawn),
        Table("Everything else", ("what", "times", "wrong"), others),
    ]


def text(results: Results) -> str:
    """What stands between the markers."""
    settings = results["settings"]
    parts = [
        f"Run on {machine(results)}; host: {results['host']}; seed {settings['seed']}. {_processes(results)}"
    ]
    parts += [markdown(table) for table in tables(results)]
    for title, lines in (
        ("Not tried", [f"{what}: {reason}" for what, reason in results["unavailable"].items()]),
        ("Wrong", results["wrong"]),
        ("Broken off", [f"{part}: {what}" for part, what in results["failures"].items()]),
        ("Hung", [f"{part}: {what}" for part, what in results["hangs"].items()]),
    ):
        if lines:
            parts.append("\n".join([f"**{title}**", "", *(f"- {line.splitlines()[0]}" for line in lines)]))
    return "\n\n".join(parts)


def _processes(results: Results) -> str:
    hung, broken = len(results["hangs"]), len(results["failures"])
    return (
        f"{results['processes']} processes, {results['seconds']:.0f} seconds; {hung or 'none'} hung, "
        f"{broken or 'none'} broke off."
    )


def fill(document: str, results: Results) -> str:
    """The document with the run between its markers. ValueError: it has not one pair of markers."""
    return between_markers(document, text(results))


def run(settings: Settings, file: Path | None = None) -> Results:
    """All parts at once, each in a process of its own."""
    # Torch and JAX share the device, in several processes.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if settings.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"  # bad calls need another one
    from .robust.parts import parts
    from .robust.watch import run_all

    chosen = parts(settings)
    current = Run(settings, len(chosen), file)
    run_all(chosen, settings, current.note)
    current.save()
    return current.results


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = _parser().parse_args(arguments)
    if options.results is not None:
        results = json.loads(options.results.read_text())
    else:
        results = run(_settings(options), options.json)
    show(results)
    if options.write:
        options.document.write_text(fill(options.document.read_text(), results))
        print(f"wrote {options.document}")
    if not results["launches"] and not results["checks"]:
        return 2
    return 0 if is_sound(results) else 1


def _settings(options: argparse.Namespace) -> Settings:
    settings = QUICK if options.quick else Settings()
    given = {name: getattr(options, name) for name in ("device", "seed", "launches", "workers", "saved")}
    return settings._replace(**{name: value for name, value in given.items() if value is not None})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.robustness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], help="cpu: for a look at the program itself")
    parser.add_argument("--seed", type=int, help="of all that is drawn")
    parser.add_argument("--launches", type=int, metavar="N", help="least launches of corrupt requests")
    parser.add_argument("--workers", type=int, choices=range(1, MOST_WORKERS + 1), metavar="N")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--saved", type=Path, metavar="DIR", help="where cases that differ are saved")
    parser.add_argument("--results", type=Path, metavar="FILE", help="figures of an earlier run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--write", action="store_true", help="put the figures into the document")
    parser.add_argument("--document", type=Path, default=DOCUMENT, metavar="FILE.md")
    return parser


def show(results: Results) -> None:
    """Print the tables, then what is missing and what went wrong."""
    print(f"{machine(results)}; seed {results['settings']['seed']}. {_processes(results)}")
    for table in tables(results):
        print()
        show_table(table)
    for title in ("unavailable", "failures", "hangs"):
        for what, reason in results[title].items():
            print(f"\n{title}: {what}: {reason}")
    for what in results["wrong"]:
        print(f"\nWRONG: {what}")


if __name__ == "__main__":
    raise SystemExit(main())
