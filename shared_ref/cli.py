"""The command line: `kvcanary conform`, `fuzz`, `vectors`, `explain` and `doctor`."""

from __future__ import annotations

import sys

try:
    import click

    from .commands.conform import conform
    from .commands.doctor import doctor
    from .commands.explain import explain
    from .commands.fuzz import fuzz_command
    from .commands.vectors import vectors
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("click", "rich"):
        raise
    # This module is the program's entry and nothing else, so it ends the program.
    print("kvcanary: the command line needs click and rich: pip install 'kvcanary[cli]'", file=sys.stderr)
    raise SystemExit(2) from None


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvcanary", prog_name="kvcanary")
def main() -> None:
    """Hold implementations of the kv-canary plan against the contract, byte for byte."""


for command in (conform, fuzz_command, vectors, explain, doctor):
    main.add_command(command)
