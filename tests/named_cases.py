"""Launches that a kernel could get wrong, by what is particular to them: every branch, every kind of fault.

Small enough for an interpreter. Most share their shapes, so that a compiler sees few programs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shared_ref.conformance.case import Case, PlanInputs, Plans
from shared_ref.schema import OPTIONAL_OUTPUTS

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
ROWS, WIDTH, LUT_LEN = 5, 40, 150


BOTH = tuple(OPTIONAL_OUTPUTS)
"""The optional outputs."""


def small_case(name: str, *, spare: int = 3, extras: tuple[str, ...] = (), **changes: Any) -> Case:
    """Eight requests, slot 40 * row + position - 1 (the first cells are sentinels), token 1000 + that."""
    inputs: dict[str, Any] = {
        "req_pool_indices": np.array([1, 2, 0, 3, 4, 2, 0, 1]),
        "prefix_lens": np.array([16, 17, 9, 1, 40, 33, 0, 0]),
        "extend_seq_lens": np.array([1, 0, 5, 3, 1, 2, 0, 7]),
        "req_to_token": _counting(-1, ROWS, WIDTH),
        "verify_capacity": 256,
    }
    inputs |= changes
    bs = len(inputs["prefix_lens"])
    return Case.poisoned(name, PlanInputs(**inputs), write_req_capacity=bs + spare, extras=extras)


def _counting(first: int, rows: int, columns: int) -> np.ndarray:
    return np.arange(first, first + rows * columns, dtype=np.int32).reshape(rows, columns)


def with_mapping(lut_len: int = LUT_LEN) -> dict[str, Any]:
    """Slots past the mapping occur in the small table: it has 200."""
    return {"full_to_swa_index_mapping": 7000 + np.arange(lut_len)}


def with_tokens(
    offset: int, rows: int = ROWS, columns: int = WIDTH, valid_lens: Any = (40, 9, 9, 0, 38, 33, 0, 2)
) -> dict[str, Any]:
    return {
        "req_to_verify_expected_tokens": 1000
        + np.arange(rows * columns, dtype=np.int32).reshape(rows, columns),
        "req_to_verify_expected_tokens_valid_lens": np.array(valid_lens),
        "kv_token_id_vs_position_offset": offset,
    }


def _odd(*values: int) -> np.ndarray:
    """Eight int64 values."""
    assert len(values) == 8
    return np.array(values, np.int64)


_ODD_ROWS = _odd(ROWS, ROWS - 1, -1, INT64_MIN, INT64_MAX, 2**32 + 1, 2**31, -(2**32) + 3)
_ODD_LENS = _odd(WIDTH, WIDTH + 1, -1, INT64_MIN, INT64_MAX, 2**32 + 1, 2**31, -(2**32) + 3)
_ALL_ACTIVE = _odd(1, 2, 3, 4, 4, 3, 2, 1)


def _shapes() -> list[Case]:
    def empty(name: str, **changes: Any) -> Case:
        none = np.zeros(0, np.int64)
        return small_case(name, req_pool_indices=none, prefix_lens=none, extend_seq_lens=none, **changes)

    def table(name: str, rows: int, columns: int, **changes: Any) -> Case:
        return small_case(name, req_to_token=_counting(10, rows, columns), **changes)

    def one(name: str, **changes: Any) -> Case:
        request = {"req_pool_indices": [2], "prefix_lens": [35], "extend_seq_lens": [4]}
        arrays = {k: np.array(v) for k, v in request.items()}
        return small_case(name, **arrays | changes)

    return [
        empty("no requests, no room", spare=0),
        empty("no requests, room for three", **with_mapping()),
        one("one request"),
        one("one request, no room to spare", spare=0, verify_capacity=35),
        one("one request of one token", prefix_lens=np.array([1])),
        table("a table without rows", 0, WIDTH, **with_mapping(), swa_window_size=4),
        table("a table of the padding row alone", 1, WIDTH),
        table("a table without columns", ROWS, 0, **with_mapping()),
        table("a table of one column", ROWS, 1),
        small_case("a mapping of one slot", **with_mapping(1)),
        small_case("a token table without rows", **with_tokens(0, rows=0)),
        small_case("a token table without columns", **with_tokens(0, columns=0)),
    ]


def _capacities() -> list[Case]:
    return [
        small_case("some of everything"),
        small_case("some of everything, translated and with tokens", **with_mapping(), **with_tokens(0)),
        small_case("nothing but padding", req_pool_indices=np.zeros(8, np.int64)),
        small_case("nothing cached", prefix_lens=np.zeros(8, np.int64)),
        small_case("entries that just fit", verify_capacity=107),
        small_case("one entry too many", verify_capacity=106),
        small_case("no capacity and no entries", verify_capacity=0, prefix_lens=np.zeros(8, np.int64)),
        small_case("no capacity for one entry", verify_capacity=0, prefix_lens=_odd(0, 0, 9, 0, 1, 0, 0, 0)),
        small_case("write rows to clear past the padded batch", spare=41),
    ]


def _windows() -> list[Case]:
    lens = {"req_pool_indices": _ALL_ACTIVE, "prefix_lens": _odd(0, 1, 2, 3, 15, 16, 17, 40)}
    windows = {
        f"a window of {w}": small_case(f"a window of {w}", swa_window_size=w, **with_mapping(), **lens)
        for w in (1, 2, 16, 17, INT32_MAX)
    }
    return [
        *windows.values(),
        small_case("a negative window", swa_window_size=INT32_MIN, **lens),
        small_case(
            "a window past the table's end",
            swa_window_size=3,
            **with_mapping(),
            **lens | {"prefix_lens": _odd(40, 41, 42, 43, 44, 2**31, 2**32 + 1, INT64_MAX)},
        ),
        small_case("a window and tokens", swa_window_size=5, **with_mapping(), **with_tokens(-1), **lens),
    ]


def _tokens() -> list[Case]:
    offsets = [0, 1, -1, 39, -39, 40, INT32_MAX, INT32_MIN]
    return [
        *(small_case(f"tokens at offset {offset}", **with_tokens(offset)) for offset in offsets),
        small_case("fewer token rows and columns than positions", **with_tokens(1, rows=3, columns=21)),
        small_case("more token rows and columns than positions", **with_tokens(1, rows=9, columns=50)),
        *(
            small_case(
                f"odd valid lengths at offset {offset}",
                **with_tokens(offset, valid_lens=_ODD_LENS),
                req_pool_indices=_ALL_ACTIVE,
            )
            for offset in (0, 1, -1, INT32_MAX, INT32_MIN)
        ),
    ]


def _corrupt() -> list[Case]:
    slots = np.array([INT32_MAX, INT32_MIN, -1, -2, 0, LUT_LEN - 1, LUT_LEN, LUT_LEN + 1], np.int32)
    table = np.resize(slots, (ROWS, WIDTH - 1))
    wild = {"req_to_token": table, "prefix_lens": np.minimum(_ODD_LENS, 9), "req_pool_indices": _ALL_ACTIVE}
    extremes = np.resize([INT64_MAX, INT64_MIN, -1, 0, 2**31, 2**32 + 1], LUT_LEN)
    return [
        small_case("odd rows", req_pool_indices=_ODD_ROWS),
        small_case(
            "odd rows, window and tokens",
            req_pool_indices=_ODD_ROWS,
            swa_window_size=7,
            **with_mapping(),
            **with_tokens(1),
        ),
        small_case("odd prefix lengths", prefix_lens=_ODD_LENS, req_pool_indices=_ALL_ACTIVE),
        small_case(
            "odd prefix lengths, window",
            prefix_lens=_ODD_LENS,
            req_pool_indices=_ALL_ACTIVE,
            swa_window_size=7,
            **with_mapping(),
        ),
        small_case(
            "odd prefix lengths of requests that write nothing",
            prefix_lens=_ODD_LENS,
            req_pool_indices=_ALL_ACTIVE,
            extend_seq_lens=np.zeros(8, np.int64),
        ),
        small_case("odd extends", extend_seq_lens=_ODD_LENS, req_pool_indices=_ALL_ACTIVE),
        small_case(
            "extends whose sum wraps", extend_seq_lens=np.full(8, INT64_MAX), req_pool_indices=_ALL_ACTIVE
        ),
        small_case("odd slots", **wild),
        small_case("odd slots, translated", **wild, **with_mapping()),
        small_case("a mapping to odd slots", full_to_swa_index_mapping=extremes),
        small_case(
            "everything odd",
            req_pool_indices=np.where(np.arange(8) % 3 == 0, _ODD_ROWS, _ALL_ACTIVE),
            prefix_lens=_ODD_LENS,
            extend_seq_lens=_ODD_LENS[::-1].copy(),
            req_to_token=np.resize(slots, (ROWS, WIDTH)),
            full_to_swa_index_mapping=extremes,
            **with_tokens(1, rows=4, columns=30, valid_lens=np.roll(_ODD_LENS, 3)),
        ),
    ]


PAGED = {"req_to_token": _counting(-1, ROWS, 10)[:, ::-1].copy(), "page_size": 4}
"""As many positions as the small case has: page 10 * row + 8 - position // 4, none behind the one before."""
_PAST_INT32 = _odd(3 * INT32_MAX, 2**32, 2**32 + 1001, INT32_MAX, 2**31 + 3, 3 * INT32_MAX + 2, 9, 0)
"""Prefix lengths for three pages of the largest size."""


