"""What runs in a process of its own: one framework's measurements, reported step by step.

A kernel that fails leaves its process without a usable GPU. So the worker ends at the first exception,
and whoever started it starts another one for the steps that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from shared_ref.backends import backends

from .cases import chosen
from .settings import Settings

FLOOR, TORCH = "floor", "torch-triton"
KERNELS_OF_JAX = ("jax-mosaic", "jax-triton")
"""Those of JAX's backends that are one kernel."""
WHATS: dict[str, Callable[[str], bool]] = {
    "timings": lambda subject: True,
    "variants": lambda subject: subject == TORCH,
    "kernel_time": lambda subject: True,
    "variant_kernels": lambda subject: subject in (TORCH, *KERNELS_OF_JAX),
}
"""What is measured of which subjects, in order. Profilers come last: they may slow down what follows."""


class Step(NamedTuple):
    """One thing to measure."""

    subject: str
    """A backend's name, or the floor."""
    case: str
    what: str
    """One of `WHATS`: the subject's method."""


def serve(connection: Connection, steps: Sequence[Step], settings: Settings) -> None:
    """Measure `steps` in order and send what happens, as (kind, step or subject, content).

    Kinds: `environment` once, `unavailable` for a subject, and for each step `begin`, then `figures` or
    `failure`, and `wrong` besides for a plan that is not the reference's. `end` is the last one.
    """
    _serve(connection, steps, settings)
    connection.send(("end", None, None))


def _serve(connection: Connection, steps: Sequence[Step], settings: Settings) -> None:
    reasons = {subject: unavailable(subject) for subject in dict.fromkeys(step.subject for step in steps)}
    for subject, reason in reasons.items():
        if reason is not None:
            connection.send(("unavailable", subject, reason))
    steps = [step for step in steps if reasons[step.subject] is None]
    if steps:
        connection.send(("environment", steps[0].subject, environment(steps[0].subject)))
    subjects: dict[tuple[str, str], Any] = {}
    for step in steps:
        connection.send(("begin", step, None))
        try:
            figures = _measure(step, subjects, settings)
        except Exception as error:
            connection.send(("failure", step, f"{type(error).__name__}: {error}"))
            return
        if (wrong := figures.pop("wrong", None)) is not None:
            connection.send(("wrong", step, wrong))
        connection.send(("figures", step, figures))


def unavailable(subject: str) -> str | None:
    """Why this subject cannot be measured here, or None. The floor needs what torch's kernel needs."""
    name = TORCH if subject == FLOOR else subject
    backend = backends().get(name)
    if backend is None:
        return "no installed package announces it"
    if (reason := backend.unavailable()) is not None:
        return reason
    if name != TORCH:
        import jax

        if jax.default_backend() != "gpu":
            return f"JAX's default device is no GPU: {jax.devices()[0]}"
    return None


def environment(subject: str) -> dict[str, Any]:
    """What the figures depend on and only a framework knows."""
    if subject in (FLOOR, TORCH):
        import torch

        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return {
            "gpu": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    import jax

    return {"gpu": jax.devices()[0].device_kind}


def _measure(step: Step, subjects: dict[tuple[str, str], Any], settings: Settings) -> dict[str, Any]:
    wrong = None
    key = step.subject, step.case
    if key not in subjects:
        subjects[key] = _prepared(step, settings)
        wrong = subjects[key].check()
    figures = getattr(subjects[key], step.what)(settings)
    return figures | {"wrong": wrong or figures.get("wrong")}


def _prepared(step: Step, settings: Settings) -> Any:
    (spec,) = chosen([step.case])
    if step.subject in (FLOOR, TORCH):
        from .on_torch import Floor, TorchPlan

        return Floor(spec, settings) if step.subject == FLOOR else TorchPlan(spec, settings)
    from .on_jax import JaxPlan

    return JaxPlan(spec, settings, step.subject.removeprefix("jax-"))
