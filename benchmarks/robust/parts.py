"""The parts of a run, and what each of them reports.

Messages: `launches` (backend, numbers so far), `check` (title, times so far, how many of them wrong),
`wrong` (a text), `unavailable` (what, why), and `alive`. Frameworks are imported inside the parts.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable

from . import sanitizer
from .settings import Settings
from .watch import Part, Report

_LOOK_EVERY = 100
"""Bad calls between two signs of life."""
_MOST_SANITIZER_S = 270.0
_JAX_SHARE = "0.02"
"""Of the device's memory, for the process that runs out of it."""


def parts(settings: Settings) -> list[Part]:
    """All parts, those that take longest first."""
    from .fuzz import shares

    found = [Part(f"fuzz {i + 1}", functools.partial(_fuzz, i)) for i in range(len(shares(settings)))]
    count, few = str(settings.sanitized), str(settings.sanitized // 3)
    for tool, backend, arguments in (
        ("memcheck", "torch-triton", ("--count", count)),
        ("initcheck", "torch-triton", ("--count", few, "--uninitialised")),
        ("memcheck", "jax-mosaic", ("--count", few, "--drawn-only")),
        ("memcheck", "jax-triton", ("--count", few, "--drawn-only")),
    ):
        found.append(Part(f"{tool} {backend}", functools.partial(_sanitize, tool, backend, arguments)))
    return [
        *found,
        Part("graphs", _graphs),
        Part("threads", _threads),
        Part("memory", _memory),
        Part("memory of JAX", _jax_memory),
        Part("bad calls", _bad_calls),
    ]


def _fuzz(share: int, settings: Settings, report: Report) -> None:
    from . import fuzz

    fuzz.run(settings, report, fuzz.shares(settings)[share])


def _layouts() -> list[str]:
    from shared_ref.conformance.fuzz_cases import LAYOUTS

    return [layout.name for layout in LAYOUTS]


def _graphs(settings: Settings, report: Report) -> None:
    from .chunks import chunks
    from .graphs import replay

    title = "replays of a graph, combined and staged in turn, whose inputs were overwritten since the last"
    if settings.device != "cuda":
        title = (
            "launches in the same memory, combined and staged, whose inputs were overwritten since the last"
        )
    replays = wrong = 0
    for chunk in chunks(settings.seed + 1, _layouts(), settings.device, 1):
        made, found = replay(chunk, settings.device)
        replays, wrong = replays + made, wrong + found
        report("check", title, replays, wrong)
        if replays >= settings.replays:
            break


def _threads(settings: Settings, report: Report) -> None:
    from .chunks import chunks
    from .threads import plan_at_once

    launches = wrong = 0
    names = _layouts()
    drawn = chunks(settings.seed + 2, names, settings.device, 1)
    while launches < settings.threaded:
        made, found = plan_at_once([next(drawn) for _ in names], settings.device)
        launches, wrong = launches + made, wrong + found
        report("check", "launches by two threads at once, each on a stream of its own", launches, wrong)


def _memory(settings: Settings, report: Report) -> None:
    from .chunks import chunks
    from .memory import run_out

    chunk = next(chunks(settings.seed, ["window and tokens"], settings.device, 1))
    outcomes = run_out(chunk, settings.device, settings.allocations)
    _count("allocations of torch plans that ran out of memory", outcomes, report)


def _count(title: str, outcomes: Iterable[tuple[str, str]], report: Report) -> None:
    """Report things that were tried, each with what was wrong with it or nothing."""
    wrong = 0
    for tried, (what, complaint) in enumerate(outcomes, 1):
        if complaint:
            wrong += 1
            report("wrong", f"{title}: {what}: {complaint}")
        report("check", title, tried, wrong)


def _jax_memory(settings: Settings, report: Report) -> None:
    os.environ.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)  # its former name, and JAX takes no two
    os.environ["XLA_CLIENT_MEM_FRACTION"] = _JAX_SHARE
    from .backends import jax_subjects
    from .chunks import chunks
    from .memory import run_out_in_jax

    title = "allocations of JAX plans that ran out of memory"
    if settings.device != "cuda":
        report("unavailable", title, "JAX says nothing of its memory on a CPU")
    elif not jax_subjects(settings.device)[0]:
        report("unavailable", title, "JAX sees no GPU")
    else:
        chunk = next(chunks(settings.seed, ["window and tokens"], settings.device, 1))
        _count(title, run_out_in_jax(chunk), report)


def _bad_calls(settings: Settings, report: Report) -> None:
    from shared_ref.backends import backends

    from .calls import refuse

    names = {"numpy": "numpy", "torch": "torch-cpu", "jax": "jax-xla"}
    known = backends()
    reasons = {
        name: known[backend].unavailable() if backend in known else "no package announces it"
        for name, backend in names.items()
    }
    usable = [name for name, reason in reasons.items() if reason is None]
    for name in names:
        title = f"bad calls of {name}, one to four rules broken, arguments in any order"
        if name not in usable:
            report("unavailable", title, reasons[name])
            continue
        made, wrongs = 0, 0
        for made, wrong in refuse(name, settings.device, settings.refusals // len(usable), settings.seed):
            wrongs += bool(wrong)
            for text in wrong:
                report("wrong", text)
            if made % _LOOK_EVERY == 0:
                report("alive")
        report("check", title, made, wrongs)


def _sanitize(
    tool: str, backend: str, arguments: tuple[str, ...], settings: Settings, report: Report
) -> None:
    from shared_ref.backends import backends

    title = f"launches of {backend} under {sanitizer.TOOL} {tool}"
    found = backends().get(backend)
    reason = "no package announces it" if found is None else found.unavailable() or sanitizer.unavailable()
    if settings.device != "cuda":
        reason = "it watches GPUs"
    if reason is not None:
        report("unavailable", title, reason)
        return
    began = time.monotonic()
    arguments = (*arguments, "--seed", str(settings.seed))
    result = sanitizer.sanitize(tool, backend, arguments, lambda: report("alive"), _MOST_SANITIZER_S)
    report("check", title, result.launches, result.errors)
    if result.errors:
        report("wrong", f"{title}, after {time.monotonic() - began:.0f} s:\n{result.output[-4000:]}")