def _pages() -> list[Case]:
    def paged(name: str, /, **changes: Any) -> Case:
        """Prefixes of whole pages of four, of one token less and of one more."""
        lens = {"req_pool_indices": _ALL_ACTIVE, "prefix_lens": _odd(0, 1, 3, 4, 5, 8, 39, 40)}
        return small_case(name, **PAGED | lens | {"extend_seq_lens": _odd(1, 1, 1, 1, 1, 1, 0, 1)} | changes)

    def table(name: str, page_size: int, cells: np.ndarray, /, **changes: Any) -> Case:
        return paged(name, req_to_token=cells, page_size=page_size, **changes)

    odd_pages = np.array([37, -1, 0, INT32_MIN, 38, INT32_MAX, 1, -7, 0, 36], np.int32)
    odd = np.resize(odd_pages, (ROWS, 10))
    vast = _counting(INT32_MAX - 14, ROWS, 3)
    wide = np.full((ROWS, 15), 777, np.int32)
    wide[:, :10] = PAGED["req_to_token"]
    return [
        paged("pages of four"),
        paged("pages of four, of a row-strided table", req_to_token=wide[:, :10]),
        paged("pages of four, translated and with tokens", **with_mapping(), **with_tokens(1)),
        paged("pages of four, a token table of fewer positions", **with_tokens(0, columns=11)),
        *(
            paged(f"pages of four, a window of {w}", **with_mapping(), swa_window_size=w)
            for w in (1, 3, 4, 5)
        ),
        paged("pages of four, odd prefix lengths", prefix_lens=_ODD_LENS),
        paged(
            "pages of four, odd prefix lengths, window",
            prefix_lens=_ODD_LENS,
            **with_mapping(),
            swa_window_size=7,
        ),
        table("odd pages", 4, odd),
        table("odd pages, translated", 4, odd, **with_mapping()),
        table("pages of three", 3, _counting(-1, ROWS, 14), prefix_lens=_odd(2, 3, 4, 9, 41, 42, 43, 44)),
        table("a page larger than every prefix", 64, _counting(-1, ROWS, 1)),
        table("no pages", 4, _counting(-1, ROWS, 0), **with_mapping()),
        table(
            "positions past int32 in vast pages",
            INT32_MAX,
            vast,
            prefix_lens=_PAST_INT32,
            **with_tokens(INT32_MIN),
            **with_mapping(),
            swa_window_size=7,
            extras=BOTH,
        ),
        table("too many entries in vast pages", INT32_MAX, vast, prefix_lens=_PAST_INT32, extras=BOTH),
    ]


