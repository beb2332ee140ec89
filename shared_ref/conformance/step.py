"""A step of a running server as a case, to be saved, explained and replayed elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arrays import as_numpy
from ..constants import PADDING_ROW
from ..schema import OPTIONAL_OUTPUTS, PLAN
from ..validation import fail
from .case import Case, PlanInputs

_INPUTS = {field.name for field in dataclasses.fields(PlanInputs)}
_NEEDED = {field.name for field in dataclasses.fields(PlanInputs) if field.default is dataclasses.MISSING}
_OTHERS = {"write_req_capacity", "padding_row", "implementation", *OPTIONAL_OUTPUTS}
_PLANS = {"out", "verify_plan_out", "write_plan_out"}


def case_of_step(name: str, **keywords: Any) -> Case:
    """The case of a call of `plan`, or of `launch_canary_plan_kernels`, in any framework.

    Args:
        name: what reports call the case.
        **keywords: those of the call. Arrays are copied to the host, int32 becomes int64 where the contract
            has int64. Of plans that the call fills, only the capacities count; optional outputs are left out.
            A case's padding row is 0: for another `padding_row` its rows are counted from 1, in tables with
            an empty row in front.

    Raises:
        ValueError: an argument is unknown or missing, or the call breaks a rule of section 6.
    """
    if unknown := sorted(keywords.keys() - _INPUTS - _OTHERS - _PLANS):
        fail(f"a case knows no {', '.join(unknown)}")
    given = _capacities(keywords) | {name: value for name, value in keywords.items() if value is not None}
    if missing := sorted((_NEEDED | {"write_req_capacity"}) - given.keys()):
        fail(f"a case needs {', '.join(missing)}")
    inputs = PlanInputs(**{name: value for name, value in given.items() if name in _INPUTS} | _arrays(given))
    inputs = _with_padding_row(inputs, keywords.get("padding_row", PADDING_ROW))
    case = Case.poisoned(name, inputs, write_req_capacity=given["write_req_capacity"])
    case.expected()
    return case


def _capacities(keywords: Mapping[str, Any]) -> dict[str, int]:
    """Those of the plans that the call fills, if it does."""
    plans = keywords.get("out") or (keywords.get("verify_plan_out"), keywords.get("write_plan_out"))
    columns = zip(plans, ("verify_slot_indices", "write_seed_slot_indices"), strict=True)
    names = ("verify_capacity", "write_req_capacity")
    return {
        name: len(getattr(plan, column))
        for name, (plan, column) in zip(names, columns, strict=True)
        if plan is not None
    }


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
    if padding_row == PADDING_ROW:
        return inputs
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
    return None if table is None else np.pad(table, ((1, 0), (0, 0)))
