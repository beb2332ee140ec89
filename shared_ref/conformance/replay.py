"""A small LLM server that plays a request trace and yields the plan inputs of every step.

It schedules as SGLang does: requests are admitted in order of arrival, prompts are prefilled in chunks
beside the requests that decode, prompt prefixes are shared through a cache, the youngest request is
retracted when the pool is full, and batches are padded to the sizes of captured graphs. Three groups plan
in each step: `full` (full attention), `swa` (sliding window, a smaller pool of its own) and `draft` (EAGLE,
whose slot p holds the token of position p + 1).

No model runs and no random generator is used: for one config, two replays are byte-identical everywhere.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..constants import DUMMY_SLOT, PADDING_ROW, PLAN_BS_BLOCK_SIZE
from .case import Case, PlanInputs
from .trace import BLOCK_TOKENS, TraceRequest, read_trace, shipped_trace_path

VOCAB_SIZE = 128_256
"""Token ids are below it (Llama 3's vocabulary)."""

GROUPS = ("full", "swa", "draft")
"""The plan groups of a step, in the order in which they are yielded."""

_NO_PAGE = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """The server's knobs. The defaults meet every event that `ReplayCounts` counts, within `steps` steps.

    Raises:
        ValueError: a knob makes no sense, or the pools could not hold even one request.
    """

    steps: int = 256
    """Most forward steps to play; the replay ends earlier where the trace does."""
    step_ms: int = 100
    """Milliseconds of the trace's clock that a step takes."""
    seed: int = 0
    """Chooses the output tokens and the order of the free slots."""
    max_running_requests: int = 16
    """Most requests in a batch. `req_to_token` has one row more, the padding row."""
    max_context_len: int = 16_384
    """Columns of `req_to_token`. Longer prompts are cut to their first `max_context_len` tokens, and outputs
    to what then fits: the last output token is never written."""
    max_output_len: int = 32
    """Most tokens a request generates, as a client's `max_tokens`."""
    chunk_size: int = 4096
    """Most tokens that a step writes, over all requests: what decoding leaves over goes to prefill."""
    pool_slots: int = 65_536
    """Slots of the full pool, the dummy page among them."""
    page_size: int = 16
    """Slots that are handed out together; divides 256, so that cached blocks are whole pages."""
    swa_window_size: int = 1024
    """Sliding window of the `swa` group, in tokens."""
    swa_pool_slots: int = 12_800
    """Slots of the window pool, the dummy page among them."""
    swa_expected_tokens: bool = False
    """Whether the `swa` group checks token ids too."""
    graph_batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Batch sizes with a captured graph, ascending; a batch is padded to the next one."""
    full_verify_capacity: int = 57_344
    """Entries of the `full` group's plan."""
    swa_verify_capacity: int = 8192
    """Entries of the `swa` group's plan."""
    draft_verify_capacity: int = 61_440
    """Entries of the `draft` group's plan."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.type == "int":
                self._check_integer(field.name, at_least=0 if field.name == "seed" else 1)
        self._check_batches()
        self._check_pools()

    @property
    def max_reqs(self) -> int:
        """Rows of `req_to_token`: the padding row, and one for each running request."""
        return self.max_running_requests + 1

    @property
    def write_req_capacity(self) -> int:
        """Rows of every write plan: the largest graph's batch."""
        return self.graph_batch_sizes[-1]

    def graph_batch_size(self, requests: int) -> int:
        """Size of the smallest graph that a batch fits."""
        return next(size for size in self.graph_batch_sizes if size >= requests)

    def pages(self, tokens: int) -> int:
        """Pages that hold the first `tokens` tokens of a request."""
        return -(-tokens // self.page_size)

    def shared_len(self, blocks: int) -> int:
        """Leading tokens that a cached run of so many hash ids shares: a page less than the ids stand for.

        The draft's slot p holds the token of position p + 1, so that a block's last slot depends on the block
        behind it. SGLang's prefix cache compares pairs of tokens for that reason.
        """
        return max(blocks * BLOCK_TOKENS - self.page_size, 0)

    def cached_blocks(self, tokens: int) -> int:
        """Blocks whose shared tokens are among the first `tokens` of a request."""
        return (tokens + self.page_size) // BLOCK_TOKENS

    def window_page(self, filled: int) -> int:
        """First page that a request with `filled` cached tokens needs in the window pool.

        The window's predecessor is needed too: the first entry's chain starts from its fingerprint.
        """
        return max(filled - self.swa_window_size - 1, 0) // self.page_size

    def _check_integer(self, name: str, *, at_least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            raise ValueError(f"ReplayConfig: {name} must be an int of at least {at_least}, got {value!r}")

    def _check_batches(self) -> None:
        sizes = self.graph_batch_sizes
        if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] > PLAN_BS_BLOCK_SIZE:
            raise ValueError(
                f"ReplayConfig: graph_batch_sizes must ascend within 1 to {PLAN_BS_BLOCK_SIZE}, got {sizes}"
            )
        if sizes[-1] < self.max_running_requests:
            raise ValueError(
                f"ReplayConfig: graph_batch_sizes must reach max_running_requests "
                f"{self.max_running_requests}, got {sizes}"
            )
        if self.chunk_size < self.max_running_requests:
            raise ValueError(
                f"ReplayConfig: chunk_size must give each of max_running_requests "
                f"{self.max_running_requests} a token, got {self.chunk_size}"
            )

    def _check_pools(self) -> None:
        if BLOCK_TOKENS // 2 % self.page_size:
            raise ValueError(f"ReplayConfig: page_size must divide {BLOCK_TOKENS // 2}, got {self.page_size}")
        context_pages = self.pages(self.max_context_len)
        # A chunk's pages beside those of the window before it, which may begin and end within a page.
        window_pages = min(self.pages(self.swa_window_size + 1 + self.chunk_size) + 1, context_pages)
        for name, pages in (("pool_slots", context_pages), ("swa_pool_slots", window_pages)):
            slots, least = getattr(self, name), (pages + 1) * self.page_size
            if slots % self.page_size:
                raise ValueError(
                    f"ReplayConfig: {name} must be a multiple of page_size {self.page_size}, got {slots}"
                )
            if slots < least:
                raise ValueError(
                    f"ReplayConfig: {name} must be at least {least}, so that one request fits beside the "
                    f"dummy page, got {slots}"
                )


@dataclasses.dataclass(slots=True)
class ReplayCounts:
    """What has happened so far in a replay."""

    steps: int = 0
    plans: int = 0
    entries: int = 0
    """Verify entries of all plans that did not overflow."""
    overflows: int = 0
    """Plans whose verify entries exceeded their capacity."""
    padding_rows: int = 0
    """Padding requests, over all steps' batches."""
    windows_reached: int = 0
    """Requests of `swa` plans whose window starts behind position 0."""
    decode_steps: int = 0
    """Steps in which a request decoded."""
    chunked_prefill_steps: int = 0
    """Steps in which a prompt was cut by the chunk size."""
    mixed_steps: int = 0
    """Steps in which some requests decoded while others prefilled."""
    admissions: int = 0
    finished_requests: int = 0
    preemptions: int = 0
    """Requests retracted from the batch because a pool was full."""
    recycled_rows: int = 0
    """Admissions to a row that another request had before."""
    prefix_hits: int = 0
    """Admissions that found a cached prefix."""
    prefix_hit_blocks: int = 0
    prefix_hit_tokens: int = 0
    evictions: int = 0
    """Cached blocks that lost their slots."""
    window_evictions: int = 0
    """Cached blocks that lost window slots, but kept their slots."""
    clipped_requests: int = 0
    """Requests that arrived with a prompt or an output above the config's limits."""


class ScheduledRequest(NamedTuple):
    """A request of a step's batch."""

    trace_index: int
    """Its index in the trace."""
    row: int
    prefix_len: int
    """Tokens in the cache before the step."""
    extend_len: int
    """Tokens that the step writes."""


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One plan of one step.

    The tables of `inputs` (`req_to_token`, `full_to_swa_index_mapping`, `req_to_verify_expected_tokens`) are
    the server's own: valid until the replay goes on to another step. The small arrays are snapshots.
    """

    index: int
    group: str
    """One of `GROUPS`."""
    inputs: PlanInputs
    write_req_capacity: int
    requests: tuple[ScheduledRequest, ...]
    """The batch without its padding."""

    @property
    def name(self) -> str:
        return f"replay step {self.index}, {self.group}"

    def case(self) -> Case:
        """The step as a case with poisoned plans. It shares the step's tables."""
        return Case.poisoned(
            self.name, self.inputs, write_req_capacity=self.write_req_capacity, seed=self.index
        )


def prompt_tokens(hash_ids: Sequence[int], length: int) -> np.ndarray:
    """int32 `[length]`: a prompt's token ids, each a function of its block's hash id and place in it."""
    blocks = np.array(hash_ids, np.uint64) * np.uint64(BLOCK_TOKENS)
    keys = (blocks[:, None] + np.arange(BLOCK_TOKENS, dtype=np.uint64)).ravel()[:length]
    return _tokens(_mix(keys))


def output_tokens(trace_index: int, length: int, seed: int) -> np.ndarray:
    """int32 `[length]`: the token ids that a request generates."""
    stream = _mix(_mix(np.array([seed], np.uint64)) + np.uint64(trace_index))
    return _tokens(_mix(stream + np.arange(length, dtype=np.uint64)))


def _tokens(words: np.ndarray) -> np.ndarray:
    return (words % np.uint64(VOCAB_SIZE)).astype(np.int32)


def _mix(words: np.ndarray) -> np.ndarray:
    """SplitMix64: unlike numpy's generators, the same in every version."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class SlotAllocator:
    """A pool's slots, handed out by the page and counted by holder. Page 0, the dummy slot's, stays out.

    The free pages start in scattered order, as in a server that has run for a while.
    """

    def __init__(self, slots: int, page_size: int, seed: int = 0) -> None:
        self.page_size = page_size
        self.refcounts = np.zeros(slots // page_size, np.int64)
        """Holders of each page."""
        pages = np.arange(1, len(self.refcounts))
        self._stack = pages[np.argsort(_mix(pages.astype(np.uint64) + _mix(np.array([seed], np.uint64))))]
        self.num_free = len(pages)

    @property
    def free_pages(self) -> np.ndarray:
        return self._stack[: self.num_free]

    def alloc(self, count: int) -> np.ndarray:
        """`count` free pages, each with one holder. The caller has made sure that there are so many."""
        self.num_free -= count
        pages = self._stack[self.num_free : self.num_free + count].copy()
        self.refcounts[pages] = 1
        return pages

    def retain(self, pages: np.ndarray) -> None:
        """Add a holder to each page."""
        self.refcounts[pages] += 1

    def release(self, pages: np.ndarray) -> np.ndarray:
        """Take a holder from each page. Returns the pages that are free now."""
        self.refcounts[pages] -= 1
        freed = pages[self.refcounts[pages] == 0]
        self._stack[self.num_free : self.num_free + len(freed)] = freed
        self.num_free += len(freed)
        return freed

    def slots(self, pages: np.ndarray) -> np.ndarray:
        """The pages' slots, in order."""
        return (pages[:, None] * self.page_size + np.arange(self.page_size)).ravel()

    def check(self, holders: np.ndarray, pool: str) -> None:
        """Raise AssertionError unless every page has `holders` holders and is free where it has none."""
        _expect_no(
            np.flatnonzero(self.refcounts != holders), f"{pool} pages whose refcount is not its holders"
        )
        free = np.bincount(self.free_pages, minlength=len(holders))
        free[0] += 1  # the dummy page
        _expect_no(np.flatnonzero(free > 1), f"{pool} pages that are free twice")
        _expect_no(np.flatnonzero((free > 0) & (holders > 0)), f"{pool} pages that are free and held")
        _expect_no(np.flatnonzero((free == 0) & (holders == 0)), f"{pool} pages that are lost")


class KvPools:
    """Both pools and the prefix cache over them.

    A page of the full pool is held by the requests that use it and by the cache. It has a page of the window
    pool beside it while it is in the window of a request; a cached page keeps that one until another needs
    it.
    """

    def __init__(self, config: ReplayConfig, counts: ReplayCounts) -> None:
        self._config = config
        self._counts = counts
        self.full = SlotAllocator(config.pool_slots, config.page_size, config.seed)
        self.window = SlotAllocator(config.swa_pool_slots, config.page_size, config.seed + 1)
        self.full_to_swa_index_mapping = np.full(config.pool_slots, DUMMY_SLOT, np.int64)
        """A slot that left all windows maps to the dummy slot; a freed slot keeps its stale value."""
        pages = len(self.full.refcounts)
        self.window_pages = np.full(pages, _NO_PAGE, np.int64)
        """Window page of each full page."""
        self._window_holders = np.zeros(pages, np.int64)
        self._cached = np.zeros(pages, bool)
        self._blocks: OrderedDict[tuple[int, ...], np.ndarray] = OrderedDict()
        """Leading run of hash ids -> pages of its last block. Least recently used first; of the blocks that
        no request holds, a run comes after the runs that extend it: the end of a chain is evicted first."""

    @property
    def num_available(self) -> int:
        """Pages of the full pool that are free or could be."""
        return self.full.num_free + int(np.count_nonzero(self._cached & (self.full.refcounts == 1)))

    @property
    def num_window_available(self) -> int:
        """Pages of the window pool that are free or could be."""
        idle = (self.window_pages != _NO_PAGE) & (self._window_holders == 0)
        return self.window.num_free + int(np.count_nonzero(idle))

    def cached_blocks(self) -> dict[tuple[int, ...], np.ndarray]:
        """Pages of every cached block, by its leading run of hash ids."""
        return dict(self._blocks)

    def hold_prefix(self, hash_ids: tuple[int, ...]) -> np.ndarray:
        """Hold the pages of the longest cached prefix whose window is there too, for a request."""
        found: list[np.ndarray] = []
        while len(found) < len(hash_ids) and (run := hash_ids[: len(found) + 1]) in self._blocks:
            found.append(self._blocks[run])
        while found:
            pages = np.concatenate(found)
            window = pages[self._config.window_page(self._config.shared_len(len(found))) :]
            if (self.window_pages[window] != _NO_PAGE).all():
                self.full.retain(pages)
                self._window_holders[window] += 1
                self.touch(hash_ids[: len(found)])
                return pages
            found.pop()
        return np.empty(0, np.int64)

    def reserve(self, count: int) -> bool:
        """Make room for `count` pages in both pools, by eviction where needed. False, and nothing is evicted,
        where even that is too little."""
        if count > min(self.num_available, self.num_window_available):
            return False
        while self.full.num_free < count:
            self._evict_block()
        while self.window.num_free < count:
            self._evict_window()
        return True

    def alloc(self, count: int) -> np.ndarray:
        """Pages for a request that are new in its window. `reserve` has made room."""
        pages = self.full.alloc(count)
        self.window_pages[pages] = self.window.alloc(count)
        self._window_holders[pages] = 1
        self.full_to_swa_index_mapping[self.full.slots(pages)] = self.window.slots(self.window_pages[pages])
        return pages

    def leave_window(self, pages: np.ndarray) -> None:
        """A request's window has moved past these pages."""
        self._window_holders[pages] -= 1
        self._drop_window(pages[~self._cached[pages]])

    def release(self, pages: np.ndarray, window: np.ndarray) -> None:
        """A request lets its pages go; those in its window are `window`."""
        self._window_holders[window] -= 1
        self._free(pages)

    def cache(self, run: tuple[int, ...], pages: np.ndarray) -> bool:
        """Cache the last block of a leading run, unless another request's copy is there; whether it was."""
        if run in self._blocks:
            return False
        self._blocks[run] = pages.copy()
        self._cached[pages] = True
        self.full.retain(pages)
        return True

    def touch(self, hash_ids: tuple[int, ...]) -> None:
        """Mark a chain of cached blocks as just used, its root last."""
        for end in range(len(hash_ids), 0, -1):
            self._blocks.move_to_end(hash_ids[:end])

    def check(self, holders: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        """Raise AssertionError unless the pools agree with the requests' (pages, pages in the window)."""
        pages, windows = zip(*holders, strict=True) if holders else ((), ())
        held, in_window, cached = (
            np.bincount(np.concatenate([[], *lists]).astype(int), minlength=len(self.window_pages))
            for lists in (pages, windows, self._blocks.values())
        )
        orphans = [run for run in self._blocks if len(run) > 1 and run[:-1] not in self._blocks]
        _expect_no(orphans, "cached blocks without their predecessor")
        _expect_no(np.flatnonzero(cached != self._cached), "pages that are not cached once as marked")
        _expect_no(np.flatnonzero((held > 1) & (cached == 0)), "pages that requests share outside the cache")
        self.full.check(held + cached, "full")
        _expect_no(
            np.flatnonzero(in_window != self._window_holders), "pages whose window holders are miscounted"
        )

        backed = np.flatnonzero(self.window_pages != _NO_PAGE)
        owners = np.bincount(self.window_pages[backed], minlength=len(self.window.refcounts))
        self.window.check(owners, "window")
        _expect_no(np.flatnonzero(owners > 1), "window pages that are owned twice")
        _expect_no(backed[(in_window + cached)[backed] == 0], "pages whose window page nobody needs")
        _expect_no(
            np.flatnonzero((in_window > 0) & (self.window_pages == _NO_PAGE)), "pages without window page"
        )
        mapped = self.full_to_swa_index_mapping[self.full.slots(backed)]
        wrong = mapped != self.window.slots(self.window_pages[backed])
        _expect_no(self.full.slots(backed)[wrong], "slots that map to another page's window slot")

    def _free(self, pages: np.ndarray) -> None:
        freed = self.full.release(pages)
        window_pages = self.window_pages[freed]
        self.window.release(window_pages[window_pages != _NO_PAGE])
        self.window_pages[freed] = _NO_PAGE

    def _drop_window(self, pages: np.ndarray) -> bool:
        """Free the window pages of those pages that are in no request's window; whether there was one."""
        idle = pages[(self._window_holders[pages] == 0) & (self.window_pages[pages] != _NO_PAGE)]
        if len(idle):
            self.window.release(self.window_pages[idle])
            self.window_pages[idle] = _NO_PAGE
            self.full_to_swa_index_mapping[self.full.slots(idle)] = DUMMY_SLOT
        return len(idle) > 0

    def _evict_block(self) -> None:
        refcounts = self.full.refcounts  # a request holds all of a block's pages or none
        run = next(run for run, pages in self._blocks.items() if refcounts[pages[0]] == 1)
        pages = self._blocks.pop(run)
        self._cached[pages] = False
        self._free(pages)
        self._counts.evictions += 1

    def _evict_window(self) -> None:
        next(pages for pages in self._blocks.values() if self._drop_window(pages))
        self._counts.window_evictions += 1


@dataclasses.dataclass(slots=True, eq=False)
class _Request:
    """A request in the server. It is prefilled, decodes, and after a retraction is prefilled again, all by
    the same rule: write what is known but not filled, and where that is all, sample one token."""

    trace_index: int
    prompt_len: int
    prompt_hash_ids: tuple[int, ...]
    """Ids of the blocks that the prompt fills: what can be cached."""
    tokens: np.ndarray
    """int32: the prompt, and all outputs, also those not sampled yet."""
    known: int
    """Leading tokens that exist: the prompt, and the outputs sampled so far."""
    confirmed: int
    """Of these, those that the host has seen: the newest output reaches it a step later."""
    row: int = PADDING_ROW
    filled: int = 0
    """Tokens in the cache."""
    extend: int = 0
    """Tokens that the step writes."""
    pages: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    window_page: int = 0
    """Index in `pages` of the first page that the window needs."""
    cached_blocks: int = 0
    """Leading blocks whose pages are the cache's."""

    @classmethod
    def from_trace(cls, index: int, request: TraceRequest, config: ReplayConfig) -> _Request:
        prompt_len = min(request.input_length, config.max_context_len)
        output_len = min(
            request.output_length, config.max_output_len, config.max_context_len - prompt_len + 1
        )
        tokens = (
            prompt_tokens(request.hash_ids, prompt_len),
            output_tokens(index, output_len, config.seed),
        )
        return cls(
            trace_index=index,
            prompt_len=prompt_len,
            prompt_hash_ids=request.hash_ids[: prompt_len // BLOCK_TOKENS],
            tokens=np.concatenate(tokens),
            known=prompt_len,
            confirmed=prompt_len,
        )

    @property
    def is_decoding(self) -> bool:
        return self.known > self.prompt_len and self.known - self.filled == 1

    @property
    def is_finished(self) -> bool:
        return self.known == len(self.tokens)


class Replay:
    """One pass of the server over a trace: iterate over it once, plan by plan.

    Args:
        requests: the trace, in order of arrival; default: the shipped one.
        config: the server's knobs.
    """

    def __init__(
        self, requests: Sequence[TraceRequest] | None = None, config: ReplayConfig | None = None
    ) -> None:
        self.config = config = config or ReplayConfig()
        self.counts = ReplayCounts()
        self.pools = KvPools(config, self.counts)
        self.req_to_token = np.full((config.max_reqs, config.max_context_len), DUMMY_SLOT, np.int32)
        self.req_to_verify_expected_tokens = np.zeros_like(self.req_to_token)
        trace = read_trace(shipped_trace_path()) if requests is None else requests
        self._arrivals = deque(enumerate(trace))
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        """In order of admission; at most the last one is cut by the chunk size."""
        self._free_rows = list(range(config.max_reqs - 1, PADDING_ROW, -1))
        self._used_rows: set[int] = set()
        self._now_ms = 0
        # The captured graphs' static buffers: padding keeps what a larger batch, or the capture, left there.
        columns = config.max_context_len
        captured = (PADDING_ROW, columns - 1, 1, columns, columns)
        self._graph = np.repeat(np.array(captured, np.int64)[:, None], config.write_req_capacity, axis=1)

    def __iter__(self) -> Iterator[Step]:
        """Every plan, step by step. Between two steps the tables change under the former one's inputs."""
        while self.counts.steps < self.config.steps and self._schedule():
            yield from self._plans()
            self._advance()

    def check_conservation(self) -> None:
        """Raise AssertionError, naming what is off, unless slots, window slots, rows and tables agree."""
        running = self._running
        self.pools.check([(r.pages, r.pages[r.window_page :]) for r in running])
        rows = sorted([PADDING_ROW, *self._free_rows, *(r.row for r in running)])
        _expect_no(
            [] if rows == list(range(self.config.max_reqs)) else rows, "rows that are lost or held twice"
        )
        _expect_no(np.flatnonzero(self.req_to_token[PADDING_ROW]), "cells of the padding row that are set")
        for r in running:
            end = r.filled + r.extend
            slots = self.pools.full.slots(r.pages)[:end]
            wrong = np.flatnonzero(self.req_to_token[r.row, :end] != slots)
            _expect_no(wrong, f"positions of request {r.trace_index} whose cell is not its slot")

    def _schedule(self) -> bool:
        """Choose the next step's batch and give it slots; False at the end of the trace."""
        self._receive()
        batch, budget = tuple(self._running), self.config.chunk_size
        for r in batch:
            while r in self._running and not self._extend(r, budget):
                self._retract(self._running[-1])
            budget -= r.extend
        if len(self._running) == len(batch):  # nobody is admitted in place of who was retracted
            while budget > 0 and self._waiting and self._free_rows and self._admit(self._waiting[0], budget):
                budget -= self._waiting.popleft().extend
        if self._waiting and not self._running:
            raise AssertionError("nothing runs, but the first request in the queue does not fit")
        return bool(self._running)

    def _receive(self) -> None:
        """Queue who has arrived, and move the clock on."""
        if not self._running and not self._waiting and self._arrivals:
            self._now_ms = max(self._now_ms, self._arrivals[0][1].timestamp)  # idle until then
        while self._arrivals and self._arrivals[0][1].timestamp <= self._now_ms:
            index, request = self._arrivals.popleft()
            r = _Request.from_trace(index, request, self.config)
            self.counts.clipped_requests += len(r.tokens) < request.input_length + request.output_length
            self._waiting.append(r)
        self._now_ms += self.config.step_ms

    def _admit(self, r: _Request, budget: int) -> bool:
        """Start a waiting request, if its tokens, and a page for each running request, fit the pool."""
        pages = self.pools.hold_prefix(r.prompt_hash_ids)
        filled = len(pages) * self.config.page_size
        window_page = self.config.window_page(filled)
        need = self.config.pages(r.known) - len(pages)
        first_chunk = self.config.pages(min(r.known, filled + budget)) - len(pages)
        fits = need + len(self._running) <= self.pools.num_available and self.pools.reserve(first_chunk)
        if not fits:
            self.pools.release(pages, pages[window_page:])
            return False
        self._count_admission(r, filled)
        r.pages, r.filled, r.window_page = pages, filled, window_page
        r.cached_blocks = self.config.cached_blocks(filled)
        r.row = self._free_rows.pop()
        self.req_to_token[r.row, :filled] = self.pools.full.slots(pages)
        self.req_to_verify_expected_tokens[r.row, : r.known] = r.tokens[: r.known]
        self._running.append(r)
        self._extend(r, budget)
        return True

    def _count_admission(self, r: _Request, filled: int) -> None:
        counts, row = self.counts, self._free_rows[-1]
        counts.admissions += 1
        counts.recycled_rows += row in self._used_rows
        self._used_rows.add(row)
        counts.prefix_hits += filled > 0
        counts.prefix_hit_blocks += self.config.cached_blocks(filled)
        counts.prefix_hit_tokens += filled

    def _extend(self, r: _Request, budget: int) -> bool:
        """Give a running request slots for the tokens that the step writes, if the pools have them."""
        extend = min(r.known - r.filled, budget)
        count = self.config.pages(r.filled + extend) - len(r.pages)
        if not self.pools.reserve(count):
            return False
        if count:
            r.pages = np.concatenate((r.pages, self.pools.alloc(count)))
        positions = np.arange(r.filled, r.filled + extend)
        page_size = self.config.page_size
        self.req_to_token[r.row, positions] = (
            r.pages[positions // page_size] * page_size + positions % page_size
        )
        r.extend = extend
        return True

    def _retract(self, r: _Request) -> None:
        """Send a running request back to the head of the queue. It keeps the tokens it has sampled."""
        self._leave(r)
        r.confirmed = r.known
        self._waiting.appendleft(r)
        self.counts.preemptions += 1

    def _leave(self, r: _Request) -> None:
        """Take a request out of the batch. Its row keeps its contents behind what the next owner writes."""
        self._running.remove(r)
        self.pools.touch(r.prompt_hash_ids[: r.cached_blocks])
        self.pools.release(r.pages, r.pages[r.window_page :])
        self._free_rows.append(r.row)
        r.row, r.filled, r.extend, r.cached_blocks, r.window_page = PADDING_ROW, 0, 0, 0, 0
        r.pages = r.pages[:0]

    def _plans(self) -> Iterator[Step]:
        config, tokens = self.config, self.req_to_verify_expected_tokens
        scheduled = tuple(ScheduledRequest(r.trace_index, r.row, r.filled, r.extend) for r in self._running)
        rows, prefix_lens, extend_seq_lens, known, confirmed = self._fill_graph()
        self._count_step(padding_rows=len(rows) - len(scheduled))
        full = PlanInputs(
            req_pool_indices=rows,
            prefix_lens=prefix_lens,
            extend_seq_lens=extend_seq_lens,
            req_to_token=self.req_to_token,
            verify_capacity=config.full_verify_capacity,
            req_to_verify_expected_tokens=tokens,
            req_to_verify_expected_tokens_valid_lens=known,
        )
        swa = dataclasses.replace(
            full,
            swa_window_size=config.swa_window_size,
            full_to_swa_index_mapping=self.pools.full_to_swa_index_mapping,
            verify_capacity=config.swa_verify_capacity,
            req_to_verify_expected_tokens=tokens if config.swa_expected_tokens else None,
            req_to_verify_expected_tokens_valid_lens=known if config.swa_expected_tokens else None,
        )
        draft = dataclasses.replace(
            full,
            verify_capacity=config.draft_verify_capacity,
            req_to_verify_expected_tokens_valid_lens=confirmed,
            kv_token_id_vs_position_offset=1,
        )
        index = self.counts.steps - 1
        for group, inputs in zip(GROUPS, (full, swa, draft), strict=True):
            self._count_plan(scheduled, inputs)
            yield Step(index, group, inputs, config.write_req_capacity, scheduled)

    def _fill_graph(self) -> np.ndarray:
        """Write the batch into the graphs' buffers: row, prefix, extend, known and confirmed tokens of each
        request. Returns a snapshot as long as the graph's batch."""
        bs = len(self._running)
        for i, r in enumerate(self._running):
            self._graph[:, i] = r.row, r.filled, r.extend, r.known, r.confirmed
        self._graph[0, bs:] = PADDING_ROW
        return self._graph[:, : self.config.graph_batch_size(bs)].copy()

    def _count_step(self, *, padding_rows: int) -> None:
        counts, decoding = self.counts, [r.is_decoding for r in self._running]
        counts.steps += 1
        counts.padding_rows += padding_rows
        counts.decode_steps += any(decoding)
        counts.mixed_steps += any(decoding) and not all(decoding)
        counts.chunked_prefill_steps += any(r.filled + r.extend < r.known for r in self._running)

    def _count_plan(self, scheduled: tuple[ScheduledRequest, ...], inputs: PlanInputs) -> None:
        counts, window = self.counts, inputs.swa_window_size
        ends = [r.prefix_len for r in scheduled]
        starts = [max(end - window, 0) if window > 0 else 0 for end in ends]
        total = sum(ends) - sum(starts)
        counts.plans += 1
        counts.overflows += total > inputs.verify_capacity
        counts.entries += total if total <= inputs.verify_capacity else 0
        counts.windows_reached += sum(start > 0 for start in starts)

    def _advance(self) -> None:
        """The step is over: its tokens are in the cache, and who has written all it knows samples one."""
        for r in tuple(self._running):
            r.filled += r.extend
            r.extend = 0
            r.confirmed = r.known
            self._cache_prompt(r)
            self._move_window(r)
            if r.filled == r.known:
                self._sample(r)

    def _cache_prompt(self, r: _Request) -> None:
        """Cache the blocks of the prompt that are written, up to one that another request was first with."""
        config, before = self.config, r.cached_blocks
        for block in range(before, min(config.cached_blocks(r.filled), len(r.prompt_hash_ids))):
            span = (config.pages(config.shared_len(n)) for n in (block, block + 1))
            pages = r.pages[slice(*span)]
            if not self.pools.cache(r.prompt_hash_ids[: block + 1], pages):
                break
            r.cached_blocks += 1
        if r.cached_blocks > before:
            self.pools.touch(r.prompt_hash_ids[: r.cached_blocks])

    def _move_window(self, r: _Request) -> None:
        window_page = self.config.window_page(r.filled)
        self.pools.leave_window(r.pages[r.window_page : window_page])
        r.window_page = window_page

    def _sample(self, r: _Request) -> None:
        if r.known < self.config.max_context_len:
            self.req_to_verify_expected_tokens[r.row, r.known] = r.tokens[r.known]
        r.known += 1
        if r.is_finished:
            self._leave(r)
            self.counts.finished_requests += 1


def _expect_no(found: Sequence[object] | np.ndarray, what: str) -> None:
    if len(found):
        some = ", ".join(map(str, found[:8]))
        raise AssertionError(f"{what}: {some}{', ...' if len(found) > 8 else ''}")
