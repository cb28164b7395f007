"""The triggers for SQLite."""

from milepost.lifecycle import WORKER
from tools.triggers.rules import (
    Guard,
    Rule,
    bad,
    changed,
    reason,
    worker_rules,
)

_SQLITE_NOW = (
    "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000"
    " + coalesce((SELECT offset_us FROM clock), 0)"
)
"""Never NULL: OR IGNORE would step over an entry without a time, and the move would stay."""

_FIXED_ROWID: Rule = ("NEW.rowid IS NOT OLD.rowid", "the rowid is fixed")


def triggers(guard: Guard) -> str:
    """Render what refuses and what journals, for one machine's table."""
    return "\n\n".join([_refusals(guard), _journal(guard)])


def _refusals(guard: Guard) -> str:
    table = guard.table
    insert = [*_identity(guard), *guard.insert_rules("sqlite")]
    change = guard.change_rules("sqlite")
    fixed = [_FIXED_ROWID, *guard.fixed_rules("sqlite")]
    say = f"RAISE(ABORT, 'milepost: {table}: {{}}')"
    return f"""\
-- RAISE, never a constraint: UPDATE OR IGNORE steps over constraints. Comparisons are IS NOT: under
-- OR REPLACE a NULL becomes the column's default only after these triggers have looked.
CREATE TRIGGER {table}_refuse_insert BEFORE INSERT ON {table}
  WHEN {bad(insert)}
BEGIN
  SELECT
{reason(insert, say, indent="    ")};
END;

{_rowid(table)}

CREATE TRIGGER {table}_refuse_change BEFORE UPDATE ON {table}
  WHEN {bad([_FIXED_ROWID, *change])}
BEGIN
  SELECT
{reason([_FIXED_ROWID, *change], say, indent="    ")}{_correction(guard)};
END;

CREATE TRIGGER {table}_refuse_fixed
  BEFORE UPDATE OF {", ".join(guard.fixed)} ON {table}
  WHEN {bad(fixed)}
BEGIN
  SELECT
{reason(fixed, say, indent="    ")};
END;

CREATE TRIGGER {table}_refuse_delete BEFORE DELETE ON {table}
  WHEN NOT ({guard.machine.terminal_sql("OLD.state")})
BEGIN
  SELECT RAISE(ABORT, 'milepost: {table}: only a final {table} may be deleted');
END;"""


def _rowid(table: str) -> str:
    return f"""\
-- A negative rowid would hide in the guard above, where an absent one reads as -1.
CREATE TRIGGER {table}_refuse_rowid AFTER INSERT ON {table} WHEN NEW.rowid < 1
BEGIN
  SELECT RAISE(ABORT, 'milepost: {table}: rowids are positive');
END;"""


def _identity(guard: Guard) -> list[Rule]:
    # OR REPLACE deletes the row in its way without firing a delete trigger, so whatever a UNIQUE
    # index would find must be found here first.
    table = guard.table
    hexes = "-".join("[0-9a-f]" * length for length in (8, 4, 4, 4, 12))
    return [
        # GLOB stops at a NUL character; the length in bytes does not.
        (
            f"(NEW.id IS NULL OR length(CAST(NEW.id AS BLOB)) <> 36 OR NEW.id NOT GLOB '{hexes}')",
            "the id must be a UUID in lower case",
        ),
        (
            (
                f"(EXISTS (SELECT 1 FROM {table} WHERE id = NEW.id)"
                f" OR EXISTS (SELECT 1 FROM {table} WHERE rowid = NEW.rowid))"
            ),
            "this id exists; look it up first, then move it",
        ),
        *guard.unique,
    ]


def _correction(guard: Guard) -> str:
    """Except the one change that is not a move: a counter put right, to what the journal says."""
    if not guard.counters:
        return ""
    kept = [name for name in guard.columns if name not in guard.counters]
    right = "\n     AND ".join(
        f"NEW.{name} IS {guard.recount('sqlite', name)}" for name in guard.counters
    )
    return f"""
  WHERE NOT (NEW.rowid IS OLD.rowid
     AND NOT {guard.unlike_stored(kept)}
     AND {changed("sqlite", guard.counters)}
     AND {right})"""


