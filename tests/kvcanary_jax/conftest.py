"""JAX's 64-bit switch as a fixture: the library must work either way, and leave it alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(params=[False, True], ids=["x64-off", "x64-on"])
def x64(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The process's `jax_enable_x64`, set to either value; fails the test that changed it."""
    import jax

    former = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", request.param)
    try:
        yield request.param
        assert jax.config.jax_enable_x64 is request.param, "the test changed jax_enable_x64"
    finally:
        jax.config.update("jax_enable_x64", former)
