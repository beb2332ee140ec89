"""Wrong implementations of pages (contract, section 4: `cell`, `max_seq_len`)."""

from __future__ import annotations

from collections.abc import Iterator

from patching import Mutant, wrong_in


def paged() -> Iterator[Mutant]:
    wrong = wrong_in("batch")

    slot = "np.where(page < 0, page, page * page_size + positions % page_size)"
    page = "page = pages[positions // page_size - first // page_size]"
    length = 'arguments["req_to_token"].shape[1] * arguments.get("page_size", 1)'
    first_prev = "NO_SLOT if r.start == 0 else known_slots[0]"
    other_prevs = "= slots[begin : span.stop - 1]"
    cell_before = "translate(cells(arguments, r.row, {}, {}) - 1, mapping)"
    in_pages = "if arguments['page_size'] > 1 else"
    yield wrong(
        "position inside the page left out",
        "a page has one slot",
        slot,
        slot.replace(" + positions % page_size", ""),
    )
    yield wrong(
        "page not multiplied", "a cell is its page's first slot", slot, slot.replace(" * page_size", "")
    )
    yield wrong(
        "negative page multiplied",
        "a page is a page",
        slot,
        "page * page_size + positions % page_size",
    )
    yield wrong(
        "sentinel page counts on",
        "each position of a page has a slot of its own",
        slot,
        slot.replace("page, page *", "page + positions % page_size, page *"),
    )
    yield wrong(
        "all slots of page 0 are slot 0",
        "nobody owns the dummy page",
        slot,
        slot.replace("page < 0", "page <= 0"),
    )
    yield wrong(
        "pages counted from the first entry",
        "a request's first entry begins a page",
        slot,
        slot.replace("positions %", "(positions - first) %"),
    )
    yield wrong(
        "paged slot in int32",
        "a slot fits int32",
        slot,
        f"{slot}.astype(np.int32).astype(np.int64)",
    )
    yield wrong(
        "page clipped to the mapping",
        "a page is in the mapping or it is not",
        page,
        f"{page}\n    if (mapping := arguments['full_to_swa_index_mapping']) is not None:\n"
        "        page = np.minimum(page, len(mapping) // page_size - 1)",
    )
    yield wrong(
        "width not multiplied", "a table has as many positions as columns", length, length.partition(" *")[0]
    )
    yield wrong(
        "last page half used",
        "a prefix ends before the last page's last slot",
        length,
        f"{length} - (arguments.get('page_size', 1) > 1)",
    )
    yield wrong(
        "predecessor is the slot before, across pages too",
        "pages follow each other",
        *(other_prevs, f"= {cell_before.format('r.start + 1', 'r.end')} {in_pages} {other_prevs[2:]}"),
        module="reference",
    )
    yield wrong(
        "window's predecessor is the slot before its first",
        "a window begins inside a page",
        first_prev,
        f"NO_SLOT if r.start == 0 else {cell_before.format('r.start', 'r.start + 1')}[0] "
        f"{in_pages} known_slots[0]",
        module="reference",
    )
    yield wrong(
        "seed is its page's last slot",
        "a page is full",
        "cells(arguments, r.row, r.end - 1, r.end) if r.has_seed else None",
        "cells(arguments, r.row, (p := r.end - 1 + -r.end % arguments['page_size']), p + 1) "
        "if r.has_seed else None",
        module="reference",
    )
    yield wrong(
        "positions in int32",
        "a position fits int32",
        "np.arange(r.start, r.end)",
        "np.arange(r.start, r.end).astype(np.int32)",
        module="reference",
    )
    yield wrong(
        "token table in pages",
        "both tables are laid out alike",
        "table[self.row, low : max(low, high)]",
        "table[self.row, np.arange(low, max(low, high)) // arguments.get('page_size', 1)]",
    )