def _journal(guard: Guard) -> str:
    table = guard.table
    entry = "machine, subject_id, seq, move, from_state, to_state, at, actor, fence, detail"
    return f"""\
{_journalled(table)}

CREATE TRIGGER {table}_journal_insert AFTER INSERT ON {table}
BEGIN
  INSERT INTO journal ({entry})
  VALUES ('{table}', NEW.id, NEW.version, NEW.move, NULL, NEW.state,
          {_SQLITE_NOW}, NEW.actor, NEW.fence, NEW.detail);
{_feed(table)}
END;

CREATE TRIGGER {table}_journal_move AFTER UPDATE ON {table} WHEN NEW.version <> OLD.version
BEGIN
  INSERT INTO journal ({entry})
  VALUES ('{table}', NEW.id, NEW.version, NEW.move, OLD.state, NEW.state,
          {_SQLITE_NOW}, NEW.actor, NEW.fence, NEW.detail);
{_feed(table)}{_counting(guard)}
END;"""


def _feed(table: str) -> str:
    # Here and not in a trigger of its own on the journal: running one takes half a microsecond.
    return f"""\
  INSERT INTO feed (subject_id, machine, seq, at)
  SELECT NEW.id, '{table}', NEW.version, {_SQLITE_NOW} FROM feed_switch WHERE until > 0;"""


def _journalled(table: str) -> str:
    """Render the last look: a move without its entry is taken back.

    Without recursive_triggers SQLite does not run a trigger inside itself, so a move made by
    somebody's trigger on the journal would go unrecorded; and a trigger that says RAISE(IGNORE)
    would drop the entry alone. These run after the entry was written, because SQLite runs
    the youngest trigger first; in any other order they would refuse every move.
    """
    missing = (
        "NOT EXISTS (SELECT 1 FROM journal WHERE subject_id = NEW.id"
        f" AND machine = '{table}' AND seq = NEW.version)"
    )
    say = (
        f"milepost: {table}: this move has no journal entry; one made by a trigger on the journal"
        " needs PRAGMA recursive_triggers = ON"
    )
    return f"""\
CREATE TRIGGER {table}_refuse_unrecorded_insert AFTER INSERT ON {table} WHEN {missing}
BEGIN
  SELECT RAISE(ABORT, '{say}');
END;

CREATE TRIGGER {table}_refuse_unrecorded_move AFTER UPDATE OF version ON {table} WHEN {missing}
BEGIN
  SELECT RAISE(ABORT, '{say}');
END;"""


def _counting(guard: Guard) -> str:
    if not guard.counters:
        return ""
    counts = ",\n         ".join(f"{name} = {guard.counted(name)}" for name in guard.counters)
    return f"""
  -- A move by hand that did not count itself is counted here.
  UPDATE {guard.table}
     SET {counts}
   WHERE id = NEW.id
     AND {guard.left_behind};"""


def worker_triggers() -> str:
    """Render the worker's row: enforced where it is shown, not journalled."""
    insert, change = worker_rules("sqlite")
    taken = (
        "(EXISTS (SELECT 1 FROM worker WHERE id = NEW.id)"
        " OR EXISTS (SELECT 1 FROM worker WHERE rowid = NEW.rowid))"
    )
    exists: Rule = (taken, "this id exists")
    insert, change = [exists, *insert], [_FIXED_ROWID, *change]
    return f"""\
CREATE TRIGGER worker_refuse_insert BEFORE INSERT ON worker
  WHEN {bad(insert)}
BEGIN
  SELECT
{reason(insert, "RAISE(ABORT, 'milepost: worker: {}')", indent="    ")};
END;

{_rowid("worker")}

CREATE TRIGGER worker_refuse_change BEFORE UPDATE ON worker
  WHEN {bad(change)}
BEGIN
  SELECT
{reason(change, "RAISE(ABORT, 'milepost: worker: {}')", indent="    ")};
END;

CREATE TRIGGER worker_refuse_delete BEFORE DELETE ON worker
  WHEN NOT ({WORKER.terminal_sql("OLD.state")})
BEGIN
  SELECT RAISE(ABORT, 'milepost: worker: only a stopped worker may be deleted');
END;"""
