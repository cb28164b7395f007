"""What stands in a store, read by a hand: in values that are the same whatever database it is."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tests.support.databases import Database, Raw

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OWN_WAY = {
    ("job", "queued_seq"),  # numbers of their own, in the same order: see `line`
    ("job", "delay_us"),
    ("job", "lease_seq"),
    ("job", "served"),
    ("limit_rule", "since"),
    ("journal", "xid"),
    ("journal", "db_user"),
    ("limit_change", "db_user"),
    ("watermark_entry", "db_user"),
    ("retention", "active"),
    ("retention", "keeping_entries"),
}
NOT_MOVED = {"migration", "store_move", "feed", "feed_switch", "tally_mark", "failure_delta"}
MOVED_BEFORE = {"tally_delta", "tally", "tally_label", "queue_total"}
"""Counts that maintenance folds: the move folds what was new."""


def types(server: Database) -> dict[str, dict[str, str]]:
    """Read the tables of a store, with the types of their columns."""
    found: dict[str, dict[str, str]] = {}
    with server.raw() as raw:
        for table, column, kind in raw.execute(
            "SELECT relname, attname, typname FROM pg_class JOIN pg_attribute ON attrelid ="
            " pg_class.oid JOIN pg_type ON pg_type.oid = atttypid WHERE relkind IN ('r', 'p') AND"
            " NOT relispartition AND attnum > 0 AND relnamespace = 'milepost'::regnamespace"
        ):
            if table not in NOT_MOVED and (table, column) not in OWN_WAY:
                found.setdefault(table, {})[column] = kind
    return found


def content(raw: Raw, known: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """Read all rows of these tables, in no order."""
    return {table: _rows(raw, table, columns) for table, columns in known.items()}


def _rows(raw: Raw, table: str, columns: dict[str, str]) -> list[str]:
    names = ", ".join(f'"{name}"' for name in columns)
    # PostgreSQL counts a step's new jobs in a row of its own, which begins with none.
    but = " WHERE slot <> -1 OR open <> 0" if table == "step_count" else ""
    rows = raw.execute(f'SELECT {names} FROM "{table}"{but}')
    kinds = list(columns.values())
    return sorted(repr([_plain(v, k) for v, k in zip(row, kinds, strict=True)]) for row in rows)


def _plain(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, UUID):
        return str(value)
    if kind == "jsonb":
        return sorted((json.loads(value) if isinstance(value, str) else value).items())
    if kind == "bytea":
        return bytes(value)
    return int(value) if kind == "bool" else value


def line(raw: Raw) -> list[str]:
    """Read the jobs in the order in which they stand in line."""
    then = ", rowid" if raw.dialect == "sqlite" else ""
    return [str(row[0]) for row in raw.execute(f"SELECT id FROM job ORDER BY queued_seq{then}")]
