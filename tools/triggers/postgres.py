"""The triggers for PostgreSQL."""

from collections.abc import Iterator

from milepost.lifecycle import WORKER
from milepost.machine import among
from tools.triggers.rules import (
    Guard,
    Rule,
    bad,
    changed,
    differs,
    reason,
    worker_rules,
)


def triggers(guard: Guard) -> str:
    """Render what refuses and what journals, for one machine's table."""
    parts = [_refusal(guard), _refusing_triggers(guard), _journalling_triggers(guard)]
    return "\n\n".join(parts)


def _refusal(guard: Guard) -> str:
    table = guard.table
    insert, change = guard.insert_rules("postgres"), guard.change_rules("postgres")
    # Only where a statement names the columns: to compare a payload is to read it.
    named = f"TG_NAME = '{table}_a_refuse_fixed'"
    fixed = [(f"{named} AND {wrong}", text) for wrong, text in guard.fixed_rules("postgres")]
    rules = [*change[:2], *fixed, *change[2:], *_role_rules(guard)]
    return f"""\
-- Called for unusual rows only: says which rule a bad one broke.
CREATE FUNCTION milepost_refuse_{table}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  reason text;
  subject uuid;
BEGIN
  -- First: what is compared below is cast by whoever made the table's types.
  IF (TG_RELID = to_regclass('{table}')) IS NOT TRUE THEN
    RAISE EXCEPTION 'milepost: % is not a table that this function serves', TG_RELID::regclass;
  END IF;
  IF TG_OP = 'INSERT' THEN
    subject := NEW.id;
    reason :=
{reason(insert, "'{}'", indent="      ")};
  ELSIF TG_OP = 'UPDATE' THEN
{_correction(guard)}    subject := OLD.id;
    reason :=
{reason(rules, "'{}'", indent="      ")};
    IF reason IS NULL THEN
{_count_by_hand(guard)}\
      RETURN NULL;
    END IF;
    reason := format('%s (%s: %s -> %s)', reason, NEW.move, OLD.state, NEW.state);
  ELSE
    subject := OLD.id;
    reason := 'only a final {table} may be deleted; this one is ' || OLD.state;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'MP001',
    MESSAGE = format('milepost: {table} %s: %s', subject, reason),
    HINT = 'milepost machine {table} shows every legal move';
END $$;"""


_ADMIN = "has_table_privilege(session_user, to_regclass('retention')::oid, 'update')"
_WORKER = "has_column_privilege(session_user, to_regclass('job')::oid, 'worker_id', 'update')"


def _role_rules(guard: Guard) -> list[Rule]:
    """List the moves that grants on columns cannot keep apart (`store.roles` has the others).

    Whoever may set the minimum of retention is an admin; whoever may write leases is a worker.
    """
    if guard.leased:
        return [
            (f"NEW.move = 'erase' AND NOT {_ADMIN}", "to erase takes the rights of an admin"),
            (
                f"NEW.move IN ('expire', 'reject') AND NOT {_WORKER}",
                "this move takes the rights of a worker",
            ),
        ]
    over = guard.machine.terminal_sql("NEW.state")
    reduced = (
        "(SELECT job.result FROM job JOIN step ON step.run_id = job.run_id"
        " AND step.number = job.step WHERE job.run_id = NEW.id AND step.role = 'reduce'"
        " AND job.state = 'SUCCEEDED')"
    )
    forged = f"{changed('postgres', ['report'])} AND {differs('postgres', 'NEW.report', reduced)}"
    return [
        (
            f"{over} AND {_still_open('true')} AND NOT {_WORKER}",
            "to end it over open jobs takes the rights of a worker",
        ),
        (f"{forged} AND NOT {_WORKER}", "its report is the result of its reducer"),
        (
            f"NOT {_WORKER} AND ({' OR '.join(_early())})",
            "to move it on over open work takes the rights of a worker",
        ),
    ]


def _early() -> Iterator[str]:
    """Say how a run would be moved on before its work is done."""
    passed = _still_open("step < NEW.current_step")
    yield f"NEW.current_step > OLD.current_step AND {passed}"
    yield f"NEW.state = 'FINALIZING' AND {_still_open('true')}"
    yield (
        "NEW.state IN ('FINALIZING', 'SUCCEEDED') AND EXISTS (SELECT 1 FROM publication"
        " WHERE run_id = NEW.id AND published < total AND NOT withdrawn)"
    )
    yield (
        "NEW.state = 'SUCCEEDED' AND EXISTS (SELECT 1 FROM step WHERE run_id = NEW.id"
        " AND role = 'reduce' AND NOT EXISTS (SELECT 1 FROM job WHERE job.run_id = NEW.id"
        " AND job.step = step.number AND job.state = 'SUCCEEDED'))"
    )


def _still_open(which: str) -> str:
    return f"(SELECT sum(open) FROM step_count WHERE run_id = NEW.id AND {which}) > 0"


