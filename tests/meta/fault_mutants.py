"""Wrong implementations of the optional outputs (contract, sections 3 to 5)."""

from __future__ import annotations

from collections.abc import Iterator

from patching import Mutant, edits_in, wrong_in


def totals() -> Iterator[Mutant]:
    def wrong(name: str, story: str, new: str, rule: str = "") -> Mutant:
        return Mutant(name, story, edits_in("reference", "        out[0] = total\n", new), rule)

    rule = "verify_total_out is total"
    yield wrong(
        "verify_total_out clipped",
        "it is what the columns hold",
        "        out[0] = min(total, capacity)\n",
        rule,
    )
    yield wrong(
        "verify_total_out only of an overflow",
        "otherwise verify_num_valid says it",
        "        out[0] = out[0] if enable else total\n",
        rule,
    )
    yield wrong(
        "verify_total_out is the overflow",
        "it says by how much the columns are too short",
        "        out[0] = max(total - capacity, 0)\n",
        rule,
    )
    yield wrong(
        "verify_total_out adds up",
        "it is a counter",
        "        out[0] += total\n",
        rule,
    )
    yield wrong(
        "verify_total_out in int32",
        "a total fits int32",
        "        out[0] = (total + 2**31) % 2**32 - 2**31\n",
    )


def faults() -> Iterator[Mutant]:
    wrong = wrong_in("faults")

    add = "out[kind : kind + 1, 0] += n"
    place = "min(int(places[kind]), request << FAULT_POSITION_BITS | position)"
    found = "found = _cell_kinds(r, arguments, r.start, r.end)"
    count = "_count(out, kind, len(where), r.index, r.start + int(where[0]))"
    has_entries = "            if r.verify_count > 0:\n                found"
    padding = "    if r.is_padding:\n        return\n"
    row = "    if not r.active:\n        yield _ROW\n"
    dummy = '(slots >= 0) & (slots < arguments.get("page_size", 1))'
    yield wrong(
        "faults' counts overwritten",
        "a launch tells its own faults",
        *(add, add.replace("+=", "=")),
        rule="section 5: the count of",
    )
    yield wrong(
        "faults' places overwritten",
        "a launch tells its own faults",
        *(place, place.partition(", ")[2][:-1]),
        rule="section 5: the place of",
    )
    yield wrong(
        "faults reset by each launch",
        "a launch tells its own faults",
        '    if (out := arguments["faults_out"]) is not None:\n        for r in batch:\n            for',
        '    if (out := arguments["faults_out"]) is not None:\n        out[:] = 0, NO_PLACE\n'
        "        for r in batch:\n            for",
    )
    yield wrong(
        "faults' places signed",
        "no place is the smallest",
        *("out[:, 1].view(np.uint64)", "out[:, 1]"),
        rule="the smallest, as unsigned",
    )
    yield wrong("faults' largest place", "the last one is the newest", place, place.replace("min(", "max("))
    yield wrong(
        "a request's last place",
        "the last one is the newest",
        count,
        count.replace("where[0]", "where[-1]"),
    )
    yield wrong(
        "place without its request",
        "a position says it",
        place,
        place.replace("request << FAULT_POSITION_BITS | ", ""),
    )
    yield wrong(
        "place's request above 32 bits",
        "a position fits 32 bits",
        place,
        place.replace("FAULT_POSITION_BITS", "32"),
    )
    yield wrong(
        "place's position in int32",
        "a position fits int32",
        place,
        place.replace("| position", "| position % 2**32"),
    )
    yield wrong(
        "place counted from the first entry",
        "positions begin with 0 in each request",
        count,
        count.replace("r.start + ", ""),
    )
    yield wrong(
        "one fault a request", "a request is faulty or it is not", count, count.replace("len(where)", "1")
    )
    yield wrong(
        "counts saturate",
        "a count stays at the largest int64",
        add,
        "out[kind, 0] = min(int(out[kind, 0]) + n, 2**63 - 1)",
    )
    yield wrong(
        "faults of predecessors counted again",
        "each slot that is read is looked at",
        count,
        count.replace("len(where)", "len(where) + int((where < found.shape[1] - 1).sum())"),
    )
    yield wrong(
        "faults of the cell before a window",
        "each slot that is read is looked at",
        *(
            found,
            "first = max(r.start - 1, 0)\n                found = _cell_kinds(r, arguments, first, r.end)",
        ),
        *(count, count.replace("r.start", "first")),
    )
    yield wrong(
        "faults of a seed that is no entry",
        "each slot that is read is looked at",
        *(has_entries, has_entries.replace("r.verify_count > 0", "r.verify_count > 0 or r.has_seed")),
        *(
            found,
            "first = min(r.start, r.end - 1)\n"
            "                found = _cell_kinds(r, arguments, first, r.end)",
        ),
        *(count, count.replace("r.start", "first")),
    )
    yield wrong("faults of padding", "a row of 0 is no row", padding, "")
    yield wrong(
        "faults of padding's lengths",
        "lengths are lengths",
        *(padding, ""),
        *(row, row.replace("not r.active", "not r.active and not r.is_padding")),
    )
    yield wrong(
        "no lengths of inactive requests", "who has no row has no lengths", row, f"{row}        return\n"
    )
    yield wrong("dummy page of one slot", "the dummy is slot 0", dummy, "slots == 0")
    yield wrong(
        "sentinels are of the dummy page", "both are reserved", dummy, dummy.replace("(slots >= 0) & ", "")
    )
    yield wrong(
        "sentinels are no faults",
        "nobody counts what is no fault",
        "    found[_SLOT_SIGN] = slots < 0\n",
        "",
    )
    yield wrong(
        "faults of translated slots",
        "a slot is what the plan holds",
        "    found = np.zeros((len(FAULT_KINDS), len(slots)), bool)\n",
        "    found = np.zeros((len(FAULT_KINDS), len(slots)), bool)\n"
        "    if arguments['full_to_swa_index_mapping'] is not None:\n"
        "        translated = arguments['full_to_swa_index_mapping'].take(slots, mode='clip')\n"
        "        slots = np.where(slots < 0, slots, translated)\n",
    )
    yield wrong(
        "slots past the mapping by one",
        "the mapping's length is its last slot",
        "found[_SLOT_END] = slots >= len(mapping)",
        "found[_SLOT_END] = slots > len(mapping)",
    )
    yield wrong(
        "tokens before the first position are no faults",
        "who has no token lacks none",
        "is_cell = (q >= 0) & (q < columns)",
        "is_cell = (q < columns)",
    )
    yield wrong(
        "token faults up to the valid length",
        "the token at the valid length is valid",
        "found[_TOKEN] = (q < ",
        "found[_TOKEN] = (q <= ",
    )
    yield wrong(
        "prefixes as long as the table exceed it",
        "the last position is the seed's",
        "    if r.prefix_len > max_seq_len(arguments):",
        "    if r.prefix_len >= max_seq_len(arguments):",
    )
    yield wrong(
        "prefixes against columns",
        "a table has as many positions as columns",
        "    if r.prefix_len > max_seq_len(arguments):",
        "    if r.prefix_len > arguments['req_to_token'].shape[1]:",
    )
    yield wrong(
        "faults of what fits",
        "the entries that fit are looked at",
        "    if _totals(batch, arguments):\n        _entries(batch, arguments)\n",
        "    if _totals(batch, arguments):\n        _entries(batch, arguments)\n    else:\n"
        "        ends = np.cumsum([r.verify_count for r in batch])\n"
        "        fitting = int(np.searchsorted(ends, arguments['verify_capacity'], side='right'))\n"
        "        count_cell_faults(batch[:fitting], arguments)\n",
        module="reference",
    )
    yield wrong(
        "no faults after an overflow",
        "a plan that is disabled is not looked at",
        *("    count_request_faults(batch, arguments)\n    if", "    if"),
        *(
            "    if _totals(batch, arguments):\n",
            "    if _totals(batch, arguments):\n        count_request_faults(batch, arguments)\n",
        ),
        module="reference",
    )
