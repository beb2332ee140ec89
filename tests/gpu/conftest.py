"""What the GPU tests share: how torch and JAX share the device, why they are skipped, and when to stop."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Read when JAX first sees the device: by itself it takes three quarters of its memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# For `jax_support`.
sys.path.insert(0, str(Path(__file__).parents[1] / "kvcanary_jax"))


@pytest.fixture(scope="session")
def cuda() -> Any:
    """torch's current CUDA device; skips where there is none."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="session")
def jax_gpu() -> Any:
    """The GPU that JAX runs on by default; skips where there is none."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip(f"JAX runs on {jax.default_backend()} here, not on a GPU")
    return jax.devices()[0]


@pytest.fixture(autouse=True)
def stop_at_a_broken_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Errors of the device show later than they happen, and every test after one would fail."""
    yield
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        pytest.exit(f"{request.node.nodeid} left the device broken: {error}", returncode=1)
