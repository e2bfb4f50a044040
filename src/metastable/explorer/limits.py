"""How much one page may ask for. Checked before anything is allocated; each refusal names the limit and the way around it."""

from __future__ import annotations

from metastable.errors import InvalidInputError

MAX_TOKENS = 2000
MAX_DIM = 32
MAX_NUMBERS = 8000
"""Tokens times dimension."""
MAX_APPENDED = 64
"""Tokens placed by hand behind the others, and tokens moved by hand."""
MAX_FROZEN = 64
MAX_BETA = 1e4
MIN_UNTIL, MAX_UNTIL = 1e-3, 1e60
FRAMES = 361
"""Moments of a run that are sent to the page."""
MAX_STEPS = 20_000
DENSE_BYTES = 512 * 2**20
"""Dense output that one run may keep: bounds the number of steps of large systems."""
MAX_NOISE_STEPS = 20_000
OUTBOX_BYTES = 16 * 2**20
"""What may wait for one page: more than any run needs, so that a page that does not read holds no worker."""
SEND_SECONDS = 20.0
"""A run whose frames find no room for that long is given up."""
MESSAGE_BYTES = 256 * 1024
"""Size of one message from a page."""
RUN_SECONDS = 120.0
"""A run that takes longer is stopped."""
EXPORT_SECONDS = 240.0
CONNECTIONS = 32
"""Pages served at once; more are told to try again."""
EXPORTS_AT_ONCE = 2


class LimitError(InvalidInputError):
    """A request is larger than the explorer allows; the message names the limit."""


class HorizonError(LimitError):
    """A horizon is too long for this model; `until` is the longest that is not."""

    def __init__(self, message: str, until: float) -> None:
        super().__init__(message)
        self.until = until


def check_size(tokens: int, dim: int) -> None:
    """Refuse systems that are too large to be shown in a page."""
    elsewhere = "larger systems run in Python with metastable.simulate"
    if tokens > MAX_TOKENS:
        raise LimitError(f"the explorer shows up to {MAX_TOKENS} tokens, not {tokens}; {elsewhere}")
    if dim > MAX_DIM:
        raise LimitError(f"the explorer shows up to {MAX_DIM} dimensions, not {dim}; {elsewhere}")
    if tokens * dim > MAX_NUMBERS:
        raise LimitError(
            f"{tokens} tokens of dimension {dim} are {tokens * dim} numbers, and the explorer moves up to {MAX_NUMBERS}: "
            f"take fewer tokens or a smaller dimension; {elsewhere}"
        )


def steps_allowed(tokens: int, width: int) -> int:
    """How many steps a run may take so that its dense output stays within `DENSE_BYTES`."""
    return int(max(100, min(MAX_STEPS, DENSE_BYTES // (5 * 8 * tokens * width))))
