"""Plans and inputs between JAX and another framework on one device, without a copy where that can be.

The other framework is never imported: it is met through the DLPack protocol alone.

A DLPack import outside `jax.enable_x64(True)` makes int32 of int64 with x64 off, and wraps what does not
fit. Everything here runs inside the scope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from shared_ref.schema import FaultsFields, VerifyPlanFields, WritePlanFields
from shared_ref.validation import fail

from .plans import Faults, VerifyPlan, WritePlan

LEAST_ALIGNMENT = 16
"""Bytes that an address on a GPU must be a multiple of: XLA refuses to run on others, and Triton
is told that every address is."""

_Kinds = tuple[type[VerifyPlanFields], type[WritePlanFields], type[FaultsFields]]
_JAX: _Kinds = VerifyPlan, WritePlan, Faults
_NEUTRAL: _Kinds = VerifyPlanFields, WritePlanFields, FaultsFields
_FIELDS = (
    {f.name: f.argument for f in VerifyPlanFields.fields()},
    {f.name: f.argument for f in WritePlanFields.fields()},
    {"buffer": "faults_out"},
)
"""What each kind of object holds: the name that a message gives each of its fields."""


def from_dlpack(value: Any, /, *, copy: bool | None = None) -> Any:
    """What another framework holds, as JAX arrays on the same device; int64 stays int64.

    Args:
        value: one of

            - an array with `__dlpack__`: a torch tensor, a numpy array, a `jax.Array`;
            - a plan or faults of any framework: an object with the fields of section 3, or `buffer`;
            - a mapping, such as the keywords of `plan` or of a launcher, or a tuple, such as a pair of
              plans. What they hold besides arrays, plans and further mappings stays as it is, None too.
        copy: False: every array shares its memory with the original, or the call raises. None: where that
            cannot be, the array is a copy. True: every array is a copy.

    A tensor of its own, or a part of one that begins at its first row, can be shared. Not so rows with gaps
    between them, and an address that JAX does not take: it wants 64 bytes of alignment on the CPU, 16 on a
    GPU. An array that shares memory changes when its original is written, which JAX does not expect: write
    the original when JAX is done with the array (`jax.block_until_ready` of what was made from it).

    Returns:
        The same structure: `VerifyPlan`, `WritePlan` and `Faults` of this package, a dict, a tuple.

    Raises:
        ValueError: `value` is none of these, an array would need a copy that `copy=False` forbids, or JAX
            has no such device.
    """
    with jax.enable_x64(True):
        return _mapped("from_dlpack", value, _JAX, lambda name, array: _imported(name, array, copy))


def to_dlpack(value: Any, importer: Callable[[Any], Any] | None = None, /, *, copy: bool = False) -> Any:
    """JAX arrays for another framework: every one is ready to be exported, or the call says why it is not.

    Args:
        value: an array, a plan, faults, a mapping or a tuple, as `from_dlpack` takes them.
        importer: the other framework's import, for example `torch.from_dlpack`; it gets each array. None:
            the arrays stay what they are, objects with `__dlpack__`.
        copy: whether to export copies, which the other framework may write.

    Without a copy the memory is shared, and JAX holds it to be constant: the other framework must only read
    it. On a GPU the import makes the framework's current stream wait for JAX.

    Returns:
        The same structure. A plan or faults become an object with the same fields, which every launcher
        takes: `kvcanary_torch.VerifyPlan(**vars(exported))` if it has to be that class.

    Raises:
        ValueError: an array was donated or deleted, is traced, is a `jax.Ref`, or lies on several devices.
    """
    with jax.enable_x64(True):
        return _mapped(
            "to_dlpack", value, _NEUTRAL, lambda name, array: _exported(name, array, importer, copy)
        )


def _mapped(function: str, value: Any, kinds: _Kinds, convert: Callable[[str, Any], Any]) -> Any:
    """`value` with every array in it converted, plans and faults as these kinds."""

    def of(name: str, value: Any) -> Any:
        if isinstance(value, jax.Ref):
            fail(f"{name} must be an array, got a jax.Ref: pass what it holds, `ref[...]`")
        if _is_array(value):
            return convert(name, value)
        if isinstance(value, Mapping):
            return {key: of(str(key), item) for key, item in value.items()}
        if isinstance(value, tuple):
            return tuple(of(f"item {i}", item) for i, item in enumerate(value))
        for kind, fields in zip(kinds, _FIELDS, strict=True):
            if all(hasattr(value, field) for field in fields):
                return kind(**{field: of(said, getattr(value, field)) for field, said in fields.items()})
        return value

    converted = of("the array", value)
    if converted is value and not (value is None or isinstance(value, tuple) or _is_array(value)):
        fail(f"{function} takes an array, a plan, a mapping or a tuple, got {type(value).__name__}")
    return converted


def _is_array(value: Any) -> bool:
    return hasattr(value, "__dlpack__") or isinstance(value, jax.Array)  # a traced array has no `__dlpack__`


def _imported(name: str, array: Any, copy: bool | None) -> jax.Array:
    if isinstance(array, jax.Array):
        return jnp.array(array) if copy else array
    try:
        if not copy:
            shared = jnp.from_dlpack(array, copy=copy)
            if shared.unsafe_buffer_pointer() % LEAST_ALIGNMENT == 0:
                return shared
            reason = f"its address is no multiple of {LEAST_ALIGNMENT}"
    except Exception as error:  # each framework has errors of its own
        reason = str(error).partition("\n")[0].rstrip(".")
    if copy is False:
        fail(
            f"{name} cannot be shared with JAX without a copy: {reason}. "
            "Keep it contiguous and in memory of its own, or allow the copy with copy=None"
        )
    try:
        return jnp.from_dlpack(_copied(array))
    except Exception as error:
        fail(f"{name} cannot be brought into JAX: {error}")


def _copied(array: Any) -> Any:
    """A copy by the array's own framework: without gaps, and aligned as its allocator does it.

    JAX's own `copy=True` returns the very memory if it is aligned.
    """
    return array.clone() if hasattr(array, "clone") else array.copy()


def _exported(name: str, array: Any, importer: Callable[[Any], Any] | None, copy: bool) -> Any:
    if isinstance(array, jax.Array):
        _check_exportable(name, array)
        array = jnp.array(array) if copy else array
    elif copy:
        array = _copied(array)
    return array if importer is None else importer(array)


def _check_exportable(name: str, array: jax.Array) -> None:
    if isinstance(array, jax.core.Tracer):
        fail(f"{name} is traced and has no memory yet: call to_dlpack outside of jit")
    if array.is_deleted():
        fail(f"{name} was donated or deleted: pass the array that a launcher returned in its place")
    if (n := len(array.sharding.device_set)) > 1:
        fail(f"{name} lies on {n} devices: pass what one of them holds, `array.addressable_data(0)`")
