"""The trace replayer: a server whose slots, windows, rows and tokens hold together at every step."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shared_ref import NO_SLOT, NO_TOKEN, VerifyPlan, WritePlan, launch_canary_plan_kernels_reference
from shared_ref.conformance.replay import (
    GROUPS,
    VOCAB_SIZE,
    Replay,
    ReplayConfig,
    ReplayCounts,
    Step,
    output_tokens,
    prompt_tokens,
)
from shared_ref.conformance.trace import TraceRequest, read_trace, shipped_trace_path

SMALL = ReplayConfig(
    steps=10_000,
    step_ms=30,
    max_running_requests=6,
    max_context_len=2500,
    max_output_len=30,
    chunk_size=700,
    pool_slots=16_384,
    page_size=16,
    swa_window_size=300,
    swa_pool_slots=8192,
    graph_batch_sizes=(2, 4, 8),
    full_verify_capacity=8000,
    swa_verify_capacity=1200,
    draft_verify_capacity=7000,
)
CONFIGS = {
    "roomy": SMALL,
    "seed": dataclasses.replace(SMALL, seed=9, swa_expected_tokens=True),
    "tiny pool": dataclasses.replace(SMALL, max_context_len=1100, pool_slots=1200, max_output_len=250),
    "tiny window pool": dataclasses.replace(SMALL, swa_pool_slots=1072),
    "both tiny": dataclasses.replace(SMALL, pool_slots=2528, swa_pool_slots=1072),
    "page of one slot": dataclasses.replace(SMALL, page_size=1, pool_slots=4000, swa_pool_slots=1600),
    "page of half a block": dataclasses.replace(SMALL, page_size=256, pool_slots=5120, swa_pool_slots=3072),
    "window of one token": dataclasses.replace(
        SMALL, swa_window_size=1, pool_slots=5008, swa_pool_slots=1024
    ),
    "window beyond the context": dataclasses.replace(SMALL, swa_window_size=9999, pool_slots=5008),
    "chunk beyond the context": dataclasses.replace(SMALL, chunk_size=9999, pool_slots=5008),
    "one request at a time": dataclasses.replace(SMALL, max_running_requests=1, pool_slots=2528),
}


def conversations(seed: int, count: int = 18) -> list[TraceRequest]:
    """Users whose every turn repeats the turns before it; lengths at and beside the block boundary."""
    rng = np.random.default_rng(seed)
    histories: list[list[int]] = [[0] for _ in range(5)]
    requests, now, fresh_id = [], 0, 1
    for _ in range(count):
        history = histories[rng.integers(5)]
        if len(history) > 5:
            del history[1:]
        turn = int(rng.integers(3))
        history.extend(range(fresh_id, fresh_id + turn))
        fresh_id += turn + 1
        tail = int(rng.choice([0, 1, 17, 300, 511]))
        hash_ids = (*history, fresh_id) if tail else tuple(history)
        requests.append(TraceRequest(now, 512 * len(history) + tail, int(rng.integers(1, 200)), hash_ids))
        now += int(rng.choice([0, 0, 5, 200, 5000], p=[0.4, 0.2, 0.2, 0.15, 0.05]))
    return requests


def request(*hash_ids: int, output_length: int = 3, extra: int = 1, at: int = 0) -> TraceRequest:
    """A prompt of one full block an id, and `extra` tokens more under an id that nobody shares."""
    last = (max(hash_ids) + 1000,) if extra else ()
    return TraceRequest(at, 512 * len(hash_ids) + extra, output_length, hash_ids + last)


def second_prefill(trace: list[TraceRequest]) -> tuple[int, int]:
    """Tokens of the second request that are cached when it is admitted, and those of its first chunk."""
    batches = (s.requests for s in Replay(trace, SMALL))
    return next((r.prefix_len, r.extend_len) for batch in batches for r in batch if r.trace_index == 1)


def plan(step: Step) -> tuple[VerifyPlan, WritePlan]:
    """The reference's plans of a step. A fault in its values raises."""
    verify = VerifyPlan.allocate(verify_capacity=step.inputs.verify_capacity)
    write = WritePlan.allocate(write_req_capacity=step.write_req_capacity)
    launch_canary_plan_kernels_reference(
        verify_plan_out=verify, write_plan_out=write, **step.inputs.keywords(), strict=True
    )
    return verify, write


