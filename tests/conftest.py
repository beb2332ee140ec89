"""What every test runs under: two JAX devices on the CPU, hypothesis profiles, the checkout's packages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# `tests/shared_ref` would pass for the package of that name, since pytest puts `tests` on the path.
sys.path.insert(0, str(Path(__file__).parents[1]))

# Read when jax is first imported: the device rule needs a second device to be broken with.
TWO_CPU_DEVICES = "--xla_force_host_platform_device_count=2"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {TWO_CPU_DEVICES}".strip()

# No deadline: the first example of a shape waits for a compiler.
settings.register_profile(
    "default", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The tallies of tests/meta: how many wrong implementations the judge has rejected."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "tally":
                terminalreporter.write_line(str(value))
