"""The launchers: SGLang's names and keywords, filled in place (contract, sections 2 to 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from shared_ref import reference
from shared_ref.schema import (
    LAUNCH_ENTRIES,
    LAUNCH_OFFSETS,
    LAUNCH_PLAN,
    Launcher,
    VerifyPlanFields,
    WritePlanFields,
)
from shared_ref.validation import Framework, check, fail, plan_arguments


def _describe(tensor: Any) -> tuple:
    return tensor.shape, tensor.dtype, tensor.stride(), tensor.device, True


TORCH = Framework("torch.Tensor", lambda x: isinstance(x, torch.Tensor), _describe)

_ON_CPU: Mapping[Launcher, Callable[[Mapping[str, Any]], None]] = {
    LAUNCH_PLAN: reference.fill_plan,
    LAUNCH_OFFSETS: reference.fill_offsets,
    LAUNCH_ENTRIES: reference.fill_entries,
}


def _launch(launcher: Launcher, arguments: dict[str, Any]) -> None:
    arguments |= check(launcher, TORCH, arguments)
    device = arguments[launcher.device_reference].device
    if device.type == "cpu":
        views = {t.name: arguments[t.name].numpy() for t in launcher.tensors if arguments[t.name] is not None}
        _ON_CPU[launcher](arguments | views)
    else:
        fail(f"{launcher.name} runs on cpu and cuda tensors, got tensors on {device}")


def launch_canary_plan_kernels(
    *,
    verify_plan_out: VerifyPlanFields[torch.Tensor],
    write_plan_out: WritePlanFields[torch.Tensor],
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
    """Fill both plans in place; CPU tensors run the numpy reference, without a copy.

    Args:
        verify_plan_out: plan of `verify_capacity` entries; any object with the fields of section 3.
        write_plan_out: plan of at least `bs` requests; likewise.
        req_pool_indices: int64 `[bs]`, row of each request in `req_to_token`; 0 is a padding request.
        prefix_lens: int64 `[bs]`, tokens in the cache before this step.
        extend_seq_lens: int64 `[bs]`, tokens that this step writes.
        req_to_token: int32 `[max_reqs, max_seq_len]`, slot of (row, position); may be row-strided.
        swa_window_size: sliding-window length in tokens; 0 or less for full attention.
        full_to_swa_index_mapping: int64 `[lut_len]`, full-pool slot to window-pool slot, or None.
        verify_capacity: length of the verify columns, in entries.
        req_to_verify_expected_tokens: int32 `[rows, max_context_len]`, token id of (row, position), or
            None; may be row-strided.
        req_to_verify_expected_tokens_valid_lens: int64 `[bs]`, leading cells of each request's row in that
            table that are current; ignored without the table.
        kv_token_id_vs_position_offset: added to a position before its token is looked up.

    Raises:
        ValueError: a rule of section 6 is broken; nothing is written then.
    """
    arguments: dict[str, Any] = locals()
    _launch(LAUNCH_PLAN, arguments | plan_arguments(verify_plan_out, write_plan_out))


def launch_plan_offsets_kernel(
    *,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    full_to_swa_index_mapping: torch.Tensor | None,
    out_verify_offsets_scratch: torch.Tensor,
    out_write_offsets: torch.Tensor,
    out_write_seed_slot_indices: torch.Tensor,
    out_verify_num_valid: torch.Tensor,
    out_verify_enable: torch.Tensor,
    out_write_num_valid_reqs: torch.Tensor,
    swa_window_size: int,
    verify_capacity: int,
    req_to_token_stride0: int | None = None,
    write_offsets_len: int | None = None,
    write_req_capacity: int | None = None,
) -> None:
    """Fill the write rows, the totals and the offsets scratch in place (section 4, "Staged").

    Args:
        out_verify_offsets_scratch: int64 `[>= 4097]`; `[0 .. bs]` becomes the exclusive prefix sum of the
            requests' verify entries.
        out_write_offsets: int64 `[write_req_capacity + 1]`, and so on: the plans' fields of section 3.
        req_to_token_stride0: elements from a row of `req_to_token` to the next; default: the table's own.
        write_offsets_len: default: the length of `out_write_offsets`.
        write_req_capacity: default: the length of `out_write_seed_slot_indices`.

    The other arguments are those of `launch_canary_plan_kernels`, but a window without a mapping is legal
    here.

    Raises:
        ValueError: a rule of section 6 is broken; nothing is written then.
    """
    _launch(LAUNCH_OFFSETS, locals())


def launch_plan_entries_kernel(
    *,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    full_to_swa_index_mapping: torch.Tensor | None,
    verify_offsets_scratch: torch.Tensor,
    verify_enable: torch.Tensor,
    req_to_verify_expected_tokens: torch.Tensor | None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None,
    out_verify_slot_indices: torch.Tensor,
    out_verify_expected_tokens: torch.Tensor,
    out_verify_expected_positions: torch.Tensor,
    out_verify_prev_slot_indices: torch.Tensor,
    kv_token_id_vs_position_offset: int,
    swa_window_size: int,
) -> None:
    """Fill the four verify columns in place if `verify_enable` is not 0 and the entries fit (section 4).

    Args:
        verify_offsets_scratch: int64 `[>= 4097]`, as the offsets launcher left it. Its contents are not
            trusted: the offsets are computed again.
        verify_enable: int32 `[1]`, as the offsets launcher left it.

    The other arguments are those of `launch_canary_plan_kernels`, the columns by the staged names; a window
    without a mapping is legal here.

    Raises:
        ValueError: a rule of section 6 is broken; nothing is written then.
    """
    _launch(LAUNCH_ENTRIES, locals())
