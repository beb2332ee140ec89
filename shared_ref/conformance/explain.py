"""A batch as a person reads it: what each request verifies and writes, its faults, and where plans differ.

Plain text. Whole requests and long runs of entries are left out where there are many, and counted.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..batch import Request, cells, requests
from ..constants import FAULT_KINDS, NO_SLOT, NO_TOKEN, PADDING_ROW
from ..faults import decode_faults, request_faults
from ..plan import Faults, VerifyPlan, WritePlan
from ..reference import launch_canary_plan_kernels_reference
from ..schema import COLUMNS, OPTIONAL_OUTPUTS
from .case import Case, Plans
from .compare import FIRST_DIFFERENCES, Difference, FieldDifferences, compare

MOST_REQUESTS = 64
"""Requests that are described where none is asked for."""
_FIRST, _LAST = 4, 2
"""Entries of a long run that are shown."""
_MOST_FAULTS = 6
"""Faults of a request that are shown."""
_FIRST_CELLS = 3
"""Differences of an input that are shown."""
_COUNTED_ONLY = FAULT_KINDS.index("slot_negative")
"""From this kind on, nothing is wrong."""


def explain(
    case: Case,
    request: int | None = None,
    plans: Plans | None = None,
    other: Plans | Case | None = None,
) -> str:
    """The case in words: sizes, each request's cells, entries and write row, its faults, and differences.

    Args:
        case: a launch that breaks no rule of section 6.
        request: index in the batch of the only request to describe; None for all.
        plans: what the case is taken to give; None for what the reference gives.
        other: plans to compare with `plans`, each difference with the rule that it breaks; or another
            case, whose inputs and plans before the launch are compared.

    Raises:
        ValueError: the batch has no such request, or the reference refuses the case.
    """
    expected = case.expected() if plans is None else plans
    return "\n".join(_Explained(case, expected).lines(request, other)) + "\n"


def save_plans(plans: Plans, path: str | Path) -> None:
    """Write plans as one `.npz`, each buffer as `after.<field>`: what `kvcanary explain --other` reads."""
    arrays: dict[str, Any] = {f"after.{name}": buffer for name, buffer in plans.buffers().items()}
    np.savez_compressed(path, **arrays)


def load_plans(path: str | Path) -> Plans:
    """Read what `save_plans` wrote, with any optional outputs. ValueError says what a file lacks."""
    names = [[field.name for field in plan.fields()] for plan in (VerifyPlan, WritePlan)]
    with np.load(path, allow_pickle=False) as arrays:
        missing = [f"after.{n}" for n in itertools.chain(*names) if f"after.{n}" not in arrays]
        if missing:
            raise ValueError(f"{path} holds no plans: it lacks {', '.join(missing)}")
        verify, write = ({name: arrays[f"after.{name}"] for name in group} for group in names)
        extras = {name: arrays[f"after.{name}"] for name in OPTIONAL_OUTPUTS if f"after.{name}" in arrays}
    return Plans(VerifyPlan(**verify), WritePlan(**write), extras)


def difference_text(difference: Difference) -> str:
    """Where, and what instead of what: `[12] request 3, row 7, position 40: expected 812, got 0`."""
    index = "" if difference.index is None else f"[{difference.index}]"
    owner = [(name, getattr(difference, name)) for name in ("request", "row", "position")]
    whose = ", ".join(f"{name} {value}" for name, value in owner if value is not None)
    where = " ".join(filter(None, (index, whose))) or "the buffer"
    untouched = ", as it was before the launch" if difference.untouched else ""
    return f"{where}: expected {difference.expected}, got {difference.actual}{untouched}"


def differences_text(buffers: Iterable[FieldDifferences]) -> Iterator[str]:
    """Lines on buffers that differ: the described differences of each, with the rule that they break."""
    for buffer in buffers:
        yield f"{buffer.field}: {buffer.count:,} of {buffer.size:,} elements differ"
        for rule, group in itertools.groupby(buffer.first, key=lambda difference: difference.rule):
            yield from (f"  {difference_text(difference)}" for difference in group)
            yield f"    {rule}"


def request_at(case: Case, request: int) -> Request:
    """A request by its index. ValueError: the batch has no such request."""
    batch = requests(case.inputs.keywords())
    if not 0 <= request < len(batch):
        has = f"requests 0 to {len(batch) - 1}" if batch else "no requests"
        raise ValueError(f"there is no request {request}: the batch has {has}")
    return batch[request]


class _Explained:
    def __init__(self, case: Case, plans: Plans) -> None:
        self.case = case
        self.arguments: dict[str, Any] = case.inputs.keywords()
        self.batch = requests(self.arguments)
        self.begins = np.cumsum([0, *(r.verify_count for r in self.batch)]).tolist()
        self.plans = plans
        self.enable = self.begins[-1] <= case.inputs.verify_capacity

    def lines(self, request: int | None, other: Plans | Case | None) -> Iterator[str]:
        shown = None if request is None else request_at(self.case, request)
        yield from self._heading()
        if shown is None:
            yield from self._all_requests()
            yield from self._faults()
        else:
            yield from ("", *self._request(shown))
        if isinstance(other, Case):
            yield from ("", "Differences of the inputs", *_indented(_input_differences(self.case, other)))
        elif other is not None:
            found = list(differences_text(self._differences(other, request)))
            yield from ("", "Differences of the plans", *_indented(found or ["none"]))

    def _differences(self, other: Plans, request: int | None) -> Iterator[FieldDifferences]:
        """All; or with a request its own, and those of elements that are nobody's."""
        if request is None:
            yield from compare(self.case, self.plans, other)
            return
        every = max(buffer.size for buffer in self.plans.buffers().values())
        for buffer in compare(self.case, self.plans, other, first=every):
            own = [d for d in buffer.first if d.request in (request, None)]
            if own:
                yield dataclasses.replace(buffer, first=tuple(own[:FIRST_DIFFERENCES]))

    def _heading(self) -> Iterator[str]:
        inputs, total = self.case.inputs, self.begins[-1]
        rows, width = inputs.req_to_token.shape
        window, mapping = inputs.swa_window_size, inputs.full_to_swa_index_mapping
        yield f"Case {self.case.name!r}: {_count(len(self.batch), 'request')}"
        yield f"  req_to_token of {_count(rows, 'row')} and {_columns_text(width, inputs.page_size)}; " + (
            f"a window of {_count(window, 'token')}" if window > 0 else "full attention"
        )
        yield "  slots are " + (
            "those of the table"
            if mapping is None
            else f"translated through {_count(len(mapping), 'slot')}: full pool -> this pool"
        )
        yield f"  {self._tokens()}"
        capacity = inputs.verify_capacity
        fits = "enable 1" if self.enable else "enable 0: nothing is verified, no column is written"
        yield f"  {_count(total, 'verify entry', 'verify entries')} for a capacity of {capacity:,}: {fits}"
        written = int(self.plans.write.write_offsets[len(self.batch)])
        room = len(self.case.before.write.write_seed_slot_indices)
        yield f"  {_count(len(self.batch), 'write row')} of {room:,}, {_count(written, 'token')}"

    def _tokens(self) -> str:
        tokens = self.case.inputs.req_to_verify_expected_tokens
        if tokens is None:
            return "no expected tokens"
        rows, columns = tokens.shape
        offset = self.case.inputs.kv_token_id_vs_position_offset
        at = "its position" if offset == 0 else f"its position {'+' if offset > 0 else '-'} {abs(offset)}"
        return f"expected tokens of {_count(rows, 'row')} and {_count(columns, 'column')}, each at {at}"

    def _all_requests(self) -> Iterator[str]:
        shown = 0
        for is_padding, group in itertools.groupby(self.batch, key=lambda r: r.is_padding):
            run = list(group)
            if is_padding and len(run) > 1:
                yield from ("", f"requests {run[0].index} to {run[-1].index}: padding, row {PADDING_ROW}")
                continue
            for r in run:
                if shown < MOST_REQUESTS:
                    yield from ("", *self._request(r))
                shown += 1
        if shown > MOST_REQUESTS:
            yield from ("", f"... {_count(shown - MOST_REQUESTS, 'more request')}, to be asked for by number")

    def _faults(self) -> Iterator[str]:
        """What this launch adds to a fresh `faults_out`: where the case has one, or there are faults."""
        counts = _fresh_faults(self.case)
        if "faults_out" in self.case.before.extras or counts[:_COUNTED_ONLY, 0].any():
            lines = decode_faults(counts, self.arguments)
            yield from ("", "Counted as faults", *_indented(lines or ["none"]))

    def _request(self, r: Request) -> Iterator[str]:
        if r.is_padding:
            yield f"request {r.index}: padding, row {PADDING_ROW}"
        elif not r.active:
            yield f"request {r.index}: row {r.row}, counts as padding"
        else:
            yield f"request {r.index}: row {r.row}, prefix {r.prefix_len:,}, extend {r.extend_len:,}"
            yield f"  window   {self._window(r)}"
            yield from self._verify(r)
        yield f"  write    {self._write(r)}"
        found = list(itertools.islice(request_faults(r, self.arguments), _MOST_FAULTS + 1))
        yield from (f"  fault    {text}" for text in found[:_MOST_FAULTS])
        if len(found) > _MOST_FAULTS:
            yield "  fault    ... and more"

    def _window(self, r: Request) -> str:
        if r.verify_count == 0:
            return "no position: " + ("nothing is cached" if r.prefix_len <= 0 else "past the table's end")
        text = _range("position", "positions", r.start, r.end)
        if r.start > 0:
            text += f"; {_range('position', 'positions', 0, r.start)} windowed out"
        return text

    def _verify(self, r: Request) -> Iterator[str]:
        if r.verify_count == 0:
            return
        begin, end = self.begins[r.index], self.begins[r.index + 1]
        if not self.enable:
            yield f"  verify   {_count(r.verify_count, 'entry', 'entries')}, of a plan that does not fit"
            return
        yield f"  verify   {_range('entry', 'entries', begin, end)}"
        shown = _shortened(range(begin, end))
        cells = [_ENTRY_HEADS, *(self._entry(r, i, begin) for i in shown if i is not None)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        left_out = r.verify_count - len([i for i in shown if i is not None])
        rows = iter(cells)
        yield f"    {_row(next(rows), widths)}"
        for i in shown:
            yield f"    {_row(next(rows), widths)}" if i is not None else f"    ... {left_out:,} more"

    def _entry(self, r: Request, index: int, begin: int) -> tuple[str, ...]:
        slots, tokens, positions, prev_slots = self._columns()
        position = r.start + index - begin
        prev = "none" if position == 0 else self._slot(r.row, position - 1, int(prev_slots[index]))
        if position == r.start > 0:
            prev += ", before the window"
        token = int(tokens[index])
        return (
            str(index),
            str(int(positions[index])),
            self._slot(r.row, position, int(slots[index])),
            prev,
            "not checked" if token == NO_TOKEN else str(token),
        )

    def _columns(self) -> list[np.ndarray]:
        verify = {field.argument: field.name for field in VerifyPlan.fields()}
        return [getattr(self.plans.verify, verify[argument]) for argument in COLUMNS]

    def _slot(self, row: int, position: int, slot: int) -> str:
        """The table's slot, and what it is translated to."""
        if self.case.inputs.full_to_swa_index_mapping is None:
            return str(slot)
        return f"{cells(self.arguments, row, position, position + 1)[0]} -> {slot}"

    def _write(self, r: Request) -> str:
        offsets, seeds = self.plans.write.write_offsets, self.plans.write.write_seed_slot_indices
        first, end = int(offsets[r.index]), int(offsets[r.index + 1])
        if r.write_count == 0:
            return f"nothing: offset {first} stays, seed {int(seeds[r.index])}"
        tokens = f"{_count(r.write_count, 'token')}, offsets {first} to {end}"
        if not r.has_seed:
            return f"{tokens}; seed {NO_SLOT}: no chain to continue"
        slot = self._slot(r.row, r.end - 1, int(seeds[r.index]))
        return f"{tokens}; seed {slot}, of position {r.end - 1}"


def _fresh_faults(case: Case) -> np.ndarray:
    faults, plans = Faults.allocate(), case.before.copy()
    launch_canary_plan_kernels_reference(
        verify_plan_out=plans.verify,
        write_plan_out=plans.write,
        **case.inputs.keywords(),
        faults_out=faults,
    )
    return faults.buffer


_ENTRY_HEADS = ("entry", "position", "slot", "predecessor", "token")


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _shortened(run: range) -> list[int | None]:
    """The run, or its ends around a None where it is long."""
    if len(run) <= _FIRST + _LAST + 1:
        return list(run)
    return [*run[:_FIRST], None, *run[-_LAST:]]


def _range(thing: str, things: str, start: int, stop: int) -> str:
    return f"{thing} {start}" if stop - start == 1 else f"{things} {start} to {stop - 1}"


def _count(n: int, thing: str, things: str | None = None) -> str:
    return f"{n:,} {thing if n == 1 else things or f'{thing}s'}"


def _columns_text(width: int, page_size: int) -> str:
    if page_size == 1:
        return _count(width, "position")
    return f"{_count(width, 'page')} of {page_size} positions"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _input_differences(case: Case, other: Case) -> list[str]:
    """Lines on what one case has and the other has not, plans before the launch included."""
    names = [f.name for f in dataclasses.fields(case.inputs)]
    pairs = [(name, getattr(case.inputs, name), getattr(other.inputs, name)) for name in names]
    here, there = case.before.buffers(), other.before.buffers()
    pairs += [(f"before.{name}", here.get(name), there.get(name)) for name in here | there]
    return [line for pair in pairs for line in _value_differences(*pair)] or ["none"]


def _value_differences(name: str, here: Any, there: Any) -> Iterator[str]:
    if not (isinstance(here, np.ndarray) and isinstance(there, np.ndarray)):
        if isinstance(here, np.ndarray) or isinstance(there, np.ndarray) or here != there:
            yield f"{name}: {_kind(here)} here, {_kind(there)} there"
    elif (here.dtype, here.shape) != (there.dtype, there.shape):
        yield f"{name}: {_kind(here)} here, {_kind(there)} there"
    elif not np.array_equal(here, there):
        cells = np.argwhere(here != there)
        yield f"{name}: {len(cells):,} of {here.size:,} elements differ"
        for cell in map(tuple, cells[:_FIRST_CELLS].tolist()):
            yield f"  [{', '.join(map(str, cell))}]: {here[cell]} here, {there[cell]} there"


def _kind(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else str(value)
