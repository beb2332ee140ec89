"""Golden vectors: launches with the bytes they must end in, in files that any language reads.

A set is a directory: `manifest.json`, and one file of raw little-endian arrays for each vector. The page
docs/conformance.md has the format; `write_vectors` and `read_vectors` are that page as code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.resources
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..backends import Backend
from ..plan import VerifyPlan, WritePlan
from ..schema import LAUNCH_ENTRIES, LAUNCH_OFFSETS, LAUNCH_PLAN, OPTIONAL_OUTPUTS, Launcher
from .case import Case, Launch, PlanInputs, Plans
from .compare import FIRST_DIFFERENCES, Difference, FieldDifferences
from .runner import run, told
from .values import BETWEEN_ROWS

FORMAT_VERSION = 1
"""Of the files' layout. A reader refuses any other."""
CONTRACT_VERSION = 2
"""Of what sections 2 to 5 of the contract ask for. Version 1 had no pages and no optional outputs."""

MANIFEST = "manifest.json"
ALIGNMENT = 8
"""Every array begins at a multiple of this, so that a port may map the file and point into it."""

LAUNCHERS: dict[str, Launcher] = {
    launcher.name: launcher for launcher in (LAUNCH_PLAN, LAUNCH_OFFSETS, LAUNCH_ENTRIES)
}
_LINE = 110

Arrays = dict[str, np.ndarray]


class VectorError(ValueError):
    """A set that cannot be read. The text names the file, and what was found."""


class GoldenCase(Case):
    """A case whose plans after the launch are known, and do not come from the reference."""

    after: Plans | None = None

    def expected(self) -> Plans:
        """The plans after the launch; without any at hand, those of the reference."""
        return super().expected() if self.after is None else self.after.copy()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Vector:
    """One launch of one launcher, and its buffers before and after."""

    name: str
    story: str
    """One line: what a server did to come here, or what an implementation gets wrong here."""
    launcher: str
    """One of `LAUNCHERS`."""
    rules: tuple[str, ...]
    """Ids of the contract's rules that this launch exercises."""
    fault: str | None
    """Text of the first fault among the values (contract, section 5), or None."""
    arguments: dict[str, Any]
    """The launcher's arguments that it only reads, by name; None for an optional one that is absent.

    `page_size` is among them only where it is not 1.
    """
    before: Arrays
    """The buffers that it writes: a plan's by field name, a staged launcher's by argument name.

    An optional output is among them, by argument name, if the launch gets it.
    """
    expected: Arrays
    """The same buffers after the launch."""

    @property
    def digest(self) -> str:
        """SHA-256 over the expected buffers' bytes, little-endian, in order."""
        return _digest(self.expected)

    @property
    def is_plain(self) -> bool:
        """Whether the launch has neither pages nor optional outputs, as all had in contract version 1."""
        return "page_size" not in self.arguments and not any(name in self.before for name in OPTIONAL_OUTPUTS)

    def case(self) -> Case:
        """The launch as a case. ValueError for a staged launcher's."""
        if self.launcher != LAUNCH_PLAN.name:
            raise ValueError(f"{self.name} is a vector of {self.launcher}: cases are of {LAUNCH_PLAN.name}")
        case = GoldenCase(self.name, PlanInputs(**self.arguments), _plans(self.before))
        case.after = _plans(self.expected)
        return case


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class VectorSet:
    """A set as its files say it."""

    contract_version: int
    rules: dict[str, str]
    """What each rule says, by id."""
    vectors: tuple[Vector, ...]

    def of(self, launcher: str) -> tuple[Vector, ...]:
        return tuple(vector for vector in self.vectors if vector.launcher == launcher)


def _plans(buffers: Arrays) -> Plans:
    return Plans(
        VerifyPlan(**{f.name: buffers[f.name] for f in VerifyPlan.fields()}),
        WritePlan(**{f.name: buffers[f.name] for f in WritePlan.fields()}),
        {name: buffers[name] for name in OPTIONAL_OUTPUTS if name in buffers},
    )


def _digest(buffers: Mapping[str, np.ndarray]) -> str:
    sha = hashlib.sha256()
    for buffer in buffers.values():
        sha.update(_little_endian(buffer).tobytes())
    return sha.hexdigest()


