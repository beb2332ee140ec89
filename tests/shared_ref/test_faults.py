"""`decode_faults` in words, and what a strict look costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shared_ref import Faults, VerifyPlan, WritePlan, decode_faults, launch_canary_plan_kernels_reference

TABLE = np.array([[0] * 4, [5, -1, 0, 7], [40, 41, 42, 43]], np.int32)


def counted(**changes: Any) -> tuple[Faults, dict[str, Any]]:
    """The faults of one launch, and what `plan` would be called with."""
    given = {
        "req_pool_indices": np.array([1, 9001, 2, 0]),
        "prefix_lens": np.array([4, -2, 5, -7]),
        "extend_seq_lens": np.array([1, 1, -3, -9]),
        "req_to_token": TABLE,
    } | changes
    others = {
        "swa_window_size": 0,
        "full_to_swa_index_mapping": None,
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": None,
        "kv_token_id_vs_position_offset": 0,
    }
    faults = Faults.allocate()
    launch_canary_plan_kernels_reference(
        verify_plan_out=VerifyPlan.allocate(verify_capacity=16),
        write_plan_out=WritePlan.allocate(write_req_capacity=4),
        verify_capacity=16,
        faults_out=faults,
        **others | given,
    )
    return faults, given


def test_without_inputs_a_line_says_what_and_where() -> None:
    faults, _ = counted()
    assert (
        decode_faults(faults)
        == decode_faults(faults.buffer)
        == [
            "request 1: row is outside req_to_token; 1 in all",
            "request 1: prefix_lens is negative; 1 in all",
            "request 2: extend_seq_lens is negative; 1 in all",
            "request 2: prefix_lens exceeds the positions of req_to_token; 1 in all",
            "request 0, position 1: slot is negative; 1 in all",
            "request 0, position 2: slot is of the dummy page; 1 in all",
        ]
    )


def test_with_the_inputs_of_plan_it_gives_values_and_sizes() -> None:
    faults, given = counted(full_to_swa_index_mapping=np.arange(42))
    assert decode_faults(faults, given) == [
        "request 1: row 9001 is outside req_to_token (3 rows); 1 in all",
        "request 1: prefix_lens -2 is negative; 1 in all",
        "request 2: extend_seq_lens -3 is negative; 1 in all",
        "request 2: prefix_lens 5 exceeds the 4 positions of req_to_token; 1 in all",
        "request 2, position 2: slot 42 is outside full_to_swa_index_mapping (42 slots); 2 in all",
        "request 0, position 1: slot -1 is negative; 1 in all",
        "request 0, position 2: slot 0 is of the dummy page; 1 in all",
    ]


def test_tokens_without_a_cell_are_told_with_their_position() -> None:
    tokens = {
        "req_to_verify_expected_tokens": np.zeros((3, 2), np.int32),
        "req_to_verify_expected_tokens_valid_lens": np.array([0, 0, 3, 0]),
        "kv_token_id_vs_position_offset": 1,
    }
    faults, given = counted(**tokens)
    line = (
        "request 2, position 1: token position 2 is outside req_to_verify_expected_tokens (3 rows, 2 columns)"
    )
    assert f"{line}; 1 in all" in decode_faults(faults, given)


def test_inputs_of_another_step_leave_the_values_out() -> None:
    faults, given = counted()
    sound = given | {"req_pool_indices": np.array([1, 1, 2, 0]), "prefix_lens": np.zeros(4, np.int64)}
    lines = decode_faults(faults, sound)
    assert lines[0] == "request 1: row is outside req_to_token (3 rows); 1 in all"
    assert lines[1] == "request 1: prefix_lens is negative; 1 in all"
    shorter = {name: array[:1] if array.ndim == 1 else array for name, array in given.items()}
    assert decode_faults(faults, shorter)[0] == lines[0]


def test_nothing_found_is_no_line_even_in_a_buffer_of_zeros() -> None:
    assert decode_faults(Faults.allocate()) == []
    assert decode_faults(np.zeros((8, 2), np.int64)) == []


def test_a_reset_forgets() -> None:
    faults, _ = counted()
    faults.reset_()
    assert decode_faults(faults) == []


@pytest.mark.parametrize(
    ("buffer", "got"),
    [(np.zeros((7, 2), np.int64), "int64 [7, 2]"), (np.zeros((8, 2), np.int32), "int32 [8, 2]")],
)
def test_another_buffer_is_refused(buffer: np.ndarray, got: str) -> None:
    text = f"^kv-canary: decode_faults takes int64 \\[8, 2\\], got {got.replace('[', chr(92) + '[')}$"
    with pytest.raises(ValueError, match=text):
        decode_faults(buffer)


def test_torch_s_and_jax_s_faults_are_read() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    import kvcanary_jax
    import kvcanary_torch

    faults, _ = counted()
    of_torch = kvcanary_torch.Faults(buffer=torch.from_numpy(faults.buffer))
    with jax.enable_x64(True):
        of_jax = kvcanary_jax.Faults(buffer=jax.numpy.asarray(faults.buffer))
    assert decode_faults(of_torch) == decode_faults(of_jax) == decode_faults(faults)


def arrays_of(framework: str, inputs: dict[str, Any]) -> dict[str, Any]:
    module = pytest.importorskip(framework)
    of = module.from_numpy if framework == "torch" else module.numpy.asarray
    return {k: of(v) if isinstance(v, np.ndarray) else v for k, v in inputs.items()}


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_inputs_may_be_any_framework_s(framework: str) -> None:
    table = np.full((3, 4), 2**30 + 25, np.int32)
    faults, given = counted(req_to_token=table, full_to_swa_index_mapping=np.arange(42), page_size=4)
    narrow = {k: v.astype(np.int32) if isinstance(v, np.ndarray) else v for k, v in given.items()}
    lines = decode_faults(faults, given)
    assert (
        "request 0, position 0: slot 4294967396 is outside full_to_swa_index_mapping (42 slots); 9 in all"
        in lines
    )
    assert decode_faults(faults, arrays_of(framework, narrow)) == lines


def test_inputs_of_the_entries_launcher_will_do() -> None:
    faults, given = counted()
    del given["extend_seq_lens"]
    assert "request 0, position 1: slot -1 is negative; 1 in all" in decode_faults(faults, given)
    assert decode_faults(faults, given | {"extend_seq_lens": None}) == decode_faults(faults, given)


def test_a_buffer_in_a_jax_ref_is_read() -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    import kvcanary_jax

    faults, _ = counted()
    with jax.enable_x64(True):
        ref = jax.new_ref(jax.numpy.asarray(faults.buffer))
    assert decode_faults(kvcanary_jax.Faults(buffer=ref)) == decode_faults(faults)


@pytest.mark.parametrize(
    ("without", "changes", "message"),
    [
        ("prefix_lens", {}, "decode_faults needs prefix_lens in inputs"),
        ("", {"prefix_lens": np.array([4, -2])}, "prefix_lens length must be 4, got 2"),
        (
            "",
            {"req_to_verify_expected_tokens": TABLE},
            "decode_faults needs req_to_verify_expected_tokens_valid_lens in inputs",
        ),
    ],
)
def test_inputs_that_are_not_whole_are_refused(without: str, changes: dict[str, Any], message: str) -> None:
    faults, given = counted()
    inputs = {k: v for k, v in given.items() if k != without} | changes
    with pytest.raises(ValueError, match=f"^kv-canary: {message}$"):
        decode_faults(faults, inputs)


def test_a_strict_look_at_a_vast_length_takes_little_memory() -> None:
    """2**33 positions, the first of them past the mapping: an array of them all would be 64 GiB."""
    with pytest.raises(ValueError, match="request 0, position 0: slot 1073741824 is outside"):
        launch_canary_plan_kernels_reference(
            verify_plan_out=VerifyPlan.allocate(verify_capacity=1),
            write_plan_out=WritePlan.allocate(write_req_capacity=1),
            req_pool_indices=np.array([1]),
            prefix_lens=np.array([2**33]),
            extend_seq_lens=np.array([1]),
            req_to_token=np.ones((2, 8), np.int32),
            page_size=2**30,
            swa_window_size=0,
            full_to_swa_index_mapping=np.arange(9),
            verify_capacity=1,
            req_to_verify_expected_tokens=None,
            req_to_verify_expected_tokens_valid_lens=None,
            kv_token_id_vs_position_offset=0,
            strict=True,
        )
