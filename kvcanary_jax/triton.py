"""The Triton kernel that torch launches, through jax-triton (Ampere and newer).

jax-triton passes arrays and integers by position, drops `None`, and types an integer by its size. So a
kernel of its own stands in front: an absent array is replaced by another one and a flag says so, and
integers get the types that the plan's kernel expects.
"""

from __future__ import annotations

import functools

import jax
import jax_triton
import triton
import triton.language as tl

from kvcanary_torch.kernels import configure, plan_kernel
from shared_ref.batch import max_seq_len
from shared_ref.constants import PADDING_ROW
from shared_ref.schema import OPTIONAL_OUTPUTS, PLAN_OUTPUTS

from .gpu import multiprocessors
from .xla import Arguments, Outputs


@triton.jit
def _typed(value, dtype: tl.constexpr):
    return tl.full((), value, dtype)


@triton.jit
def _in_place_kernel(
    req_pool_indices,
    prefix_lens,
    extend_seq_lens,
    req_to_token,
    mapping,
    tokens,
    valid_lens,
    bs,
    max_reqs,
    max_seq_len,
    table_columns,
    lut_len,
    swa_window_size,
    verify_capacity,
    write_offsets_len,
    token_rows,
    token_columns,
    kv_token_id_vs_position_offset,
    slots,
    expected_tokens,
    positions,
    prev_slots,
    num_valid,
    enable,
    write_offsets,
    write_seeds,
    num_valid_reqs,
    verify_total,
    faults,
    HAS_MAPPING: tl.constexpr,
    HAS_TOKENS: tl.constexpr,
    HAS_TOTAL: tl.constexpr,
    HAS_FAULTS: tl.constexpr,
    BS: tl.constexpr,
    WINDOWED: tl.constexpr,
    PAGE: tl.constexpr,
    PADDING_ROW: tl.constexpr,
    INDEX: tl.constexpr,
    TILE: tl.constexpr,
    UNITS: tl.constexpr,
    WRITERS: tl.constexpr,
):
    """For jax-triton 0.4, where an aliased buffer is one argument."""
    plan_kernel(
        req_pool_indices,
        prefix_lens,
        extend_seq_lens,
        req_to_token,
        mapping if HAS_MAPPING else None,
        tokens if HAS_TOKENS else None,
        valid_lens if HAS_TOKENS else None,
        slots,
        expected_tokens,
        positions,
        prev_slots,
        num_valid,
        enable,
        write_offsets,
        write_seeds,
        num_valid_reqs,
        verify_total if HAS_TOTAL else None,
        faults if HAS_FAULTS else None,
        _typed(bs, tl.int32),
        _typed(max_reqs, tl.int64),
        _typed(max_seq_len, tl.int64),
        _typed(table_columns, tl.int64),
        _typed(lut_len, tl.int64),
        _typed(swa_window_size, tl.int64),
        _typed(verify_capacity, tl.int64),
        _typed(write_offsets_len, tl.int32),
        _typed(token_rows, tl.int64),
        _typed(token_columns, tl.int64),
        _typed(token_columns, tl.int64),
        _typed(kv_token_id_vs_position_offset, tl.int64),
        BS,
        WINDOWED,
        PAGE,
        PADDING_ROW,
        INDEX,
        TILE,
        UNITS,
        WRITERS,
    )


