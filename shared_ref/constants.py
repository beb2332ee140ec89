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
