"""What the pages keep in the store: the servers' key, saved views, the last checks, counts."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from milepost.codec import PROSE_BYTES, check_text
from milepost.errors import NotFound
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant

COUNTED_MOST = 10_001
"""Open jobs are counted so far beside the rail; it says 10,000+ of that many."""
DAY_US = 86_400_000_000


class SavedView(msgspec.Struct, frozen=True):
    """A search of jobs that has a name."""

    name: str
    query: str
    actor: str | None
    saved_at: datetime


class Checked(msgspec.Struct, frozen=True):
    """How the last `verify` or `doctor` of this store ended."""

    name: str
    clean: bool
    summary: str
    at: datetime


class Rail(msgspec.Struct, frozen=True):
    """The numbers beside the names of pages."""

    jobs: int
    runs: int
    pipelines: int
    queues: int
    workers: int
    schedules: int
    channels: int
    new_errors: int
    """Errors that were seen first within a day."""


def server_key(fresh: bytes) -> Steps[bytes]:
    """Return the key that all servers of this store sign sessions with; store this one if none."""
    yield Call("server_key_put", {"value": fresh})
    [(value,)] = yield Call("server_key_get")
    return bytes(value)


def rail() -> Steps[Rail]:
    """Count what is beside the names of pages, in one statement."""
    [row] = yield Call("rail_counts", {"most": COUNTED_MOST, "day_us": DAY_US}, alone=True)
    return Rail(*row)


def views() -> Steps[list[SavedView]]:
    """Read saved views by name."""
    rows = yield Call("view_list", alone=True)
    return [SavedView(name, query, actor, instant(at)) for name, query, actor, at in rows]


def save_view(name: str, query: str, *, actor: str | None) -> Steps[None]:
    """Save a view, or change the one of that name."""
    check_text(name, what="name")
    check_text(query, what="query", most=PROSE_BYTES)
    yield Call("view_put", {"name": name, "query": query, "actor": actor})


def drop_view(name: str) -> Steps[None]:
    """Delete a saved view, or raise `NotFound`."""
    if not (yield Call("view_delete", {"name": name})):
        raise NotFound(f"there is no saved view {name!r}")


def note_check(name: str, *, clean: bool, summary: str) -> Steps[None]:
    """Keep how a check of the whole store ended."""
    yield Call("checked_put", {"name": name, "clean": clean, "summary": summary})


def checks() -> Steps[list[Checked]]:
    """Read how the last checks ended."""
    rows: Sequence[Sequence[Any]] = yield Call("checked_list", alone=True)
    return [Checked(name, bool(clean), summary, instant(at)) for name, clean, summary, at in rows]
