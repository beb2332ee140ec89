"""How a launch is cut up: no batch has more units than `most_units`, and what a kernel may rely on."""

from __future__ import annotations

import itertools

import pytest

from shared_ref.tiling import most_units, positions_of_a_request, positions_of_a_unit


def units_of(lens: tuple[int, ...], unit: int) -> int:
    return sum(-(-n // unit) for n in lens)


@pytest.mark.parametrize("unit", [1, 2, 4])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("capacity", [0, 1, 5, 100])
@pytest.mark.parametrize("bs", [0, 1, 3])
def test_no_batch_that_fits_has_more_units(bs: int, capacity: int, window: int, unit: int) -> None:
    width = 6
    longest = min(width, window) if window else width
    assert positions_of_a_request(width, window) == longest
    batches = itertools.product(range(longest + 1), repeat=bs)
    most = max(units_of(lens, unit) for lens in batches if sum(lens) <= capacity)
    bound = most_units(bs, width, window, capacity, unit)
    assert most <= bound <= min(most + bs, bs * -(-longest // unit))


@pytest.mark.parametrize("large_batch", [False, True])
@pytest.mark.parametrize("window", [-(2**31), 0, 1, 128, 129, 256, 257, 2**31 - 1])
@pytest.mark.parametrize("capacity", [0, 2**17, 2**17 + 1, 2**31 - 1])
def test_a_unit_is_no_longer_than_half_again_a_window(large_batch: bool, window: int, capacity: int) -> None:
    unit = positions_of_a_unit(large_batch, window, capacity)
    assert unit in (128, 256, 512)
    if not large_batch and 0 < window <= 256:
        assert window <= unit <= max(128, 2 * window)
