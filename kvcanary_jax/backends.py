"""The JAX backends, as the conformance kit drives them: numpy arrays in, new plans out."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from typing import Any

from shared_ref.backends import Backend


def _version() -> str:
    return f"jax {importlib.metadata.version('jax')}"


def _unavailable() -> str | None:
    if importlib.util.find_spec("jax") is None:
        return "JAX is not installed: pip install 'kvcanary[jax]'"
    return None


def _launch(
    implementation: str, *, verify_plan_out: Any, write_plan_out: Any, **inputs: Any
) -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from . import VerifyPlan, WritePlan, launch_canary_plan_kernels

    def array(value: Any) -> Any:
        return jnp.array(value) if hasattr(value, "dtype") else value

    def plan(cls: Any, buffers: Any) -> Any:
        return cls(**{f.name: array(getattr(buffers, f.name)) for f in cls.fields()})

    with jax.enable_x64(True):
        plans = launch_canary_plan_kernels(
            verify_plan_out=plan(VerifyPlan, verify_plan_out),
            write_plan_out=plan(WritePlan, write_plan_out),
            **{name: array(value) for name, value in inputs.items()},
            implementation=implementation,
        )
    return jax.tree.map(np.asarray, plans)


def _unavailable_as(implementation: str) -> str | None:
    if (reason := _unavailable()) is not None:
        return reason
    import jax

    from .implementations import IMPLEMENTATIONS

    return IMPLEMENTATIONS[implementation].unavailable(jax.default_backend())


def _backend(implementation: str) -> Backend:
    return Backend(
        name=f"jax-{implementation}",
        launch=functools.partial(_launch, implementation),
        version=_version,
        unavailable=functools.partial(_unavailable_as, implementation),
    )


XLA = _backend("xla")
MOSAIC = _backend("mosaic")
TRITON = _backend("triton")
