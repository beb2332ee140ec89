"""Where a step launches the plan: the module that has imported the launcher by name."""

from __future__ import annotations

from typing import Any

from sglang.kernels.ops.kv_canary.plan import launch_canary_plan_kernels


def invoke_plan(*, plan_input: Any, verify_plan: Any, write_plan: Any, req_to_token: Any) -> None:
    launch_canary_plan_kernels(
        verify_plan_out=verify_plan,
        write_plan_out=write_plan,
        req_pool_indices=plan_input.req_pool_indices,
        prefix_lens=plan_input.prefix_lens,
        extend_seq_lens=plan_input.extend_seq_lens,
        req_to_token=req_to_token,
        swa_window_size=0,
        full_to_swa_index_mapping=None,
        verify_capacity=int(verify_plan.verify_slot_indices.shape[0]),
        req_to_verify_expected_tokens=None,
        req_to_verify_expected_tokens_valid_lens=None,
        kv_token_id_vs_position_offset=0,
    )
