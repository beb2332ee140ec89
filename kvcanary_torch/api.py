"""The launchers, with SGLang's names, and `plan`, their idiomatic form (contract, sections 2 to 7)."""

from __future__ import annotations

from typing import Any

import torch

from shared_ref.constants import NO_TOKEN, PADDING_ROW
from shared_ref.schema import (
    LAUNCH_ENTRIES,
    LAUNCH_OFFSETS,
    LAUNCH_PLAN,
    PLAN,
    PLAN_INTO,
    FaultsFields,
    VerifyPlanFields,
    WritePlanFields,
)
from shared_ref.validation import (
    check,
    check_capacities,
    check_types,
    faults_buffer,
    pair_of_plans,
    plan_arguments,
)

from .launch import TORCH, launch
from .plans import VerifyPlan, WritePlan, zeros


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
    page_size: int = 1,
    verify_total_out: torch.Tensor | None = None,
    faults_out: torch.Tensor | FaultsFields[torch.Tensor] | None = None,
) -> None:
    """Fill both plans in place; CPU tensors run the numpy reference, without a copy.

    Args:
        verify_plan_out: plan of `verify_capacity` entries; any object with the fields of section 3.
        write_plan_out: plan of at least `bs` requests; likewise.
        req_pool_indices: int64 `[bs]`, row of each request in `req_to_token`; 0 is a padding request.
        prefix_lens: int64 `[bs]`, tokens in the cache before this step.
        extend_seq_lens: int64 `[bs]`, tokens that this step writes.
        req_to_token: int32 `[max_reqs, max_seq_len / page_size]`, slot of (row, position), or page of (row,
            position // page_size); may be row-strided.
        swa_window_size: sliding-window length in tokens; 0 or less for full attention.
        full_to_swa_index_mapping: int64 `[lut_len]`, full-pool slot to window-pool slot, or None.
        verify_capacity: length of the verify columns, in entries.
        req_to_verify_expected_tokens: int32 `[rows, max_context_len]`, token id of (row, position), or
            None; may be row-strided.
        req_to_verify_expected_tokens_valid_lens: int64 `[bs]`, leading cells of each request's row in that
            table that are current; ignored without the table.
        kv_token_id_vs_position_offset: added to a position before its token is looked up.
        page_size: slots of a cell of `req_to_token`.
        verify_total_out: int64 `[1]`, becomes the number of entries, also where they do not fit.
        faults_out: int64 `[8, 2]` or a `Faults`: what made no sense is added to it (section 5).

    Raises:
        ValueError: a rule of section 6 is broken; nothing is written then.
    """
    arguments = plan_arguments(verify_plan_out, write_plan_out)
    arguments.update(
        req_pool_indices=req_pool_indices,
        prefix_lens=prefix_lens,
        extend_seq_lens=extend_seq_lens,
        req_to_token=req_to_token,
        swa_window_size=swa_window_size,
        full_to_swa_index_mapping=full_to_swa_index_mapping,
        verify_capacity=verify_capacity,
        req_to_verify_expected_tokens=req_to_verify_expected_tokens,
        req_to_verify_expected_tokens_valid_lens=req_to_verify_expected_tokens_valid_lens,
        kv_token_id_vs_position_offset=kv_token_id_vs_position_offset,
        page_size=page_size,
        verify_total_out=verify_total_out,
        faults_out=faults_buffer(faults_out),
    )
    launch(LAUNCH_PLAN, arguments)


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
    page_size: int = 1,
    verify_total_out: torch.Tensor | None = None,
    faults_out: torch.Tensor | FaultsFields[torch.Tensor] | None = None,
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
    here, and `faults_out` gets the requests' own faults.

    Raises:
        ValueError: a rule of section 6 is broken; nothing is written then.
    """
    arguments = {
        "req_pool_indices": req_pool_indices,
        "prefix_lens": prefix_lens,
        "extend_seq_lens": extend_seq_lens,
        "req_to_token": req_to_token,
        "full_to_swa_index_mapping": full_to_swa_index_mapping,
        "out_verify_offsets_scratch": out_verify_offsets_scratch,
        "out_write_offsets": out_write_offsets,
        "out_write_seed_slot_indices": out_write_seed_slot_indices,
        "out_verify_num_valid": out_verify_num_valid,
        "out_verify_enable": out_verify_enable,
        "out_write_num_valid_reqs": out_write_num_valid_reqs,
        "swa_window_size": swa_window_size,
        "verify_capacity": verify_capacity,
        "req_to_token_stride0": req_to_token_stride0,
        "write_offsets_len": write_offsets_len,
        "write_req_capacity": write_req_capacity,
        "page_size": page_size,
        "verify_total_out": verify_total_out,
        "faults_out": faults_buffer(faults_out),
    }
    launch(LAUNCH_OFFSETS, arguments)


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
    page_size: int = 1,
    faults_out: torch.Tensor | FaultsFields[torch.Tensor] | None = None,
) -> None:
    """Fill the four verify columns in place if `verify_enable` is not 0 and the entries fit (section 4).

    Args:
        verify_offsets_scratch: int64 `[>= 4097]`, as the offsets launcher left it. Its contents are not
            trusted: the offsets are computed again.
        verify_enable: int32 `[1]`, as the offsets launcher left it.

    The other arguments are those of `launch_canary_plan_kernels`, the columns by the staged names; a window
    without a mapping is legal here, and `faults_out` gets the faults of cells.

    Raises:
        ValueError: a rule of section 6 is broken; nothing is written then.
    """
    arguments = {
        "req_pool_indices": req_pool_indices,
        "prefix_lens": prefix_lens,
        "req_to_token": req_to_token,
        "full_to_swa_index_mapping": full_to_swa_index_mapping,
        "verify_offsets_scratch": verify_offsets_scratch,
        "verify_enable": verify_enable,
        "req_to_verify_expected_tokens": req_to_verify_expected_tokens,
        "req_to_verify_expected_tokens_valid_lens": req_to_verify_expected_tokens_valid_lens,
        "out_verify_slot_indices": out_verify_slot_indices,
        "out_verify_expected_tokens": out_verify_expected_tokens,
        "out_verify_expected_positions": out_verify_expected_positions,
        "out_verify_prev_slot_indices": out_verify_prev_slot_indices,
        "kv_token_id_vs_position_offset": kv_token_id_vs_position_offset,
        "swa_window_size": swa_window_size,
        "page_size": page_size,
        "faults_out": faults_buffer(faults_out),
    }
    launch(LAUNCH_ENTRIES, arguments)


def plan(
    *,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    swa_window_size: int = 0,
    full_to_swa_index_mapping: torch.Tensor | None = None,
    verify_capacity: int | None = None,
    write_req_capacity: int | None = None,
    req_to_verify_expected_tokens: torch.Tensor | None = None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None = None,
    kv_token_id_vs_position_offset: int = 0,
    page_size: int = 1,
    padding_row: int | None = PADDING_ROW,
    out: tuple[VerifyPlanFields[torch.Tensor], WritePlanFields[torch.Tensor]] | None = None,
    verify_total_out: torch.Tensor | None = None,
    faults_out: torch.Tensor | FaultsFields[torch.Tensor] | None = None,
) -> tuple[VerifyPlanFields[torch.Tensor], WritePlanFields[torch.Tensor]]:
    """This step's plans, from the rows and dtypes of any serving stack (contract, section 7).

    The arguments are those of `launch_canary_plan_kernels`, but each int64 one may be int32, without a copy.

    Args:
        verify_capacity: entries that the verify plan has room for; may be left out with `out`.
        write_req_capacity: requests that the write plan has room for; likewise.
        padding_row: the value of `req_pool_indices` that marks a padding request; None: there is none.
        out: a pair of plans to fill in place, as a server that captures CUDA graphs needs it; None: fresh
            ones, at the cost of a small kernel for each of their fields.

    Returns:
        The plans: `out`, or fresh ones, whose elements that the contract leaves as they were are 0,
        expected tokens -1.

    Raises:
        ValueError: as `launch_canary_plan_kernels`.
    """
    arguments: dict[str, Any] = {
        "req_pool_indices": req_pool_indices,
        "prefix_lens": prefix_lens,
        "extend_seq_lens": extend_seq_lens,
        "req_to_token": req_to_token,
        "swa_window_size": swa_window_size,
        "full_to_swa_index_mapping": full_to_swa_index_mapping,
        "verify_capacity": verify_capacity,
        "write_req_capacity": write_req_capacity,
        "req_to_verify_expected_tokens": req_to_verify_expected_tokens,
        "req_to_verify_expected_tokens_valid_lens": req_to_verify_expected_tokens_valid_lens,
        "kv_token_id_vs_position_offset": kv_token_id_vs_position_offset,
        "page_size": page_size,
        "padding_row": padding_row,
        "verify_total_out": verify_total_out,
        "faults_out": faults_buffer(faults_out),
    }
    out = _fresh(arguments) if out is None else pair_of_plans(out)
    arguments.update(plan_arguments(*out))
    launch(PLAN_INTO, arguments)
    return out


def _fresh(arguments: dict[str, Any]) -> tuple[VerifyPlan, WritePlan]:
    if torch.compiler.is_compiling():
        check_capacities(check_types(PLAN, TORCH, arguments))
    else:
        check(PLAN, TORCH, arguments)
    device = arguments["req_pool_indices"].device
    verify, write = zeros(arguments["verify_capacity"], arguments["write_req_capacity"], device)
    verify.verify_expected_tokens.fill_(NO_TOKEN)
    return verify, write
