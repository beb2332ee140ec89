"""Processes that run the parts of a robustness run, and whoever notices that one hangs or breaks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from .settings import Settings

Report = Callable[..., None]
"""Takes the kind of a message and its contents. Each is a sign of life too."""


class Part(NamedTuple):
    """One process's work."""

    name: str
    run: Callable[[Settings, Report], None]
    """Can be pickled; importing its module must not touch the device."""


class _Process:
    def __init__(self, part: Part, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")
        self.part = part
        self.connection, there = context.Pipe(duplex=False)
        self.process = context.Process(target=_serve, args=(there, part, settings), daemon=True)
        self.process.start()
        there.close()
        self.heard = time.monotonic()

    def kill(self) -> None:
        """It and what it has started."""
        try:
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        except ProcessLookupError:
            self.process.kill()  # it has not got so far as to lead a group
        self.process.join()


def run_all(parts: Sequence[Part], settings: Settings, note: Callable[..., None]) -> None:
    """Run the parts at once, each in a process of its own.

    Args:
        note: called with a part's name, and the kind and the contents of each message of its. Kinds of this
            module are `failure` with a text, for a part that raised or whose process ended early, and `hang`.
    """
    running = [_Process(part, settings) for part in parts]
    try:
        while running:
            ready = wait([p.connection for p in running], timeout=1.0)
            for process in list(running):
                if process.connection in ready:
                    if not _hear(process, note):
                        running.remove(process)
                elif time.monotonic() - process.heard > settings.silence_s:
                    note(process.part.name, "hang", f"no word from it for {settings.silence_s:g} s")
                    process.kill()
                    running.remove(process)
    finally:
        for process in running:
            process.kill()


def _hear(process: _Process, note: Callable[..., None]) -> bool:
    """Take a message; whether there may be more."""
    try:
        kind, contents = process.connection.recv()
    except EOFError:
        process.process.join()
        note(process.part.name, "failure", f"its process ended with exit code {process.process.exitcode}")
        return False
    process.heard = time.monotonic()
    if kind == "end":
        process.process.join(10)
        if process.process.is_alive():  # for example in a framework's clean-up
            process.kill()
        return False
    note(process.part.name, kind, *contents)
    return True


def _serve(connection: Connection, part: Part, settings: Settings) -> None:
    os.setsid()

    def report(kind: str, *contents: Any) -> None:
        connection.send((kind, contents))

    try:
        part.run(settings, report)
    except Exception as error:
        report("failure", f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}")
    report("end")
