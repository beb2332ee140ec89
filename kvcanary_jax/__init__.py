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
    from .dlpack import from_dlpack, to_dlpack
    from .plans import Faults, VerifyPlan, WritePlan

__all__ = [
    "Faults",
    "VerifyPlan",
    "WritePlan",
    "from_dlpack",
    "has_swa_mapping",
    "launch_canary_plan_kernels",
    "launch_plan_entries_kernel",
    "launch_plan_offsets_kernel",
    "plan",
    "to_dlpack",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "Faults": "plans",
        "VerifyPlan": "plans",
        "WritePlan": "plans",
        "from_dlpack": "dlpack",
        "launch_canary_plan_kernels": "api",
        "launch_plan_entries_kernel": "api",
        "launch_plan_offsets_kernel": "api",
        "plan": "api",
        "to_dlpack": "dlpack",
    },
    framework="jax",
    extra="jax",
)
