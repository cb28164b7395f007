"""How large a proof is: a tenth in everyday tests, whole under `make prove`."""

import os

__all__ = ["PROVING", "size"]

PROVING = os.environ.get("MILEPOST_PROVE") == "1"
"""Whether the whole proof is asked for; only then is time measured, on a machine of its own."""


def size(full: int) -> int:
    """Scale a proof's number of rounds."""
    return full if PROVING else max(1, full // 10)
