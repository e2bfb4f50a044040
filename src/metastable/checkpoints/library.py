"""The transformers library, in a version whose models are the checkpoint's."""

from __future__ import annotations

import re
from typing import Any

from metastable.errors import MissingExtraError, missing_extra

LOWEST = (5, 6)  # transformers 5.0 to 5.5 build SmolLM2 without its config's rotary base, 4.x lack what flows change


def library(purpose: str) -> Any:
    """The imported module `transformers`; a missing or too old one is an error that names the command to run."""
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as reason:
        raise missing_extra(reason.name or "transformers", "transformers", purpose) from None
    found = tuple(int(part) for part in re.findall(r"\d+", transformers.__version__)[:2])
    if found < LOWEST:
        raise MissingExtraError(
            f"{purpose} needs transformers {'.'.join(map(str, LOWEST))} or newer, not {transformers.__version__}, which "
            'builds some models otherwise than their checkpoints say; run: pip install --upgrade "metastable[transformers]"'
        )
    return transformers
