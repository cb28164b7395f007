"""The owner of a target table: one pipeline, from its first claim until somebody releases it."""

from datetime import datetime

import msgspec

from milepost.errors import IllegalMove, Invalid, NotFound
from milepost.lifecycle import RUN
from milepost.store.columns import reader
from milepost.store.driver import Call, Steps


class _Owner(msgspec.Struct, frozen=True):
    """The last holder of a table: no pipeline, if it was given away unclaimed."""

    pipeline_id: int | None
    table: str
    pipeline: str | None
    is_filled: bool
    released_at: datetime | None

    @property
    def is_free(self) -> bool:
        """Whether another pipeline may claim the table."""
        return self.released_at is not None


class TableClaim(msgspec.Struct, frozen=True):
    """A table that is held: whether it is new to its pipeline, or holds every landed record."""

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


_owner, _holding = reader(_Owner), reader(Holding)


def _last(table: str) -> Steps[_Owner | None]:
    rows = yield Call("table_last", {"table": table})
    return _owner(rows[0]) if rows else None


def check(name: str, table: str) -> Steps[None]:
    """Refuse a table that is another pipeline's; claim nothing."""
    last = yield from _last(table)
    if last is not None and not last.is_free and last.pipeline != name:
        raise _taken(last, name)


def claim(pipeline_id: int, name: str, table: str, *, exists: bool) -> Steps[TableClaim]:
    """Hold a table for a pipeline, or raise."""
    last = yield from _last(table)
    if last is None and exists:
        raise Invalid(
            f"there is a table {table!r} that no pipeline of this store has made; give {name!r} a "
            f'table="..." of its own, or let it have that one: `milepost pipelines release {table}`'
        )
    if last is not None and not last.is_free and last.pipeline_id == pipeline_id:
        return TableClaim(is_new=not exists, is_filled=bool(last.is_filled))
    free = last is None or last.is_free
    again = last is not None and last.pipeline_id == pipeline_id
    filled = last is not None and again and bool(last.is_filled)
    told = {"pipeline_id": pipeline_id, "table": table, "filled": filled}
    if not (free and (yield Call("table_claim", told))):
        # The loser of a race sees the winner now.
        raise _taken((yield from _last(table)), name)
    return TableClaim(is_new=not (again and exists), is_filled=filled)


def begin(pipeline_id: int, table: str) -> Steps[bool]:
    """Note that a table is empty; tell whether its pipeline has landed nothing either."""
    rows = yield Call("table_made", {"pipeline_id": pipeline_id, "table": table})
    return bool(rows[0][0])


def fill(pipeline_id: int, table: str) -> Steps[None]:
    """Note that a table holds every record that its pipeline has landed."""
    yield Call("table_fill", {"pipeline_id": pipeline_id, "table": table})


def hold(pipeline_id: int, name: str, table: str) -> Steps[None]:
    """Hold a table that is the pipeline's, or was until it was released and nobody took it."""
    last = yield from _last(table)
    if last is None or (last.is_free and last.pipeline_id != pipeline_id):
        raise IllegalMove(
            f"table {table!r} is not one of pipeline {name!r}: start a full run, which takes it"
        )
    yield from claim(pipeline_id, name, table, exists=True)


def _taken(last: _Owner | None, name: str) -> IllegalMove:
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


def _refuse_live(last: _Owner) -> Steps[None]:
    own = {"pipeline_id": last.pipeline_id}
    # Nobody starts a run of it between the look and the release.
    yield Call("pipeline_hold", own)
    for run_id, _, _, state, *_ in (yield Call("pipeline_run_list", {**own, "most": 1})):
        if state not in RUN.terminal:
            raise IllegalMove(
                f"run {run_id} of pipeline {last.pipeline!r} is under way and writes to table "
                f"{last.table!r}: release it when the run has ended, or cancel that"
            )


def _free(last: _Owner) -> IllegalMove:
    whose = f"; it was one of pipeline {last.pipeline!r}" if last.pipeline else ""
    return IllegalMove(f"table {last.table!r} is free{whose}")


def holdings() -> Steps[list[Holding]]:
    """Read which tables pipelines hold and held, table by table in the order of time."""
    return [_holding(row) for row in (yield Call("table_holdings"))]
