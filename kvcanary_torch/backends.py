"""The torch backends, as the conformance kit drives them: numpy arrays in, plans filled in place."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Any

from shared_ref.backends import Backend


def _version() -> str:
    return f"torch {importlib.metadata.version('torch')}"


def _unavailable() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed: pip install 'kvcanary[torch]'"
    return None


def _launch_on_cpu(*, verify_plan_out: Any, write_plan_out: Any, **inputs: Any) -> None:
    import torch

    from . import VerifyPlan, WritePlan, launch_canary_plan_kernels

    def tensor(value: Any) -> Any:
        return torch.from_numpy(value) if hasattr(value, "dtype") else value

    def plan(cls: Any, buffers: Any) -> Any:
        return cls(**{f.name: tensor(getattr(buffers, f.name)) for f in cls.fields()})

    launch_canary_plan_kernels(
        verify_plan_out=plan(VerifyPlan, verify_plan_out),
        write_plan_out=plan(WritePlan, write_plan_out),
        **{name: tensor(value) for name, value in inputs.items()},
    )


CPU = Backend(
    name="torch-cpu",
    launch=_launch_on_cpu,
    version=_version,
    unavailable=_unavailable,
    note="runs the reference itself, in place",
)
