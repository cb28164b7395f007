"""Instants as either database gives them."""

from datetime import UTC, datetime
from typing import Any

__all__ = ["instant"]


def instant(value: Any) -> datetime:
    """Read a timestamp (PostgreSQL) or microseconds since 1970 (SQLite)."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return datetime.fromtimestamp(value / 1_000_000, tz=UTC)
