"""Two plans of one case, byte by byte: where they differ, whose entry that is, which rule it breaks.

The rule named is the one that gives the expected value. Pure data; `report` turns it into text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..batch import Request, cells, requests
from ..constants import FAULT_KINDS
from ..plan import VerifyPlan, WritePlan
from ..schema import COLUMNS, OPTIONAL_OUTPUTS, Plan
from .case import Case, Plans

_PLANS: tuple[type[Plan], type[Plan]] = (VerifyPlan, WritePlan)
_ARGUMENTS = {field.name: field.argument for plan in _PLANS for field in plan.fields()}
_KINDS = {
    field.name: f"{field.dtype} [{field.length.value.replace('capacity', plan.CAPACITY)}]"
    for plan in _PLANS
    for field in plan.fields()
} | {name: f"int64 {list(shape)}" for name, shape in OPTIONAL_OUTPUTS.items()}

_CAUSES = ("enable", "verify_num_valid", "verify_expected_positions", "write_offsets")
"""What other fields follow from: whose entries there are, and where."""

FIRST_DIFFERENCES = 3
"""How many differences of a field are described; all are counted."""


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """One element that is not what the contract says, or one buffer that is no such buffer."""

    field: str
    index: int | None
    """Element of the buffer, flat; None where the buffer as a whole is wrong."""
    request: int | None
    """Index in the batch; None for an element that belongs to no request."""
    row: int | None
    position: int | None
    """Position in the request's sequence, for a verify entry or a seed."""
    expected: int | str
    actual: int | str
    untouched: bool
    """Whether the element holds what it held before the launch."""
    rule: str
    """What the contract says there, with its section."""


@dataclasses.dataclass(frozen=True, slots=True)
class FieldDifferences:
    """A buffer that differs."""

    field: str
    size: int
    """Elements that the buffer should have."""
    count: int
    """How many of them differ."""
    first: tuple[Difference, ...]


def compare(
    case: Case, expected: Plans, actual: Plans, *, first: int = FIRST_DIFFERENCES
) -> tuple[FieldDifferences, ...]:
    """The buffers of `actual` that differ from `expected`; none if identical.

    Those that others follow from come first, then the contract's order.

    Args:
        case: the launch that both plans come from.
        expected: the plans after the reference.
        actual: the plans to judge: any two objects with the fields of section 3.
        first: how many differences to describe of each buffer.
    """
    before, wanted, got = case.before.buffers(), expected.buffers(), buffers(actual)
    explain = _Explanation(case, enable=bool(expected.verify.enable[0]))
    found = []
    for name, want in wanted.items():
        have = got.get(name)
        if not isinstance(have, np.ndarray) or (have.dtype, have.shape) != (want.dtype, want.shape):
            wrong = _kind_difference(name, want, have)
            found.append(FieldDifferences(name, want.size, want.size, (wrong,)))
            continue
        indices = np.flatnonzero(want != have)
        if len(indices):
            described = tuple(
                _element_difference(name, int(i), before[name], want, have, explain) for i in indices[:first]
            )
            found.append(FieldDifferences(name, want.size, len(indices), described))
    return tuple(sorted(found, key=lambda f: _CAUSES.index(f.field) if f.field in _CAUSES else len(_CAUSES)))


def buffers(plans: Plans) -> dict[str, object]:
    """Every buffer of any pair of plan objects by field name, in the contract's order; None if missing."""
    found = {
        field.name: getattr(plan, field.name, None)
        for schema, plan in zip(_PLANS, plans, strict=True)
        for field in schema.fields()
    } | getattr(plans, "extras", {})
    return {name: np.asarray(b) if isinstance(b, np.ndarray) else b for name, b in found.items()}


def _kind_difference(name: str, want: np.ndarray, have: object) -> Difference:
    return Difference(
        field=name,
        index=None,
        request=None,
        row=None,
        position=None,
        expected=_kind(want),
        actual=_kind(have),
        untouched=False,
        rule=f"section 3: {name} is {_KINDS[name]}",
    )


def _kind(buffer: object) -> str:
    if not isinstance(buffer, np.ndarray):
        return type(buffer).__name__
    dtype = buffer.dtype.name if buffer.dtype.isnative else buffer.dtype.str
    return f"{dtype} {list(buffer.shape)}"


def _element_difference(
    name: str, index: int, before: np.ndarray, want: np.ndarray, have: np.ndarray, explain: _Explanation
) -> Difference:
    place = explain.element(_ARGUMENTS.get(name, name), index)
    return Difference(
        field=name,
        index=index,
        request=place.request.index if place.request else None,
        row=place.request.row if place.request else None,
        position=place.position,
        expected=int(want.flat[index]),
        actual=int(have.flat[index]),
        untouched=bool(have.flat[index] == before.flat[index]),
        rule=place.rule,
    )


class _Place(NamedTuple):
    """What an element is for."""

    rule: str
    request: Request | None = None
    position: int | None = None


