"""The plan as a Pallas kernel on Mosaic GPU (Hopper and newer), in one launch (contract, section 4).

Decomposition. As in kvcanary_torch/kernels.py: the entries of a request are cut into units of `TILE`
positions, and a program, here one warpgroup, takes units a grid's stride apart. It scans the batch's
counts once, and finds each unit's request by two reductions of the scan. The first programs write the
write rows instead, `WARPGROUP` requests each. No two programs touch the same element.

Bytes that must move for an entry: 4 of the slot table, 32 of the columns, 8 more with a mapping and 4
more with a token table.

The plan's arithmetic is `_Program`, in plain jnp on vectors of one warpgroup. What Mosaic GPU lacks is in
`_Machine`: gathers, masked stores and a scan, as per-thread code. Tests replace the machine and run the
arithmetic on a CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import FragmentedArray, utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, vector

from shared_ref.batch import max_seq_len
from shared_ref.constants import FAULT_KINDS, FAULT_POSITION_BITS, NO_SLOT, NO_TOKEN, PADDING_ROW
from shared_ref.schema import COLUMNS, OPTIONAL_OUTPUTS, PLAN_INPUTS, PLAN_OUTPUTS
from shared_ref.tiling import most_units, positions_of_a_unit

from . import xla
from .gpu import multiprocessors

WARPGROUP = 128
"""Threads of a program: a vector's length is a multiple of it."""

LARGE_BATCH = 512
"""Requests above which programs walk from unit to unit."""

Find = Callable[[Any], tuple[Any, ...]]
"""Of a unit: its request, the request's first unit and first entry."""
Visit = Callable[[Any, Any, Any, Any], Any]
"""What to do with a unit, given its request, its number there, the first entry there, and a carry."""
EachUnit = Callable[[Visit, Any], Any]
"""Visits a program's units; returns the carry after the last one."""


