"""Wrong implementations for the kit to reject: `MUTANTS` is the table."""

from __future__ import annotations

from collections.abc import Iterator

from fault_mutants import faults, totals
from paged_mutants import paged
from patching import Mutant, edits_in, wrong_in

_START = "start=max(prefix_len - window, 0) if window > 0 else 0"
_END = "end=min(prefix_len, positions)"
_ACTIVE = "active=row != padding_row and 0 <= row < max_reqs"


def _windows() -> Iterator[Mutant]:
    def wrong(name: str, story: str, start: str, rule: str = "") -> Mutant:
        return Mutant(name, story, edits_in("batch", _START, f"start={start}"), rule)

    yield wrong(
        "window one too long",
        "the window ends at the token that is written, so it reaches one further back",
        "max(prefix_len - window - 1, 0) if window > 0 else 0",
        "section 4",
    )
    yield wrong(
        "window one too short",
        "the window has the token that is written in it",
        "max(prefix_len - window + 1, 0) if window > 0 else 0",
    )
    yield wrong(
        "window of what the table has",
        "a window lies at the end of the table where the prefix is longer",
        "max(min(prefix_len, positions) - window, 0) if window > 0 else 0",
    )
    yield wrong(
        "window starts before position 0",
        "a prefix is never shorter than the window",
        "prefix_len - window if window > 0 else 0",
    )
    yield wrong("window of 0", "only -1 means no window", "max(prefix_len - window, 0) if window >= 0 else 0")
    yield wrong(
        "negative window",
        "only 0 means no window",
        "min(max(prefix_len - window, 0), prefix_len) if window > 0 else prefix_len if window < 0 else 0",
    )
    yield wrong("window ignored", "the mapping cuts the prefix", "0", "section 4")
    yield Mutant(
        "predecessor cut at the window's start",
        "the chain begins with the window",
        edits_in("reference", "NO_SLOT if r.start == 0 else known_slots[0]", "NO_SLOT"),
        "also at the start of a window",
    )
    yield Mutant(
        "window's predecessor untranslated",
        "what lies before the window is a slot of the full pool",
        edits_in(
            "reference",
            "NO_SLOT if r.start == 0 else known_slots[0]",
            "NO_SLOT if r.start == 0 else cells(arguments, r.row, r.start - 1, r.start)[0]",
        ),
        "also at the start of a window",
    )
    yield Mutant(
        "window's cells one early",
        "the cell before the window counts as its first",
        edits_in("reference", "known_slots[-r.verify_count :]", "known_slots[: r.verify_count]"),
    )
    yield Mutant(
        "position relative to the window",
        "positions begin with 0 in each request",
        edits_in("reference", "np.arange(r.start, r.end)", "np.arange(r.verify_count)"),
        "positions start <= p < end ascending",
    )


