"""A step of a running server as a case, to be saved, explained and replayed elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arrays import as_numpy
from ..constants import PADDING_ROW
from ..schema import OPTIONAL_OUTPUTS, PLAN, Length, Plan, VerifyPlanFields, WritePlanFields
from ..validation import check_capacities, fail, pair_of_plans, python_int
from .case import Case, PlanInputs

_INPUTS = {field.name for field in dataclasses.fields(PlanInputs)}
_NEEDED = {field.name for field in dataclasses.fields(PlanInputs) if field.default is dataclasses.MISSING}
_OTHERS = {WritePlanFields.CAPACITY, "padding_row", "implementation", *OPTIONAL_OUTPUTS}
_KINDS: tuple[type[Plan], type[Plan]] = (VerifyPlanFields, WritePlanFields)
_PLANS = {"out", "verify_plan_out", "write_plan_out"}


def case_of_step(name: str, **keywords: Any) -> Case:
    """The case of a call of `plan`, or of `launch_canary_plan_kernels`, in any framework.

    Args:
        name: what reports call the case.
        **keywords: those of the call. Arrays are copied to the host, int32 becomes int64 where the contract
            has int64; gaps between their elements are lost. Of plans that the call fills, only the capacities
            count; optional outputs are left out.
            A case's padding row is 0: for another `padding_row` its rows are counted from 1, in tables with
            an empty row in front.

    Raises:
        ValueError: an argument is unknown or missing, or the call breaks a rule of section 6.
    """
    if unknown := sorted(keywords.keys() - _INPUTS - _OTHERS - _PLANS):
        fail(f"a case knows no {', '.join(unknown)}")
    given = _capacities(keywords) | {name: value for name, value in keywords.items() if value is not None}
    if missing := sorted((_NEEDED | {WritePlanFields.CAPACITY}) - given.keys()):
        fail(f"a case needs {', '.join(missing)}")
    for kind in _KINDS:
        given[kind.CAPACITY] = python_int(kind.CAPACITY, given[kind.CAPACITY])
    check_capacities(given)
    padding_row = keywords.get("padding_row", PADDING_ROW)
    inputs = PlanInputs(**{name: value for name, value in given.items() if name in _INPUTS} | _arrays(given))
    if padding_row is None or python_int("padding_row", padding_row) != PADDING_ROW:
        inputs = _with_padding_row(inputs, padding_row)
    case = Case.poisoned(name, inputs, write_req_capacity=given[WritePlanFields.CAPACITY])
    case.expected()
    return case


def _capacities(keywords: Mapping[str, Any]) -> dict[str, int]:
    """Those of the plans that the call fills, if it does."""
    plans = keywords.get("verify_plan_out"), keywords.get("write_plan_out")
    if keywords.get("out") is not None:
        plans = pair_of_plans(keywords["out"])
    found = {}
    for plan, kind in zip(plans, _KINDS, strict=True):
        if plan is not None:
            column = next(field.name for field in kind.fields() if field.length is Length.CAPACITY)
            if not hasattr(plan, column):
                fail(f"{type(plan).__name__} has no {column}")
            found[kind.CAPACITY] = n = len(getattr(plan, column))
            if keywords.get(kind.CAPACITY) not in (None, n):
                fail(f"{kind.CAPACITY}={keywords[kind.CAPACITY]} does not match the plan's {n}")
    return found


def _arrays(given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    arrays = {}
    for tensor in PLAN.tensors:
        if tensor.name in given and not tensor.output:
            array = as_numpy(given[tensor.name])
            is_narrow = tensor.or_int32 and array.dtype == np.int32
            arrays[tensor.name] = array.astype(np.int64) if is_narrow else array.copy()
    return arrays


def _with_padding_row(inputs: PlanInputs, padding_row: int | None) -> PlanInputs:
    """The same batch, padded with row 0."""
    rows = inputs.req_pool_indices
    shifted = np.where((rows >= 0) & (rows < np.iinfo(np.int64).max), rows + 1, rows)
    if padding_row is not None:
        shifted[rows == padding_row] = PADDING_ROW
    return dataclasses.replace(
        inputs,
        req_pool_indices=shifted,
        req_to_token=_with_row_in_front(inputs.req_to_token),
        req_to_verify_expected_tokens=_with_row_in_front(inputs.req_to_verify_expected_tokens),
    )


def _with_row_in_front(table: Any) -> Any:
    has_rows = isinstance(table, np.ndarray) and table.ndim == 2  # the rules refuse another one
    return np.pad(table, ((1, 0), (0, 0))) if has_rows else table
