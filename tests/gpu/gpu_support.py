"""Cases on the GPU: their arrays as tensors there, aligned or not, and both ways to launch on them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import kvcanary_torch
from shared_ref import VerifyPlan, WritePlan
from shared_ref.conformance.case import Case, Plans
from shared_ref.schema import LAUNCH_ENTRIES, LAUNCH_OFFSETS, Launcher
from shared_ref.validation import plan_arguments

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

POISON = 7_777_777
SCRATCH_LEN = 4100


class Placement(NamedTuple):
    """How arrays lie in device memory."""

    odd: bool = False
    """Whether they start at the second element of their buffer: aligned to an element, and no better."""
    gap: int = 0
    """Elements between the rows of a table, besides an odd one's."""


ALIGNED = Placement()
UNALIGNED = Placement(odd=True, gap=4)


def place(array: np.ndarray, placement: Placement = ALIGNED, device: Any = "cuda") -> Any:
    """A tensor with the array's elements, in a buffer of its own that has poison around them."""
    before = after = int(placement.odd)
    if array.ndim == 2:
        after += placement.gap
    *rows, width = array.shape
    dtype = getattr(torch, array.dtype.name)
    buffer = torch.full((*rows, before + width + after), POISON, dtype=dtype, device=device)
    tensor = buffer[..., before : before + width]
    tensor.copy_(torch.from_numpy(np.ascontiguousarray(array)))
    return tensor


def placed(arrays: dict[str, Any], placement: Placement = ALIGNED, device: Any = "cuda") -> dict[str, Any]:
    """Numpy arrays as tensors; anything else as it is."""
    return {k: place(v, placement, device) if isinstance(v, np.ndarray) else v for k, v in arrays.items()}


class OnDevice:
    """A case's inputs and plans as tensors; launches fill the plans."""

    def __init__(self, case: Case, placement: Placement = ALIGNED, device: Any = "cuda") -> None:
        self.inputs = placed(case.inputs.keywords(), placement, device)
        self.extras = {k: torch.from_numpy(v).to(device) for k, v in case.before.extras.items()}
        self.verify = kvcanary_torch.VerifyPlan(**placed(vars(case.before.verify), placement, device))
        self.write = kvcanary_torch.WritePlan(**placed(vars(case.before.write), placement, device))
        scratch = torch.full((SCRATCH_LEN,), POISON, dtype=torch.int64, device=device)
        self.scratch = {"out_verify_offsets_scratch": scratch, "verify_offsets_scratch": scratch}

    def launch(self) -> None:
        returned = kvcanary_torch.launch_canary_plan_kernels(
            verify_plan_out=self.verify, write_plan_out=self.write, **self.inputs, **self.extras
        )
        assert returned is None

    def launch_staged(self) -> None:
        for launcher in (LAUNCH_OFFSETS, LAUNCH_ENTRIES):
            self.launch_stage(launcher)

    def launch_stage(self, launcher: Launcher) -> None:
        arguments = dict(zip(names_of(launcher), self.values_for(launcher), strict=True))
        assert getattr(kvcanary_torch, launcher.name)(**arguments) is None

    def values_for(self, launcher: Launcher) -> tuple:
        """A launcher's arguments, the optional ones that are not there None."""
        values = {"page_size": 1} | self.inputs | plan_arguments(self.verify, self.write) | self.scratch
        values |= self.extras
        values["verify_enable"] = self.verify.enable
        return tuple(values.get(name) for name in names_of(launcher))

    def tensors(self) -> dict[str, Any]:
        """The plans' tensors by field, and the optional outputs."""
        return vars(self.verify) | vars(self.write) | self.extras

    def plans(self) -> Plans:
        """What the plans hold, and a check of the poison around them. Waits for the current stream."""
        arrays = {}
        for name, tensor in self.tensors().items():
            buffer = tensor if tensor._base is None else tensor._base
            around = buffer.numel() - tensor.numel()
            assert int((buffer == POISON).sum()) >= around, f"{name}: a store beside it"
            arrays[name] = tensor.cpu().numpy()
        return Plans(
            VerifyPlan(**{f.name: arrays[f.name] for f in VerifyPlan.fields()}),
            WritePlan(**{f.name: arrays[f.name] for f in WritePlan.fields()}),
            {name: arrays[name] for name in self.extras},
        )


def names_of(launcher: Launcher) -> tuple[str, ...]:
    return (*launcher.tensor_names, *launcher.integer_names)


def assert_plans(got: Plans, expected: Plans) -> None:
    """Every byte of every buffer."""
    for name, buffer in expected.buffers().items():
        have = got.buffers()[name]
        assert (have.dtype, have.shape) == (buffer.dtype, buffer.shape), name
        np.testing.assert_array_equal(have, buffer, err_msg=name)
