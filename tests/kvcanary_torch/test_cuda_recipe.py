"""From a call on CUDA tensors to a launch, without a GPU: CPU tensors, and a kernel that takes notes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from other_stacks import NARROW, narrowed, small_inputs

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
cuda = pytest.importorskip("kvcanary_torch.cuda", reason="Triton is not installed")

import kvcanary_torch  # noqa: E402
from shared_ref.schema import PLAN_INTO  # noqa: E402
from shared_ref.validation import plan_arguments  # noqa: E402

DEVICE = None
"""Index of the device that the CPU's tensors name."""


class Kernel:
    """Launched for the first time, it gives what it is compiled to: launched by grid, too."""

    def __init__(self, arg_names: list[str]) -> None:
        self.arg_names = arg_names
        self.first: list[dict[str, Any]] = []
        self.again: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def first(*arguments: Any, num_warps: int) -> Any:
            self.first.append(dict(zip(self.arg_names, arguments, strict=True)))
            return {grid: lambda *more: self.again.append(dict(zip(self.arg_names, more, strict=True)))}

        return first


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel(cuda.plan_kernel.arg_names)
    monkeypatch.setitem(cuda._KERNELS, PLAN_INTO, kernel)
    monkeypatch.setattr(cuda, "_compiled", {})
    monkeypatch.setattr(cuda, "_multiprocessors", lambda device: 132)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: DEVICE)
    return kernel


def arguments(narrow: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    """Of `plan` with `out`."""
    verify = kvcanary_torch.VerifyPlan.allocate(verify_capacity=12)
    write = kvcanary_torch.WritePlan.allocate(write_req_capacity=4)
    given = {
        k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v
        for k, v in narrowed(small_inputs(), narrow).items()
    }
    others = {"page_size": 1, "padding_row": -1, "verify_total_out": None, "faults_out": None}
    return others | given | plan_arguments(verify, write) | changes


def run(a: dict[str, Any]) -> None:
    cuda.recipe(PLAN_INTO, a)(a)


def test_the_kernel_gets_the_call_s_own_tensors_and_what_it_is_compiled_for(kernel: Kernel) -> None:
    a = arguments()
    run(a)
    (got,) = kernel.first
    tensors = [name for name, value in a.items() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 16
    assert all(got[name] is a[name] for name in tensors)
    assert (got["verify_total_out"], got["faults_out"]) == (None, None)
    assert (got["bs"], got["max_reqs"], got["max_seq_len"], got["lut_len"]) == (4, 3, 8, 30)
    assert (got["WINDOWED"], got["PAGE"], got["PADDING_ROW"], got["BS"]) == (True, 1, -1, 4)


def test_what_has_been_compiled_is_launched_again(kernel: Kernel) -> None:
    a, b = arguments(), arguments()
    run(a)
    run(b)
    assert (len(kernel.first), len(kernel.again)) == (1, 1)
    assert kernel.again[0]["prefix_lens"] is b["prefix_lens"]


@pytest.mark.parametrize(
    "other",
    [
        {"narrow": ("req_pool_indices",)},
        {"narrow": NARROW},
        {"padding_row": None},
        {"page_size": 2},
        {"swa_window_size": 0},
        {"full_to_swa_index_mapping": None, "swa_window_size": 0},
        {"req_to_verify_expected_tokens": None},
        {"faults_out": torch.zeros((8, 2), dtype=torch.int64)},
    ],
    ids=lambda other: ", ".join(map(str, other)),
)
def test_another_kind_of_call_is_compiled_for_itself(kernel: Kernel, other: dict[str, Any]) -> None:
    for _ in range(2):
        run(arguments())
        run(arguments(**other))
    assert (len(kernel.first), len(kernel.again)) == (2, 2)


def test_valid_lens_without_a_token_table_do_not_reach_the_kernel(kernel: Kernel) -> None:
    run(arguments(req_to_verify_expected_tokens=None))
    run(arguments(req_to_verify_expected_tokens=None, req_to_verify_expected_tokens_valid_lens=None))
    assert kernel.first[0]["req_to_verify_expected_tokens_valid_lens"] is None
    assert (len(kernel.first), len(kernel.again)) == (1, 1)


@pytest.mark.parametrize(("current", "entered"), [(DEVICE, 0), (1, 1)])
def test_the_launch_is_on_the_tensors_device(
    kernel: Kernel, current: int | None, entered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = []

    @contextlib.contextmanager
    def switched(device: Any) -> Iterator[None]:
        assert kernel.first == []
        devices.append(device)
        yield

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device", switched)
    run(arguments())
    assert devices == [torch.device("cpu")] * entered
    assert len(kernel.first) == 1