def _little_endian(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


# Judging.


@dataclasses.dataclass(frozen=True, eq=False)
class VectorResult:
    """What an implementation made of one vector."""

    vector: Vector
    seconds: float
    digest: str | None
    """As `Vector.digest`, of the buffers it left; None where it raised."""
    error: str | None = None
    """Type and text of the exception that it raised."""
    changed_inputs: tuple[str, ...] = ()
    """Arguments that it wrote to."""
    differences: tuple[FieldDifferences, ...] = ()

    @property
    def passed(self) -> bool:
        return self.error is None and not self.changed_inputs and not self.differences


def check_vector(launch: Launch, vector: Vector) -> VectorResult:
    """Hold one implementation of `vector.launcher` against the vector's bytes.

    Args:
        launch: takes the launcher's keywords with numpy arrays. One of `launch_canary_plan_kernels` fills
            the plans in place or returns the new pair; a staged one fills its `out_…` arrays in place.
        vector: what to launch, and what to expect.
    """
    if vector.launcher != LAUNCH_PLAN.name:
        return _check_staged(launch, vector)
    (outcome,) = run([Backend(name=vector.name, launch=launch, version=str)], [vector.case()])
    (seconds,) = outcome.seconds
    if outcome.failure is None:
        return VectorResult(vector, seconds, outcome.digest)
    failure = outcome.failure
    return VectorResult(
        vector, seconds, outcome.digest, failure.error, failure.changed_inputs, failure.differences
    )


def _check_staged(launch: Launch, vector: Vector) -> VectorResult:
    given = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in vector.arguments.items()}
    buffers = {name: buffer.copy() for name, buffer in vector.before.items()}
    error, began = None, time.perf_counter()
    try:
        launch(**given, **buffers)
    except (Exception, SystemExit) as raised:  # whatever an implementation raises is its own failure
        error = told(raised)
    seconds = time.perf_counter() - began
    return VectorResult(
        vector,
        seconds,
        digest=None if error else _digest(buffers),
        error=error,
        changed_inputs=tuple(k for k, v in given.items() if not np.array_equal(v, vector.arguments[k])),
        differences=() if error else tuple(_staged_differences(vector, buffers)),
    )


def _staged_differences(vector: Vector, buffers: Arrays) -> Iterable[FieldDifferences]:
    rule = f"section 4, staged: what {vector.launcher} writes, and leaves as it was"
    for name, want in vector.expected.items():
        have, before = buffers[name], vector.before[name]
        indices = np.flatnonzero(want != have)
        first = tuple(
            Difference(
                field=name,
                index=int(i),
                request=None,
                row=None,
                position=None,
                expected=int(want.flat[i]),
                actual=int(have.flat[i]),
                untouched=bool(have.flat[i] == before.flat[i]),
                rule=rule,
            )
            for i in indices[:FIRST_DIFFERENCES]
        )
        if first:
            yield FieldDifferences(name, want.size, len(indices), first)


# Files.


def shipped_vectors_path() -> Path:
    """The directory of the set that comes with the package."""
    return Path(str(importlib.resources.files("shared_ref") / "data" / "vectors"))


def vectors() -> tuple[Vector, ...]:
    """The golden vectors that come with the package, those of the staged launchers among them."""
    return read_vectors().vectors


def read_vectors(directory: str | Path | None = None) -> VectorSet:
    """A set by its directory; default: the one that comes with the package.

    Raises:
        VectorError: there is no set, or it is damaged or of another format.
    """
    root = shipped_vectors_path() if directory is None else Path(directory)
    text = _bytes(root / MANIFEST)
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VectorError(f"{root / MANIFEST}: no JSON: {error}") from error
    found = manifest.get("format_version") if isinstance(manifest, dict) else None
    if found != FORMAT_VERSION:
        raise VectorError(f"{root / MANIFEST}: found format_version {found}, expected {FORMAT_VERSION}")
    try:
        return VectorSet(
            contract_version=manifest["contract_version"],
            rules=manifest["rules"],
            vectors=tuple(_vector(root, entry) for entry in manifest["vectors"]),
        )
    except VectorError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise VectorError(f"{root / MANIFEST}: not a set of vectors: {error!r}") from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise VectorError(f"{path}: cannot be read: {error.strerror or error}") from error


def _vector(root: Path, entry: dict[str, Any]) -> Vector:
    path = root / entry["file"]
    data = _bytes(path)
    if hashlib.sha256(data).hexdigest() != entry["file_sha256"]:
        raise VectorError(f"{path}: its bytes are not those that {MANIFEST} lists")

    def arrays(group: str) -> dict[str, Any]:
        return {name: _array(data, place) for name, place in entry[group].items()}

    vector = Vector(
        name=entry["name"],
        story=entry["story"],
        launcher=entry["launcher"],
        rules=tuple(entry["rules"]),
        fault=entry["fault"],
        arguments=entry["integers"] | arrays("inputs"),
        before=arrays("before"),
        expected=arrays("expected"),
    )
    _check_names(vector)
    return vector


