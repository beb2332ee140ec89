"""The launchers on CUDA tensors: one Triton launch each, with as little host time as Triton allows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from shared_ref.batch import Arguments, max_seq_len
from shared_ref.constants import PADDING_ROW
from shared_ref.schema import COLUMNS, LAUNCH_ENTRIES, LAUNCH_OFFSETS, LAUNCH_PLAN, PLAN_INTO, Launcher
from shared_ref.validation import used

from .kernels import Config, configure, entries_kernel, offsets_kernel, plan_kernel

_KERNELS = {
    LAUNCH_PLAN: plan_kernel,
    PLAN_INTO: plan_kernel,
    LAUNCH_OFFSETS: offsets_kernel,
    LAUNCH_ENTRIES: entries_kernel,
}

_compiled: dict[tuple, Any] = {}
"""Kernels by all that one is compiled for. Triton's own look-up takes longer than the launch."""


def recipe(launcher: Launcher, a: Arguments) -> Callable[[Arguments], None]:
    """How to launch a call with arguments that are described like `a`."""
    kernel, device = _KERNELS[launcher], a["req_to_token"].device
    sizes = _sizes(a)
    config = configure(
        sizes["bs"],
        sizes["max_seq_len"],
        a["swa_window_size"],
        sizes["verify_capacity"],
        _multiprocessors(device),
        a["page_size"],
        a.get("padding_row", PADDING_ROW),
    )
    grid = (_programs(launcher, config), 1, 1)
    known = sizes | config._asdict()
    present = used(launcher, a)
    # Every kernel takes its pointers first.
    pointers = [name if name in present else None for name in kernel.arg_names if name not in known]
    rest = [known[name] for name in kernel.arg_names if name in known]
    # Those of other stacks may be int32 instead.
    dtypes = [name and a[name].dtype for name in pointers]
    key = kernel, device, config[:-2], *pointers, *dtypes

    launch = None

    def run(a: Arguments) -> None:
        nonlocal launch
        tensors = [name and a[name] for name in pointers]
        if launch is None and key in _compiled:
            launch = _compiled[key][grid]
        if launch is not None:
            launch(*tensors, *rest)
        else:
            _compiled[key] = kernel[grid](*tensors, *rest, num_warps=config.num_warps)

    def run_there(a: Arguments) -> None:
        if torch.cuda.current_device() == device.index:
            run(a)
        else:
            with torch.cuda.device(device):
                run(a)

    return run_there


def _programs(launcher: Launcher, config: Config) -> int:
    writers = 0 if launcher is LAUNCH_ENTRIES else config.WRITERS
    return writers + (0 if launcher is LAUNCH_OFFSETS else config.programs)


def _sizes(a: Arguments) -> dict[str, int]:
    """The kernels' integers, by name."""
    table, mapping = a["req_to_token"], a["full_to_swa_index_mapping"]
    tokens = a.get("req_to_verify_expected_tokens")
    token_rows, token_columns = (0, 0) if tokens is None else tokens.shape
    return {
        "bs": len(a["req_pool_indices"]),
        "max_reqs": len(table),
        "max_seq_len": max_seq_len(a),
        "req_to_token_stride0": table.stride(0),
        "lut_len": 0 if mapping is None else len(mapping),
        "swa_window_size": a["swa_window_size"],
        "verify_capacity": a["verify_capacity"] if "verify_capacity" in a else len(a[COLUMNS[0]]),
        "write_offsets_len": len(a["out_write_offsets"]) if "out_write_offsets" in a else 0,
        "token_rows": token_rows,
        "token_columns": token_columns,
        "tokens_stride0": 0 if tokens is None else tokens.stride(0),
        "kv_token_id_vs_position_offset": a.get("kv_token_id_vs_position_offset", 0),
    }


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
