"""Request traces: what a server was asked for, one JSON object a line (see the data's README)."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

BLOCK_TOKENS = 512
"""Prompt tokens that one hash id stands for."""

_MAX_INT = 2**63 - 1
_MAX_QUOTE = 60


class TraceError(ValueError):
    """A trace that cannot be played. The text names file, line and field, and what was found and expected."""


class TraceRequest(NamedTuple):
    """One request of a trace."""

    timestamp: int
    """Arrival, in milliseconds since the trace began."""
    input_length: int
    """Prompt tokens."""
    output_length: int
    """Generated tokens."""
    hash_ids: tuple[int, ...]
    """One id per block of 512 prompt tokens, the last possibly partial; a shared leading run of ids is a
    shared prompt prefix."""


def shipped_trace_path() -> Path:
    """The trace that comes with the package: the first 300 requests of Mooncake's conversation trace."""
    data = importlib.resources.files("shared_ref") / "data"
    return Path(str(data / "mooncake_conversation_300.jsonl"))


def read_trace(path: str | Path) -> list[TraceRequest]:
    """The requests of a trace file, in order of arrival. Fields that nobody asked for are ignored.

    Raises:
        TraceError: the file cannot be read, or a line breaks the format.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not lines:
        raise TraceError(f"{path}: found an empty file, expected one JSON object a line")
    requests: list[TraceRequest] = []
    for number, line in enumerate(lines, start=1):
        parser = _LineParser(f"{path}:{number}")
        requests.append(parser.request(line, earliest=requests[-1].timestamp if requests else 0))
    return requests


class _LineParser:
    """One line, with its address at hand for the error."""

    def __init__(self, where: str) -> None:
        self.where = where

    def request(self, line: bytes, *, earliest: int) -> TraceRequest:
        fields = self._fields(line)
        timestamp = self._integer("timestamp", fields["timestamp"], at_least=0)
        if timestamp < earliest:
            self._fail("timestamp", timestamp, f"at least {earliest}, as on the line before")
        input_length = self._integer("input_length", fields["input_length"], at_least=1)
        output_length = self._integer("output_length", fields["output_length"], at_least=1)
        hash_ids = fields["hash_ids"]
        if not isinstance(hash_ids, list):
            self._fail("hash_ids", hash_ids, "a list of integers")
        for i, hash_id in enumerate(hash_ids):
            self._integer(f"hash_ids[{i}]", hash_id, at_least=0)
        blocks = -(-input_length // BLOCK_TOKENS)
        if len(hash_ids) != blocks:
            raise TraceError(
                f"{self.where}: hash_ids: found {len(hash_ids)} ids, expected {blocks}: "
                f"one per {BLOCK_TOKENS} tokens of input_length {input_length}"
            )
        return TraceRequest(timestamp, input_length, output_length, tuple(hash_ids))

    def _fields(self, line: bytes) -> dict[str, Any]:
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            found = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
            raise TraceError(f"{self.where}: found {found}, expected UTF-8") from error
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{self.where}: found {_quote(text)}, expected a JSON object") from error
        if not isinstance(fields, dict):
            raise TraceError(f"{self.where}: found {_quote(fields)}, expected a JSON object")
        for name in TraceRequest._fields:
            if name not in fields:
                there = ", ".join(map(str, fields)) or "no field"
                raise TraceError(f"{self.where}: {name}: missing, found {there}")
        return fields

    def _integer(self, field: str, value: Any, *, at_least: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            self._fail(field, value, "an integer")
        if not at_least <= value <= _MAX_INT:
            self._fail(field, value, f"an integer of at least {at_least}, below 2**63")
        return value

    def _fail(self, field: str, value: Any, expected: str) -> NoReturn:
        raise TraceError(f"{self.where}: {field}: found {_quote(value)}, expected {expected}")


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_QUOTE else f"{text[:_MAX_QUOTE]}..."
