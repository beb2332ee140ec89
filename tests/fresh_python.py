"""Code in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(*arguments: str, path: Path | None = None, **environment: str) -> str:
    """What Python prints, with the checkout's packages and those of `path`."""
    folders = [str(folder) for folder in (path, ROOT) if folder is not None]
    environment["PYTHONPATH"] = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