def _unclipped_totals() -> list[Case]:
    def total(name: str, /, **changes: Any) -> Case:
        return small_case(name, extras=("verify_total_out",), **changes)

    none = np.zeros(0, np.int64)
    return [
        total("a total that just fits", verify_capacity=107),
        total("a total of one entry too many", verify_capacity=106),
        total("a total of pages", **PAGED, prefix_lens=_odd(40, 41, 9, 5, 4, 3, 9, INT64_MAX)),
        total("a total without capacity", verify_capacity=0),
        total("a total of nothing", req_pool_indices=none, prefix_lens=none, extend_seq_lens=none),
    ]


def _cells(cells: dict[tuple[int, int], int]) -> np.ndarray:
    """The small case's table without a sentinel or a dummy slot, but for these."""
    table = _counting(1, ROWS, WIDTH)
    for index, slot in cells.items():
        table[index] = slot
    return table


_EVERY_FAULT = {
    "req_pool_indices": np.where(np.arange(8) % 3 == 0, _ODD_ROWS, _ALL_ACTIVE),
    "prefix_lens": _ODD_LENS,
    "extend_seq_lens": _ODD_LENS[::-1].copy(),
    "req_to_token": np.resize(np.array([INT32_MAX, -1, 0, 5, LUT_LEN, 7, 0], np.int32), (ROWS, WIDTH)),
    **with_mapping(),
    **with_tokens(-1, rows=4, columns=20, valid_lens=np.roll(_ODD_LENS, 3)),
}


