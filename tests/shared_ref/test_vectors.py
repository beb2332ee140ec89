"""The golden vectors: what is in the set, that it is the oracle's, how it is read, and whom it rejects."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_vectors
import numpy as np
import pytest
from validation_table import ENTRIES, EXTRAS, FRONTENDS, OFFSETS

import shared_ref
from shared_ref.backends import backends
from shared_ref.conformance import Vector, check, check_vector, read_vectors, vectors
from shared_ref.conformance.golden import VectorError, shipped_vectors_path
from shared_ref.schema import LAUNCH_ENTRIES, LAUNCH_OFFSETS, LAUNCH_PLAN

SHIPPED = shipped_vectors_path()
MOST_BYTES = 3 * 2**19
MOST_SECONDS = 5.0
BACKENDS = backends()
REFERENCES: dict[str, Callable[..., None]] = {
    LAUNCH_PLAN.name: shared_ref.launch_canary_plan_kernels_reference,
    LAUNCH_OFFSETS.name: shared_ref.launch_plan_offsets_kernel_reference,
    LAUNCH_ENTRIES.name: shared_ref.launch_plan_entries_kernel_reference,
}
NAMED = [
    "prefix-ends-on-a-page-boundary",
    "block-id-past-the-pool",
    "recycled-row-keeps-a-stale-tail",
    "mapping-shorter-than-the-full-pool",
    "full-pool-index-in-a-window-pool",
    "zero-cells-inside-the-prefix",
    "draft-token-of-the-last-position",
    "padding-row-with-garbage-lengths",
    "window-whose-first-predecessor-lies-outside",
    "capacity-met-exactly",
    "capacity-missed-by-one",
    "two-requests-share-a-prefix",
    "all-padding-batch",
    "empty-batch",
    "largest-batch",
    "sentinel-and-dummy-pages",
    "prefix-one-past-the-pages",
]
"""Bugs that servers have had: these stay in the set."""
VERSION_1 = 76
"""Vectors of contract version 1: without pages and optional outputs, the first ones of the set."""


def named(name: str) -> Vector:
    return next(vector for vector in vectors() if vector.name == name)


def of(launcher: str) -> tuple[Vector, ...]:
    return read_vectors().of(launcher)


# The set.


def test_the_shipped_set_is_what_the_oracle_writes(tmp_path: Path) -> None:
    make_vectors.write(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in SHIPPED.iterdir())
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (SHIPPED / path.name).read_bytes(), path.name


def test_the_set_is_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < MOST_BYTES


def test_every_rule_is_covered() -> None:
    found = read_vectors()
    assert set(found.rules) == {rule for vector in found.vectors for rule in vector.rules}
    assert {rule[0] for rule in found.rules} == {"2", "4", "5"}


def test_every_vector_has_a_name_of_its_own_and_a_story_of_one_line() -> None:
    found = vectors()
    assert len({vector.name for vector in found}) == len(found)
    for vector in found:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", vector.name)
        assert vector.story.endswith(".")
        assert "\n" not in vector.story
        assert "://" not in vector.story
        assert vector.rules, vector.name


def test_the_bugs_of_real_servers_are_in_the_set() -> None:
    assert set(NAMED) <= {vector.name for vector in vectors()}


def test_poison_and_expected_bytes_differ_where_something_is_written() -> None:
    """No vector passes an implementation that does nothing, but those where nothing is to be done."""
    idle = [v.name for v in vectors() if not check_vector(lambda **arguments: None, v).differences]
    assert idle == [
        "staged-entries-disabled",
        "staged-entries-that-do-not-fit",
        "staged-faults-disabled",
        "staged-faults-of-entries-that-do-not-fit",
    ]


def test_the_vectors_of_version_1_need_no_page_size_and_no_optional_output() -> None:
    """A port that knows none of these passes all vectors that do not name them."""
    for i, vector in enumerate(vectors()):
        names_them = bool({"page_size", *EXTRAS} & {*vector.arguments, *vector.before})
        assert vector.is_plain == (not names_them) == (i < VERSION_1)


def test_the_bytes_of_version_1_stay_as_they_were() -> None:
    sha = hashlib.sha256()
    for vector in vectors()[:VERSION_1]:
        sha.update((SHIPPED / f"{vector.name}.bin").read_bytes())
    assert sha.hexdigest() == "086a176dcbea8b87b0fb862eff9275f5fbf7d16a9b4f0e2cc8974bbd6af4bbf9"


# The implementations.


@pytest.mark.parametrize("launcher", REFERENCES)
def test_the_reference_ends_in_the_vectors_bytes(launcher: str) -> None:
    began = time.perf_counter()
    for vector in of(launcher):
        result = check_vector(REFERENCES[launcher], vector)
        assert result.passed, vector.name
        assert result.digest == vector.digest
    assert time.perf_counter() - began < MOST_SECONDS


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "numpy"])
def test_every_backend_ends_in_the_vectors_bytes(name: str) -> None:
    if reason := BACKENDS[name].unavailable():
        pytest.skip(reason)
    failed = [v.name for v in of(LAUNCH_PLAN.name) if not check_vector(BACKENDS[name].launch, v).passed]
    assert failed == []


@pytest.mark.parametrize("launcher", [OFFSETS, ENTRIES])
@pytest.mark.parametrize("name", [name for name in FRONTENDS if name != "numpy"])
def test_every_staged_launcher_ends_in_the_vectors_bytes(name: str, launcher: str) -> None:
    frontend = FRONTENDS[name]
    backend = BACKENDS.get(frontend.backend)
    if reason := "no package announces it" if backend is None else backend.unavailable():
        pytest.skip(reason)

    def launch(**call: Any) -> None:
        for argument, array in frontend.launch(launcher, frontend.convert(call)).items():
            call[argument][...] = np.asarray(array)

    results = [check_vector(launch, vector) for vector in of(launcher)]
    assert [(r.vector.name, r.error) for r in results if not r.passed] == []


def test_strict_raises_for_the_fault_of_the_manifest() -> None:
    for vector in of(LAUNCH_PLAN.name):
        case = vector.case()

        def strict(**arguments: Any) -> None:
            shared_ref.launch_canary_plan_kernels_reference(**arguments, strict=True)

        if vector.fault is None:
            assert check(strict, case) is None, vector.name
        else:
            with pytest.raises(ValueError, match=f"^{re.escape('kv-canary: ' + vector.fault)}$"):
                case.run(strict)


# Whom it rejects.


def test_a_difference_is_named_with_its_owner_and_rule() -> None:
    def cut(*, verify_plan_out: Any, write_plan_out: Any, **inputs: Any) -> None:
        plans = {"verify_plan_out": verify_plan_out, "write_plan_out": write_plan_out}
        REFERENCES[LAUNCH_PLAN.name](**plans, **inputs)
        verify_plan_out.verify_prev_slot_indices[0] = -1

    vector = named("window-whose-first-predecessor-lies-outside")
    result = check_vector(cut, vector)
    assert not result.passed
    assert result.digest != vector.digest
    ((difference,),) = [found.first for found in result.differences]
    assert (difference.field, difference.index) == ("verify_prev_slot_indices", 0)
    assert (difference.request, difference.row, difference.position) == (0, 2, 4)
    assert "also at the start of a window" in difference.rule


def test_the_bytes_of_the_file_judge_and_not_the_reference(tmp_path: Path) -> None:
    make_vectors.write(tmp_path)
    vector = read_vectors(tmp_path).vectors[0]
    vector.expected["verify_slot_indices"][0] += 1
    assert not check_vector(REFERENCES[vector.launcher], vector).passed


def staged(launcher: str, spoil: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
    def launch(**call: Any) -> None:
        REFERENCES[launcher](**call)
        spoil(call)

    return launch


def test_a_staged_difference_is_named() -> None:
    def spoil(call: dict[str, Any]) -> None:
        call["out_verify_offsets_scratch"][4096] = 0

    result = check_vector(staged(LAUNCH_OFFSETS.name, spoil), named("staged-offsets"))
    ((difference,),) = [found.first for found in result.differences]
    assert (difference.field, difference.index, difference.actual) == ("out_verify_offsets_scratch", 4096, 0)
    assert not difference.untouched
    assert "launch_plan_offsets_kernel" in difference.rule


def test_a_difference_in_an_optional_output_is_named() -> None:
    def spoil(call: dict[str, Any]) -> None:
        call["faults_out"][3, 1] = 7

    for launcher, name in (
        (LAUNCH_PLAN.name, "faults-of-every-kind"),
        (LAUNCH_OFFSETS.name, "staged-offsets-of-pages"),
    ):
        result = check_vector(staged(launcher, spoil), named(name))
        ((difference,),) = [found.first for found in result.differences]
        assert (difference.field, difference.index, difference.actual) == ("faults_out", 7, 7)


def test_a_staged_launch_that_writes_to_its_inputs_or_raises() -> None:
    def spoil(call: dict[str, Any]) -> None:
        call["prefix_lens"][0] = 0

    vector = named("staged-entries")
    result = check_vector(staged(LAUNCH_ENTRIES.name, spoil), vector)
    assert (result.passed, result.changed_inputs) == (False, ("prefix_lens",))
    assert vector.arguments["prefix_lens"][0] == 9
    result = check_vector(lambda **call: 1 // 0, vector)
    assert (result.passed, result.digest) == (False, None)
    assert result.error == "ZeroDivisionError: integer division or modulo by zero"


def test_a_staged_launch_that_exits_is_told_of() -> None:
    def launch(**arguments: Any) -> None:
        raise SystemExit(0)

    vector = next(v for v in vectors() if v.launcher == LAUNCH_OFFSETS.name)
    result = check_vector(launch, vector)
    assert (result.passed, result.error) == (False, "SystemExit: 0")


def test_a_staged_vector_is_no_case() -> None:
    with pytest.raises(ValueError, match=r"^staged-offsets is a vector of launch_plan_offsets_kernel"):
        named("staged-offsets").case()


# The files.


def read_by_the_page(entry: dict[str, Any], group: str, name: str) -> list[Any] | None:
    """What docs/conformance.md says, without numpy: a list of numbers, or of rows."""
    a = entry[group][name]
    if a is None:
        return None
    stride = a.get("row_stride")
    count = a["shape"][0] if stride is None else a["shape"][0] * stride
    code = {"int32": "i", "int64": "q"}[a["dtype"]]
    data = (SHIPPED / entry["file"]).read_bytes()
    cells = list(struct.unpack_from(f"<{count}{code}", data, a["offset"]))
    if stride is None:
        return cells
    rows, columns = a["shape"]
    return [cells[r * stride : r * stride + columns] for r in range(rows)]


def test_the_files_are_what_the_page_says() -> None:
    manifest = json.loads((SHIPPED / "manifest.json").read_text())
    assert (manifest["format_version"], manifest["contract_version"]) == (1, 2)
    for entry, vector in zip(manifest["vectors"], vectors(), strict=True):
        assert entry["name"] == vector.name
        assert entry["expected_sha256"] == vector.digest
        assert entry["corrupt"] == (vector.fault is not None)
        for group, arrays in (
            ("inputs", vector.arguments),
            ("before", vector.before),
            ("expected", vector.expected),
        ):
            for name in entry[group]:
                got = arrays[name]
                assert read_by_the_page(entry, group, name) == (None if got is None else got.tolist())
                if got is not None:
                    assert entry[group][name]["offset"] % 8 == 0


def test_a_row_strided_table_is_read_as_one() -> None:
    table = named("row-strided-tables").arguments["req_to_token"]
    assert (table.shape, table.strides) == ((4, 16), (84, 4))


def test_a_set_that_is_missing_damaged_or_of_another_format(tmp_path: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(VectorError, match=re.escape(message)):
            read_vectors(tmp_path)

    manifest = tmp_path / "manifest.json"
    refused(f"{manifest}: cannot be read: No such file")
    manifest.write_text("{")
    refused(f"{manifest}: no JSON: ")
    manifest.write_text('{"format_version": 2}')
    refused(f"{manifest}: found format_version 2, expected 1")
    manifest.write_text('{"format_version": 1}')
    refused(f"{manifest}: not a set of vectors: KeyError")
    manifest.write_text("[" * 100_000)
    refused(f"{manifest}: no JSON: ")
    make_vectors.write(tmp_path)
    array_file = tmp_path / "sentinels.bin"
    array_file.write_bytes(b"\0" + array_file.read_bytes()[1:])
    refused(f"{array_file}: its bytes are not those that manifest.json lists")


def _first(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["vectors"][0]


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "inputs are a list": lambda m: _first(m).update(inputs=[]),
    "integers are missing": lambda m: _first(m).update(integers={}),
    "an integer of another launcher": lambda m: _first(m)["integers"].update(write_offsets_len=3),
    "an input is missing": lambda m: _first(m)["inputs"].pop("prefix_lens"),
    "a buffer is missing before": lambda m: _first(m)["before"].pop("enable"),
    "a buffer is missing after": lambda m: _first(m)["expected"].pop("enable"),
    "a null among the buffers": lambda m: _first(m)["expected"].update(enable=None),
    "no shape": lambda m: _first(m)["inputs"]["prefix_lens"].update(shape=[]),
    "a negative shape": lambda m: _first(m)["inputs"]["prefix_lens"].update(shape=[-1]),
    "a shape past the file": lambda m: _first(m)["inputs"]["prefix_lens"].update(shape=[10**6]),
    "an offset past the file": lambda m: _first(m)["inputs"]["prefix_lens"].update(offset=10**6),
    "a dtype of objects": lambda m: _first(m)["inputs"]["prefix_lens"].update(dtype="object"),
    "a dtype that is none": lambda m: _first(m)["inputs"]["prefix_lens"].update(dtype="int7"),
    "another launcher": lambda m: _first(m).update(launcher="launch"),
    "a file that cannot be": lambda m: _first(m).update(file="a\0b"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_is_told_as_such(damage: str, tmp_path: Path) -> None:
    make_vectors.write(tmp_path)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    DAMAGES[damage](manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(VectorError, match=re.escape(f"{path}: not a set of vectors: ")):
        read_vectors(tmp_path)