class _Explanation:
    """What the contract says of each element of a case's plans."""

    def __init__(self, case: Case, *, enable: bool) -> None:
        self.arguments = case.inputs.keywords()
        self.page_size = case.inputs.page_size
        self.batch = requests(self.arguments)
        self.enable = enable
        self.ends = np.cumsum([r.verify_count for r in self.batch], dtype=np.int64)
        """One past each request's last entry."""

    def element(self, argument: str, index: int) -> _Place:
        """Of the buffer with this name in the staged launchers."""
        if argument in COLUMNS:
            return self._entry(argument, index)
        explain: dict[str, Callable[[int], _Place]] = {
            "out_write_offsets": self._write_offset,
            "out_write_seed_slot_indices": self._seed,
            "faults_out": _fault,
        }
        return explain[argument](index) if argument in explain else _Place(_NUMBER_RULES[argument])

    def _entry(self, argument: str, index: int) -> _Place:
        if not self.enable:
            return _Place("section 4, enable == 0: the four columns are left as they were, all of them")
        which = int(np.searchsorted(self.ends, index, side="right"))
        if which == len(self.batch):
            return _Place("section 4, enable == 1: everything behind the entries is left as it was")
        r = self.batch[which]
        position = r.end - (int(self.ends[which]) - index)
        slots, tokens, positions, prev_slots = COLUMNS
        rules: dict[str, Callable[[Request, int], str]] = {
            slots: self._slot_rule,
            tokens: self._token_rule,
            positions: _position_rule,
            prev_slots: self._prev_slot_rule,
        }
        return _Place(rules[argument](r, position), r, position)

    def _slot_rule(self, r: Request, p: int) -> str:
        return self._cell_rule(r, p) or f"section 4, verify entries: slot is {self._translated('p')}"

    def _prev_slot_rule(self, r: Request, p: int) -> str:
        if p == 0:
            return "section 4, verify entries: prev slot is -1 at position 0"
        if p == r.start:
            return (
                "section 4, verify entries: prev slot is the real predecessor, "
                f"{self._translated('p - 1')}, also at the start of a window"
            )
        return self._cell_rule(r, p - 1) or (
            f"section 4, verify entries: prev slot is {self._translated('p - 1')}"
        )

    def _token_rule(self, r: Request, p: int) -> str:
        table = self.arguments["req_to_verify_expected_tokens"]
        if table is None:
            return "section 4, verify entries: expected token is -1 without a table"
        q = p + self.arguments["kv_token_id_vs_position_offset"]
        if q < 0:
            return "section 4, verify entries: expected token is -1 where p + offset is negative"
        if q >= self.arguments["req_to_verify_expected_tokens_valid_lens"][r.index]:
            return "section 4, verify entries: expected token is -1 from the request's valid length on"
        if r.row >= table.shape[0] or q >= table.shape[1]:
            return "section 5: expected token is -1 where the token table has no such cell"
        return (
            "section 4, verify entries: expected token is req_to_verify_expected_tokens"
            "[row, p + kv_token_id_vs_position_offset]"
        )

    def _translated(self, position: str) -> str:
        cell = "req_to_token[row, {}]" if self.page_size == 1 else "cell(row, {})"
        return f"translate({cell.format(position)})"

    def _cell_rule(self, r: Request, p: int) -> str | None:
        """The rule for the slot of a cell that is special."""
        slot, mapping = cells(self.arguments, r.row, p, p + 1)[0], self.arguments["full_to_swa_index_mapping"]
        if slot < 0:
            return "section 2: a negative slot is a sentinel and passes through unchanged"
        if mapping is not None and slot >= len(mapping):
            return "section 5: a slot past full_to_swa_index_mapping reads the mapping's last element"
        return None

    def _write_offset(self, index: int) -> _Place:
        """An offset ends in the count of the request before it, so that request is named."""
        if index > len(self.batch):
            return _Place("section 4, write rows: every element of write_offsets behind [bs] is 0")
        if index == 0:
            return _Place("section 4, write rows: write_offsets[0] is 0")
        r = self.batch[index - 1]
        if not r.active:
            return _Place(f"{_padding_rule(r)}, and its write_count is 0", r)
        if r.extend_len < 0:
            return _Place("section 5: a negative extend_seq_lens counts as 0", r)
        return _Place(
            "section 4, write rows: write_offsets[r + 1] is write_offsets[r] plus request r's write_count, "
            "in two's complement",
            r,
        )

    def _seed(self, index: int) -> _Place:
        if index >= len(self.batch):
            return _Place(
                "section 4, write rows: elements of write_seed_slot_indices from bs on are left as they were"
            )
        r = self.batch[index]
        if not r.active:
            return _Place(f"{_padding_rule(r)}, and its seed is -1", r)
        if r.write_count == 0:
            return _Place("section 4, write rows: the seed is -1 where a request writes nothing", r)
        if r.end <= 0:
            return _Place("section 4, write rows: the seed is -1 where nothing is cached", r)
        return _Place(self._seed_rule(r), r, r.end - 1)

    def _seed_rule(self, r: Request) -> str:
        if r.prefix_len > r.end:
            return "section 5: positions past req_to_token do not exist, the seed is that of its last column"
        return self._cell_rule(r, r.end - 1) or (
            f"section 4, write rows: the seed is {self._translated('end - 1')}"
        )


def _fault(index: int) -> _Place:
    kind, is_place = divmod(index, 2)
    if is_place:
        return _Place(
            f"section 5: the place of {FAULT_KINDS[kind]} is the smallest, as unsigned, "
            "of the former one and those found"
        )
    return _Place(f"section 5: the count of {FAULT_KINDS[kind]} grows by one for each that is found")


def _padding_rule(r: Request) -> str:
    if r.is_padding:
        return "section 4: row 0 is a padding request"
    return "section 5: a row outside req_to_token counts as padding"


def _position_rule(r: Request, p: int) -> str:
    return "section 4, verify entries: requests in batch order, positions start <= p < end ascending"


_NUMBER_RULES = {
    "out_verify_num_valid": "section 4: verify_num_valid is min(total, verify_capacity)",
    "out_verify_enable": "section 4: enable is 1 if total <= verify_capacity, else 0",
    "out_write_num_valid_reqs": "section 4, write rows: write_num_valid_reqs is bs",
    "verify_total_out": "section 4: verify_total_out is total, also where it is above verify_capacity",
}