def _faults() -> list[Case]:
    """Each kind by itself, then what must not be counted, then all at once."""

    def faulty(name: str, /, **changes: Any) -> Case:
        return small_case(name, **{"req_to_token": _cells({}), "extras": ("faults_out",)} | changes)

    translated = with_mapping(ROWS * WIDTH + 1)
    windowed = {"swa_window_size": 4, **translated}
    bad_cells = _cells({(1, 3): 0, (2, 0): -1, (2, 16): 999, (4, 39): -5, (4, 7): 0, (3, 1): -3})
    before_window = _cells({(1, 11): 999, (2, 12): -1, (4, 35): 0, (2, 3): 999})
    return [
        faulty("no faults", **translated, **with_tokens(0)),
        faulty("faults of rows", req_pool_indices=_ODD_ROWS),
        faulty("faults of prefix lengths", prefix_lens=_ODD_LENS, req_pool_indices=_ALL_ACTIVE),
        faulty("faults of extends", extend_seq_lens=_ODD_LENS, req_pool_indices=_ALL_ACTIVE),
        faulty("faults of prefixes one too long", prefix_lens=_odd(40, 41, 0, 0, 0, 42, 0, 0)),
        faulty("faults of slots past the mapping", **with_mapping()),
        faulty(
            "faults of tokens",
            **with_tokens(1, rows=4, columns=20, valid_lens=(40, 21, 99, 20, 2, 22, 0, INT64_MAX)),
        ),
        faulty("faults of tokens before the first position", **with_tokens(-3)),
        faulty("faults of cells", req_to_token=bad_cells, **translated),
        faulty("faults of cells without a mapping", req_to_token=bad_cells),
        faulty("no faults before a window", req_to_token=before_window, **windowed),
        faulty(
            "no faults of a seed that is no entry",
            **windowed,
            prefix_lens=_odd(45, 46, 9, 44, 0, 49, 0, 0),
            req_to_token=_cells({(1, 39): 999, (2, 39): 0, (3, 39): -4}),
        ),
        faulty(
            "no faults of padding",
            req_pool_indices=np.zeros(8, np.int64),
            prefix_lens=_ODD_LENS,
            extend_seq_lens=_ODD_LENS,
        ),
        faulty("faults of rows and lengths", **_EVERY_FAULT | {"req_pool_indices": _ODD_ROWS}),
        faulty("faults of everything", **_EVERY_FAULT, extras=BOTH),
        faulty("faults of everything that does not fit", **_EVERY_FAULT, verify_capacity=90, extras=BOTH),
        faulty(
            "faults of pages",
            **PAGED,
            **with_mapping(),
            prefix_lens=_odd(40, 41, 9, 5, 4, 3, 9, INT64_MAX),
            swa_window_size=39,
        ),
        faulty(
            "faults past int32 in vast pages",
            req_to_token=_counting(-7, ROWS, 3),
            page_size=INT32_MAX,
            prefix_lens=_PAST_INT32,
            **windowed,
        ),
        *_accumulated(faulty("faults", **_EVERY_FAULT)),
    ]