class Memory:
    """What each slot of each group holds, token and position, as the steps write it."""

    def __init__(self, replay: Replay, trace: list[TraceRequest]) -> None:
        config = replay.config
        self.config = config
        self.trace = trace
        self.known: dict[int, np.ndarray] = {}
        self.slots = {
            group: np.full((2, config.swa_pool_slots if group == "swa" else config.pool_slots), -7, np.int64)
            for group in GROUPS
        }

    def tokens(self, index: int) -> np.ndarray:
        if index not in self.known:
            r, config = self.trace[index], self.config
            prompt = prompt_tokens(r.hash_ids, min(r.input_length, config.max_context_len))
            outputs = output_tokens(index, config.max_output_len + 1, config.seed)
            self.known[index] = np.concatenate((prompt, outputs))
        return self.known[index]

    def write(self, step: Step) -> None:
        offset = step.inputs.kv_token_id_vs_position_offset
        for r in step.requests:
            positions = np.arange(r.prefix_len, r.prefix_len + r.extend_len)
            cells = step.inputs.req_to_token[r.row, positions]
            if step.group == "swa":
                cells = step.inputs.full_to_swa_index_mapping[cells]
            self.slots[step.group][:, cells] = self.tokens(r.trace_index)[positions + offset], positions


def recount(steps: Iterator[Step], trace: list[TraceRequest], config: ReplayConfig) -> ReplayCounts:
    """Counts from the yielded steps and the reference's plans alone; evictions cannot be seen there."""
    counts, used_rows, running, done = ReplayCounts(), set(), {}, {}
    for step in steps:
        verify, _ = plan(step)
        counts.plans += 1
        counts.overflows += int(verify.enable[0] == 0)
        counts.entries += int(verify.verify_num_valid[0]) if verify.enable[0] else 0
        if step.group == "swa":
            counts.windows_reached += sum(r.prefix_len > config.swa_window_size for r in step.requests)
        if step.group != "full":
            continue
        counts.steps += 1
        counts.padding_rows += int((step.inputs.req_pool_indices == 0).sum())
        now = {r.trace_index: r for r in step.requests}
        for gone in set(running) - set(now):
            counts.finished_requests += done[gone] == "finished"
            counts.preemptions += done[gone] != "finished"
        for index in [i for i in now if i not in running]:
            r = now[index]
            counts.admissions += 1
            counts.recycled_rows += r.row in used_rows
            used_rows.add(r.row)
            counts.prefix_hits += r.prefix_len > 0
            counts.prefix_hit_tokens += r.prefix_len
            counts.prefix_hit_blocks += (r.prefix_len + config.page_size) // 512
        kinds = set()
        for index, r in now.items():
            prompt = min(trace[index].input_length, config.max_context_len)
            total = min(
                prompt + min(trace[index].output_length, config.max_output_len), config.max_context_len + 1
            )
            known = step.inputs.req_to_verify_expected_tokens_valid_lens[step.requests.index(r)]
            end = r.prefix_len + r.extend_len
            done[index] = "finished" if end == total - 1 else "running"
            decodes = r.prefix_len >= prompt and r.extend_len == 1
            kinds.add("chunked" if end < known else "decode" if decodes else "prefill")
        counts.decode_steps += "decode" in kinds
        counts.mixed_steps += "decode" in kinds and len(kinds) > 1
        counts.chunked_prefill_steps += "chunked" in kinds
        running = now
    counts.finished_requests += sum(done[i] == "finished" for i in running)
    counts.clipped_requests = replay_arrivals_clipped(trace, config)
    return counts


def replay_arrivals_clipped(trace: list[TraceRequest], config: ReplayConfig) -> int:
    """Requests over a limit, where the whole trace arrives."""
    return sum(
        r.input_length > config.max_context_len
        or r.output_length > config.max_output_len
        or r.input_length + r.output_length > config.max_context_len + 1
        for r in trace
    )


def digest(replay: Replay) -> str:
    sha = hashlib.sha256()
    for step in replay:
        sha.update(repr((step.index, step.group, step.requests, step.write_req_capacity)).encode())
        for name, value in step.inputs.keywords().items():
            sha.update(name.encode())
            sha.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return sha.hexdigest()


# Conservation


