"""The launchers on JAX arrays and Refs, and `plan`, their idiomatic form (contract, sections 2 to 7)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from shared_ref.constants import NO_TOKEN, PADDING_ROW
from shared_ref.schema import (
    LAUNCH_ENTRIES,
    LAUNCH_OFFSETS,
    LAUNCH_PLAN,
    OPTIONAL_OUTPUTS,
    PLAN,
    PLAN_INPUTS,
    FaultsFields,
    Launcher,
    VerifyPlanFields,
    WritePlanFields,
)
from shared_ref.validation import ArrayInfo, Framework, check, fail, faults_buffer, plan_arguments, used

from .implementations import IMPLEMENTATIONS, resolve
from .plans import Faults, VerifyPlan, WritePlan

PlanType = TypeVar("PlanType", VerifyPlan, WritePlan)


def _describe(array: Any) -> ArrayInfo:
    return ArrayInfo(array.shape, array.dtype, None, _device(array))


def _describe_either(array: Any) -> ArrayInfo:
    return (
        ArrayInfo(array.shape, array.dtype, None, None) if isinstance(array, np.ndarray) else _describe(array)
    )


def _key(arrays: list) -> tuple:
    return tuple([None if array is None else _describe(array) for array in arrays])


def _device(array: Any) -> jax.Device | None:
    """Where an array sits; None while tracing, or if it is spread over several devices."""
    if isinstance(array, jax.core.Tracer):
        return None
    devices = array.sharding.device_set
    return next(iter(devices)) if len(devices) == 1 else None


def _platform(array: Any) -> str:
    """Where the work will run; while tracing, JAX's default."""
    if isinstance(array, jax.core.Tracer):
        default = jax.config.jax_default_device  # type: ignore[attr-defined]
        return jax.default_backend() if default is None else getattr(default, "platform", default)
    return next(iter(array.sharding.device_set)).platform