def _requests() -> Iterator[Mutant]:
    wrong = wrong_in("batch")

    in_order = 'enumerate(arguments["req_pool_indices"].tolist())'
    yield wrong(
        "row upper bound missing",
        "a row is always in the table",
        _ACTIVE,
        "active=row != padding_row and row >= 0",
    )
    yield wrong(
        "row clipped to the table",
        "a row past the table reads its last",
        *(in_order, 'enumerate(np.minimum(arguments["req_pool_indices"], max_reqs - 1).tolist())'),
        rule="section 5: a row outside req_to_token counts as padding",
    )
    yield wrong(
        "negative row wraps",
        "row -1 is Python's last row",
        *(_ACTIVE, "active=row != padding_row and -max_reqs <= row < max_reqs"),
        rule="section 5: a row outside req_to_token counts as padding",
    )
    yield wrong(
        "last row refused",
        "the table's last row is a guard",
        _ACTIVE,
        "active=row != padding_row and 0 <= row < max_reqs - 1",
    )
    yield wrong(
        "row narrowed to int32",
        "an index fits int32",
        in_order,
        'enumerate(arguments["req_pool_indices"].astype(np.int32).tolist())',
    )
    yield wrong(
        "prefix narrowed to int32",
        "a length fits int32",
        'arguments["prefix_lens"].tolist()',
        'arguments["prefix_lens"].astype(np.int32).tolist()',
    )
    yield wrong(
        "extend narrowed to int32",
        "a length fits int32",
        'arguments["extend_seq_lens"].tolist()',
        'arguments["extend_seq_lens"].astype(np.int32).tolist()',
    )
    yield wrong("prefix not clipped to the table", "a prefix fits the table", _END, "end=max(prefix_len, 0)")
    yield wrong(
        "table's last column left out",
        "the table's last column is a guard",
        _END,
        "end=min(prefix_len, positions - 1)",
    )
    yield wrong(
        "too long a prefix counts as none",
        "a prefix past the table is garbage",
        _END,
        "end=prefix_len if prefix_len <= positions else 0",
    )
    yield wrong(
        "negative prefix by its magnitude",
        "lengths have no sign",
        "prefix_len = max(prefix_lens[index], 0)",
        "prefix_len = abs(prefix_lens[index])",
    )
    yield wrong(
        "inputs clamped in place",
        "nobody reads the lengths again",
        'arguments["prefix_lens"].tolist()',
        'np.maximum(arguments["prefix_lens"], 0, out=arguments["prefix_lens"]).tolist()',
    )
    yield wrong(
        "padding by length",
        "a padding request has no prefix",
        *(_ACTIVE, "active=prefix_len > 0 and 0 <= row < max_reqs"),
    )
    yield wrong(
        "padding row planned",
        "row 0 is a row like any other",
        *(_ACTIVE, "active=0 <= row < max_reqs"),
        rule="row 0 is a padding request",
    )
    yield wrong(
        "shared row planned once",
        "one row belongs to one request",
        *(_ACTIVE, f"{_ACTIVE} and row not in [b.row for b in batch]"),
    )
    yield wrong(
        "padding verified",
        "a padding request's prefix is 0",
        "return max(self.end - self.start, 0) if self.active else 0",
        "return max(self.end - self.start, 0)",
    )
    yield wrong(
        "padding writes",
        "a padding request's extend is 0",
        *("return max(self.extend_len, 0) if self.active else 0", "return max(self.extend_len, 0)"),
        rule="and its write_count is 0",
    )
    yield wrong("request order", "the last request comes first", "return batch", "return batch[::-1]")
    yield wrong(
        "padding moved to the back",
        "the batch is packed first",
        "return batch",
        "return sorted(batch, key=lambda r: not r.active)",
    )
    yield wrong(
        "sorted by row",
        "rows in ascending order read faster",
        "return batch",
        "return sorted(batch, key=lambda r: r.row)",
    )
    yield Mutant(
        "last request's entries forgotten",
        "the loop ends before bs - 1",
        edits_in(
            "reference",
            "    for r in batch:\n        if r.verify_count",
            "    for r in batch[:-1]:\n        if r.verify_count",
        ),
    )