@pytest.mark.parametrize("trace_seed", [0, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_is_lost_and_everyone_finishes(name, trace_seed):
    trace = conversations(trace_seed)
    replay = Replay(trace, CONFIGS[name])
    for step in replay:
        if step.group == GROUPS[0]:  # the other two see the same state
            replay.check_conservation()
    replay.check_conservation()
    assert replay.counts.finished_requests == len(trace)
    pools = replay.pools
    cached = sum(map(len, pools.cached_blocks().values()))
    assert pools.full.num_free + cached == CONFIGS[name].pool_slots // CONFIGS[name].page_size - 1


@pytest.mark.parametrize(
    ("name", "evicted"), [("tiny pool", "evictions"), ("tiny window pool", "window_evictions")]
)
def test_a_tiny_pool_forces_evictions_and_preemptions(name, evicted):
    replay = Replay(conversations(0), CONFIGS[name])
    list(replay)
    assert replay.counts.preemptions > 0
    assert getattr(replay.counts, evicted) > 0


def test_growing_outputs_evict_first_then_retract_the_youngest_who_returns_first():
    """Two blocks are cached and idle when six outputs grow beyond the pool; requests 7 and 8 wait."""
    growing = [TraceRequest(9000, 100, 200, (i,)) for i in range(10, 18)]
    replay = Replay([request(1, 2), *growing], CONFIGS["tiny pool"])
    batches: list[list[int]] = [[]]
    for step in replay:
        batch = [r.trace_index for r in step.requests]
        if batch != batches[-1]:
            batches.append(batch)
        assert replay.counts.evictions == 2 or replay.counts.preemptions == 0
        replay.check_conservation()
    assert batches[2:8] == [
        [1, 2, 3, 4, 5, 6],
        [1, 2, 3, 4, 5],
        [1, 2, 3, 4],
        [1, 2, 3],
        [4, 5, 6],
        [4, 5, 6, 7, 8],
    ]
    assert replay.counts.preemptions == 3
    assert replay.counts.finished_requests == 9


def test_the_outputs_of_a_retracted_request_are_confirmed_when_it_returns():
    trace = [TraceRequest(0, 100, 200, (i,)) for i in range(6)]
    first: dict[int, dict[str, int]] = {}
    for step in Replay(trace, dataclasses.replace(CONFIGS["tiny pool"], pool_slots=1120)):
        lens = step.inputs.req_to_verify_expected_tokens_valid_lens
        for i, r in enumerate(step.requests):
            if r.prefix_len == 0 and step.index > 0 and step.group != "swa":
                first.setdefault(r.trace_index, {})[step.group] = int(lens[i])
    assert first
    assert all(lens["draft"] == lens["full"] > 100 for lens in first.values())


def test_a_request_is_admitted_if_all_its_tokens_and_a_page_for_each_running_request_fit():
    config = dataclasses.replace(SMALL, max_context_len=400, pool_slots=29 * 16, max_output_len=2)
    short = [TraceRequest(0, 100, 2, (i,)) for i in range(4)]  # of 7 pages each, where 28 are free
    assert [r.trace_index for r in next(iter(Replay(short, config))).requests] == [0, 1, 2]
    config = dataclasses.replace(config, max_context_len=900, pool_slots=90 * 16)
    long = [TraceRequest(0, 800, 2, (2 * i, 2 * i + 1)) for i in range(2)]  # of 50 pages, the chunk of 44
    assert [r.trace_index for r in next(iter(Replay(long, config))).requests] == [0]
    assert {len(step.requests) for step in Replay(long, config)} == {1}


def _lose_a_page(replay: Replay) -> None:
    replay.pools.full.num_free -= 1


def _free_a_held_page(replay: Replay) -> None:
    pools = replay.pools
    pools.full.free_pages[0] = replay.req_to_token[1, 0] // replay.config.page_size


def _hold_without_counting(replay: Replay) -> None:
    replay.pools.full.retain(replay.req_to_token[1, :1] // replay.config.page_size)


def _swap_a_cell(replay: Replay) -> None:
    replay.req_to_token[1, 3] += 1


def _write_the_padding_row(replay: Replay) -> None:
    replay.req_to_token[0, 5] = 1


def _misdirect_a_window_slot(replay: Replay) -> None:
    replay.pools.full_to_swa_index_mapping[replay.req_to_token[1, 0]] += 1


def _lose_a_window_page(replay: Replay) -> None:
    replay.pools.window_pages[replay.req_to_token[1, 0] // replay.config.page_size] = 0


def _share_a_window_page(replay: Replay) -> None:
    first, second = replay.req_to_token[1, [0, 16]] // replay.config.page_size
    replay.pools.window_pages[first] = replay.pools.window_pages[second]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_lose_a_page, "full pages that are lost"),
        (_free_a_held_page, "full pages that are free and held"),
        (_hold_without_counting, "full pages whose refcount is not its holders"),
        (_swap_a_cell, "positions of request 0 whose cell is not its slot: 3$"),
        (_write_the_padding_row, "cells of the padding row that are set: 5$"),
        (_misdirect_a_window_slot, "slots that map to another page's window slot"),
        (_lose_a_window_page, "window pages whose refcount is not its holders"),
        (_share_a_window_page, "window pages whose refcount is not its holders"),
    ],
)
def test_the_conservation_check_names_what_is_off(damage, said):
    replay = Replay([request(1, output_length=9)], SMALL)
    next(iter(replay))
    damage(replay)
    with pytest.raises(AssertionError, match=said):
        replay.check_conservation()


# What a slot holds


@pytest.mark.parametrize("name", [*CONFIGS, "default"])
def test_every_entry_reads_what_was_written_at_its_position(name):
    config = CONFIGS.get(name, ReplayConfig())
    trace = read_trace(shipped_trace_path()) if name == "default" else conversations(2)
    replay = Replay(trace, config)
    memory = Memory(replay, trace)
    for step in replay:
        verify, _ = plan(step)
        slots, tokens, positions, prev = (
            getattr(verify, f.name)[: verify.verify_num_valid[0]] for f in VerifyPlan.fields()[:4]
        )
        if verify.enable[0]:
            held_tokens, held_positions = memory.slots[step.group]
            checked = tokens != NO_TOKEN
            chained = prev != NO_SLOT
            assert np.array_equal(held_positions[slots], positions)
            assert np.array_equal(np.where(checked, held_tokens[slots], NO_TOKEN), tokens)
            assert np.array_equal(chained, positions > 0)
            assert np.array_equal(np.where(chained, held_positions[prev], -1), positions - 1)
            unchecked = int((~checked).sum())
            prompts = [min(trace[r.trace_index].input_length, config.max_context_len) for r in step.requests]
            if step.group == "swa" and not config.swa_expected_tokens:
                assert unchecked == len(slots)
            elif step.group != "draft":
                assert unchecked == 0
            else:
                sampled = [r.prefix_len >= p for r, p in zip(step.requests, prompts, strict=True)]
                # The newest token of who decodes is unconfirmed; a retraction gives it time to arrive.
                assert unchecked <= sum(sampled)
                assert unchecked == sum(sampled) or replay.counts.preemptions > 0
        memory.write(step)


def test_expected_tokens_are_the_prompts_and_the_outputs():
    trace = [request(1, output_length=4)]
    tokens = np.concatenate((prompt_tokens(trace[0].hash_ids, 513), output_tokens(0, 4, SMALL.seed)))
    plans = {(s.index, s.group): plan(s)[0].verify_expected_tokens[:513] for s in Replay(trace, SMALL)}
    assert len(plans) == 4 * 3
    np.testing.assert_array_equal(plans[1, "full"], tokens[:513])
    np.testing.assert_array_equal(plans[1, "draft"], [*tokens[1:513], NO_TOKEN])
    np.testing.assert_array_equal(plans[2, "draft"], tokens[1:514])


def test_token_ids_depend_on_block_and_place_and_on_request_and_seed():
    first, second = prompt_tokens((5, 6), 1024), prompt_tokens((5, 7), 700)
    np.testing.assert_array_equal(first[:512], second[:512])
    assert (first[512:700] != second[512:]).mean() > 0.99
    outputs = [output_tokens(i, 100, seed) for i, seed in ((3, 0), (3, 1), (4, 0))]
    assert all((a != b).mean() > 0.9 for a, b in zip(outputs, outputs[1:] + outputs[:1], strict=True))
    np.testing.assert_array_equal(outputs[0][:7], output_tokens(3, 7, 0))
    for tokens in (first, *outputs):
        assert tokens.dtype == np.int32
        assert tokens.min() >= 0
        assert tokens.max() < VOCAB_SIZE


# Prefix sharing


def test_a_shared_prefix_has_the_same_slots_but_for_its_last_page():
    trace = [request(1, 2, output_length=30), request(1, 2, output_length=30, at=40), request(9, at=40)]
    replay = Replay(trace, SMALL)
    for step in replay:
        rows = {r.trace_index: r.row for r in step.requests}
        if len(rows) == 3:
            break
    first, second, other = (step.inputs.req_to_token[rows[i]] for i in range(3))
    np.testing.assert_array_equal(first[:1008], second[:1008])
    assert not set(first[1008:1025]) & set(second[1008:1025])
    assert not set(first[:1025]) & set(other[:513])
    assert (replay.pools.full.refcounts[first[:1008] // 16] == 3).all()  # two requests and the cache
    assert replay.counts.prefix_hit_tokens == 1008
    assert replay.counts.prefix_hit_blocks == 2


def test_a_prefix_outlives_its_request():
    assert second_prefill([request(1, 2), request(1, 2, 3, at=10_000)]) == (1008, 529)


def test_a_prompt_that_is_cached_as_a_whole_leaves_a_page_to_compute():
    assert second_prefill([request(1, 2, extra=0), request(1, 2, extra=0, at=10_000)]) == (1008, 16)


def test_only_a_leading_run_is_shared():
    assert second_prefill([request(1, 2), request(7, 2, at=10_000)]) == (0, 700)


def test_a_partial_block_is_not_shared():
    assert second_prefill([request(1, extra=500), request(1, extra=500, at=10_000)]) == (496, 516)


def test_a_prefix_whose_window_is_gone_is_shared_as_far_as_its_windows_are_there():
    """The window pool holds 99 pages: the second request takes those of blocks 2 and 3."""
    config = dataclasses.replace(SMALL, max_running_requests=1, swa_pool_slots=1600)
    trace = [request(1, 2, 3), request(8, 9, at=10_000), request(1, 2, 3, at=20_000)]
    replay = Replay(trace, config)
    hit = next(s.requests[0].prefix_len for s in replay if s.requests[0].trace_index == 2)
    assert hit == 496
    assert replay.counts.window_evictions == 2 + 2
    assert replay.counts.evictions == 0


def test_a_running_request_keeps_the_window_of_its_first_block_longest():
    """Its fourth block needs more window pages than there are."""
    config = dataclasses.replace(SMALL, max_running_requests=1, swa_pool_slots=1600)
    trace = [request(1, 2, 3, 4), request(1, at=10_000)]
    replay = Replay(trace, config)
    list(replay)
    assert replay.counts.window_evictions == 1
    assert replay.counts.prefix_hit_tokens == 496


def test_a_hit_keeps_the_window_of_a_block():
    """Block 8 was written after block 1, but used before it when request 3 needs its window pages."""
    config = dataclasses.replace(SMALL, max_running_requests=2, swa_pool_slots=151 * 16, max_output_len=200)
    trace = [
        request(1),
        request(8, at=1000),
        request(1, output_length=200, at=2000),
        request(10, 11, 12, at=6500),
        request(1, at=7000),
    ]
    replay = Replay(trace, config)
    list(replay)
    assert replay.counts.window_evictions == 1
    assert replay.counts.prefix_hits == 2


def test_the_least_recently_used_block_is_evicted_from_the_end_of_its_chain():
    config = dataclasses.replace(SMALL, max_running_requests=1, max_context_len=1100, pool_slots=141 * 16)
    runs = [(1, 2), (3,), (1, 2), (4, 5), (6,)]
    left = []
    for count in (4, 5):
        replay = Replay([request(*run, at=10_000 * i) for i, run in enumerate(runs[:count])], config)
        list(replay)
        left.append(set(replay.pools.cached_blocks()))
    assert left == [{(1,), (1, 2), (4,), (4, 5)}, {(1,), (4,), (4, 5), (6,)}]


def test_a_block_is_used_until_its_last_request_finishes():
    config = dataclasses.replace(SMALL, max_running_requests=2, max_context_len=1100, pool_slots=132 * 16)
    trace = [request(1, output_length=30), request(2, at=40), request(3, 4, at=10_000)]
    replay = Replay(trace, config)
    list(replay)
    assert replay.counts.evictions == 0
    replay = Replay([*trace, request(5, at=20_000)], config)
    list(replay)
    assert set(replay.pools.cached_blocks()) == {(1,), (3,), (3, 4), (5,)}


# Rows


@pytest.mark.parametrize("name", ["roomy", "both tiny"])
def test_a_step_writes_its_own_cells_and_a_recycled_row_keeps_its_stale_tail(name):
    replay = Replay(conversations(3), CONFIGS[name])
    before, running, stale_tails = replay.req_to_token.copy(), {}, 0
    for step in replay:
        if step.group != "full":
            continue
        table = step.inputs.req_to_token
        changed = {(int(r), int(p)) for r, p in zip(*np.nonzero(table != before), strict=True)}
        for r in step.requests:
            begin = r.prefix_len if running.get(r.row) == r.trace_index else 0
            changed -= {(r.row, p) for p in range(begin, r.prefix_len + r.extend_len)}
            stale_tails += begin == 0 and table[r.row, r.prefix_len + r.extend_len :].any()
        if replay.counts.preemptions == 0:
            assert not changed
        assert not any(row == 0 for row, _ in changed)
        before, running = table.copy(), {r.row: r.trace_index for r in step.requests}
    assert stale_tails > 0


def test_the_padding_row_is_never_handed_out_and_rows_are_not_shared():
    for step in Replay(conversations(4), CONFIGS["tiny pool"]):
        rows = [r.row for r in step.requests]
        assert len(set(rows)) == len(rows)
        assert set(rows) <= set(range(1, 7))


# Batches


def test_a_batch_is_padded_to_a_graph_with_stale_lengths():
    stale = False
    former: Any = None
    for step in Replay(conversations(5), SMALL):
        inputs, bs = step.inputs, len(step.requests)
        assert len(inputs.req_pool_indices) == {1: 2, 2: 2, 3: 4, 4: 4, 5: 8, 6: 8}[bs]
        assert inputs.req_pool_indices.tolist() == [r.row for r in step.requests] + [0] * (
            len(inputs.req_pool_indices) - bs
        )
        assert inputs.prefix_lens[:bs].tolist() == [r.prefix_len for r in step.requests]
        assert inputs.extend_seq_lens[:bs].tolist() == [r.extend_len for r in step.requests]
        assert (inputs.prefix_lens[bs:] >= 0).all()
        if former is not None and step.group == "full":
            common = slice(bs, len(former.inputs.prefix_lens))
            padding = inputs.prefix_lens[common]
            np.testing.assert_array_equal(padding, former.inputs.prefix_lens[common][: len(padding)])
            stale |= len(former.requests) > bs and len(padding) > 0
        former = step
    assert stale


def test_the_first_padding_has_the_lengths_of_the_capture():
    inputs = next(iter(Replay([request(1)], SMALL))).inputs
    assert inputs.req_pool_indices.tolist() == [1, 0]
    assert inputs.prefix_lens.tolist() == [0, 2499]
    assert inputs.extend_seq_lens.tolist() == [513, 1]


def test_capacity_and_shapes_stay_the_same_over_a_replay():
    shapes = {
        (s.group, s.inputs.verify_capacity, s.write_req_capacity, s.inputs.req_to_token.shape)
        for s in Replay(conversations(6), SMALL)
    }
    assert shapes == {
        ("full", 8000, 8, (7, 2500)),
        ("swa", 1200, 8, (7, 2500)),
        ("draft", 7000, 8, (7, 2500)),
    }


def test_each_step_yields_the_three_groups_over_one_batch():
    steps = list(Replay(conversations(6), SMALL))
    assert [(s.index, s.group) for s in steps] == [(i, g) for i in range(len(steps) // 3) for g in GROUPS]
    assert all(steps[i].requests == steps[i - i % 3].requests for i in range(len(steps)))


def test_requests_are_admitted_in_order_of_arrival():
    order: list[int] = []
    for step in Replay(conversations(7), CONFIGS["both tiny"]):
        order += [r.trace_index for r in step.requests if r.trace_index not in order]
    assert order == sorted(order) == list(range(18))


def test_a_step_writes_no_more_than_the_chunk_and_a_decoding_request_one_token():
    for step in Replay(conversations(8), CONFIGS["roomy"]):
        extends = [r.extend_len for r in step.requests]
        assert min(extends) >= 1
        assert sum(extends) <= 700


def test_a_request_is_not_admitted_before_it_arrives():
    trace = [request(1, output_length=40), request(2, at=305)]
    steps = [s for s in Replay(trace, SMALL) if s.group == "full"]
    joined = next(s.index for s in steps if any(r.trace_index == 1 for r in s.requests))
    assert joined == 11  # step i is at 30 i ms


def test_an_idle_server_waits_for_the_next_arrival():
    replay = Replay([request(1, output_length=1, at=10**9), request(2, output_length=1, at=10**12)], SMALL)
    assert len([s for s in replay if s.group == "full"]) == 2


def test_prompts_and_outputs_are_cut_to_the_context():
    config = dataclasses.replace(SMALL, max_context_len=1024, swa_window_size=100)
    trace = [request(1, 2, 3, 4), request(5, output_length=600), request(6, extra=511, output_length=39)]
    replay = Replay(trace, dataclasses.replace(config, max_output_len=1000))
    ends: dict[int, int] = {}
    for step in replay:
        plan(step)
        ends |= {r.trace_index: r.prefix_len + r.extend_len for r in step.requests}
    assert ends == {0: 1024, 1: 1024, 2: 1024}
    assert replay.counts.clipped_requests == 3
    assert replay.counts.finished_requests == 3


def test_a_prompt_of_one_token_is_prefilled_before_it_decodes():
    replay = Replay([TraceRequest(0, 1, 3, (5,))], SMALL)
    extents = [(r.prefix_len, r.extend_len) for s in replay if s.group == "full" for r in s.requests]
    assert extents == [(0, 1), (1, 1), (2, 1)]
    assert replay.counts.decode_steps == 2


def test_a_single_output_token_is_sampled_by_the_prefill():
    steps = [s.requests for s in Replay([request(1, output_length=1)], SMALL) if s.group == "full"]
    assert [[(r.prefix_len, r.extend_len) for r in batch] for batch in steps] == [[(0, 513)]]


# Windows


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_in_a_window_have_live_window_slots_of_their_own(name):
    replay = Replay(conversations(9), CONFIGS[name])
    for step in replay:
        if step.group != "swa":
            continue
        mapping, window = step.inputs.full_to_swa_index_mapping, step.inputs.swa_window_size
        cells = [
            step.inputs.req_to_token[r.row, max(r.prefix_len - window - 1, 0) : r.prefix_len + r.extend_len]
            for r in step.requests
        ]
        slots = np.unique(np.concatenate(cells))
        mapped = mapping[slots]
        assert (mapped >= replay.config.page_size).all()  # behind the dummy page
        assert len(np.unique(mapped)) == len(slots)
        free = replay.pools.window.free_pages
        assert not np.isin(mapped // replay.config.page_size, free).any()


def test_released_slots_map_to_the_dummy_slot_or_keep_a_stale_window_slot():
    replay = Replay(conversations(10), SMALL)
    dummies = stale = 0
    for step in replay:
        mapping = step.inputs.full_to_swa_index_mapping
        for r in step.requests:
            passed = step.inputs.req_to_token[r.row, : max(r.prefix_len - 300 - 16, 0)]
            dummies += int((mapping[passed] == 0).sum()) if mapping is not None else 0
        if mapping is not None:
            stale += int((mapping[replay.pools.full.free_pages * 16] != 0).sum())
    assert dummies > 0
    assert stale > 0


# Replays as a whole


@pytest.mark.parametrize("name", ["both tiny", "seed"])
def test_two_replays_are_byte_identical(name):
    first, second = (digest(Replay(conversations(0), CONFIGS[name])) for _ in range(2))
    assert first == second


def test_another_seed_gives_other_slots_and_outputs():
    first, second = (
        [s for s in Replay([request(1)], dataclasses.replace(SMALL, seed=seed)) if s.group == "full"]
        for seed in (0, 1)
    )
    assert (first[0].inputs.req_to_token[1] != second[0].inputs.req_to_token[1]).any()
    tokens = [x[0].inputs.req_to_verify_expected_tokens[1] for x in (first, second)]
    assert tokens[0][513] != tokens[1][513]
    windows = [Replay([], dataclasses.replace(SMALL, seed=seed)).pools.window.free_pages for seed in (0, 1)]
    assert (windows[0] != windows[1]).any()
    np.testing.assert_array_equal(tokens[0][:513], tokens[1][:513])


def test_the_small_arrays_of_a_step_are_snapshots():
    kept = []
    for step in Replay(conversations(1), SMALL):
        small = {k: v for k, v in step.inputs.keywords().items() if isinstance(v, np.ndarray) and v.size <= 8}
        kept.append((small, {k: v.copy() for k, v in small.items()}))
    for small, copy in kept:
        assert small.keys() >= {"req_pool_indices", "prefix_lens", "extend_seq_lens"}
        for name in small:
            np.testing.assert_array_equal(small[name], copy[name])


def test_a_step_becomes_a_case():
    step = next(iter(Replay([request(1)], SMALL)))
    case = step.case()
    assert case.name == step.name == "replay step 0, full"
    assert case.expected().write.write_num_valid_reqs[0] == 2
    assert len(case.before.write.write_seed_slot_indices) == 8


@pytest.mark.parametrize("name", ["roomy", "tiny window pool", "both tiny", "page of half a block"])
def test_counts_are_those_of_the_steps(name):
    trace = conversations(11)
    replay = Replay(trace, CONFIGS[name])
    counted = recount(iter(replay), trace, CONFIGS[name])
    unseen = {name: getattr(replay.counts, name) for name in ("evictions", "window_evictions")}
    assert replay.counts == dataclasses.replace(counted, **unseen)


def test_evictions_are_the_blocks_that_vanish():
    replay = Replay(conversations(12), CONFIGS["tiny pool"])
    seen: dict[Any, Any] = {}
    vanished = 0
    for _ in replay:
        now = replay.pools.cached_blocks()
        vanished += len(seen.keys() - now.keys())
        seen = now
    assert 0 < vanished <= replay.counts.evictions


def test_the_default_run_meets_every_event_and_each_group_overflows_but_seldom():
    replay, overflows = Replay(), dict.fromkeys(GROUPS, 0)
    for step in replay:
        ends = np.array([r.prefix_len for r in step.requests])
        total = np.minimum(ends, step.inputs.swa_window_size).sum() if step.group == "swa" else ends.sum()
        overflows[step.group] += int(total > step.inputs.verify_capacity)
    counts = dataclasses.asdict(replay.counts)
    assert counts["steps"] == 256
    assert counts["plans"] == 768
    assert [name for name, count in counts.items() if count == 0] == []
    assert sum(overflows.values()) == counts["overflows"]
    assert all(0 < n < 64 for n in overflows.values()), overflows


# The config


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"steps": 0}, "steps must be an int of at least 1, got 0"),
        ({"seed": -1}, "seed must be an int of at least 0, got -1"),
        ({"chunk_size": 4096.0}, "chunk_size must be an int of at least 1, got 4096.0"),
        ({"max_running_requests": True}, "max_running_requests must be an int of at least 1, got True"),
        ({"swa_window_size": 0}, "swa_window_size must be an int of at least 1, got 0"),
        ({"graph_batch_sizes": ()}, "graph_batch_sizes must ascend within 1 to 4096, got ()"),
        ({"graph_batch_sizes": (4, 2, 16)}, "graph_batch_sizes must ascend within 1 to 4096, got (4, 2, 16)"),
        ({"graph_batch_sizes": (0, 16)}, "graph_batch_sizes must ascend within 1 to 4096, got (0, 16)"),
        ({"graph_batch_sizes": (16, 4097)}, "graph_batch_sizes must ascend within 1 to 4096, got (16, 4097)"),
        ({"graph_batch_sizes": (8,)}, "graph_batch_sizes must reach max_running_requests 16, got (8,)"),
        ({"chunk_size": 15}, "chunk_size must give each of max_running_requests 16 a token, got 15"),
        ({"page_size": 512}, "page_size must divide 256, got 512"),
        ({"pool_slots": 65_537}, "pool_slots must be a multiple of page_size 16, got 65537"),
        (
            {"pool_slots": 16_384},
            "pool_slots must be at least 16400, so that one request fits beside the dummy page, got 16384",
        ),
        (
            {"swa_pool_slots": 5152},
            "swa_pool_slots must be at least 5168, so that one request fits beside the dummy page, got 5152",
        ),
    ],
)
def test_a_senseless_config_is_refused(knobs, said):
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        ReplayConfig(**knobs)
    assert str(raised.value) == f"ReplayConfig: {said}"


@pytest.mark.parametrize("chunk_size", [24, 700, 5000])
def test_the_smallest_pools_that_a_config_may_have_serve_every_request(chunk_size):
    config = dataclasses.replace(SMALL, chunk_size=chunk_size)
    least = {"pool_slots": 2528, "swa_pool_slots": {24: 368, 700: 1040, 5000: 2528}[chunk_size]}
    replay = Replay(conversations(13, count=9), dataclasses.replace(config, **least))
    for _ in replay:
        replay.check_conservation()
    assert replay.counts.finished_requests == 9
    for name, slots in least.items():
        with pytest.raises(ValueError, match=f"{name} must be at least {slots}"):
            dataclasses.replace(config, **least | {name: slots - 16})
