"""The Triton kernels without a GPU: their bytes and their accesses, their launches, their compilations."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import CHUNK, Cut, interpreted, plan, plan_of_other_stacks, plan_of_wide_table, staged
from named_cases import NAMED_CASES
from other_stacks import NARROW, shifted, small_inputs

from shared_ref.conformance.case import Case, Plans
from shared_ref.conformance.strategies import free_cases

triton = pytest.importorskip("triton", reason="Triton is not installed")
jit = pytest.importorskip("triton.runtime.jit")
tl = pytest.importorskip("triton.language")
kernels = pytest.importorskip("kvcanary_torch.kernels")

CUTS = {
    "a unit at a time": Cut(tile=16, programs=3, gap=3),
    "several units of chunks": Cut(
        tile=16, units=4, writers=2, programs=3, index="int64", least_bs=2 * CHUNK
    ),
}
OTHER_CUTS = (
    Cut(tile=32),
    Cut(tile=16, programs=9, writers=4, least_bs=8, index="int64"),
    Cut(tile=32, units=2, writers=4, programs=2, least_bs=CHUNK, gap=1),
    Cut(tile=16, units=8, writers=1, programs=7, least_bs=4 * CHUNK),
)
cut = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)

STAGED = (
    "no requests, no room",
    "some of everything, translated and with tokens",
    "one entry too many",
    "no capacity for one entry",
    "a window and tokens",
    "everything odd",
    "requests at the borders of chunks",
)

KERNELS = [kernels.plan_kernel, kernels.offsets_kernel, kernels.entries_kernel]
kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.fn.__name__)

MULTIPROCESSORS = 132


def assert_same_bytes(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert got.keys() == expected.keys()
    for name, buffer in expected.items():
        np.testing.assert_array_equal(got[name], buffer, err_msg=name)


def assert_plans(got: Plans, expected: Plans) -> None:
    assert_same_bytes(got.buffers(), expected.buffers())


@cut
@pytest.mark.parametrize("name", NAMED_CASES)
def test_plan_kernel_equals_the_reference(name: str, cut: Cut) -> None:
    case = NAMED_CASES[name]
    assert_plans(interpreted(plan, case, cut), case.expected())


@given(free_cases(), st.sampled_from((*CUTS.values(), *OTHER_CUTS)))
@settings(max_examples=40, derandomize=True)
def test_plan_kernel_equals_the_reference_on_drawn_cases(case: Case, cut: Cut) -> None:
    assert_plans(interpreted(plan, case, cut), case.expected())


@pytest.mark.parametrize("cut", OTHER_CUTS, ids=str)
def test_plan_kernel_equals_the_reference_however_it_is_cut_up(cut: Cut) -> None:
    case = NAMED_CASES["some of everything, translated and with tokens"]
    assert_plans(interpreted(plan, case, cut), case.expected())


@cut
def test_positions_past_int32_are_reached_in_a_wide_table(cut: Cut) -> None:
    got, expected = interpreted(plan_of_wide_table, cut._replace(index="int64", gap=0))
    last = 2**31 + 49
    assert expected.verify.verify_expected_positions[39] == last
    assert_plans(got, expected)


@cut
@pytest.mark.parametrize("narrow", [(), NARROW], ids=["int64", "int32"])
@pytest.mark.parametrize("padding_row", [0, -1, 2, None])
def test_plan_kernel_takes_other_stacks_rows_and_dtypes(
    padding_row: int | None, narrow: tuple[str, ...], cut: Cut
) -> None:
    inputs = small_inputs(prefix_lens=np.array([3, 9, 7, -1]))
    extras = ("verify_total_out", "faults_out")
    case = Case.poisoned("other stacks", inputs, write_req_capacity=6, extras=extras)
    expected = case._replace(inputs=shifted(inputs, padding_row)).expected()
    assert_plans(interpreted(plan_of_other_stacks, case, cut, padding_row, narrow), expected)


@cut
@pytest.mark.parametrize("name", STAGED)
def test_staged_kernels_equal_the_staged_references(name: str, cut: Cut) -> None:
    assert_same_bytes(*interpreted(staged, NAMED_CASES[name], cut))


@cut
@pytest.mark.parametrize("enable", [0, 1, -3])
def test_entries_kernel_trusts_only_the_switch(enable: int, cut: Cut) -> None:
    case = NAMED_CASES["some of everything"]
    got, expected = interpreted(staged, case, cut, enable)
    assert_same_bytes(got, expected)
    before = case.before.verify.verify_slot_indices
    assert (got["out_verify_slot_indices"] == before).all() == (enable == 0)


@cut
def test_entries_kernel_fills_no_columns_that_the_entries_exceed(cut: Cut) -> None:
    got, expected = interpreted(staged, NAMED_CASES["one entry too many"], cut, 1)
    assert_same_bytes(got, expected)


@pytest.mark.parametrize("stray", ["load", "store"])
def test_a_stray_access_is_reported(stray: str) -> None:
    """Of the tests: a kernel that is told of a longer table, or of a longer plan, than it is given."""
    from interpreted import plan_of_a_shorter_buffer

    with pytest.raises(AssertionError, match=f"{stray}s (from|to) outside"):
        interpreted(plan_of_a_shorter_buffer, stray)


SIZES = [
    {"max_seq_len": 40, "swa_window_size": 0, "verify_capacity": 256},
    {"max_seq_len": 8192, "swa_window_size": 0, "verify_capacity": 2**22},
    {"max_seq_len": 131_072, "swa_window_size": 0, "verify_capacity": 2**31 - 1},
    {"max_seq_len": 8192, "swa_window_size": 1, "verify_capacity": 4096},
    {"max_seq_len": 8192, "swa_window_size": 200, "verify_capacity": 2**20},
    {"max_seq_len": 131_072, "swa_window_size": 2**31 - 1, "verify_capacity": 2**20},
    {"max_seq_len": 0, "swa_window_size": -1, "verify_capacity": 0},
    {"max_seq_len": 2**31 + 64, "swa_window_size": -(2**31), "verify_capacity": 2**20},
]
sizes = pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes.values())))


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


@sizes
@pytest.mark.parametrize("multiprocessors", [1, MULTIPROCESSORS])
def test_configure_cuts_every_batch_as_the_kernels_demand(
    sizes: dict[str, int], multiprocessors: int
) -> None:
    for bs in range(4097):
        config = kernels.configure(bs, **sizes, multiprocessors=multiprocessors)
        assert is_power_of_two(config.BS)
        assert max(bs, 1) <= config.BS < max(2 * bs, 2)
        assert is_power_of_two(config.TILE)
        assert is_power_of_two(config.UNITS)
        assert 128 <= config.TILE * config.UNITS <= 4096
        assert config.UNITS == 1 or config.BS >= CHUNK
        assert is_power_of_two(config.WRITERS)
        assert config.WRITERS <= config.BS
        assert config.num_warps in (1, 2, 4, 8, 16, 32)
        assert 1 <= config.programs <= 16 * multiprocessors
        assert (sizes["swa_window_size"] > 0) == config.WINDOWED


def test_the_interpreted_batches_are_padded_to_the_kernel_s_chunk() -> None:
    assert kernels.CHUNK.value == CHUNK


@sizes
def test_configure_starts_no_program_that_can_have_no_entry(sizes: dict[str, int]) -> None:
    window, width = sizes["swa_window_size"], sizes["max_seq_len"]
    longest = min(window, width) if window > 0 else width
    for bs in (0, 1, 7, 300, 4096):
        config = kernels.configure(bs, **sizes, multiprocessors=MULTIPROCESSORS)
        most_units = bs * math.ceil(longest / config.TILE)
        assert config.programs <= max(1, math.ceil(most_units / config.UNITS))


@sizes
def test_configure_compiles_at_most_thirteen_times_for_all_batches(sizes: dict[str, int]) -> None:
    configs = [kernels.configure(bs, **sizes, multiprocessors=MULTIPROCESSORS) for bs in range(1, 4097)]
    assert len({config._replace(programs=0) for config in configs}) <= 13


def index(bs: int, max_seq_len: int, window: int) -> Any:
    return kernels.configure(bs, max_seq_len, window, 2**20, MULTIPROCESSORS).INDEX


@pytest.mark.parametrize("bs", [0, 1, 512, 4096])
@pytest.mark.parametrize("window", [0, 100])
def test_configure_counts_in_int64_where_a_tile_could_pass_int32(bs: int, window: int) -> None:
    few = min(bs, 1) if window == 0 else bs
    tile = kernels.configure(few, 2**31, window, 2**20, MULTIPROCESSORS).TILE
    assert index(few, 2**31 - tile - 1, window) is tl.int32
    assert index(few, 2**31 - tile, window) is tl.int64
    assert index(few, 2**31 + 64, window) is tl.int64
    assert index(bs, 2**40, window) is tl.int64


@pytest.mark.parametrize("bs", [16, 512, 4096])
def test_configure_counts_in_int64_where_a_batch_could_pass_int32(bs: int) -> None:
    width = 2**31 // bs
    assert index(bs, width - 1, 0) is tl.int32
    assert index(bs, width, 0) is tl.int64
    assert index(bs, 2**31 - 10_000, width - 1) is tl.int32
    assert index(bs, 2**31 - 10_000, width) is tl.int64


@kernel
def test_every_argument_is_typed_a_pointer_or_compiled_in(kernel: Any) -> None:
    for parameter in kernel.params:
        if parameter.is_constexpr:
            continue
        if parameter.annotation_type:
            assert parameter.annotation_type in ("i32", "i64"), parameter.name
            assert parameter.do_not_specialize, parameter.name
        else:
            assert parameter.do_not_specialize_on_alignment, parameter.name


@kernel
def test_nothing_specialises_on_a_value(kernel: Any) -> None:
    """What Triton would look a compiled kernel up by, for integers and pointers of every kind."""
    compiler = pytest.importorskip("triton.backends.nvidia.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    bind = jit.create_function_from_signature(kernel.signature, kernel.params, compiler.CUDABackend(target))

    def key(integer: int, address: int) -> Any:
        arguments = []
        for parameter in kernel.params:
            dtype = "int32" if parameter.name in INT32_TENSORS else "int64"
            pointer = SimpleNamespace(dtype=dtype, data_ptr=lambda: address)
            arguments.append(integer if parameter.annotation_type or parameter.is_constexpr else pointer)
        return bind(*arguments)[1]

    expected = key(3, 8)
    constants = [parameter.name for parameter in kernel.params if parameter.is_constexpr]
    for integer in (0, 1, 16, 64, -1, 2**31 - 1, 2**31, 2**32, 2**40, -(2**40)):
        for address in (0, 4, 8, 16, 256):
            different = [
                parameter.name
                for parameter, got, want in zip(kernel.params, key(integer, address), expected, strict=True)
                if got != want
            ]
            assert set(different) <= set(constants)


INT32_TENSORS = {
    "req_to_token",
    "req_to_verify_expected_tokens",
    "verify_enable",
    "out_verify_num_valid",
    "out_verify_enable",
    "out_write_num_valid_reqs",
}
