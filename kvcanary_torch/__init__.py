"""The kv-canary plan for PyTorch: SGLang's interface, on CPU tensors and in one Triton launch on CUDA.

Importing this package does not import torch; the first use of a name does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared_ref.lazy import exports
from shared_ref.validation import has_swa_mapping

if TYPE_CHECKING:
    from .api import launch_canary_plan_kernels, launch_plan_entries_kernel, launch_plan_offsets_kernel, plan
    from .plans import Faults, VerifyPlan, WritePlan

__all__ = [
    "Faults",
    "VerifyPlan",
    "WritePlan",
    "has_swa_mapping",
    "launch_canary_plan_kernels",
    "launch_plan_entries_kernel",
    "launch_plan_offsets_kernel",
    "plan",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "Faults": "plans",
        "VerifyPlan": "plans",
        "WritePlan": "plans",
        "launch_canary_plan_kernels": "api",
        "launch_plan_entries_kernel": "api",
        "launch_plan_offsets_kernel": "api",
        "plan": "api",
    },
    framework="torch",
    extra="torch",
)
