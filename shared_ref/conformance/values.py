"""Values that all makers of cases share."""

from __future__ import annotations

import math

import numpy as np

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

WRAPPING = (2**31, 2**32, 2**32 + 1, 2**32 + 3, INT64_MAX, -1, INT32_MIN, -(2**32) + 1, INT64_MIN)
"""int64 values that turn into harmless ones where an implementation narrows, clips or wraps them."""

BETWEEN_ROWS = 777_777
"""In the gaps of a table whose rows are apart: nobody may read it."""


def counting(shape: tuple[int, ...], first: int) -> np.ndarray:
    """int32 cells that all differ, so that reading the wrong one shows."""
    return np.arange(first, first + math.prod(shape), dtype=np.int32).reshape(shape)