def _check_names(vector: Vector) -> None:
    """LookupError for what the launcher does not take, or needs and does not get."""
    launcher = LAUNCHERS[vector.launcher]
    fields = {f.argument: f.name for plan in (VerifyPlan, WritePlan) for f in plan.fields()}
    if vector.launcher != LAUNCH_PLAN.name:
        fields = {}
    inputs = {*launcher.integer_names, *(t.name for t in launcher.tensors if not t.output)}
    outputs = {fields.get(t.name, t.name) for t in launcher.tensors if t.output}
    optional = {"page_size", *OPTIONAL_OUTPUTS, *(i.name for i in launcher.integers if i.optional)}
    for given, known in (
        (vector.arguments.keys(), inputs),
        (vector.before.keys(), outputs),
        (vector.expected.keys(), {*vector.before}),
    ):
        for what, names in (("unknown", given - known), ("missing", known - given - optional)):
            if names:
                raise LookupError(f"{vector.name}: {what}: {', '.join(sorted(names))}")
    if nulls := [name for name, buffer in (vector.before | vector.expected).items() if buffer is None]:
        raise LookupError(f"{vector.name}: null: {', '.join(nulls)}")


def _array(data: bytes, place: dict[str, Any] | None) -> np.ndarray | None:
    """An array of its own, in the machine's byte order; a row-strided table stays one."""
    if place is None:
        return None
    dtype = np.dtype(place["dtype"])
    *rows, width = place["shape"]
    stride = place.get("row_stride", width)
    count = stride * (rows[0] if rows else 1)
    cells = data[place["offset"] :][: count * dtype.itemsize]
    flat = np.frombuffer(cells, dtype.newbyteorder("<")).astype(dtype) if count else np.empty(0, dtype)
    return flat.reshape(*rows, stride)[..., :width]


def write_vectors(directory: Path, rules: Mapping[str, str], vectors: Iterable[Vector]) -> None:
    """Write a set into an existing directory: the same vectors give the same bytes."""
    entries = []
    for vector in vectors:
        groups, data = _pack(vector)
        file = f"{vector.name}.bin"
        (directory / file).write_bytes(data)
        entries.append(
            {
                "name": vector.name,
                "story": vector.story,
                "launcher": vector.launcher,
                "rules": list(vector.rules),
                "corrupt": vector.fault is not None,
                "fault": vector.fault,
                "file": file,
                "file_sha256": hashlib.sha256(data).hexdigest(),
                "integers": {k: v for k, v in vector.arguments.items() if isinstance(v, int)},
                **groups,
                "expected_sha256": vector.digest,
            }
        )
    manifest = {
        "format_version": FORMAT_VERSION,
        "contract_version": CONTRACT_VERSION,
        "rules": dict(rules),
        "vectors": entries,
    }
    (directory / MANIFEST).write_text(_pretty(manifest) + "\n", encoding="utf-8")


def _pack(vector: Vector) -> tuple[dict[str, dict[str, Any]], bytes]:
    """Where each array lies, by group, and the file. Equal arrays lie there once."""
    data = bytearray()
    offsets: dict[bytes, int] = {}
    inputs = {k: v for k, v in vector.arguments.items() if not isinstance(v, int)}
    groups: dict[str, dict[str, Any]] = {}
    for group, arrays in (("inputs", inputs), ("before", vector.before), ("expected", vector.expected)):
        groups[group] = {}
        for name, array in arrays.items():
            if array is None:
                groups[group][name] = None
                continue
            cells = _little_endian(_with_gaps(array)).tobytes()
            if cells not in offsets:
                data += bytes(-len(data) % ALIGNMENT)
                offsets[cells] = len(data)
                data += cells
            place: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(array.shape)}
            if array.ndim == 2:
                place["row_stride"] = _row_stride(array)
            groups[group][name] = place | {"offset": offsets[cells]}
    return groups, bytes(data)


def _row_stride(table: np.ndarray) -> int:
    return table.shape[1] if table.flags.c_contiguous else table.strides[0] // table.itemsize


def _with_gaps(array: np.ndarray) -> np.ndarray:
    if array.ndim == 1 or array.flags.c_contiguous:
        return array
    wide = np.full((len(array), _row_stride(array)), BETWEEN_ROWS, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide


def _pretty(value: Any, indent: str = "") -> str:
    """JSON with everything on one line that fits there."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(flat) <= _LINE or not isinstance(value, dict | list):
        return flat
    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{json.dumps(k)}: {_pretty(v, inner)}" for k, v in value.items()]
    else:
        items = [_pretty(v, inner) for v in value]
    body = ",\n".join(inner + item for item in items)
    return f"{flat[0]}\n{body}\n{indent}{flat[-1]}"
