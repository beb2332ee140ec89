"""Drawn launches under NVIDIA's compute-sanitizer, by tests/gpu/sanitize.py."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

SCRIPT = Path(__file__).parents[2] / "tests" / "gpu" / "sanitize.py"
TOOL = "compute-sanitizer"
_FAILED = 99
"""The tool's exit code for errors that it has found."""
_LOOK_EVERY_S = 2.0


class Sanitized(NamedTuple):
    """What a run under the tool came to."""

    launches: int
    errors: int
    """That the tool has found, and launches that differ from the reference."""
    output: str


def unavailable() -> str | None:
    return None if _tool() else f"there is no {TOOL}, which comes with the CUDA toolkit"


def _tool() -> str | None:
    return shutil.which(TOOL) or shutil.which(TOOL, path="/usr/local/cuda/bin")


def sanitize(
    tool: str, backend: str, arguments: Sequence[str], alive: Callable[[], None], most_seconds: float
) -> Sanitized:
    """Run the script under one of the sanitizer's tools.

    Args:
        tool: `memcheck` or `initcheck`; "none" runs the script by itself.
        alive: called every few seconds while it runs.

    Raises:
        TimeoutError: it took longer than `most_seconds`.
        RuntimeError: it broke off before it came to its last line.
    """
    command = [sys.executable, str(SCRIPT), "--backend", backend, *arguments]
    if tool != "none":
        command = [_tool() or TOOL, "--tool", tool, "--error-exitcode", str(_FAILED), *command]
    with tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + most_seconds
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
                raise TimeoutError(f"{' '.join(command)} took longer than {most_seconds:g} s")
            alive()
            time.sleep(_LOOK_EVERY_S if tool != "none" else 0.1)
        file.seek(0)
        output = file.read()
    return read(output, process.returncode)


def read(output: str, exit_code: int) -> Sanitized:
    """The numbers in what script and tool have printed."""
    counted = re.search(r"^\S+: (\d+) launches, (\d+) differ from the reference$", output, re.MULTILINE)
    if counted is None:
        last = "\n".join(output.splitlines()[-25:])
        raise RuntimeError(f"the script ended early with exit code {exit_code}:\n{last}")
    summary = re.search(r"ERROR SUMMARY: (\d+) error", output)
    errors = int(counted[2]) + (int(summary[1]) if summary else 0)
    if exit_code != 0 and errors == 0:
        errors = 1
    return Sanitized(int(counted[1]), errors, output)