@triton.jit
def _aliased_kernel(
    req_pool_indices,
    prefix_lens,
    extend_seq_lens,
    req_to_token,
    mapping,
    tokens,
    valid_lens,
    bs,
    max_reqs,
    max_seq_len,
    table_columns,
    lut_len,
    swa_window_size,
    verify_capacity,
    write_offsets_len,
    token_rows,
    token_columns,
    kv_token_id_vs_position_offset,
    former_slots,
    former_expected_tokens,
    former_positions,
    former_prev_slots,
    former_num_valid,
    former_enable,
    former_write_offsets,
    former_write_seeds,
    former_num_valid_reqs,
    former_verify_total,
    former_faults,
    slots,
    expected_tokens,
    positions,
    prev_slots,
    num_valid,
    enable,
    write_offsets,
    write_seeds,
    num_valid_reqs,
    verify_total,
    faults,
    HAS_MAPPING: tl.constexpr,
    HAS_TOKENS: tl.constexpr,
    HAS_TOTAL: tl.constexpr,
    HAS_FAULTS: tl.constexpr,
    BS: tl.constexpr,
    WINDOWED: tl.constexpr,
    PAGE: tl.constexpr,
    PADDING_ROW: tl.constexpr,
    INDEX: tl.constexpr,
    TILE: tl.constexpr,
    UNITS: tl.constexpr,
    WRITERS: tl.constexpr,
):
    """For jax-triton 0.3, which passes an aliased buffer twice: as an input and as an output."""
    _in_place_kernel(
        req_pool_indices,
        prefix_lens,
        extend_seq_lens,
        req_to_token,
        mapping,
        tokens,
        valid_lens,
        bs,
        max_reqs,
        max_seq_len,
        table_columns,
        lut_len,
        swa_window_size,
        verify_capacity,
        write_offsets_len,
        token_rows,
        token_columns,
        kv_token_id_vs_position_offset,
        slots,
        expected_tokens,
        positions,
        prev_slots,
        num_valid,
        enable,
        write_offsets,
        write_seeds,
        num_valid_reqs,
        verify_total,
        faults,
        HAS_MAPPING,
        HAS_TOKENS,
        HAS_TOTAL,
        HAS_FAULTS,
        BS,
        WINDOWED,
        PAGE,
        PADDING_ROW,
        INDEX,
        TILE,
        UNITS,
        WRITERS,
    )


def plan(arguments: Arguments) -> Outputs:
    """The outputs of `launch_canary_plan_kernels`, in the memory of the former ones."""
    mapping, tokens = arguments["full_to_swa_index_mapping"], arguments["req_to_verify_expected_tokens"]
    table, prefix_lens = arguments["req_to_token"], arguments["prefix_lens"]
    valid_lens = arguments["req_to_verify_expected_tokens_valid_lens"]
    bs, (max_reqs, table_columns) = len(prefix_lens), table.shape
    window, capacity = arguments["swa_window_size"], arguments["verify_capacity"]
    former = {name: arguments[name] for name in (*PLAN_OUTPUTS, *OPTIONAL_OUTPUTS)}
    config = configure(
        bs,
        max_seq_len(arguments),
        window,
        capacity,
        multiprocessors(),
        arguments["page_size"],
        arguments.get("padding_row", PADDING_ROW),
    )
    constexprs = config._asdict()
    programs, num_warps = constexprs.pop("programs"), constexprs.pop("num_warps")
    operands = (
        arguments["req_pool_indices"],
        prefix_lens,
        arguments["extend_seq_lens"],
        table,
        prefix_lens if mapping is None else mapping,
        table if tokens is None else tokens,
        prefix_lens if tokens is None else valid_lens,
        bs,
        max_reqs,
        max_seq_len(arguments),
        table_columns,
        0 if mapping is None else len(mapping),
        window,
        capacity,
        len(former["out_write_offsets"]),
        *((0, 0) if tokens is None else tokens.shape),
        arguments["kv_token_id_vs_position_offset"],
    )
    launch = functools.partial(
        jax_triton.triton_call,
        *operands,
        grid=config.WRITERS + programs,
        num_warps=num_warps,
        HAS_MAPPING=mapping is not None,
        HAS_TOKENS=tokens is not None,
        HAS_TOTAL=former["verify_total_out"] is not None,
        HAS_FAULTS=former["faults_out"] is not None,
        **constexprs,
    )
    if tuple(map(int, jax_triton.__version__.split(".")[:2])) < (0, 4):
        first = sum(not isinstance(operand, int) for operand in operands)
        outputs = launch(
            *(prefix_lens if f is None else f for f in former.values()),
            kernel=_aliased_kernel,
            out_shape=[_shape(f) for f in former.values()],
            input_output_aliases={first + i: i for i, f in enumerate(former.values()) if f is not None},
        )
    else:
        refs = [f if f is None else jax.new_ref(f) for f in former.values()]
        launch(*(prefix_lens if r is None else r for r in refs), kernel=_in_place_kernel, out_type=[])
        outputs = [ref if ref is None else jax.freeze(ref) for ref in refs]
    return {name: output for name, output in zip(former, outputs, strict=True) if former[name] is not None}


def _shape(former: jax.Array | None) -> jax.ShapeDtypeStruct:
    """Of an output; one that is absent is memory that nobody touches."""
    return (
        jax.ShapeDtypeStruct((1,), "int64")
        if former is None
        else jax.ShapeDtypeStruct(former.shape, former.dtype)
    )
