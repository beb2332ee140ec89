"""From checked arguments to the implementation for their device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from shared_ref import reference
from shared_ref.schema import LAUNCH_ENTRIES, LAUNCH_OFFSETS, LAUNCH_PLAN, PLAN_INTO, Launcher
from shared_ref.validation import ArrayInfo, Framework, check, check_types, fail, used


def _describe(tensor: Any) -> ArrayInfo:
    return ArrayInfo(tensor.shape, tensor.dtype, tensor.stride(), tensor.device)


def _key(tensors: list) -> tuple:
    # A contiguous tensor's shape says its strides, and asking for them takes longer.
    return tuple(
        [
            None if t is None else (t.shape, t.dtype, t.is_contiguous() or t.stride(), t.device)
            for t in tensors
        ]
    )


TORCH = Framework("torch.Tensor", torch.Tensor, _describe, _key)

_ON_CPU: Mapping[Launcher, Callable[[Mapping[str, Any]], None]] = {
    LAUNCH_PLAN: reference.fill_plan,
    PLAN_INTO: reference.fill_plan,
    LAUNCH_OFFSETS: reference.fill_offsets,
    LAUNCH_ENTRIES: reference.fill_entries,
}


def launch(launcher: Launcher, arguments: dict[str, Any]) -> None:
    """Check a launcher's arguments, given by name, and run it where its tensors are."""
    if torch.compiler.is_compiling():
        # The op checks what it is called with, but by then a bool is an int; and one that writes to nothing,
        # as where a plan is none, is left out of the graph.
        arguments = arguments | check_types(launcher, TORCH, arguments)
        _OPS[launcher](*[arguments[name] for name in (*launcher.tensor_names, *launcher.integer_names)])
    else:
        _launch(launcher, arguments)


def _launch(launcher: Launcher, arguments: dict[str, Any]) -> None:
    checked = check(launcher, TORCH, arguments)
    run = checked.recipe
    if run is None:
        run = checked.recipe = _recipe(launcher, arguments | checked)
    run(arguments)


def _recipe(launcher: Launcher, arguments: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    """What to do with a call's arguments, as far as their description decides it."""
    device = arguments[launcher.device_reference].device
    if device.type == "cuda":
        from .cuda import recipe

        return recipe(launcher, arguments)
    if device.type == "cpu":
        present = used(launcher, arguments)
        integers = {name: arguments[name] for name in launcher.integer_names}
        fill = _ON_CPU[launcher]
        return lambda a: fill(a | integers | {name: a[name].numpy() for name in present})
    fail(f"{launcher.name} runs on cpu and cuda tensors, got tensors on {device}")


_LIBRARY = torch.library.Library("kvcanary", "DEF")


def _define_op(launcher: Launcher) -> Any:
    """The launcher as a custom op, for `torch.compile`: eager calls do not pay for its dispatch."""
    aliases = iter("abcdefghijklmnop")
    parameters = [
        f"Tensor{f'({next(aliases)}!)' if t.output else ''}{'?' if t.optional else ''} {t.name}"
        for t in launcher.tensors
    ]
    parameters += [f"int{'?' if i.optional else ''} {i.name}" for i in launcher.integers]
    names = (*launcher.tensor_names, *launcher.integer_names)

    def run(*values: Any) -> None:
        _launch(launcher, dict(zip(names, values, strict=True)))

    _LIBRARY.define(f"{launcher.name}({', '.join(parameters)}) -> ()")
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(launcher.name, run, key)
    torch.library.register_fake(f"kvcanary::{launcher.name}", lambda *values: None, lib=_LIBRARY)
    return getattr(torch.ops.kvcanary, launcher.name)


_OPS = {launcher: _define_op(launcher) for launcher in _ON_CPU}