def _writes() -> Iterator[Mutant]:
    wrong = wrong_in("reference")

    sums = "np.array([r.write_count for r in batch], np.int64).cumsum(out=offsets[1 : bs + 1])  # wraps"
    seed = "translate(last_cell, mapping)[0]"
    cell = "cells(arguments, r.row, r.end - 1, r.end) if r.has_seed else None"
    has_seed = "return self.write_count > 0 and self.end > 0"
    reqs = 'arguments["out_write_num_valid_reqs"][0] = bs'
    yield wrong(
        "seed not translated",
        "the seed is a slot of the full pool",
        *(seed, "last_cell[0]"),
        rule="the seed is translate(req_to_token[row, end - 1])",
    )
    yield wrong(
        "seed from the start",
        "the chain goes on from the first entry",
        *(cell, "cells(arguments, r.row, r.start, r.start + 1) if r.has_seed and r.start < r.end else None"),
        rule="the seed is translate(req_to_token[row, end - 1])",
    )
    yield wrong(
        "seed one past the prefix",
        "the seed is where the first token goes",
        cell,
        "cells(arguments, r.row, r.end, r.end + 1) "
        "if r.has_seed and r.end < arguments['req_to_token'].shape[1] * arguments['page_size'] else None",
    )
    yield wrong(
        "seed of an empty prefix",
        "a new request goes on from its first cell",
        cell,
        "cells(arguments, r.row, max(r.end - 1, 0), max(r.end, 1)) "
        "if r.write_count and arguments['req_to_token'].size else None",
        rule="the seed is -1 where nothing is cached",
    )
    yield wrong(
        "seed for requests that write nothing",
        "every request has a seed",
        *(has_seed, "return self.active and self.end > 0"),
        rule="the seed is -1 where a request writes nothing",
        module="batch",
    )
    yield wrong(
        "seed only with entries",
        "who verifies nothing goes on from nothing",
        *(has_seed, "return self.write_count > 0 and self.verify_count > 0"),
        module="batch",
    )
    yield wrong(
        "seed of too long a prefix is none",
        "the last position is not in the table",
        *(
            cell,
            "cells(arguments, r.row, r.end - 1, r.end) if r.has_seed and r.prefix_len <= r.end else None",
        ),
        rule="section 5: positions past req_to_token do not exist",
    )
    yield wrong(
        "missing seed is the dummy slot",
        "slot 0 is nobody's",
        "seeds[r.index] = NO_SLOT if last_cell is None else",
        "seeds[r.index] = 0 if last_cell is None else",
    )
    yield wrong(
        "seeds behind the batch cleared",
        "what no request has is -1",
        *(reqs, f"seeds[bs:] = NO_SLOT\n    {reqs}"),
        rule="from bs on are left as they were",
    )
    yield wrong(
        "tail not zeroed",
        "nobody reads offsets behind the batch",
        *("    offsets[bs + 1 :] = 0\n", ""),
        rule="every element of write_offsets behind [bs] is 0",
    )
    yield wrong(
        "tail zeroed one late", "the total stands twice", "offsets[bs + 1 :] = 0", "offsets[bs + 2 :] = 0"
    )
    yield wrong(
        "total repeated behind the batch",
        "requests behind the batch write nothing",
        *("offsets[bs + 1 :] = 0", "offsets[bs + 1 :] = offsets[bs]"),
        rule="every element of write_offsets behind [bs] is 0",
    )
    yield wrong(
        "first write offset left",
        "it is 0 anyway",
        *("    offsets[0] = 0\n", ""),
        rule="write_offsets[0] is 0",
    )
    yield wrong(
        "write_offsets inclusive",
        "an offset is where a request ends",
        sums,
        sums.replace("offsets[1 : bs + 1]", "offsets[:bs]"),
    )
    yield wrong(
        "write_offsets in int32",
        "a step writes few tokens",
        *(
            sums,
            "counts = np.array([r.write_count for r in batch], np.int64).astype(np.int32)\n"
            "    offsets[1 : bs + 1] = counts.cumsum()",
        ),
        rule="in two's complement",
    )
    yield wrong(
        "sums saturate",
        "a sum stays at the largest int64",
        sums,
        "offsets[1 : bs + 1] = [\n"
        "        min(sum(b.write_count for b in batch[: i + 1]), 2**63 - 1) for i in range(bs)\n    ]",
    )
    yield wrong(
        "negative extend subtracts",
        "an extend is never negative",
        *("max(self.extend_len, 0) if self.active", "self.extend_len if self.active"),
        rule="section 5: a negative extend_seq_lens counts as 0",
        module="batch",
    )
    yield wrong(
        "new requests write nothing",
        "an extend continues a prefix",
        *("return max(self.extend_len, 0) if self.active else 0",),
        "return max(self.extend_len, 0) if self.active and self.end > 0 else 0",
        module="batch",
    )
    yield wrong(
        "num_valid_reqs counts active requests",
        "padding is not valid",
        *(reqs, reqs.replace("= bs", "= sum(r.active for r in batch)")),
        rule="write_num_valid_reqs is bs",
    )
    yield wrong(
        "num_valid_reqs is the capacity", "all rows are valid", reqs, reqs.replace("= bs", "= len(seeds)")
    )


