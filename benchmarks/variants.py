"""The plan with its options: a table of pages, and the optional outputs (contract, section 2).

A variant builds the same plan from the same batch, so that what it costs is a ratio to the plain launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from shared_ref import decode_faults
from shared_ref.conformance.case import Case, Plans

from .cases import PAGE, difference


class Variant(NamedTuple):
    """A launch by what it has beside the plain one."""

    name: str
    outputs: tuple[str, ...] = ()
    """Optional outputs, by argument name."""
    pages: bool = False
    """Whether a cell of the table is a page of `PAGE` slots."""


PLAIN = Variant("plain")
FAULTS = Variant("faults", outputs=("faults_out",))
TOTAL = Variant("total", outputs=("verify_total_out",))
PAGES = Variant("pages", pages=True)
PAGES_FAULTS = Variant("pages_faults", outputs=("faults_out",), pages=True)
VARIANTS = (PLAIN, FAULTS, TOTAL, PAGES, PAGES_FAULTS)
PROFILED = (PLAIN, FAULTS, PAGES)
"""Those whose kernels a profiler times."""


def inputs_of(variant: Variant, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A case's inputs by name as the variant takes them, arrays of whatever framework."""
    if not variant.pages:
        return dict(inputs)
    # A case's slots lie in whole pages, so a page's first slot says which one it is.
    return {**inputs, "req_to_token": inputs["req_to_token"][:, ::PAGE] // PAGE, "page_size": PAGE}


def wrong_outputs(case: Case, plans: Plans) -> str | None:
    """What the outputs of a launch on the case have wrong, or None: the plan is that of the plain launch."""
    return difference(case, plans) or wrong_extras(plans.extras, case.inputs.verify_capacity)


def wrong_extras(extras: Mapping[str, np.ndarray], entries: int) -> str | None:
    """What optional outputs of launches without faults and with so many entries have wrong, or None."""
    if "verify_total_out" in extras and extras["verify_total_out"].tolist() != [entries]:
        return f"verify_total_out is {extras['verify_total_out'].tolist()}, of {entries} entries"
    if "faults_out" in extras and (found := decode_faults(extras["faults_out"])):
        return f"faults_out of a batch without faults: {found[0]}"
    return None
