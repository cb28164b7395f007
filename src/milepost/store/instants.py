"""Instants as either database gives them."""

from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(value: Any) -> datetime:
    """Read a timestamp (PostgreSQL) or microseconds since 1970 (SQLite)."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    # Whole microseconds: a float of a far instant is off, and the last one would be out of range.
    return EPOCH + timedelta(microseconds=value)
