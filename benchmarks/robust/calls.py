"""Bad calls: several rules broken at once, arguments in any order; the right message, untouched buffers."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from validation_table import FRONTENDS, Call, Frontend, Row, breakable, good_call, is_output

_LAUNCHERS = ("launch_canary_plan_kernels", "launch_plan_offsets_kernel", "launch_plan_entries_kernel")
MOST_BROKEN = 4
"""Rules that a call breaks."""


def frontend(name: str, device: str) -> Frontend:
    """The table's; torch's on CUDA has its arrays there, and on the host where another device is due."""
    found = FRONTENDS[name]
    if name != "torch" or device != "cuda":
        return found
    return _OnCuda(
        **{f.name: getattr(found, f.name) for f in dataclasses.fields(found)}
        | {"array": _on_cuda, "elsewhere": _on_host, "devices": lambda: ("cuda:0", "cpu")}
    )


class _OnCuda(Frontend):
    def bytes_of(self, array: Any) -> bytes | None:
        return super().bytes_of(array.cpu() if hasattr(array, "cpu") else array)


def _on_host(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


def _on_cuda(array: np.ndarray) -> Any:
    """With the array's strides, overlapping ones too."""
    import torch

    host = torch.from_numpy(array)
    if host.is_contiguous():
        return host.cuda()
    span = 1 + sum((n - 1) * stride for n, stride in zip(host.shape, host.stride(), strict=True))
    return host.as_strided((span,), (1,)).cuda().as_strided(host.shape, host.stride())


def refuse(name: str, device: str, count: int, seed: int) -> Iterator[tuple[int, list[str]]]:
    """Make bad calls of a framework: each row of the table once, then as many combinations as are left.

    Yields:
        Calls so far, and what was wrong with the last one: another message, a buffer that was written to.
    """
    rng = np.random.default_rng(seed)
    judge = _Judge(frontend(name, device), rng)
    rows = breakable(judge.frontend)
    singles = [[rows[i]] for i in rng.permutation(len(rows))]
    for made, broken in enumerate(itertools.islice(itertools.chain(singles, judge.combinations()), count), 1):
        yield made, judge.wrong(broken)


class _Judge:
    def __init__(self, frontend: Frontend, rng: np.random.Generator) -> None:
        self.frontend = frontend
        self.rng = rng
        self.rows = {launcher: breakable(frontend, launcher) for launcher in _LAUNCHERS}

    def combinations(self) -> Iterator[list[Row]]:
        """Rows of one launcher of which none has to do with what another one changes."""
        while True:
            launcher = _LAUNCHERS[self.rng.integers(len(_LAUNCHERS))]
            wanted = self.rng.integers(2, MOST_BROKEN + 1)
            chosen: list[Row] = []
            for i in self.rng.permutation(len(self.rows[launcher])):
                row = self.rows[launcher][i]
                if all(_go_together(row, other) for other in chosen):
                    chosen.append(row)
                if len(chosen) == wanted:
                    break
            if len(chosen) > 1:
                yield chosen

    def wrong(self, rows: list[Row]) -> list[str]:
        """What a call that breaks these rows does wrong."""
        call: Call = good_call(rows[0].launcher)
        for row in rows:
            call |= row.changes
        names = list(call)
        self.rng.shuffle(names)
        call = self.frontend.convert({name: call[name] for name in names})
        before = self._outputs(call)
        first = min(rows, key=lambda row: row.order)
        what = f"{self.frontend.package}, {' + '.join(row.id for row in rows)}"
        try:
            self.frontend.launch(first.launcher, call)
        except ValueError as error:
            wrong = [] if self._says(first, str(error)) else [f"{what}: {error}"]
        else:
            return [f"{what}: no error"]
        return wrong if self._outputs(call) == before else [*wrong, f"{what}: a buffer was written to"]

    def _outputs(self, call: Call) -> dict[str, bytes | None]:
        return {name: self.frontend.bytes_of(array) for name, array in call.items() if is_output(name)}

    def _says(self, row: Row, text: str) -> bool:
        home, away = self.frontend.devices()
        message = row.message.replace("{array}", self.frontend.array_name)
        message = "kv-canary: " + message.replace("{home}", home).replace("{away}", away)
        if row.truncated and self.frontend.hint_on_truncation:
            return text.startswith(f"{message}. ")
        return text == message


def _go_together(a: Row, b: Row) -> bool:
    return a.order != b.order and not (a.changes.keys() & b.involves or b.changes.keys() & a.involves)