def _slots() -> Iterator[Mutant]:
    wrong = wrong_in("reference")

    take, sentinels = 'mapping.take(slots, mode="clip")', "np.copyto(translated, slots, where=slots < 0)"
    cells = "translate(cells(arguments, r.row, max(r.start - 1, 0), r.end), mapping)"
    mapping = '    mapping = arguments["full_to_swa_index_mapping"]\n'
    entries = f"    count_cell_faults(batch, arguments)\n{mapping}"
    rows = f"def _write_rows(batch: list[Request], arguments: Arguments) -> None:\n{mapping}"
    without_window = '    mapping = mapping if arguments["swa_window_size"] > 0 else None\n'
    yield wrong(
        "mapping ignored without a window",
        "full attention has no other pool",
        *(entries, entries + without_window, rows, rows + without_window),
        rule="slot is translate(req_to_token[row, p])",
    )
    yield wrong(
        "translated twice",
        "the table holds slots of the window's pool",
        cells,
        f"translate({cells}, mapping)",
    )
    yield wrong(
        "entries not translated",
        "the kernel behind translates",
        cells,
        cells.replace("mapping", "None"),
    )
    yield wrong(
        "negative clipped",
        "a negative slot reads the mapping's first element",
        *(f"    {sentinels}\n", ""),
        rule="section 2: a negative slot is a sentinel",
    )
    yield wrong(
        "negative wrapped",
        "a negative slot counts from the mapping's end",
        *(take, "mapping[np.minimum(slots, len(mapping) - 1) % len(mapping)]", f"    {sentinels}\n", ""),
        rule="section 2: a negative slot is a sentinel",
    )
    yield wrong(
        "only -1 is a sentinel",
        "there is one sentinel",
        *(sentinels, sentinels.replace("slots < 0", "slots == -1")),
        rule="section 2: a negative slot is a sentinel",
    )
    yield wrong(
        "sentinels all become -1",
        "there is one sentinel",
        *(sentinels, "np.copyto(translated, -1, where=slots < 0)"),
        rule="section 2: a negative slot is a sentinel",
    )
    yield wrong(
        "slot 0 untranslated",
        "the dummy slot is 0 in both pools",
        sentinels,
        sentinels.replace("slots < 0", "slots <= 0"),
    )
    yield wrong(
        "slot 0 skipped",
        "the dummy slot is no slot",
        "slots[span] = known_slots[-r.verify_count :]",
        "slots[span] = np.where(\n"
        "    cells(arguments, r.row, r.start, r.end) == 0, NO_SLOT, known_slots[-r.verify_count :]\n)",
    )
    yield wrong(
        "slot past the mapping wraps",
        "a slot counts modulo the pool",
        *(take, "mapping[slots % len(mapping)]"),
        rule="section 5: a slot past full_to_swa_index_mapping",
    )
    yield wrong(
        "slot past the mapping is none",
        "there is no such slot",
        *(sentinels, f"translated[slots >= len(mapping)] = NO_SLOT\n    {sentinels}"),
        rule="section 5: a slot past full_to_swa_index_mapping",
    )
    yield wrong(
        "clamp one short",
        "the mapping's last element is a guard",
        *(take, "mapping.take(np.minimum(slots, max(len(mapping) - 2, 0)), mode='clip')"),
    )
    yield wrong(
        "clamp in the wrong place",
        "the translated slot is clamped to the mapping",
        *(take, f"np.minimum({take}, len(mapping) - 1)"),
    )
    yield wrong(
        "mapping narrowed to int32", "a slot fits int32", take, f"{take}.astype(np.int32).astype(np.int64)"
    )
    yield Mutant(
        "slots widened without their sign",
        "slots are unsigned",
        edits_in("batch", "first:stop].astype(np.int64)", "first:stop].astype(np.uint32).astype(np.int64)"),
        "section 2: a negative slot is a sentinel",
    )
    yield wrong(
        "predecessor is the slot itself",
        "the chain ends in the entry",
        *("= slots[begin : span.stop - 1]", "= slots[begin + 1 : span.stop]"),
        rule="prev slot is translate(req_to_token[row, p - 1])",
    )
    yield wrong(
        "first predecessor is the dummy slot",
        "slot 0 is nobody's",
        *("NO_SLOT if r.start == 0", "0 if r.start == 0"),
        rule="prev slot is -1 at position 0",
    )
    yield wrong(
        "chain runs across requests",
        "an entry's predecessor is the entry before it",
        *("NO_SLOT if r.start == 0", "(slots[begin - 1] if begin else NO_SLOT) if r.start == 0"),
        rule="prev slot is -1 at position 0",
    )