def _accumulated(case: Case) -> list[Case]:
    """The case over other former contents of `faults_out`."""

    def over(what: str, count: int, place: int) -> Case:
        former = np.tile(np.array([count, place], np.int64), (8, 1))
        return case._replace(
            name=f"{case.name} over {what}", before=Plans(*case.before, {"faults_out": former})
        )

    return [
        over("a fresh buffer", 0, -1),
        over("the smallest place", 5, 0),
        over("a place that is almost none", 5, -2),
        over("a place of a later request", 5, 9 << 48),
        over("a place of the first request", 5, 25),
        over("counts that wrap", INT64_MAX, -1),
    ]


def _large_batches() -> list[Case]:
    """As many requests as a warp or a chunk takes, or one more, few of them with entries."""

    def scattered(name: str, bs: int, lens: dict[int, int], **changes: Any) -> Case:
        """Padding but for some requests' prefix lengths."""
        prefix_lens = np.full(bs, 11)
        rows = np.zeros(bs, np.int64)
        for request, length in lens.items():
            rows[request], prefix_lens[request] = 1 + request % (ROWS - 1), length
        extends = np.arange(bs) % 3
        return small_case(
            name, req_pool_indices=rows, prefix_lens=prefix_lens, extend_seq_lens=extends, **changes
        )

    far = {0: 17, 1: 3, 63: 16, 64: 1, 130: 40, 199: 33}
    crowd = {request: 1 + request % 2 for request in range(56, 80)}
    return [
        scattered("padding longer than a chunk", 200, {5: 40, 150: 33, 199: 1}),
        scattered("a chunk of padding first", 200, {130: 20, 131: 16}),
        scattered("requests at the borders of chunks", 200, far, **with_mapping(), **_tokens_for(200)),
        scattered("a batch of 16", 16, {0: 5, 7: 40, 15: 17}),
        scattered("a batch of 17", 17, {15: 17, 16: 18}),
        scattered("a full batch of 32", 32, {0: 2, 31: 39}, spare=0),
        scattered("a batch of 64", 64, {0: 5, 31: 40, 63: 17}),
        scattered("a batch of 65", 65, {63: 17, 64: 18}),
        scattered("a full batch of 128", 128, {0: 2, 127: 39}, spare=0),
        scattered("a crowd of short requests", 140, crowd, swa_window_size=1, **with_mapping()),
        scattered(
            "entries behind a chunk of requests without any", 130, dict.fromkeys(range(64), 0) | {129: 5}
        ),
        scattered("a batch of 600", 600, {0: 40, 299: 3, 511: 17, 512: 16, 599: 33}, **with_mapping()),
        *(
            scattered(
                f"pages and faults of a batch of {bs}",
                bs,
                {0: 42, 299: 3, 511: 17, 512: -1, bs - 2: 41, bs - 1: 33},
                **PAGED,
                **with_mapping(30),
                **_tokens_for(bs),
                extras=BOTH,
            )
            for bs in (600, 1100)  # more than 512 and than 1,024: Mosaic and Triton take them otherwise
        ),
        _entries_past_int32(),
    ]


def _tokens_for(bs: int) -> dict[str, Any]:
    return with_tokens(1, valid_lens=np.arange(bs) % 41)


def _entries_past_int32() -> Case:
    """2**32 entries, which an int32 sum takes for none."""
    bs, width = 4096, 2**20
    return small_case(
        "2**32 entries",
        req_pool_indices=np.ones(bs, np.int64),
        prefix_lens=np.full(bs, width),
        extend_seq_lens=np.ones(bs, np.int64),
        req_to_token=np.resize(np.arange(50, dtype=np.int32), (2, width)),
        spare=0,
        verify_capacity=64,
        extras=BOTH,
    )


NAMED_CASES = {
    case.name: case
    for cases in (
        _shapes,
        _capacities,
        _windows,
        _tokens,
        _corrupt,
        _pages,
        _unclipped_totals,
        _faults,
        _large_batches,
    )
    for case in cases()
}
