"""Drawn launches on the device: each backend's bytes against the first one's, and samples the reference's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from shared_ref.conformance.fuzz_cases import LAYOUTS

from .backends import Subject, jax_subjects, torch_subjects
from .chunks import Chunk, Tensors, chunks, different, differs_from_reference
from .settings import Settings
from .watch import Report

NUMBERS = ("launches", "corrupt", "cases", "sampled", "differences")
"""Of a backend: launches, those of them whose batch has a corrupt request; cases compared with the first
backend's plans, those compared with the reference too, and those that differ from it."""
MOST_WRONG = 20
"""Differing cases after which a worker stops."""


def shares(settings: Settings) -> list[list[str]]:
    """The layouts of each worker, by name: each has its share of the long and the large ones."""
    names = [layout.name for layout in LAYOUTS]
    return [names[i :: settings.workers] for i in range(min(settings.workers, len(names)))]


def run(settings: Settings, report: Report, names: Sequence[str]) -> None:
    """Launch on these layouts' cases until this worker has made its share of the launches.

    Reports `launches` with the numbers of a backend so far, and `wrong` for each case that differs.
    """
    subjects = torch_subjects(settings.device)
    found, missing = jax_subjects(settings.device)
    subjects += found
    for name, reason in missing.items():
        report("unavailable", name, reason)
    judge = _Judge(settings, report, subjects)
    target = settings.launches / len(shares(settings))
    for chunk in chunks(settings.seed, names, settings.device, settings.most_blocks):
        judge.add(chunk)
        if judge.corrupt_launches >= target or judge.wrong >= MOST_WRONG:
            break
    judge.finish()


class _Judge:
    """What is known so far. The host looks at a chunk's differences while the next one runs."""

    def __init__(self, settings: Settings, report: Report, subjects: list[Subject]) -> None:
        self.settings = settings
        self.report = report
        self.subjects = subjects
        self.numbers = {subject.name: dict.fromkeys(NUMBERS, 0) for subject in subjects}
        self.wrong = 0
        self.waiting: Callable[[], None] | None = None
        self.rng = np.random.default_rng(settings.seed)

    @property
    def corrupt_launches(self) -> int:
        return sum(numbers["corrupt"] for numbers in self.numbers.values())

    def add(self, chunk: Chunk) -> None:
        """Launch every backend on a chunk."""
        inputs = {name: tensor.clone() for name, tensor in chunk.inputs.items()}
        # JAX's go first: they run while the host makes torch's calls.
        outputs = {}
        for subject in reversed(self.subjects):
            outputs[subject.name] = subject.launch(chunk)
            self.report("alive")  # it may have waited for a compiler
        first = outputs[self.subjects[0].name]
        flags = {s.name: different(first, outputs[s.name]) for s in self.subjects[1:]}
        flags["inputs"] = different(inputs, chunk.inputs)
        sampled = self.rng.choice(chunk.cases, max(chunk.cases // self.settings.sample, 1), replace=False)
        self.finish()
        self.waiting = lambda: self._look(chunk, flags, outputs, sampled.tolist())

    def finish(self) -> None:
        """Look at the last chunk."""
        if self.waiting is not None:
            self.waiting()
            self.waiting = None

    def _look(
        self, chunk: Chunk, flags: Tensors, outputs: dict[str, Tensors], sampled: Sequence[int]
    ) -> None:
        seen = torch.stack(list(flags.values())).any(0)
        suspects = set(torch.nonzero(seen).flatten().tolist())
        if bool(flags["inputs"].any()):
            self._note(chunk, min(torch.nonzero(flags["inputs"]).flatten().tolist()), "the inputs changed")
        for i in sorted(suspects | set(sampled)):
            wrong = [s for s in self.subjects if differs_from_reference(chunk, outputs[s.name], i)]
            for subject in wrong:
                self.numbers[subject.name]["differences"] += 1
            if wrong:
                self._note(chunk, i, f"{', '.join(s.name for s in wrong)} differ from the reference")
        for subject in self.subjects:
            numbers = self.numbers[subject.name]
            numbers["cases"] += chunk.cases
            numbers["launches"] += chunk.cases * subject.calls
            numbers["corrupt"] += chunk.corrupt * subject.calls
            numbers["sampled"] += len(sampled)
            self.report("launches", subject.name, dict(numbers))

    def _note(self, chunk: Chunk, i: int, what: str) -> None:
        self.wrong += 1
        case = chunk.case(i)
        path = self.settings.saved / f"kvcanary-{case.name.partition(',')[0].replace(' ', '-')}.npz"
        case.save(path)
        self.report("wrong", f"{case.name}: {what}; saved as {path}")