@contextlib.contextmanager
def _arithmetic() -> Iterator[None]:
    """What the plan is computed under, whatever the caller's configuration."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def _refuse_refs(arguments: dict[str, Any]) -> None:
    for name, array in arguments.items():
        if isinstance(array, jax.Ref):
            fail(f"{name} must be a jax.Array, got a jax.Ref: pass what it holds, `ref[...]`")


def _truncation_hint(expected: str, got: str) -> str:
    if (expected, got) != ("int64", "int32"):
        return ""
    return (
        ". With x64 off JAX makes int32 of int64 data and wraps what does not fit: "
        "make the array inside `with jax.enable_x64(True):`"
    )


JAX = Framework("jax.Array", (jax.Array, jax.Ref), _describe, _key, _truncation_hint)
_JAX_OR_NUMPY = dataclasses.replace(
    JAX, array_type=(jax.Array, jax.Ref, np.ndarray), describe=_describe_either
)
"""For inputs of a dtype that JAX has not: the call is refused, in the order of the rules."""

_KIND = {LAUNCH_PLAN: "plan", LAUNCH_OFFSETS: "offsets", LAUNCH_ENTRIES: "entries"}


def _launch(
    launcher: Launcher, implementation: str | Sequence[str] | None, arguments: dict[str, Any]
) -> dict[str, jax.Array] | None:
    """The outputs by argument name, or None where they are Refs and have been written."""
    integers = check(launcher, JAX, arguments)
    present = used(launcher, arguments)
    outputs = {t.name: arguments[t.name] for t in launcher.tensors if t.output and t.name in present}
    tensors = {
        t.name: arguments[t.name] if t.name in present else None for t in launcher.tensors if not t.output
    }
    refs = [name for name, array in outputs.items() if isinstance(array, jax.Ref)]
    if refs and len(refs) < len(outputs):
        fail(f"outputs must be all jax.Array or all jax.Ref, got both: {', '.join(refs)} are jax.Ref")
    _refuse_refs(tensors)
    platform = _platform(arguments[launcher.device_reference])
    name = resolve(implementation, _KIND[launcher], platform, [*outputs.values(), *tensors.values()])
    traced = any(isinstance(array, jax.core.Tracer) for array in (*outputs.values(), *tensors.values()))
    run = _fill_refs if refs else _keep if traced else _replace
    with _arithmetic():
        return run(_KIND[launcher], name, tuple(integers.items()), outputs, tensors)


def _compute(kind: str, implementation: str, integers: tuple, outputs: dict, inputs: dict) -> dict:
    absent = dict.fromkeys(OPTIONAL_OUTPUTS)
    return getattr(IMPLEMENTATIONS[implementation], kind)(absent | outputs | inputs | dict(integers))


# Inside a transformation, donation is the caller's.
_keep = jax.jit(_compute, static_argnums=(0, 1, 2))

# `keep_unused`: the former value of a field that is always written is consumed like the others.
_replace = jax.jit(_compute, static_argnums=(0, 1, 2), donate_argnums=3, keep_unused=True)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _fill_refs(kind: str, implementation: str, integers: tuple, outputs: dict, inputs: dict) -> None:
    former = {name: ref[...] for name, ref in outputs.items()}
    for name, array in _compute(kind, implementation, integers, former, inputs).items():
        outputs[name][...] = array


def launch_canary_plan_kernels(
    *,
    verify_plan_out: VerifyPlanFields[Any],
    write_plan_out: WritePlanFields[Any],
    req_pool_indices: jax.Array,
    prefix_lens: jax.Array,
    extend_seq_lens: jax.Array,
    req_to_token: jax.Array,
    swa_window_size: int,
    full_to_swa_index_mapping: jax.Array | None,
    verify_capacity: int,
    req_to_verify_expected_tokens: jax.Array | None,
    req_to_verify_expected_tokens_valid_lens: jax.Array | None,
    kv_token_id_vs_position_offset: int,
    page_size: int = 1,
    verify_total_out: jax.Array | None = None,
    faults_out: jax.Array | FaultsFields[Any] | None = None,
    implementation: str | Sequence[str] | None = None,
) -> tuple[Any, ...] | None:
    """The plans after this step; Refs are filled in place.

    Args:
        verify_plan_out: the former plan of `verify_capacity` entries; elements that the contract leaves as
            they were come from it. Called eagerly, it is donated. Any object with the fields of section 3.
        write_plan_out: the former plan of at least `bs` requests; likewise.
        req_pool_indices: int64 `[bs]`, row of each request in `req_to_token`; 0 is a padding request.
        prefix_lens: int64 `[bs]`, tokens in the cache before this step.
        extend_seq_lens: int64 `[bs]`, tokens that this step writes.
        req_to_token: int32 `[max_reqs, max_seq_len / page_size]`, slot of (row, position), or page of (row,
            position // page_size).
        swa_window_size: sliding-window length in tokens; 0 or less for full attention. Static.
        full_to_swa_index_mapping: int64 `[lut_len]`, full-pool slot to window-pool slot, or None.
        verify_capacity: length of the verify columns, in entries. Static.
        req_to_verify_expected_tokens: int32 `[rows, max_context_len]`, token id of (row, position), or None.
        req_to_verify_expected_tokens_valid_lens: int64 `[bs]`, leading cells of each request's row in that
            table that are current; ignored without the table.
        kv_token_id_vs_position_offset: added to a position before its token is looked up. Static.
        page_size: slots of a cell of `req_to_token`. Static.
        verify_total_out: int64 `[1]`, whose successor is the number of entries, also where they do not fit.
        faults_out: int64 `[8, 2]` or a `Faults`, to which what made no sense is added (section 5).
        implementation: a name, a sequence of names tried in order, or None for the best that works here.

    Returns:
        The new plans, followed by the optional outputs that were given; None where all of these are
        `jax.Ref`, which then hold them.

    Raises:
        ValueError: a rule of section 6 is broken, or no named implementation can run; nothing is written
            or donated then.
    """
    arguments: dict[str, Any] = locals()
    arguments |= plan_arguments(verify_plan_out, write_plan_out)
    arguments["faults_out"] = faults_buffer(faults_out)
    outputs = _launch(LAUNCH_PLAN, implementation, arguments)
    return None if outputs is None else _returned(outputs, faults_out)


def _returned(outputs: dict[str, jax.Array], faults_out: Any) -> tuple[Any, ...]:
    """Plans, then the optional outputs; faults as they were given."""
    plans = (
        VerifyPlan(**{f.name: outputs[f.argument] for f in VerifyPlan.fields()}),
        WritePlan(**{f.name: outputs[f.argument] for f in WritePlan.fields()}),
    )
    extras = _as_given({name: outputs[name] for name in OPTIONAL_OUTPUTS if name in outputs}, faults_out)
    return *plans, *extras.values()


def _as_given(outputs: dict[str, Any], faults_out: Any) -> dict[str, Any]:
    """The outputs, with a `Faults` where one was given."""
    if faults_buffer(faults_out) is faults_out:
        return outputs
    return outputs | {"faults_out": Faults(buffer=outputs["faults_out"])}


def launch_plan_offsets_kernel(
    *,
    req_pool_indices: jax.Array,
    prefix_lens: jax.Array,
    extend_seq_lens: jax.Array,
    req_to_token: jax.Array,
    full_to_swa_index_mapping: jax.Array | None,
    out_verify_offsets_scratch: jax.Array,
    out_write_offsets: jax.Array,
    out_write_seed_slot_indices: jax.Array,
    out_verify_num_valid: jax.Array,
    out_verify_enable: jax.Array,
    out_write_num_valid_reqs: jax.Array,
    swa_window_size: int,
    verify_capacity: int,
    req_to_token_stride0: int | None = None,
    write_offsets_len: int | None = None,
    write_req_capacity: int | None = None,
    page_size: int = 1,
    verify_total_out: jax.Array | None = None,
    faults_out: jax.Array | FaultsFields[Any] | None = None,
    implementation: str | Sequence[str] | None = None,
) -> tuple[jax.Array, ...] | None:
    """The write rows, the totals and the offsets scratch (section 4, "Staged").

    Args:
        out_verify_offsets_scratch: int64 `[>= 4097]`; `[0 .. bs]` becomes the exclusive prefix sum of the
            requests' verify entries.
        out_write_offsets: int64 `[write_req_capacity + 1]`, and so on: the plans' fields of section 3.
        req_to_token_stride0: elements from a row of `req_to_token` to the next; default: the table's own.
        write_offsets_len: default: the length of `out_write_offsets`.
        write_req_capacity: default: the length of `out_write_seed_slot_indices`.

    The other arguments are those of `launch_canary_plan_kernels`, but a window without a mapping is legal
    here, and `faults_out` gets the requests' own faults.

    Returns:
        The new `out_*` arrays in argument order, then the optional outputs that were given; None where they
        are Refs, which then hold them.

    Raises:
        ValueError: as `launch_canary_plan_kernels`.
    """
    return _staged(LAUNCH_OFFSETS, implementation, locals())


def launch_plan_entries_kernel(
    *,
    req_pool_indices: jax.Array,
    prefix_lens: jax.Array,
    req_to_token: jax.Array,
    full_to_swa_index_mapping: jax.Array | None,
    verify_offsets_scratch: jax.Array,
    verify_enable: jax.Array,
    req_to_verify_expected_tokens: jax.Array | None,
    req_to_verify_expected_tokens_valid_lens: jax.Array | None,
    out_verify_slot_indices: jax.Array,
    out_verify_expected_tokens: jax.Array,
    out_verify_expected_positions: jax.Array,
    out_verify_prev_slot_indices: jax.Array,
    kv_token_id_vs_position_offset: int,
    swa_window_size: int,
    page_size: int = 1,
    faults_out: jax.Array | FaultsFields[Any] | None = None,
    implementation: str | Sequence[str] | None = None,
) -> tuple[jax.Array, ...] | None:
    """The four verify columns, new where `verify_enable` is not 0 and the entries fit (section 4).

    Args:
        verify_offsets_scratch: int64 `[>= 4097]`, as the offsets launcher returned it. Its contents are not
            trusted: the offsets are computed again.
        verify_enable: int32 `[1]`, as the offsets launcher returned it.

    The other arguments are those of `launch_canary_plan_kernels`, the columns by the staged names; a window
    without a mapping is legal here, and `faults_out` gets the faults of cells.

    Returns:
        The new `out_*` arrays in argument order, then `faults_out` if it was given; None where they are Refs,
        which then hold them.

    Raises:
        ValueError: as `launch_canary_plan_kernels`.
    """
    return _staged(LAUNCH_ENTRIES, implementation, locals())


def _staged(
    launcher: Launcher, implementation: str | Sequence[str] | None, arguments: dict[str, Any]
) -> tuple[jax.Array, ...] | None:
    faults_out = arguments["faults_out"]
    outputs = _launch(launcher, implementation, arguments | {"faults_out": faults_buffer(faults_out)})
    if outputs is None:
        return None
    given = _as_given(outputs, faults_out)
    return tuple(given[t.name] for t in launcher.tensors if t.name in given)


def plan(
    *,
    req_pool_indices: jax.Array,
    prefix_lens: jax.Array,
    extend_seq_lens: jax.Array,
    req_to_token: jax.Array,
    swa_window_size: int = 0,
    full_to_swa_index_mapping: jax.Array | None = None,
    verify_capacity: int,
    write_req_capacity: int,
    req_to_verify_expected_tokens: jax.Array | None = None,
    req_to_verify_expected_tokens_valid_lens: jax.Array | None = None,
    kv_token_id_vs_position_offset: int = 0,
    page_size: int = 1,
    padding_row: int | None = PADDING_ROW,
    verify_total_out: jax.Array | None = None,
    faults_out: jax.Array | FaultsFields[Any] | None = None,
    implementation: str | Sequence[str] | None = None,
) -> tuple[Any, ...]:
    """Fresh plans of this step, from the rows and dtypes of any serving stack (contract, section 7).

    The arguments are those of `launch_canary_plan_kernels`, but each int64 input may be int32, without a
    copy, and any input may be numpy's. Where memory runs out, XLA may keep what it had got for the columns
    (JAX 0.11.2); the launchers allocate none.

    Args:
        write_req_capacity: requests that the write plan has room for. Static.
        padding_row: the value of `req_pool_indices` that marks a padding request; None: there is none.
            Static.

    Returns:
        The plans, followed by the optional outputs that were given. Elements that the contract leaves as they
        were are 0, expected tokens -1.

    Raises:
        ValueError: as `launch_canary_plan_kernels`.
    """
    arguments: dict[str, Any] = locals() | {"faults_out": faults_buffer(faults_out)}
    with _arithmetic():
        beside = next(filter(None, (_sharding(arguments[name]) for name in PLAN_INPUTS)), None)
        present = used(PLAN, arguments)
        for name in PLAN_INPUTS:
            if isinstance(arguments[name], np.ndarray):
                arguments[name] = _from_numpy(arguments[name], beside) if name in present else None
        unknown = any(isinstance(arguments[name], np.ndarray) for name in PLAN_INPUTS)
        integers = check(PLAN, _JAX_OR_NUMPY if unknown else JAX, arguments)
        inputs = {name: arguments[name] if name in present else None for name in PLAN_INPUTS}
        extras = {name: arguments[name] for name in OPTIONAL_OUTPUTS if arguments[name] is not None}
        _refuse_refs(inputs | extras)
        platform = _platform(arguments["req_pool_indices"])
        name = resolve(implementation, "plan", platform, [*inputs.values(), *extras.values()])
        return _returned(_fresh(name, tuple(integers.items()), inputs, extras), faults_out)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _fresh(implementation: str, integers: tuple, inputs: dict, extras: dict) -> dict[str, jax.Array]:
    capacities: dict[str, int] = dict(integers)
    verify_plan = _zeros(VerifyPlan, capacities["verify_capacity"])
    unchecked = jnp.full_like(verify_plan.verify_expected_tokens, NO_TOKEN)
    verify_plan = dataclasses.replace(verify_plan, verify_expected_tokens=unchecked)
    plans = plan_arguments(verify_plan, _zeros(WritePlan, capacities["write_req_capacity"]))
    return _compute("plan", implementation, integers, plans | extras, inputs)


def _sharding(array: Any) -> jax.sharding.Sharding | None:
    """Where a concrete array sits whole."""
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer) or _device(array) is None:
        return None
    return array.sharding


def _from_numpy(array: np.ndarray, beside: jax.sharding.Sharding | None) -> Any:
    try:
        # Of a copy: on a CPU JAX works on the memory it is given, and a server goes on writing to its table.
        return jnp.asarray(array.copy(), device=beside)
    except TypeError:  # a dtype that JAX does not have, and the rules refuse
        return array


def _zeros(plan: type[PlanType], capacity: int) -> PlanType:
    return plan(**{f.name: jnp.zeros(f.length.of(capacity), f.dtype) for f in plan.fields()})
