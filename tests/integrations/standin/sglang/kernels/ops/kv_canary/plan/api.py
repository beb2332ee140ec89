"""The launcher that is to be replaced: right, on the CPU, and it says so when it runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from sglang.kernels.ops.kv_canary.verify import VerifyPlan
from sglang.kernels.ops.kv_canary.write import WritePlan
from shared_ref import launch_canary_plan_kernels_reference

launches: list[str] = []


def launch_canary_plan_kernels(
    *,
    verify_plan_out: VerifyPlan,
    write_plan_out: WritePlan,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    swa_window_size: int,
    full_to_swa_index_mapping: torch.Tensor | None,
    verify_capacity: int,
    req_to_verify_expected_tokens: torch.Tensor | None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None,
    kv_token_id_vs_position_offset: int,
) -> None:
    arguments = {name: _in_numpy(value) for name, value in locals().items()}
    launches.append("SGLang")
    launch_canary_plan_kernels_reference(**arguments)


def _in_numpy(value: Any) -> Any:
    if isinstance(value, VerifyPlan | WritePlan):
        return SimpleNamespace(**{name: getattr(value, name).numpy() for name in value.__slots__})
    return value.numpy() if isinstance(value, torch.Tensor) else value