def _count_by_hand(guard: Guard) -> str:
    if not guard.counters:
        return ""
    counts = ",\n               ".join(f"{name} = {guard.counted(name)}" for name in guard.counters)
    return f"""\
      -- A move by hand that did not count itself is counted here.
      IF {guard.left_behind} THEN
        UPDATE {guard.table}
           SET {counts}
         WHERE id = NEW.id AND version = NEW.version;
      END IF;
"""


def _correction(guard: Guard) -> str:
    if not guard.counters:
        return ""
    counters = ",".join(guard.counters)
    # Row triggers fire before the statement's journal entries are written.
    right = "\n       AND ".join(
        f"NEW.{name} = {guard.recount('postgres', name)}"
        f" + CASE WHEN NEW.move {among(moves)} AND NOT EXISTS"
        f" (SELECT 1 FROM journal WHERE machine = '{guard.table}' AND subject_id = NEW.id"
        f" AND seq = NEW.version) THEN 1 ELSE 0 END"
        for name, moves in guard.counters.items()
    )
    return f"""\
    -- The one change that is not a move: a counter put right, to what the journal says.
    IF (NEW.version = OLD.version AND {changed("postgres", guard.counters)}
       AND to_jsonb(NEW) - '{{{counters}}}'::text[] = to_jsonb(OLD) - '{{{counters}}}'::text[]
       AND {right}) THEN
      RETURN NULL;
    END IF;
"""


def _refusing_triggers(guard: Guard) -> str:
    table = guard.table
    return f"""\
-- A row trigger's WHEN is evaluated in place: a usual row costs no function call. AFTER, because
-- the mere presence of a BEFORE UPDATE row trigger locks each row once more, at 7 us a row.
CREATE TRIGGER {table}_a_refuse_insert AFTER INSERT ON {table} FOR EACH ROW
  WHEN ({bad(guard.insert_rules("postgres"))})
  EXECUTE FUNCTION milepost_refuse_{table}();

CREATE TRIGGER {table}_a_refuse_change AFTER UPDATE ON {table} FOR EACH ROW
  WHEN ({bad(guard.quick_rules())})
  EXECUTE FUNCTION milepost_refuse_{table}();

{_miscounting(guard)}CREATE TRIGGER {table}_a_refuse_fixed
  AFTER UPDATE OF {", ".join(guard.fixed)} ON {table} FOR EACH ROW
  WHEN ({bad(guard.fixed_rules("postgres"))})
  EXECUTE FUNCTION milepost_refuse_{table}();

CREATE TRIGGER {table}_a_refuse_delete AFTER DELETE ON {table} FOR EACH ROW
  WHEN (NOT ({guard.machine.terminal_sql("OLD.state")}))
  EXECUTE FUNCTION milepost_refuse_{table}();

CREATE TRIGGER {table}_a_refuse_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_refuse_hand();"""


def _miscounting(guard: Guard) -> str:
    if not guard.counters:
        return ""
    moves = [move for moves in guard.counters.values() for move in moves]
    return f"""\
CREATE TRIGGER {guard.table}_a_refuse_count
  AFTER UPDATE OF {", ".join(guard.counters)} ON {guard.table} FOR EACH ROW
  WHEN (NEW.move <> ALL ('{{{", ".join(moves)}}}') AND {changed("postgres", guard.counters)})
  EXECUTE FUNCTION milepost_refuse_{guard.table}();

"""


def _journalling_triggers(guard: Guard) -> str:
    table = guard.table
    return f"""\
CREATE TRIGGER {table}_journal_insert AFTER INSERT ON {table}
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_journal_insert();

CREATE TRIGGER {table}_journal_move AFTER UPDATE ON {table}
  REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_journal_move();"""


def worker_triggers() -> str:
    """Render the worker's row: enforced where it is shown, not journalled."""
    insert, change = worker_rules("postgres")
    return f"""\
CREATE FUNCTION milepost_refuse_worker() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  reason text;
BEGIN
  IF TG_OP = 'INSERT' THEN
    reason := '{insert[0][1]}';
  ELSIF TG_OP = 'UPDATE' THEN
    reason :=
{reason(change, "'{}'", indent="      ")};
  ELSE
    reason := 'only a stopped worker may be deleted';
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'MP001',
    MESSAGE = format('milepost: worker %s: %s', coalesce(NEW.id, OLD.id), reason),
    HINT = 'milepost machine worker shows every legal move';
END $$;

CREATE TRIGGER worker_a_refuse_insert AFTER INSERT ON worker FOR EACH ROW
  WHEN ({bad(insert)})
  EXECUTE FUNCTION milepost_refuse_worker();

CREATE TRIGGER worker_a_refuse_change AFTER UPDATE ON worker FOR EACH ROW
  WHEN ({bad(change)})
  EXECUTE FUNCTION milepost_refuse_worker();

CREATE TRIGGER worker_a_refuse_delete AFTER DELETE ON worker FOR EACH ROW
  WHEN (NOT ({WORKER.terminal_sql("OLD.state")}))
  EXECUTE FUNCTION milepost_refuse_worker();

CREATE TRIGGER worker_a_refuse_truncate BEFORE TRUNCATE ON worker FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_refuse_hand();"""