def _tokens() -> Iterator[Mutant]:
    wrong = wrong_in("batch")

    high = "high = min(self.end + offset, valid_len, table.shape[1])"
    cells = "table[self.row, low : max(low, high)]"
    offset = 'arguments["kv_token_id_vs_position_offset"],\n        )'
    yield wrong(
        "valid length ignored",
        "a row holds one request's tokens",
        *(high, "high = min(self.end + offset, table.shape[1])"),
        rule="-1 from the request's valid length on",
    )
    yield wrong(
        "valid length inclusive",
        "the token at the valid length is valid",
        *(high, high.replace("valid_len", "valid_len + 1")),
        rule="-1 from the request's valid length on",
    )
    yield wrong(
        "valid length counts positions",
        "the valid length bounds the position",
        high,
        high.replace("valid_len", "valid_len + offset"),
    )
    yield wrong(
        "offset sign",
        "the token lies before the position",
        *(offset, offset.replace("arguments", "-arguments")),
    )
    yield wrong("offset ignored", "tokens stand at their positions", offset, "0,\n        )")
    yield wrong(
        "token row bound missing",
        "both tables have the same rows",
        "if table is None or self.row >= len(table):",
        "if table is None:",
    )
    yield wrong(
        "token row clipped",
        "a row past the token table reads its last",
        *("if table is None or self.row >= len(table):", "if table is None or not len(table):"),
        *(cells, cells.replace("self.row", "min(self.row, len(table) - 1)")),
        rule="section 5: expected token is -1",
    )
    yield wrong(
        "token column clipped",
        "a position past the token table reads its last column",
        *(high, "high = min(self.end + offset, valid_len) if table.shape[1] else low"),
        *(cells, "table[self.row].take(np.arange(low, max(low, high)), mode='clip')"),
        rule="section 5: expected token is -1",
    )
    yield wrong(
        "token position below 0 wraps",
        "position - 1 is in the table",
        "low = max(self.start + offset, 0)",
        "low = self.start + offset",
    )
    yield wrong(
        "tokens begin with the first entry",
        "the first entry has a token",
        "return low - offset - self.start, table",
        "return 0, table",
    )
    yield wrong(
        "expected token of the wrong row",
        "the token table has a row a request",
        *(cells, cells.replace("self.row", "self.index % len(table)")),
        rule="[row, p + kv_token_id_vs_position_offset]",
    )
    yield wrong(
        "expected token unsigned",
        "token ids are not negative",
        "] = known\n",
        "] = known.astype(np.uint32)\n",
        module="reference",
    )
    yield wrong(
        "unknown token is 0",
        "token 0 is padding",
        *("tokens[span] = NO_TOKEN", "tokens[span] = 0"),
        module="reference",
    )
    yield wrong(
        "unknown token left",
        "nobody reads an unknown token",
        *("        tokens[span] = NO_TOKEN\n", ""),
        module="reference",
    )


