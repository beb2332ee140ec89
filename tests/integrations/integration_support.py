"""The stand-in for SGLang."""

from __future__ import annotations

from pathlib import Path

STANDIN = Path(__file__).parent / "standin"
"""A folder with a package `sglang` of SGLang's module names."""