def plan(arguments: xla.Arguments) -> xla.Outputs:
    """The outputs of `launch_canary_plan_kernels`, in the memory of the former ones."""
    outputs = (*PLAN_OUTPUTS, *(name for name in OPTIONAL_OUTPUTS if arguments[name] is not None))
    former = {name: arguments[name] for name in outputs}
    inputs = {name: arguments[name] for name in PLAN_INPUTS if arguments[name] is not None}
    bs = arguments["req_pool_indices"].shape[0]
    tile = positions_of_a_unit(bs > LARGE_BATCH, arguments["swa_window_size"], arguments["verify_capacity"])
    if any(0 in array.shape for array in (*former.values(), *inputs.values())):
        return xla.plan(arguments)  # nothing to point a kernel at, and next to nothing to do
    if max_seq_len(arguments) >= 2**31 - tile:
        return xla.plan(arguments)  # positions would not fit the kernel's 32 bits

    names = tuple(inputs)
    integers = {"padding_row": PADDING_ROW} | {
        name: value for name, value in arguments.items() if isinstance(value, int | None)
    }
    writers = -(-bs // WARPGROUP)
    programs = _programs(arguments, tile)

    def kernel(*refs: Any) -> None:
        program = jax.lax.axis_index("program")

        def run(scratch: Any) -> None:
            operands = dict(zip((*names, *outputs), refs, strict=True))
            planner = _Program(operands, integers, tile, _Machine(scratch))

            @pl.when(program < writers)
            def _() -> None:
                planner.write_rows(program)

            @pl.when(program >= writers)
            def _() -> None:
                planner.entries(program - writers, programs)

        pl.run_scoped(run, plgpu.SMEM((_padded(bs) // 32,), jnp.int64))

    refs = {name: jax.new_ref(array) for name, array in former.items()}
    pl.kernel(
        kernel,
        out_type=(),
        mesh=plgpu.Mesh(grid=(writers + programs,), grid_names=("program",)),
        compiler_params=plgpu.CompilerParams(),
        name="kvcanary_plan",
    )(*inputs.values(), *refs.values())
    return {name: jax.freeze(ref) for name, ref in refs.items()}


def _padded(bs: int) -> int:
    return max(-(-bs // WARPGROUP), 1) * WARPGROUP


def _programs(arguments: xla.Arguments, tile: int) -> int:
    """Programs that share the entries: enough to fill the device, and no more than there can be units."""
    bs = arguments["req_pool_indices"].shape[0]
    window, capacity = arguments["swa_window_size"], arguments["verify_capacity"]
    each = 4 if tile == 512 or bs > LARGE_BATCH else 8
    return max(
        1, min(multiprocessors() * each, most_units(bs, max_seq_len(arguments), window, capacity, tile))
    )


class _Program:
    """What one program computes. `machine` moves vectors between registers and memory."""

    def __init__(self, refs: dict[str, Any], integers: dict[str, Any], tile: int, machine: Any) -> None:
        self.refs, self.machine, self.tile = refs, machine, tile
        self.window = integers["swa_window_size"]
        self.capacity = integers["verify_capacity"]
        self.offset = integers["kv_token_id_vs_position_offset"]
        self.bs = refs["req_pool_indices"].shape[0]
        self.page_size = integers["page_size"]
        self.padding_row = integers["padding_row"]
        self.max_reqs, self.width = refs["req_to_token"].shape
        self.max_seq_len = self.width * self.page_size
        self.mapping = refs.get("full_to_swa_index_mapping")
        self.tokens = refs.get("req_to_verify_expected_tokens")
        self.faults = refs.get("faults_out")

    def write_rows(self, writer: jax.Array) -> None:
        """The write rows of this writer's requests; the first writer's totals."""
        load, store = self._load, self.machine.store
        everyone = self.machine.iota(_padded(self.bs))
        in_batch = jnp.where(everyone < self.bs, everyone, -1)
        rows = load("req_pool_indices", in_batch)
        counts = self._write_counts(rows, load("extend_seq_lens", in_batch))
        before = jnp.sum(jnp.where(everyone < writer * WARPGROUP, counts, 0))

        request = writer * WARPGROUP + self.machine.iota(WARPGROUP)
        own = jnp.where(request < self.bs, request, -1)
        row, prefix_len, extend_len = (
            load(name, own) for name in ("req_pool_indices", "prefix_lens", "extend_seq_lens")
        )
        _, end = self._span(prefix_len)
        count = self._write_counts(row, extend_len)
        page, at = self._divided(end - 1)
        cell = jnp.where((count > 0) & (end > 0), row * self.width + page, -1)
        slot = self._translate(self._load_slots(cell, at))

        offsets = self.refs["out_write_offsets"]
        store(offsets, jnp.where(request < self.bs, request + 1, -1), self.machine.scan(count) + before)
        store(self.refs["out_write_seed_slot_indices"], own, slot)
        store(offsets, jnp.where(request == 0, request, -1), 0)
        n = offsets.shape[0]

        def zero(i: jax.Array, _: None) -> None:
            behind = self.bs + 1 + i * _padded(self.bs) + request
            store(offsets, jnp.where(behind < n, behind, -1), 0)

        jax.lax.fori_loop(0, -(-(n - self.bs - 1) // _padded(self.bs)), zero, None)

        total = jnp.sum(self._verify_counts(rows, load("prefix_lens", in_batch)))
        first = jnp.where(request == 0, request, -1)
        num_valid = jnp.minimum(total, self.capacity).astype(jnp.int32)
        store(self.refs["out_verify_num_valid"], first, request + num_valid)
        store(self.refs["out_verify_enable"], first, request + (total <= self.capacity).astype(jnp.int32))
        store(self.refs["out_write_num_valid_reqs"], first, self.bs)
        if "verify_total_out" in self.refs:
            store(self.refs["verify_total_out"], first, request.astype(jnp.int64) + total)
        if self.faults is not None:
            self._count_request_faults(request, row, prefix_len, extend_len)

    def entries(self, program: jax.Array, programs: int) -> None:
        """The entries of every unit that is this program's, if all entries of the batch fit."""
        program = program.astype(jnp.int32)
        if self.bs == 1:
            count = self._count(0)
            n_units = jnp.where(count <= self.capacity, self._units(count), 0).astype(jnp.int32)
            self._visit(functools.partial(self._stride, program, programs, n_units, lambda unit: (0, 0, 0)))
            return

        request = self.machine.iota(_padded(self.bs))
        counts = self._counts(request)
        packed = _pack(counts, self._units(counts))
        if self.bs <= LARGE_BATCH:
            last = self.machine.scan(packed)
            find: Find = functools.partial(_find, last)
        else:
            last = self.machine.scan(self.machine.chunk_sums(packed))
            find = functools.partial(self._find_in_chunks, last)
        fits = jnp.sum(counts) <= self.capacity
        n_units = jnp.where(fits, jnp.max(last) & 0xFFFFFFFF, 0).astype(jnp.int32)
        if self.bs <= LARGE_BATCH:
            self._visit(functools.partial(self._stride, program, programs, n_units, find))
        else:
            share = (n_units + (programs - 1)) // programs
            stop = jnp.minimum((program + 1) * share, n_units)
            self._visit(functools.partial(self._walk, program * share, stop, find))

    def _visit(self, each_unit: EachUnit) -> None:
        """Write every unit; if one of them has a fault, and faults are wanted, count in every unit.

        Whether one has is collected in a vector, and asked once.
        """
        if self.faults is None:
            each_unit(self._store_unit, None)
            return
        # No constant: Mosaic GPU cannot translate a vector that folds to one.
        none_odd = jnp.where(self.machine.iota(self.tile) < 0, 1, 0).astype(jnp.int32)
        odd = each_unit(self._store_unit, none_odd)

        @pl.when(jnp.max(odd) > 0)
        def _() -> None:
            each_unit(self._count_unit, None)

    def _find_in_chunks(self, last: jax.Array, unit: jax.Array) -> tuple[jax.Array, ...]:
        """`_find`, given the scan of what each `WARPGROUP` requests have."""
        chunk, first_unit, first_entry = _find(last, unit)
        counts = self._counts(chunk * WARPGROUP + self.machine.iota(WARPGROUP))
        here = self.machine.scan(_pack(counts, self._units(counts)))
        request, units, entries = _find(here, unit - first_unit)
        return chunk * WARPGROUP + request, first_unit + units, first_entry + entries

    def _stride(
        self, program: jax.Array, programs: int, n_units: jax.Array, find: Find, visit: Visit, odd: Any
    ) -> Any:
        """Units a grid's stride apart: neighbouring programs write neighbouring memory."""

        def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            unit, odd = carry
            request, first_unit, first_entry = find(unit)
            return unit + programs, visit(request, unit - first_unit, first_entry, odd)

        return jax.lax.while_loop(lambda carry: carry[0] < n_units, step, (program, odd))[1]

    def _walk(self, unit: jax.Array, stop: jax.Array, find: Find, visit: Visit, odd: Any) -> Any:
        """Neighbouring units: in a large batch, looking one up costs more than walking to it.

        A request without entries is not walked over, so that a run of them costs one look-up.
        """

        def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            unit, odd, request, first_unit, first_entry = carry
            odd = visit(request, unit - first_unit, first_entry, odd)
            unit += 1
            count, following = self._count(request), jnp.minimum(request + 1, self.bs - 1)
            next_unit = first_unit + self._units(count).astype(jnp.int32)
            is_done, walks = unit == next_unit, self._count(following) > 0
            following, first_unit, first_entry = (
                jnp.where(is_done, new, old)
                for new, old in (
                    (following, request),
                    (next_unit, first_unit),
                    (first_entry + count.astype(jnp.int32), first_entry),
                )
            )
            looks_up = is_done & ~walks & (unit < stop)
            here = following, first_unit, first_entry
            return unit, odd, *jax.lax.cond(looks_up, lambda: find(unit), lambda: here)

        return jax.lax.while_loop(lambda carry: carry[0] < stop, step, (unit, odd, *find(unit)))[1]

    def _store_unit(self, request: Any, nth_unit: Any, first_entry: Any, odd: Any) -> Any:
        """Write a unit; returns `odd`, if faults are wanted with a flag for each entry that has one."""
        store = self.machine.store
        row, start, end, position, is_entry = self._place(request, nth_unit)
        entry = first_entry + (position - start)
        page, at_slot = self._divided(position)
        cell = row * self.width + page.astype(jnp.int64)
        slot = self._load_slots(jnp.where(is_entry, cell, -1), at_slot)
        # The mapping is gathered once a slot, and the successor's entry gets the same; only the first
        # entry of a request looks its predecessor up.
        looks_back = is_entry if self.mapping is None else is_entry & (position == start)
        prev = self._load_previous_slots(looks_back & (position > 0), cell, at_slot, slot)
        at = jnp.where(is_entry, entry, -1)
        slots, expected_tokens, positions, prev_slots = (self.refs[name] for name in COLUMNS)
        store(positions, at, position.astype(jnp.int64))
        tokens, is_missing = self._expected_tokens(request, row, position, is_entry)
        store(expected_tokens, at, tokens)
        own_slot = self._translate(slot)
        store(slots, at, own_slot)
        store(prev_slots, jnp.where(looks_back, entry, -1), self._translate(prev))
        if self.mapping is not None:
            store(prev_slots, jnp.where(is_entry & (position + 1 < end), entry + 1, -1), own_slot)
        if self.faults is None:
            return odd
        flags = self._slot_faults(slot, is_entry, is_missing).values()
        return odd | jnp.where(functools.reduce(jnp.logical_or, flags), 1, 0).astype(jnp.int32)

    def _count_unit(self, request: Any, nth_unit: Any, first_entry: Any, odd: Any) -> Any:
        """Count a unit's faults, cell by cell."""
        row, _, _, position, is_entry = self._place(request, nth_unit)
        page, at = self._divided(position)
        slot = self._load_slots(jnp.where(is_entry, row * self.width + page.astype(jnp.int64), -1), at)
        _, is_missing = self._expected_tokens(request, row, position, is_entry)
        place = (jnp.int64(request) << FAULT_POSITION_BITS) + position.astype(jnp.int64)
        self._count_faults(self._slot_faults(slot, is_entry, is_missing), place)
        return odd

    def _place(self, request: Any, nth_unit: Any) -> tuple[Any, ...]:
        """A unit's row, the request's first position and its end, the unit's positions, which are entries."""
        row = self._of(request, "req_pool_indices")
        start, end = (jnp.int32(x) for x in self._span(self._of(request, "prefix_lens")))
        position = start + nth_unit * self.tile + self.machine.iota(self.tile)
        return row, start, end, position, position < end

    def _expected_tokens(self, request: Any, row: Any, position: Any, is_entry: Any) -> tuple[Any, Any]:
        """The tokens, and where one is current that the table does not have."""
        if self.tokens is None:
            return NO_TOKEN, None
        rows, columns = self.tokens.shape
        valid_len = self._of(request, "req_to_verify_expected_tokens_valid_lens")
        known = jnp.where(row < rows, jnp.minimum(valid_len, columns), 0)
        q = position.astype(jnp.int64) + self.offset
        has_token = is_entry & (q >= 0) & (q < known)
        cell = jnp.where(has_token, row * columns + q, -1)
        tokens = self.machine.load(self.tokens, cell, NO_TOKEN).astype(jnp.int64)
        return tokens, is_entry & (q < valid_len) & ((q < 0) | (q >= known))

    def _load(self, name: str, index: jax.Array) -> jax.Array:
        """int64 of an input that may be int32; 0 where the index is negative."""
        return self.machine.load(self.refs[name], index, 0).astype(jnp.int64)

    def _of(self, request: Any, name: str) -> jax.Array:
        return self.refs[name][request].astype(jnp.int64)

    def _divided(self, position: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """The page of a position that is not negative, and where in the page it is."""
        size = self.page_size
        if size == 1:
            return position, None
        if size & (size - 1) == 0:
            return position >> (size.bit_length() - 1), position & (size - 1)
        page = jax.lax.div(position, jnp.full_like(position, size))
        return page, position - page * size

    def _load_slots(self, cell: jax.Array, at: jax.Array | None) -> jax.Array:
        """Untranslated slots, int64, at places in the pages of some cells; -1 where a cell is negative."""
        page = self.machine.load(self.refs["req_to_token"], cell, NO_SLOT).astype(jnp.int64)
        if at is None:
            return page
        return jnp.where(page < 0, page, page * self.page_size + at.astype(jnp.int64))

    def _load_previous_slots(
        self, wanted: jax.Array, cell: jax.Array, at: jax.Array | None, slot: jax.Array
    ) -> jax.Array:
        """The slots before `slot`, which is at `at` in the page of `cell`; -1 where not wanted."""
        if at is None:
            return self._load_slots(jnp.where(wanted, cell - 1, -1), None)
        before = self._load_slots(
            jnp.where(wanted & (at == 0), cell - 1, -1), jnp.where(at == 0, self.page_size - 1, at)
        )
        return jnp.where(at == 0, before, jnp.where(slot < 0, slot, slot - 1))

    def _count_request_faults(
        self, request: jax.Array, row: jax.Array, prefix_len: jax.Array, extend_len: jax.Array
    ) -> None:
        is_request = request < self.bs
        if self.padding_row is not None:
            is_request = is_request & (row != self.padding_row)
        flags = {
            "row_outside": is_request & ((row < 0) | (row >= self.max_reqs)),
            "prefix_negative": is_request & (prefix_len < 0),
            "extend_negative": is_request & (extend_len < 0),
            "prefix_exceeds": is_request & (prefix_len > self.max_seq_len),
        }
        self._count_faults(flags, request.astype(jnp.int64) << FAULT_POSITION_BITS)

    def _slot_faults(self, slot: jax.Array, is_entry: jax.Array, is_missing: Any) -> dict[str, jax.Array]:
        flags = {
            "slot_negative": is_entry & (slot < 0),
            "slot_dummy": is_entry & (slot >= 0) & (slot < self.page_size),
        }
        if self.mapping is not None:
            flags["slot_outside"] = is_entry & (slot >= self.mapping.shape[0])
        if is_missing is not None:
            flags["token_outside"] = is_missing
        return flags

    def _count_faults(self, flags: dict[str, jax.Array], place: jax.Array) -> None:
        """Asks once whether there is any; only then the vectors are summed."""
        odd = functools.reduce(jnp.logical_or, flags.values())

        @pl.when(jnp.max(jnp.where(odd, 1, 0).astype(jnp.int32)) > 0)
        def _() -> None:
            for kind, flag in flags.items():
                count = jnp.sum(jnp.where(flag, 1, 0).astype(jnp.int32)).astype(jnp.int64)
                # The smallest, as a difference: a negated int64 needs x64 while it is lowered.
                first = 2**62 - jnp.max(jnp.where(flag, 2**62 - place, 0))
                lane = self.machine.iota(WARPGROUP)
                at = jnp.where((lane == 0) & (count > 0), 2 * FAULT_KINDS.index(kind), -1)
                self.machine.store(self.faults, at, lane.astype(jnp.int64) + count, "add")
                at = jnp.where(at >= 0, at + 1, -1)
                self.machine.store(self.faults, at, lane.astype(jnp.int64) + first, "min")

    def _translate(self, slot: jax.Array) -> jax.Array:
        if self.mapping is None:
            return slot
        index = jnp.where(slot >= 0, jnp.minimum(slot, self.mapping.shape[0] - 1), -1)
        translated = self._load("full_to_swa_index_mapping", index)
        return jnp.where(slot >= 0, translated, slot)

    def _span(self, prefix_len: jax.Array) -> tuple[jax.Array | int, jax.Array]:
        prefix_len = jnp.maximum(prefix_len, 0)
        end = jnp.minimum(prefix_len, self.max_seq_len)
        return jnp.maximum(prefix_len - self.window, 0) if self.window > 0 else 0, end

    def _verify_counts(self, row: jax.Array, prefix_len: jax.Array) -> jax.Array:
        start, end = self._span(prefix_len)
        return jnp.where(self._is_active(row), jnp.maximum(end - start, 0), 0)

    def _counts(self, request: jax.Array) -> jax.Array:
        """Entries of each of some requests; none behind the batch."""
        in_batch = jnp.where(request < self.bs, request, -1)
        row = self._load("req_pool_indices", in_batch)
        return self._verify_counts(row, self._load("prefix_lens", in_batch))

    def _count(self, request: Any) -> jax.Array:
        return self._verify_counts(self._of(request, "req_pool_indices"), self._of(request, "prefix_lens"))

    def _units(self, count: jax.Array) -> jax.Array:
        return (count + (self.tile - 1)) >> (self.tile.bit_length() - 1)

    def _write_counts(self, row: jax.Array, extend_len: jax.Array) -> jax.Array:
        return jnp.where(self._is_active(row), jnp.maximum(extend_len, 0), 0)

    def _is_active(self, row: jax.Array) -> jax.Array:
        active = (row >= 0) & (row < self.max_reqs)
        return active if self.padding_row is None else active & (row != self.padding_row)


def _pack(entries: jax.Array, units: jax.Array) -> jax.Array:
    """Entries above, units below: they run into each other only where the entries do not fit."""
    return (entries << 32) + units


def _find(last: jax.Array, unit: jax.Array) -> tuple[jax.Array, ...]:
    """Which element of a packed scan a unit belongs to, and that element's first unit and first entry."""
    ended = (last & 0xFFFFFFFF) <= unit.astype(jnp.int64)
    index = jnp.sum(jnp.where(ended, 1, 0).astype(jnp.int32))
    at = jnp.max(jnp.where(ended, last, 0))
    return index, at.astype(jnp.int32), (at >> 32).astype(jnp.int32)


class _Machine:
    """What Pallas lacks on Mosaic GPU. Vectors are strided over the warpgroup, an element a register."""

    def __init__(self, scratch: Any) -> None:
        self.scratch = scratch

    @staticmethod
    def layout(n: int) -> Any:
        return plgpu.Layout.WG_STRIDED((n,), vec_size=1)

    def iota(self, n: int) -> jax.Array:
        return plgpu.broadcasted_iota(jnp.int32, (n,), 0, layout=self.layout(n))

    def load(self, ref: Any, index: jax.Array, other: int) -> jax.Array:
        """The elements at flat indices, `other` where the index is negative."""
        layout = self.layout(index.size)
        result = plgpu.ShapeDtypeStruct(index.shape, ref.dtype, layout=layout)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), layout), return_type=result)
        def gather(ctx: Any, ref: Any, index: Any) -> Any:
            dtype = ir.MemRefType(ref.type).element_type
            size = utils.bitwidth(dtype)
            base, letter = utils.memref_ptr(ref), "l" if size == 64 else "r"

            def one(i: Any) -> Any:
                operands = [utils.getelementptr(base, [i], dtype), _is_natural(i), utils.c(other, dtype)]
                ptx = f"mov.b{size} $0, $3; @p ld.global.b{size} $0, [$1];"
                return _ptx(ptx, f"=&{letter},l,r,{letter}", operands, dtype, predicate="$2")

            return _map(one, dtype, index)

        return gather(ref, index)

    def store(self, ref: Any, index: jax.Array, value: jax.Array | int, combine: str = "") -> None:
        """Write the elements at flat indices, except where the index is negative.

        `combine`: `add`, or `min` as unsigned, to what is there, atomically and whatever the order.
        """
        operation = f"red.relaxed.gpu.global.{combine}.u" if combine else "st.global.b"
        layout = self.layout(index.size)
        constant = value if isinstance(value, int) else None
        arrays = (index,) if constant is not None else (index, value)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), *(layout for _ in arrays)))
        def scatter(ctx: Any, ref: Any, index: Any, *values: Any) -> None:
            dtype = ir.MemRefType(ref.type).element_type
            size = utils.bitwidth(dtype)
            base, letter = utils.memref_ptr(ref), "l" if size == 64 else "r"

            def one(i: Any, *v: Any) -> None:
                element = v[0] if constant is None else utils.c(constant, dtype)
                operands = [utils.getelementptr(base, [i], dtype), _is_natural(i), element]
                _ptx(f"@p {operation}{size} [$0], $2;", f"l,r,{letter}", operands, predicate="$1")

            _map(one, None, index, *values)

        scatter(ref, *arrays)

    def chunk_sums(self, values: jax.Array) -> jax.Array:
        """Sums of each `WARPGROUP` elements of an int64 vector, as a vector of `WARPGROUP`, 0 behind.

        The halves of an element are summed apart: what overflows from the lower one is lost.
        """
        layout, result_layout = self.layout(values.size), self.layout(WARPGROUP)
        result = plgpu.ShapeDtypeStruct((WARPGROUP,), values.dtype, layout=result_layout)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), layout), return_type=result)
        def sums(ctx: Any, scratch: Any, values: Any) -> Any:
            i32, i64 = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(64)
            shared, thread = utils.memref_ptr(scratch), utils.thread_idx()
            warp = arith.shrui(thread, utils.c(5, i32))
            is_first = _flag(
                arith.cmpi(arith.CmpIPredicate.eq, arith.andi(thread, utils.c(31, i32)), utils.c(0, i32))
            )
            chunks = values.registers.size
            for n, register in enumerate(values.registers.flat):
                of_warp = utils.getelementptr(shared, [arith.addi(warp, utils.c(4 * n, i32))], i64)
                ptx = (
                    ".reg .b32 lo, hi; .reg .b64 sum; mov.b64 {lo, hi}, $2; "
                    "redux.sync.add.s32 lo, lo, -1; redux.sync.add.s32 hi, hi, -1; "
                    "mov.b64 sum, {lo, hi}; @p st.shared.b64 [$0], sum;"
                )
                _ptx(ptx, "r,r,l", [of_warp, is_first, _element(register)], predicate="$1")
            utils.warpgroup_barrier()
            has_chunk = _flag(arith.cmpi(arith.CmpIPredicate.ult, thread, utils.c(chunks, i32)))
            total = utils.c(0, i64)
            for w in range(4):
                index = arith.addi(arith.muli(thread, utils.c(4, i32)), utils.c(w, i32))
                at = utils.getelementptr(shared, [index], i64)
                ptx = "mov.b64 $0, 0; @p ld.shared.b64 $0, [$1];"
                total = arith.addi(total, _ptx(ptx, "=&l,r,r", [at, has_chunk], i64, predicate="$2"))
            utils.warpgroup_barrier()
            registers = np.empty((1,), dtype=object)
            registers[0] = _register(total, i64)
            return FragmentedArray(_registers=registers, _layout=result_layout.to_mgpu(), _is_signed=True)

        return sums(self.scratch, values)

    def scan(self, values: jax.Array) -> jax.Array:
        """The inclusive prefix sum of an int64 vector: within warps, then over what the warps have."""
        layout = self.layout(values.size)
        result = plgpu.ShapeDtypeStruct(values.shape, values.dtype, layout=layout)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), layout), return_type=result)
        def inclusive_sum(ctx: Any, scratch: Any, values: Any) -> Any:
            i32, i64 = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(64)
            shared, thread = utils.memref_ptr(scratch), utils.thread_idx()
            lane, warp = arith.andi(thread, utils.c(31, i32)), arith.shrui(thread, utils.c(5, i32))
            is_last = _flag(arith.cmpi(arith.CmpIPredicate.eq, lane, utils.c(31, i32)))
            sums = [_sum_within_warp(_element(register), i64) for register in values.registers.flat]
            for n, x in enumerate(sums):
                of_warp = utils.getelementptr(shared, [arith.addi(warp, utils.c(4 * n, i32))], i64)
                _ptx("@p st.shared.b64 [$0], $2;", "r,r,l", [of_warp, is_last, x], predicate="$1")
            utils.warpgroup_barrier()
            registers, before = np.empty_like(values.registers), utils.c(0, i64)
            for n, x in enumerate(sums):
                mine = before
                for w in range(4):
                    at = utils.getelementptr(shared, [4 * n + w], i64)
                    before = arith.addi(before, _ptx("ld.shared.b64 $0, [$1];", "=l,r", [at], i64))
                    # After as many warps as are before this one, what they have together.
                    is_before = arith.cmpi(arith.CmpIPredicate.ult, utils.c(w, i32), warp)
                    mine = arith.select(is_before, before, mine)
                registers.flat[n] = _register(arith.addi(x, mine), i64)
            utils.warpgroup_barrier()
            return FragmentedArray(_registers=registers, _layout=values.layout, _is_signed=True)

        return inclusive_sum(self.scratch, values)


