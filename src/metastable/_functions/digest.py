"""Short digests of what is read."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def of_data(data: Any) -> str:
    """A digest of text, of bytes, or of what has a buffer."""
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def of_values(said: Any) -> str:
    """A digest of plain values."""
    return of_data(json.dumps(said, sort_keys=True))
