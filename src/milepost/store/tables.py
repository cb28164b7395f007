"""Whose a target table is: one pipeline's, from its first claim until somebody releases it."""

from datetime import datetime

import msgspec

from milepost.errors import IllegalMove, Invalid, NotFound
from milepost.lifecycle import RUN
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant


class _Last(msgspec.Struct, frozen=True):
    """Who held a table last: nobody, if no pipeline of this store ever did."""

    pipeline_id: int | None
    table: str
    pipeline: str | None
    is_filled: bool
    is_free: bool


class Claimed(msgspec.Struct, frozen=True):
    """A table that is held: whether it is new to its pipeline, or holds what that has landed."""

    is_new: bool
    is_filled: bool


class Holding(msgspec.Struct, frozen=True):
    """A table that a pipeline holds, or held until it was released: by whom, and why."""

    table: str
    pipeline: str | None
    claimed_at: datetime
    released_at: datetime | None
    actor: str | None
    reason: str | None


def _last(table: str) -> Steps[_Last | None]:
    rows = yield Call("table_last", {"table": table})
    if not rows:
        return None
    pipeline_id, name, pipeline, filled, released_at = rows[0]
    return _Last(pipeline_id, name, pipeline, bool(filled), is_free=released_at is not None)


def check(name: str, table: str) -> Steps[None]:
    """Refuse a table that is another pipeline's; claim nothing."""
    last = yield from _last(table)
    if last is not None and not last.is_free and last.pipeline != name:
        raise _taken(last, name)


def claim(pipeline_id: int, name: str, table: str, *, exists: bool) -> Steps[Claimed]:
    """Hold a table for a pipeline, or raise."""
    last = yield from _last(table)
    if last is None and exists:
        raise Invalid(
            f"there is a table {table!r} that no pipeline of this store has made; give {name!r} a "
            f'table="..." of its own, or let it have that one: `milepost pipelines release {table}`'
        )
    if last is not None and not last.is_free and last.pipeline_id == pipeline_id:
        return Claimed(is_new=not exists, is_filled=last.is_filled)
    free = last is None or last.is_free
    again = last is not None and last.pipeline_id == pipeline_id
    filled = last is not None and again and last.is_filled
    told = {"pipeline_id": pipeline_id, "table": table, "filled": filled}
    if not (free and (yield Call("table_claim", told))):
        # Who lost a race sees the winner now.
        raise _taken((yield from _last(table)), name)
    return Claimed(is_new=not (again and exists), is_filled=filled)


def begin(pipeline_id: int, table: str) -> Steps[bool]:
    """Note that a table is empty; tell whether that is all that its pipeline has landed."""
    rows = yield Call("table_made", {"pipeline_id": pipeline_id, "table": table})
    return bool(rows[0][0])


def fill(pipeline_id: int, table: str) -> Steps[None]:
    """Note that a table holds whatever its pipeline has landed."""
    yield Call("table_fill", {"pipeline_id": pipeline_id, "table": table})


def hold(pipeline_id: int, name: str, table: str) -> Steps[None]:
    """Hold a table that is the pipeline's, or was until it was released and nobody took it."""
    last = yield from _last(table)
    if last is None or (last.is_free and last.pipeline_id != pipeline_id):
        raise IllegalMove(
            f"table {table!r} is not one of pipeline {name!r}: start a full run, which takes it"
        )
    yield from claim(pipeline_id, name, table, exists=True)


def _taken(last: _Last | None, name: str) -> IllegalMove:
    table, owner = (last.table, last.pipeline) if last else ("?", "?")
    return IllegalMove(
        f"table {table!r} is one of pipeline {owner!r}, and pipeline {name!r} cannot write to it "
        f'as well: give {name!r} a table="..." of its own; or, if {owner!r} is no more, let it '
        f"have this one: `milepost pipelines release {table}`"
    )


def release(table: str, *, actor: str, reason: str) -> Steps[str | None]:
    """Let another pipeline claim a table, on the record; answer whose it was."""
    last = yield from _last(table)
    told = {"table": table, "actor": actor, "reason": reason}
    if last is None:
        if not (yield Call("table_columns", {"table": table})):
            raise NotFound(f"no pipeline has a table {table!r}; see `milepost pipelines tables`")
        yield Call("table_give", told)
        return None
    if last.is_free:
        raise _free(last)
    yield from _refuse_live(last)
    if not (yield Call("table_release", {**told, "pipeline_id": last.pipeline_id})):
        raise _free(last)
    return last.pipeline


def _refuse_live(last: _Last) -> Steps[None]:
    own = {"pipeline_id": last.pipeline_id}
    # Nobody starts a run of it between the look and the release.
    yield Call("pipeline_hold", own)
    for run_id, _, _, state, *_ in (yield Call("pipeline_run_list", {**own, "most": 1})):
        if state not in RUN.terminal:
            raise IllegalMove(
                f"run {run_id} of pipeline {last.pipeline!r} is under way and writes to table "
                f"{last.table!r}: release it when the run has ended, or cancel that"
            )


def _free(last: _Last) -> IllegalMove:
    whose = f"; it was one of pipeline {last.pipeline!r}" if last.pipeline else ""
    return IllegalMove(f"table {last.table!r} is free{whose}")


def holdings() -> Steps[list[Holding]]:
    """Read which tables pipelines hold and held, table by table in the order of time."""
    rows = yield Call("table_holdings")
    return [
        Holding(table, pipeline, instant(claimed), at and instant(at), actor, reason)
        for table, pipeline, claimed, at, actor, reason in rows
    ]