def _totals() -> Iterator[Mutant]:
    wrong = wrong_in("reference")

    fill = "    if _totals(batch, arguments):\n        _entries(batch, arguments)\n"
    enable = 'arguments["out_verify_enable"][0] = enable'
    total = 'total, capacity = sum(r.verify_count for r in batch), arguments["verify_capacity"]'
    yield wrong(
        "capacity met exactly is an overflow",
        "the total is below the capacity",
        *("enable = total <= capacity", "enable = total < capacity"),
        rule="enable is 1 if total <= verify_capacity",
    )
    yield wrong(
        "capacity missed by one fits",
        "the capacity is the last index",
        "enable = total <= capacity",
        "enable = total <= capacity + 1",
    )
    yield wrong(
        "enable not cleared",
        "an overflow is told by num_valid",
        *(enable, enable.replace("= enable", "= 1")),
        rule="enable is 1 if total <= verify_capacity",
    )
    yield wrong(
        "enable not set",
        "a plan is enabled before",
        *(f"    {enable}\n", f"    if not enable:\n        {enable}\n"),
        rule="enable is 1 if total <= verify_capacity",
    )
    yield wrong(
        "num_valid not clipped",
        "num_valid is the total",
        *("= min(total, capacity)", "= total"),
        rule="verify_num_valid is min(total, verify_capacity)",
    )
    yield wrong(
        "num_valid 0 after an overflow",
        "no entry is valid then",
        *("= min(total, capacity)", "= total if enable else 0"),
        rule="verify_num_valid is min(total, verify_capacity)",
    )
    yield wrong(
        "total wraps in int32",
        "a total fits int32",
        total,
        total.replace(
            "sum(r.verify_count for r in batch)",
            "(sum(r.verify_count for r in batch) + 2**31) % 2**32 - 2**31",
        ),
    )
    yield wrong(
        "overflow half-written",
        "what fits is verified",
        fill,
        "    if not _totals(batch, arguments):\n"
        "        ends = np.cumsum([r.verify_count for r in batch])\n"
        '        batch = batch[: int(np.searchsorted(ends, arguments["verify_capacity"], side="right"))]\n'
        "    _entries(batch, arguments)\n",
        rule="the four columns are left as they were, all of them",
    )
    yield wrong(
        "columns cleared after an overflow",
        "no old entry may be verified",
        *(fill, f"{fill}    else:\n        for name in COLUMNS:\n            arguments[name][:] = NO_SLOT\n"),
        rule="the four columns are left as they were, all of them",
    )
    behind = "        begin = span.stop\n"
    for name, column, value in (
        ("slots' tail touched", "slots", "NO_SLOT"),
        ("tokens' tail touched", "tokens", "NO_TOKEN"),
        ("positions' tail touched", "positions", "0"),
        ("predecessors' tail touched", "prev_slots", "NO_SLOT"),
    ):
        yield wrong(
            name,
            "what is no entry is cleared",
            *(behind, f"{behind}    {column}[begin:] = {value}\n"),
            rule="everything behind the entries is left as it was",
        )
    yield wrong(
        "one element past the entries",
        "the entries end with a guard",
        *(behind, f"{behind}    slots[begin : begin + 1] = NO_SLOT\n"),
        rule="everything behind the entries is left as it was",
    )


MUTANTS = tuple(
    mutant
    for group in (
        *(_windows, _requests, _writes, _slots, _tokens, _totals),
        *(paged, totals, faults),
    )
    for mutant in group()
)
"""Of `launch_canary_plan_kernels`."""


