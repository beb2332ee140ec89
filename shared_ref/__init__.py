"""The kv-canary plan contract as code, in numpy alone: reference, validation rules, conformance kit."""

from .constants import (
    DUMMY_SLOT,
    FAULT_KINDS,
    FAULT_POSITION_BITS,
    NO_PLACE,
    NO_SLOT,
    NO_TOKEN,
    PADDING_ROW,
    PLAN_BS_BLOCK_SIZE,
    VERIFY_OFFSETS_SCRATCH_LEN,
)
from .faults import decode_faults
from .plan import Faults, VerifyPlan, WritePlan
from .reference import (
    launch_canary_plan_kernels_reference,
    launch_plan_entries_kernel_reference,
    launch_plan_offsets_kernel_reference,
)
from .sizing import suggest_capacities
from .validation import has_swa_mapping

__all__ = [
    "DUMMY_SLOT",
    "FAULT_KINDS",
    "FAULT_POSITION_BITS",
    "NO_PLACE",
    "NO_SLOT",
    "NO_TOKEN",
    "PADDING_ROW",
    "PLAN_BS_BLOCK_SIZE",
    "VERIFY_OFFSETS_SCRATCH_LEN",
    "Faults",
    "VerifyPlan",
    "WritePlan",
    "decode_faults",
    "has_swa_mapping",
    "launch_canary_plan_kernels_reference",
    "launch_plan_entries_kernel_reference",
    "launch_plan_offsets_kernel_reference",
    "suggest_capacities",
]
