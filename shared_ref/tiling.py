"""How the GPU kernels cut a launch up, from sizes alone: no value of an array is known.

The entries of a request are cut into units, so that a unit never crosses a request, and programs share
the units. Measured on an H200; docs/performance.md has the figures.
"""

from __future__ import annotations


def positions_of_a_unit(large_batch: bool, swa_window_size: int, verify_capacity: int) -> int:
    """How many neighbouring positions of a request a unit has: 128, 256 or 512.

    Args:
        large_batch: whether there are so many requests that a kernel looks up its first unit alone.
    """
    if large_batch:
        return 256
    if 0 < swa_window_size <= 256:
        return 128 if swa_window_size <= 128 else 256
    return 512 if verify_capacity > 2**17 else 256


def positions_of_a_request(max_seq_len: int, swa_window_size: int) -> int:
    """The most that are verified."""
    return min(swa_window_size, max_seq_len) if swa_window_size > 0 else max_seq_len


def most_units(bs: int, max_seq_len: int, swa_window_size: int, verify_capacity: int, unit: int) -> int:
    """No batch whose entries fit has more units of so many positions."""
    positions = positions_of_a_request(max_seq_len, swa_window_size)
    return min(verify_capacity // unit + bs, bs * -(-positions // unit))
