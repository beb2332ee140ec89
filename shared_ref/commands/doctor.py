"""`kvcanary doctor`: what there is to run on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..conformance.report import versions
from . import common


@click.command()
def doctor() -> None:
    """Show versions, devices, and for each backend that it is available or why not."""
    console = Console(highlight=False)
    rows = [("python", platform.python_version())]
    rows += [(package, version or "not installed") for package, version in versions().items()]
    _print_section(console, "Versions", rows)
    _print_section(console, "Devices", _devices())
    found = ((backend, backend.unavailable()) for backend in common.backends().values())
    _print_section(
        console,
        "Backends",
        [(b.name, f"unavailable: {why}" if why else f"available: {b.version()}") for b, why in found],
    )


def _print_section(console: Console, title: str, rows: Iterable[tuple[str, str]]) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for name, value in rows:
        table.add_row(f"  {name}", Text(value))
    console.print(Text(title, style="bold"))
    console.print(table)
    console.print()


def _devices() -> Iterator[tuple[str, str]]:
    yield "CPU", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"
    for framework, devices in (("torch", _torch_devices), ("jax", _jax_devices)):
        try:
            found = devices() or ["no CUDA device"]
        except ModuleNotFoundError as error:
            found = [f"{error.name} is not installed"]
        except Exception as error:  # a broken installation is what a doctor is asked about
            found = [f"{type(error).__name__}: {error}"]
        yield from ((framework, device) for device in found)


def _torch_devices() -> list[str]:
    import torch

    return [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]


def _jax_devices() -> list[str]:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # a look should not take a GPU's memory
    import jax

    return [f"{device} ({device.device_kind})" for device in jax.devices()]
