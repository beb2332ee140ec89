"""Reading traces: the shipped one, and every way in which a line can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared_ref.conformance.trace import TraceError, TraceRequest, read_trace, shipped_trace_path

GOOD: dict[str, Any] = {"timestamp": 7, "input_length": 513, "output_length": 2, "hash_ids": [4, 9]}


def line(**changes: Any) -> str:
    return json.dumps(GOOD | changes)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(*lines: str | bytes) -> Path:
        path = tmp_path / "trace.jsonl"
        path.write_bytes(b"\n".join(x.encode() if isinstance(x, str) else x for x in lines))
        return path

    return write


def message(path: Path) -> str:
    """What reading raises, without the directory."""
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    return str(raised.value).replace(f"{path.parent}/", "")


def test_a_line_becomes_a_request(write):
    assert read_trace(write(line(), "")) == [TraceRequest(7, 513, 2, (4, 9))]


def test_carriage_returns_other_fields_and_equal_timestamps_are_fine(write):
    assert len(read_trace(write(line() + "\r", line(tenant="x") + "\r", ""))) == 2


def test_a_path_may_be_a_string(write):
    assert len(read_trace(str(write(line())))) == 1


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("", "found '', expected a JSON object"),
        ('{"timestamp": 7,', "found '{\"timestamp\": 7,', expected a JSON object"),
        ("[" * 100_000, "found '" + "[" * 59 + "..., expected a JSON object"),
        ("[7, 513, 2]", "found [7, 513, 2], expected a JSON object"),
        ("null", "found None, expected a JSON object"),
        (b'{"timestamp": "\xff"}', "found byte 0xff at column 16, expected UTF-8"),
        ("{}", "timestamp: missing, found no field"),
        (
            '{"timestamp": 7, "input_length": 513, "hash_ids": [4, 9]}',
            "output_length: missing, found timestamp, input_length, hash_ids",
        ),
        (line(timestamp=7.0), "timestamp: found 7.0, expected an integer"),
        (line(timestamp=None), "timestamp: found None, expected an integer"),
        (line(timestamp=-1), "timestamp: found -1, expected an integer of at least 0, below 2**63"),
        (line(timestamp=6), "timestamp: found 6, expected at least 7, as on the line before"),
        (line(input_length="513"), "input_length: found '513', expected an integer"),
        (line(input_length=True), "input_length: found True, expected an integer"),
        (line(input_length=0), "input_length: found 0, expected an integer of at least 1, below 2**63"),
        (line(output_length=0), "output_length: found 0, expected an integer of at least 1, below 2**63"),
        (line(output_length=-3), "output_length: found -3, expected an integer of at least 1, below 2**63"),
        (line(hash_ids={"4": 9}), "hash_ids: found {'4': 9}, expected a list of integers"),
        (line(hash_ids=[4, "9"]), "hash_ids[1]: found '9', expected an integer"),
        (line(hash_ids=[False, 9]), "hash_ids[0]: found False, expected an integer"),
        (line(hash_ids=[4, -9]), "hash_ids[1]: found -9, expected an integer of at least 0, below 2**63"),
        (
            line(hash_ids=[2**63, 9]),
            "hash_ids[0]: found 9223372036854775808, expected an integer of at least 0, below 2**63",
        ),
        (
            line(hash_ids=[4]),
            "hash_ids: found 1 ids, expected 2: one per 512 tokens of input_length 513",
        ),
        (
            line(input_length=512),
            "hash_ids: found 2 ids, expected 1: one per 512 tokens of input_length 512",
        ),
    ],
)
def test_a_malformed_line_is_named_with_what_is_wrong(write, broken, said):
    assert message(write(line(), line(), broken, line())) == f"trace.jsonl:3: {said}"


def test_the_first_line_has_no_earliest_timestamp_but_zero(write):
    assert read_trace(write(line(timestamp=0)))[0].timestamp == 0


def test_an_empty_trace_is_refused(write):
    assert message(write()) == "trace.jsonl: found an empty file, expected one JSON object a line"


def test_an_unreadable_file_is_refused(tmp_path):
    assert message(tmp_path / "none.jsonl") == "none.jsonl: cannot be read: No such file or directory"
    (tmp_path / "folder").mkdir()
    assert message(tmp_path / "folder") == "folder: cannot be read: Is a directory"


def test_a_trace_error_is_a_value_error():
    assert issubclass(TraceError, ValueError)


def test_the_shipped_trace_has_the_facts_of_its_readme():
    requests = read_trace(shipped_trace_path())
    assert len(requests) == 300
    assert max(r.input_length for r in requests) == 120_633
    assert requests[0] == TraceRequest(0, 6758, 500, tuple(range(14)))