def _map(f: Any, dtype: Any, *arrays: Any) -> Any:
    """`f` on each thread's elements; a vector of what it returns, if that has a dtype."""
    registers = np.empty_like(arrays[0].registers)
    for i, elements in enumerate(zip(*(a.registers.flat for a in arrays), strict=True)):
        result = f(*map(_element, elements))
        if dtype is not None:
            registers.flat[i] = _register(result, dtype)
    if dtype is None:
        return None
    return FragmentedArray(_registers=registers, _layout=arrays[0].layout, _is_signed=True)


def _element(register: Any) -> Any:
    return vector.extract(register, dynamic_position=[], static_position=[0])


def _register(element: Any, dtype: Any) -> Any:
    return vector.broadcast(ir.VectorType.get((1,), dtype), element)


def _flag(condition: Any) -> Any:
    return arith.extui(ir.IntegerType.get_signless(32), condition)


def _is_natural(index: Any) -> Any:
    return _flag(arith.cmpi(arith.CmpIPredicate.sge, index, utils.c(0, index.type)))


def _ptx(ptx: str, constraints: str, operands: list, dtype: Any = None, predicate: str | None = None) -> Any:
    """Inline PTX. `@p` in it is guarded by the operand that `predicate` names."""
    guard = f".reg .pred p; setp.ne.b32 p, {predicate}, 0; " if predicate else ""
    result = dtype if dtype is not None else ir.Type.parse("!llvm.void")
    return llvm.inline_asm(result, operands, f"{{ {guard}{ptx} }}", constraints, has_side_effects=True)


def _sum_within_warp(x: Any, i64: Any) -> Any:
    for distance in (1, 2, 4, 8, 16):
        x = _ptx(
            ".reg .pred p; .reg .b32 lo, hi, l, h; .reg .b64 y; mov.b64 {lo, hi}, $1; "
            f"shfl.sync.up.b32 l|p, lo, {distance}, 0, -1; shfl.sync.up.b32 h, hi, {distance}, 0, -1; "
            "mov.b64 y, {l, h}; mov.b64 $0, $1; @p add.s64 $0, $1, y;",
            "=&l,l",
            [x],
            i64,
        )
    return x
