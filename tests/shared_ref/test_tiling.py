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


@pytest.mark.parametrize(
    ("window", "capacity", "unit"),
    [
        (1, 2**31 - 1, 128),
        (128, 0, 128),
        (129, 2**31 - 1, 256),
        (256, 0, 256),
        (257, 2**17, 256),
        (257, 2**17 + 1, 512),
        (0, 2**17, 256),
        (0, 2**17 + 1, 512),
        (-(2**31), 2**17 + 1, 512),
    ],
)
def test_units_are_small_where_windows_or_plans_are(window: int, capacity: int, unit: int) -> None:
    assert positions_of_a_unit(False, window, capacity) == unit
    assert positions_of_a_unit(True, window, capacity) == 256
