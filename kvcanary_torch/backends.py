"""The torch backends, as the conformance kit drives them: numpy arrays in, plans filled in place."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from typing import Any

from shared_ref.backends import Backend
from shared_ref.schema import OPTIONAL_OUTPUTS


def _version() -> str:
    return f"torch {importlib.metadata.version('torch')}"


def _unavailable() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed: pip install 'kvcanary[torch]'"
    return None


def _unavailable_on_cuda() -> str | None:
    if (reason := _unavailable()) is not None:
        return reason
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: pip install 'kvcanary[torch]'"
    import torch

    return None if torch.cuda.is_available() else "torch sees no CUDA device"


def _launch_on(device: str, *, verify_plan_out: Any, write_plan_out: Any, **inputs: Any) -> None:
    import torch

    from . import VerifyPlan, WritePlan, launch_canary_plan_kernels

    def tensor(value: Any) -> Any:
        return _to(device, value) if hasattr(value, "dtype") else value

    def plan(cls: Any, buffers: Any) -> Any:
        return cls(**{f.name: tensor(getattr(buffers, f.name)) for f in cls.fields()})

    plans = plan(VerifyPlan, verify_plan_out), plan(WritePlan, write_plan_out)
    tensors = {name: tensor(value) for name, value in inputs.items()}
    launch_canary_plan_kernels(verify_plan_out=plans[0], write_plan_out=plans[1], **tensors)
    if device != "cpu":
        for name in OPTIONAL_OUTPUTS:
            if inputs.get(name) is not None:
                torch.from_numpy(inputs[name]).copy_(tensors[name])
        for filled, out in zip(plans, (verify_plan_out, write_plan_out), strict=True):
            for field in filled.fields():
                torch.from_numpy(getattr(out, field.name)).copy_(getattr(filled, field.name))


def _to(device: str, array: Any) -> Any:
    """A tensor on `device`; a row-strided table stays one, over memory of its own."""
    import torch

    if array.ndim == 2 and not array.flags.c_contiguous and array.base is not None and device != "cpu":
        rows, width = array.shape
        wide = torch.empty((rows, array.strides[0] // array.itemsize), dtype=torch.int32, device=device)
        wide[:, :width] = torch.from_numpy(array)
        return wide[:, :width]
    return torch.from_numpy(array).to(device)


CPU = Backend(
    name="torch-cpu",
    launch=functools.partial(_launch_on, "cpu"),
    version=_version,
    unavailable=_unavailable,
    note="runs the reference itself, in place",
)

CUDA = Backend(
    name="torch-triton",
    launch=functools.partial(_launch_on, "cuda"),
    version=lambda: f"{_version()}, triton {importlib.metadata.version('triton')}",
    unavailable=_unavailable_on_cuda,
)
