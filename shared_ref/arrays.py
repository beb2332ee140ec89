"""Any framework's arrays as numpy's, without importing the framework."""

from __future__ import annotations

from typing import Any

import numpy as np


def as_numpy(array: Any) -> np.ndarray:
    """An array of torch, of JAX, or one that numpy can read; waits for its device."""
    if hasattr(array, "cpu"):
        return np.asarray(array.detach().cpu())
    # A `jax.Ref` has elements, and says nothing to numpy.
    is_ref = hasattr(array, "dtype") and not hasattr(array, "__array__")
    return np.asarray(array[...] if is_ref else array)
