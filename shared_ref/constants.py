"""Numbers that the plan contract fixes (sections 2 to 4)."""

PLAN_BS_BLOCK_SIZE = 4096
"""Most requests one launch plans for."""

VERIFY_OFFSETS_SCRATCH_LEN = PLAN_BS_BLOCK_SIZE + 1
"""Least length of the staged launchers' scratch."""

PADDING_ROW = 0
"""Row of `req_to_token` that marks a padding request."""

DUMMY_SLOT = 0
"""Slot that unset cells of `req_to_token` hold; no token lives there."""

NO_SLOT = -1
"""Predecessor of position 0, and seed of a request that continues no chain."""

NO_TOKEN = -1
"""Expected token that means "do not check"."""

FAULT_KINDS = (
    "row_outside",
    "prefix_negative",
    "extend_negative",
    "prefix_exceeds",
    "slot_outside",
    "token_outside",
    "slot_negative",
    "slot_dummy",
)
"""What the rows of `faults_out` count, by index; the last two are no errors (section 5)."""

FAULT_POSITION_BITS = 48
"""A fault's place is `request << 48 | position`."""

MOST_POSITIONS = 2**FAULT_POSITION_BITS
"""Most positions that a row of `req_to_token` may have."""

NO_PLACE = -1
"""Place of a kind that was not found: as unsigned, greater than any other."""
