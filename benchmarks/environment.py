"""What figures depend on beside the code: the machine, its driver, and the packages' versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess

PACKAGES = ("kvcanary", "numpy", "torch", "triton", "jax", "jaxlib", "jax-triton")


def versions() -> dict[str, str]:
    """Of the packages that are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def host() -> str:
    return f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"


def gpu_and_driver() -> tuple[str, str] | None:
    """Of the first GPU, as its driver says it; None without one."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(
            query, capture_output=True, text=True, timeout=20, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    if not lines:
        return None
    name, driver = lines[0].split(", ")
    return name, driver