def _staged() -> Iterator[Mutant]:
    wrong = wrong_in("reference")

    scratch = "np.array([r.verify_count for r in batch], np.int64).cumsum(out=scratch[1 : len(batch) + 1])"
    writes = 'if arguments["verify_enable"][0] != 0 and total <= len(arguments[COLUMNS[0]]):'
    total = "    total = sum(r.verify_count for r in batch)\n    if"
    yield wrong("scratch unwritten", "the entries launcher recomputes", f"    {scratch}\n", "")
    yield wrong("scratch's first element left", "it is 0 anyway", "    scratch[0] = 0\n", "")
    yield wrong(
        "scratch inclusive",
        "an offset is where a request ends",
        *(scratch, scratch.replace("scratch[1 : len(batch) + 1]", "scratch[: len(batch)]")),
    )
    yield wrong(
        "scratch over-written",
        "what no request has is 0",
        *("    scratch[0] = 0\n", "    scratch[:] = 0\n"),
    )
    yield wrong(
        "scratch filled with the total",
        "requests behind the batch verify nothing",
        *(f"    {scratch}\n", f"    {scratch}\n    scratch[len(batch) + 1 :] = scratch[len(batch)]\n"),
    )
    yield wrong(
        "scratch counts writes",
        "an offset is an offset",
        *(scratch, scratch.replace("r.verify_count", "r.write_count")),
    )
    yield wrong(
        "entries launcher ignores enable",
        "entries that fit are written",
        *(writes, "if total <= len(arguments[COLUMNS[0]]):"),
    )
    yield wrong(
        "entries launcher takes only 1 for enabled",
        "enable is 0 or 1",
        *(writes, writes.replace("!= 0", "== 1")),
    )
    yield wrong(
        "entries launcher takes only positive enables",
        "enable is 0 or 1",
        *(writes, writes.replace("!= 0", "> 0")),
    )
    yield wrong(
        "entries launcher does not look whether they fit",
        "enable says so",
        *(writes, 'if arguments["verify_enable"][0] != 0:'),
    )
    yield wrong(
        "entries launcher refuses an exact fit",
        "the total is below the capacity",
        *(writes, writes.replace("<=", "<")),
    )
    yield wrong(
        "entries launcher trusts the scratch",
        "the offsets launcher has counted",
        *(total, '    total = int(arguments["verify_offsets_scratch"][len(batch)])\n    if'),
    )
    fill = f"    {writes}\n        _entries(batch, arguments)\n"
    totals = "    _totals(batch, arguments)\n    scratch"
    request_faults = "    count_request_faults(batch, arguments)\n    _totals"
    no_pages = 'arguments | {"page_size": 1}'
    yield wrong(
        "entries launcher knows no pages",
        "pages are the other launcher's",
        *(fill, fill.replace("arguments)\n", f"{no_pages})\n")),
    )
    yield wrong(
        "offsets launcher knows no pages",
        "pages are the other launcher's",
        f"    batch = requests(arguments)\n    _write_rows(batch, arguments)\n{request_faults}",
        f"    batch = requests({no_pages})\n    _write_rows(batch, arguments)\n{request_faults}",
    )
    yield wrong(
        "offsets launcher has no total",
        "verify_num_valid says it",
        *(totals, totals.replace("arguments", 'arguments | {"verify_total_out": None}')),
    )
    yield wrong(
        "offsets launcher counts no faults",
        "the other one counts them",
        *(request_faults, "    _totals"),
    )
    yield wrong(
        "offsets launcher counts faults of cells",
        "it looks at the whole batch",
        *(
            totals,
            '    if _totals(batch, arguments):\n        no_tokens = {"req_to_verify_expected_tokens": None}\n'
            "        count_cell_faults(batch, arguments | no_tokens)\n    scratch",
        ),
    )
    yield wrong(
        "entries launcher counts the requests' faults",
        "it looks at the whole batch",
        *(fill, f"{fill}        count_request_faults(batch, arguments)\n"),
    )
    yield wrong(
        "entries launcher counts no faults",
        "the other one has counted them",
        *(fill, fill.replace("arguments)\n", 'arguments | {"faults_out": None})\n')),
    )
    yield wrong(
        "entries launcher counts faults though it is disabled",
        "faults are faults",
        *(
            fill,
            f"{fill}    elif total <= len(arguments[COLUMNS[0]]):\n"
            "        count_cell_faults(batch, arguments)\n",
        ),
    )
    yield wrong(
        "entries launcher counts faults of entries that do not fit",
        "faults are faults",
        *(
            fill,
            f'{fill}    elif arguments["verify_enable"][0] != 0:\n'
            "        count_cell_faults(batch, arguments)\n",
        ),
    )


STAGED_MUTANTS = tuple(_staged())
"""Right in `launch_canary_plan_kernels`, wrong in one of the staged launchers."""

EQUIVALENT = (
    Mutant(
        "negative prefix not clamped",
        "the counts, the seed and the window are 0 or none for it without the clamp too",
        edits_in("batch", "prefix_len = max(prefix_lens[index], 0)", "prefix_len = prefix_lens[index]"),
    ),
    Mutant(
        "token table's width not looked at",
        "a slice ends where the table does",
        edits_in(
            "batch",
            "high = min(self.end + offset, valid_len, table.shape[1])",
            "high = min(self.end + offset, valid_len)",
        ),
    ),
)
"""Changes that no plan can show, and why; the judge must accept them."""
