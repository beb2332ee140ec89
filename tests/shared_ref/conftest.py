"""The command line, called in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_support import TWIN

from shared_ref.backends import NUMPY, Backend


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, where cases are saved."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Call `kvcanary` with a registry of the reference and these backends."""
    from click.testing import CliRunner, Result

    from shared_ref import cli
    from shared_ref.commands import common

    def call(*arguments: str, others: tuple[Backend, ...] = (TWIN,), width: int = 100) -> Result:
        monkeypatch.setattr(common, "backends", lambda: {b.name: b for b in (NUMPY, *others)})
        monkeypatch.setenv("COLUMNS", str(width))
        return CliRunner().invoke(cli.main, arguments)

    return call
