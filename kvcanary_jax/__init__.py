"""The kv-canary plan for JAX: SGLang's interface on arrays and Refs, and `plan` as its idiomatic form.

Importing this package does not import jax; the first use of a name does. It never changes
`jax_enable_x64`: plans are int64 either way (contract, section 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared_ref.lazy import exports
from shared_ref.validation import has_swa_mapping

if TYPE_CHECKING:
    from .api import launch_canary_plan_kernels, launch_plan_entries_kernel, launch_plan_offsets_kernel, plan
    from .plans import VerifyPlan, WritePlan

__all__ = [
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
        "VerifyPlan": "plans",
        "WritePlan": "plans",
        "launch_canary_plan_kernels": "api",
        "launch_plan_entries_kernel": "api",
        "launch_plan_offsets_kernel": "api",
        "plan": "api",
    },
    framework="jax",
    extra="jax",
)
