"""The launchers on CUDA tensors: one Triton launch each, with as little host time as Triton allows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from shared_ref.schema import COLUMNS, LAUNCH_ENTRIES, LAUNCH_OFFSETS, LAUNCH_PLAN, Launcher

from .kernels import configure, entries_kernel, offsets_kernel, plan_kernel

Arguments = Mapping[str, Any]

_compiled: dict[tuple, Any] = {}
"""Kernels by everything that Triton would compile one for: its own look-up takes longer than the launch."""


def _run(kernel: Any, writers: bool, entries: bool, a: Arguments, verify_capacity: int) -> None:
    table, mapping = a["req_to_token"], a["full_to_swa_index_mapping"]
    bs = a["req_pool_indices"].shape[0]
    max_reqs, max_seq_len = table.shape
    device = table.device
    window = a["swa_window_size"]
    config = configure(bs, max_seq_len, window, verify_capacity, _multiprocessors(device))
    values = {
        **a,
        "bs": bs,
        "max_reqs": max_reqs,
        "max_seq_len": max_seq_len,
        "req_to_token_stride0": table.stride(0),
        "lut_len": 0 if mapping is None else mapping.shape[0],
        "verify_capacity": verify_capacity,
    }
    tokens = None
    if writers:
        values["write_offsets_len"] = a["out_write_offsets"].shape[0]
    if entries:
        tokens = a["req_to_verify_expected_tokens"]
        if tokens is None:
            values["req_to_verify_expected_tokens_valid_lens"] = None
            values["token_rows"] = values["token_columns"] = values["tokens_stride0"] = 0
        else:
            values["token_rows"], values["token_columns"] = tokens.shape
            values["tokens_stride0"] = tokens.stride(0)
    values.update(zip(config._fields, config, strict=True))
    grid = (config.WRITERS * writers + config.programs * entries, 1, 1)
    arguments = [values[name] for name in kernel.arg_names]
    key = (kernel, device, config[:-2], mapping is None, tokens is None)
    with torch.cuda.device(device):
        compiled = _compiled.get(key)
        if compiled is None:
            _compiled[key] = kernel[grid](*arguments, num_warps=config.num_warps)
        else:
            compiled[grid](*arguments)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _plan(a: Arguments) -> None:
    _run(plan_kernel, True, True, a, a["verify_capacity"])


def _offsets(a: Arguments) -> None:
    _run(offsets_kernel, True, False, a, a["verify_capacity"])


def _entries(a: Arguments) -> None:
    _run(entries_kernel, False, True, a, a[COLUMNS[0]].shape[0])


LAUNCHES: Mapping[Launcher, Callable[[Arguments], None]] = {
    LAUNCH_PLAN: _plan,
    LAUNCH_OFFSETS: _offsets,
    LAUNCH_ENTRIES: _entries,
}
