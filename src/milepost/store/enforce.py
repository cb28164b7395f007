"""Triggers from the machines: both databases refuse an illegal move and journal a legal one.

The rules are written once, as SQL conditions over OLD and NEW with a sentence for the person who
broke one, and rendered for each dialect. The rendered text stands in the numbered migrations
between `begin rendered` and `end rendered` lines; a test compares it with a fresh rendering.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from milepost.lifecycle import JOB, RUN, WORKER
from milepost.machine import BIRTH, Machine, among

__all__ = ["GUARDS", "Guard", "fresh"]

Rule = tuple[str, str]
"""(SQL condition that is true for a bad row, what to tell whoever wrote it)."""

ERASE = "'erase'"


@dataclass(frozen=True)
class Guard:
    """What the database holds against every writer of one machine's table."""

    machine: Machine
    columns: tuple[str, ...]
    immutable: tuple[str, ...]
    erasable: tuple[str, ...] = ()
    counters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    leased: bool = False
    unique: tuple[Rule, ...] = ()

    @property
    def table(self) -> str:
        """The table has the machine's name."""
        return self.machine.name

    @property
    def fixed(self) -> tuple[str, ...]:
        """The columns that no move but `erase` may touch."""
        return (*self.immutable, "payload")

    def birth_rules(self, dialect: str) -> list[Rule]:
        """List what a new row must not be."""
        legal = self.machine.birth_sql(move="NEW.move", target="NEW.state")
        rules: list[Rule] = [
            (differs(dialect, "NEW.version", "1"), "a birth has version 1"),
            (f"({legal}) IS NOT TRUE", "this is not a birth the lifecycle declares"),
            (differs(dialect, "NEW.fence", "0"), "a birth has fence 0"),
        ]
        if self.leased:
            rules.append(("NEW.worker_id IS NOT NULL", "a birth has no worker"))
        if self.counters:
            wrong = any_of(differs(dialect, f"NEW.{name}", "0") for name in self.counters)
            rules.append((wrong, "a birth has counted nothing"))
        return rules

    def change_rules(self, dialect: str) -> list[Rule]:
        """List what a changed row must not be. Every UPDATE is a move."""
        legal = self.machine.legal_sql(move="NEW.move", source="OLD.state", target="NEW.state")
        return [
            (
                differs(dialect, "NEW.version", "OLD.version + 1"),
                "every change is a move: SET move = ..., version = version + 1",
            ),
            (f"({legal}) IS NOT TRUE", "this move is not declared from this state to that one"),
            *self._lease_rules(dialect),
            *self.counter_rules(dialect),
            *self._erase_rules(dialect),
        ]

    def quick_rules(self) -> list[Rule]:
        """List, for PostgreSQL, the fewest words that are true for every changed row that is bad.

        A WHEN is read anew by every statement: its length is a toll on a move of one row. So the
        declared changes stand in one array, counters have a trigger of their own, and an erasure
        is always looked at by the function.
        """
        declared = ", ".join(
            f"{move.name} {source} {target}"
            for move in self.machine.moves
            for source, target in move.pairs
            if source != BIRTH
        )
        words = "NEW.move || ' ' || OLD.state || ' ' || NEW.state"
        undeclared = f"({words} = ANY ('{{{declared}}}'::text[])) IS NOT TRUE"
        version, _, *rest = self.change_rules("postgres")
        apart = (*self.counter_rules("postgres"), *self._erase_rules("postgres"))
        erased = [("NEW.move = 'erase'", "")] if self.erasable else []
        return [version, (undeclared, ""), *(rule for rule in rest if rule not in apart), *erased]

    def fixed_rules(self, dialect: str) -> list[Rule]:
        """List what must not change; looked at only when a statement names one of the columns.

        Comparing a payload with itself would read it twice from disk on every move.
        """
        never = f"these never change: {', '.join(self.immutable)}"
        kept = f"({differs(dialect, 'NEW.move', ERASE)} AND {changed(dialect, ['payload'])})"
        return [(changed(dialect, self.immutable), never), (kept, "the payload is fixed")]

    def _erase_rules(self, dialect: str) -> list[Rule]:
        if not self.erasable:
            return []
        may_change = {"version", "move", "actor", "detail", *self.erasable}
        kept = [name for name in self.columns if name not in may_change]
        filled = any_of(
            f"(NEW.{name} IS NOT NULL AND {changed(dialect, [name])})" for name in self.erasable
        )
        return [
            (
                f"(NEW.move = 'erase' AND ({filled} OR {changed(dialect, kept)}))",
                f"erase sets {', '.join(self.erasable)} to NULL and touches nothing else",
            ),
        ]

    def _lease_rules(self, dialect: str) -> list[Rule]:
        if not self.leased:
            return [(differs(dialect, "NEW.fence", "OLD.fence"), "only jobs are leased")]
        step = "CASE WHEN NEW.move = 'claim' THEN 1 ELSE 0 END"
        return [
            (
                "(NEW.state = 'RUNNING') <> (NEW.worker_id IS NOT NULL)",
                "RUNNING needs a worker_id and no other state may have one",
            ),
            (
                "NEW.worker_id <> OLD.worker_id",
                "a running job keeps its worker",
            ),
            (
                differs(dialect, "NEW.fence", f"OLD.fence + {step}"),
                "the fence grows by one with every claim and by nothing else",
            ),
        ]

    def counter_rules(self, dialect: str) -> list[Rule]:
        """List how a counter must not change: only by one, and only with its own moves."""
        if not self.counters:
            return []
        wrong = any_of(
            f"({changed(dialect, [name])}"
            f" AND {differs(dialect, f'NEW.{name}', self.counted(name))})"
            for name in self.counters
        )
        return [(wrong, f"{', '.join(self.counters)} are counted by the moves alone")]

    def counted(self, name: str) -> str:
        """Render what a counter must be after the move."""
        return f"OLD.{name} + CASE WHEN NEW.move {among(self.counters[name])} THEN 1 ELSE 0 END"

    @property
    def counting(self) -> str:
        """Render the condition under which counters must be looked at."""
        moves = [move for moves in self.counters.values() for move in moves]
        touched = [f"NEW.{name} <> OLD.{name}" for name in self.counters]
        return any_of([f"NEW.move {among(moves)}", *touched])

    @property
    def left_behind(self) -> str:
        """Render the condition under which a move by hand forgot to count itself."""
        return any_of(
            f"(NEW.move {among(moves)} AND NEW.{name} = OLD.{name})"
            for name, moves in self.counters.items()
        )

    def recount(self, name: str) -> str:
        """Render what the journal says of a counter."""
        return (
            f"(SELECT count(*) FROM journal WHERE machine = '{self.table}'"
            f" AND subject_id = NEW.id AND move {among(self.counters[name])})"
        )


def lite(dialect: str) -> bool:
    """Tell SQLite's spelling from PostgreSQL's."""
    return dialect == "sqlite"


def differs(dialect: str, left: str, right: str) -> str:
    """Render a comparison that NULL cannot slip through."""
    return f"{left} IS NOT {right}" if lite(dialect) else f"{left} IS DISTINCT FROM {right}"


def changed(dialect: str, names: Iterable[str]) -> str:
    """Render whether any of these columns changes."""
    return any_of(differs(dialect, f"NEW.{name}", f"OLD.{name}") for name in names)


def any_of(conditions: Iterable[str]) -> str:
    """Render an OR over many conditions, one a line."""
    return "(" + "\n      OR ".join(conditions) + ")"


def _bad(rules: list[Rule]) -> str:
    return any_of(condition for condition, _ in rules)


def _reason(rules: list[Rule], render: str, *, indent: str) -> str:
    cases = "\n".join(
        f"{indent}  WHEN {condition}\n{indent}    THEN {render.format(text)}"
        for condition, text in rules
    )
    return f"{indent}CASE\n{cases}\n{indent}END"


# PostgreSQL


def _postgres(guard: Guard) -> str:
    parts = [_postgres_refusal(guard), _postgres_refusing_triggers(guard)]
    if guard.counters:
        parts.append(_postgres_counting(guard))
    return "\n\n".join([*parts, _postgres_journalling_triggers(guard)])


def _postgres_refusal(guard: Guard) -> str:
    table = guard.table
    birth, change = guard.birth_rules("postgres"), guard.change_rules("postgres")
    rules = [*change[:2], *guard.fixed_rules("postgres"), *change[2:]]
    return f"""\
-- Called for a bad row only: says which rule it broke.
CREATE FUNCTION milepost_refuse_{table}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  reason text;
  subject uuid;
BEGIN
  IF TG_OP = 'INSERT' THEN
    subject := NEW.id;
    reason :=
{_reason(birth, "'{}'", indent="      ")};
  ELSIF TG_OP = 'UPDATE' THEN
{_postgres_correction(guard)}    subject := OLD.id;
    reason :=
{_reason(rules, "'{}'", indent="      ")};
{_postgres_erasure(guard)}\
    reason := format('%s (%s: %s -> %s)', reason, NEW.move, OLD.state, NEW.state);
  ELSE
    subject := OLD.id;
    reason := 'only a final {table} may be deleted; this one is ' || OLD.state;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'MP001',
    MESSAGE = format('milepost: {table} %s: %s', subject, reason),
    HINT = 'milepost machine {table} shows every legal move';
END $$;

{_postgres_pinned(f"milepost_refuse_{table}")}"""


def _postgres_pinned(function: str) -> str:
    return f"""\
-- Without pg_temp at the end, anybody's temporary table would stand in for ours.
DO $do$ BEGIN
  EXECUTE format('ALTER FUNCTION {function}() SET search_path = %I, pg_temp', current_schema());
END $do$;"""


def _postgres_erasure(guard: Guard) -> str:
    if not guard.erasable:
        return ""
    return """\
    IF reason IS NULL AND NEW.move = 'erase' THEN
      RETURN NULL;
    END IF;
"""


def _postgres_correction(guard: Guard) -> str:
    if not guard.counters:
        return ""
    counters = ",".join(guard.counters)
    # The counting trigger fires before the statement's journal entries are written.
    right = "\n       AND ".join(
        f"NEW.{name} = {guard.recount(name)} + CASE WHEN NEW.move {among(moves)} AND NOT EXISTS"
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


def _postgres_refusing_triggers(guard: Guard) -> str:
    table = guard.table
    return f"""\
-- A row trigger's WHEN is evaluated in place: a lawful row costs no function call. AFTER, because
-- the mere presence of a BEFORE UPDATE row trigger locks each row once more, at 7 us a row.
CREATE TRIGGER {table}_a_refuse_birth AFTER INSERT ON {table} FOR EACH ROW
  WHEN ({_bad(guard.birth_rules("postgres"))})
  EXECUTE FUNCTION milepost_refuse_{table}();

CREATE TRIGGER {table}_a_refuse_change AFTER UPDATE ON {table} FOR EACH ROW
  WHEN ({_bad(guard.quick_rules())})
  EXECUTE FUNCTION milepost_refuse_{table}();

CREATE TRIGGER {table}_a_refuse_fixed
  AFTER UPDATE OF {", ".join(guard.fixed)} ON {table} FOR EACH ROW
  WHEN ({_bad(guard.fixed_rules("postgres"))})
  EXECUTE FUNCTION milepost_refuse_{table}();

CREATE TRIGGER {table}_a_refuse_delete AFTER DELETE ON {table} FOR EACH ROW
  WHEN (NOT ({guard.machine.terminal_sql("OLD.state")}))
  EXECUTE FUNCTION milepost_refuse_{table}();

CREATE TRIGGER {table}_a_refuse_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_refuse_hand();"""


def _postgres_counting(guard: Guard) -> str:
    table = guard.table
    counts = ",\n           ".join(f"{name} = {guard.counted(name)}" for name in guard.counters)
    [(wrong, text)] = guard.counter_rules("postgres")
    return f"""\
-- A move by hand that did not count itself is counted here; one that miscounted is refused.
CREATE FUNCTION milepost_count_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF {wrong} THEN
    RAISE EXCEPTION USING ERRCODE = 'MP001',
      MESSAGE = format('milepost: {table} %s: {text}', OLD.id);
  END IF;
  IF {guard.left_behind} THEN
    UPDATE {table}
       SET {counts}
     WHERE id = NEW.id AND version = NEW.version;
  END IF;
  RETURN NULL;
END $$;

{_postgres_pinned(f"milepost_count_{table}")}

CREATE TRIGGER {table}_b_count AFTER UPDATE ON {table} FOR EACH ROW
  WHEN (NEW.version = OLD.version + 1 AND {guard.counting})
  EXECUTE FUNCTION milepost_count_{table}();"""


def _postgres_journalling_triggers(guard: Guard) -> str:
    table = guard.table
    return f"""\
CREATE TRIGGER {table}_journal_birth AFTER INSERT ON {table}
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_journal_birth();

CREATE TRIGGER {table}_journal_move AFTER UPDATE ON {table}
  REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_journal_move();"""


# SQLite

_SQLITE_NOW = (
    "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000"
    " + coalesce((SELECT offset_us FROM clock), 0)"
)
"""Never NULL: OR IGNORE would step over an entry without a time, and the move would stay."""

_FIXED_ROWID: Rule = ("NEW.rowid IS NOT OLD.rowid", "the rowid is fixed")


def _sqlite(guard: Guard) -> str:
    return "\n\n".join([_sqlite_refusals(guard), _sqlite_journal(guard)])


def _sqlite_refusals(guard: Guard) -> str:
    table = guard.table
    birth = [*_sqlite_identity(guard), *guard.birth_rules("sqlite")]
    change = guard.change_rules("sqlite")
    fixed = [_FIXED_ROWID, *guard.fixed_rules("sqlite")]
    say = f"RAISE(ABORT, 'milepost: {table}: {{}}')"
    return f"""\
-- RAISE, never a constraint: UPDATE OR IGNORE steps over constraints. Comparisons are IS NOT: under
-- OR REPLACE a NULL becomes the column's default only after these triggers have looked.
CREATE TRIGGER {table}_refuse_birth BEFORE INSERT ON {table}
  WHEN {_bad(birth)}
BEGIN
  SELECT
{_reason(birth, say, indent="    ")};
END;

{_sqlite_rowid(table)}

CREATE TRIGGER {table}_refuse_change BEFORE UPDATE ON {table}
  WHEN {_bad([_FIXED_ROWID, *change])}
BEGIN
  SELECT
{_reason([_FIXED_ROWID, *change], say, indent="    ")}{_sqlite_correction(guard)};
END;

CREATE TRIGGER {table}_refuse_fixed
  BEFORE UPDATE OF {", ".join(guard.fixed)} ON {table}
  WHEN {_bad(fixed)}
BEGIN
  SELECT
{_reason(fixed, say, indent="    ")};
END;

CREATE TRIGGER {table}_refuse_delete BEFORE DELETE ON {table}
  WHEN NOT ({guard.machine.terminal_sql("OLD.state")})
BEGIN
  SELECT RAISE(ABORT, 'milepost: {table}: only a final {table} may be deleted');
END;"""


def _sqlite_rowid(table: str) -> str:
    return f"""\
-- A negative rowid would hide in the guard above, where an absent one reads as -1.
CREATE TRIGGER {table}_refuse_rowid AFTER INSERT ON {table} WHEN NEW.rowid < 1
BEGIN
  SELECT RAISE(ABORT, 'milepost: {table}: rowids are positive');
END;"""


def _sqlite_identity(guard: Guard) -> list[Rule]:
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


def _sqlite_correction(guard: Guard) -> str:
    """Except the one change that is not a move: a counter put right, to what the journal says."""
    if not guard.counters:
        return ""
    kept = [name for name in guard.columns if name not in guard.counters]
    right = "\n     AND ".join(f"NEW.{name} IS {guard.recount(name)}" for name in guard.counters)
    return f"""
  WHERE NOT (NOT {changed("sqlite", [*kept, "rowid"])}
     AND {changed("sqlite", guard.counters)}
     AND {right})"""


def _sqlite_journal(guard: Guard) -> str:
    table = guard.table
    entry = "machine, subject_id, seq, move, from_state, to_state, at, actor, fence, detail"
    return f"""\
{_sqlite_journalled(table)}

CREATE TRIGGER {table}_journal_birth AFTER INSERT ON {table}
BEGIN
  INSERT INTO journal ({entry})
  VALUES ('{table}', NEW.id, NEW.version, NEW.move, NULL, NEW.state,
          {_SQLITE_NOW}, NEW.actor, NEW.fence, NEW.detail);
END;

CREATE TRIGGER {table}_journal_move AFTER UPDATE ON {table} WHEN NEW.version <> OLD.version
BEGIN
  INSERT INTO journal ({entry})
  VALUES ('{table}', NEW.id, NEW.version, NEW.move, OLD.state, NEW.state,
          {_SQLITE_NOW}, NEW.actor, NEW.fence, NEW.detail);{_sqlite_counting(guard)}
END;"""


def _sqlite_journalled(table: str) -> str:
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
CREATE TRIGGER {table}_refuse_unrecorded_birth AFTER INSERT ON {table} WHEN {missing}
BEGIN
  SELECT RAISE(ABORT, '{say}');
END;

CREATE TRIGGER {table}_refuse_unrecorded_move AFTER UPDATE OF version ON {table} WHEN {missing}
BEGIN
  SELECT RAISE(ABORT, '{say}');
END;"""


def _sqlite_counting(guard: Guard) -> str:
    if not guard.counters:
        return ""
    counts = ",\n         ".join(f"{name} = {guard.counted(name)}" for name in guard.counters)
    return f"""
  -- A move by hand that did not count itself is counted here.
  UPDATE {guard.table}
     SET {counts}
   WHERE id = NEW.id
     AND {guard.left_behind};"""


# The worker's row: enforced where it is shown, not journalled; a heartbeat is not a move.


def _worker_rules(dialect: str) -> tuple[list[Rule], list[Rule]]:
    born = WORKER.birth_sql(move="NEW.move", target="NEW.state")
    moved = WORKER.legal_sql(move="NEW.move", source="OLD.state", target="NEW.state")
    stirred, renewed = changed(dialect, ["state", "move"]), changed(dialect, ["lease_until"])
    over = WORKER.terminal_sql("OLD.state")
    return [(f"({born}) IS NOT TRUE", "a worker is born by boot, in STARTUP")], [
        (differs(dialect, "NEW.id", "OLD.id"), "these never change: id"),
        (
            f"({stirred} AND ({moved}) IS NOT TRUE)",
            "this move is not declared from this state to that one",
        ),
        (f"({over} AND {renewed})", "a stopped worker cannot renew its lease"),
    ]


def _worker_postgres() -> str:
    birth, change = _worker_rules("postgres")
    return f"""\
CREATE FUNCTION milepost_refuse_worker() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  reason text;
BEGIN
  IF TG_OP = 'INSERT' THEN
    reason := '{birth[0][1]}';
  ELSIF TG_OP = 'UPDATE' THEN
    reason :=
{_reason(change, "'{}'", indent="      ")};
  ELSE
    reason := 'only a stopped worker may be deleted';
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'MP001',
    MESSAGE = format('milepost: worker %s: %s', coalesce(NEW.id, OLD.id), reason),
    HINT = 'milepost machine worker shows every legal move';
END $$;

CREATE TRIGGER worker_a_refuse_birth AFTER INSERT ON worker FOR EACH ROW
  WHEN ({_bad(birth)})
  EXECUTE FUNCTION milepost_refuse_worker();

CREATE TRIGGER worker_a_refuse_change AFTER UPDATE ON worker FOR EACH ROW
  WHEN ({_bad(change)})
  EXECUTE FUNCTION milepost_refuse_worker();

CREATE TRIGGER worker_a_refuse_delete AFTER DELETE ON worker FOR EACH ROW
  WHEN (NOT ({WORKER.terminal_sql("OLD.state")}))
  EXECUTE FUNCTION milepost_refuse_worker();

CREATE TRIGGER worker_a_refuse_truncate BEFORE TRUNCATE ON worker FOR EACH STATEMENT
  EXECUTE FUNCTION milepost_refuse_hand();"""


def _worker_sqlite() -> str:
    birth, change = _worker_rules("sqlite")
    taken = (
        "(EXISTS (SELECT 1 FROM worker WHERE id = NEW.id)"
        " OR EXISTS (SELECT 1 FROM worker WHERE rowid = NEW.rowid))"
    )
    exists: Rule = (taken, "this id exists")
    birth, change = [exists, *birth], [_FIXED_ROWID, *change]
    return f"""\
CREATE TRIGGER worker_refuse_birth BEFORE INSERT ON worker
  WHEN {_bad(birth)}
BEGIN
  SELECT
{_reason(birth, "RAISE(ABORT, 'milepost: worker: {}')", indent="    ")};
END;

{_sqlite_rowid("worker")}

CREATE TRIGGER worker_refuse_change BEFORE UPDATE ON worker
  WHEN {_bad(change)}
BEGIN
  SELECT
{_reason(change, "RAISE(ABORT, 'milepost: worker: {}')", indent="    ")};
END;

CREATE TRIGGER worker_refuse_delete BEFORE DELETE ON worker
  WHEN NOT ({WORKER.terminal_sql("OLD.state")})
BEGIN
  SELECT RAISE(ABORT, 'milepost: worker: only a stopped worker may be deleted');
END;"""


_COMMON = [
    "id",
    "tenant",
    "kind",
    "kind_version",
    "queue",
    "priority",
    "state",
    "version",
    "move",
    "actor",
    "detail",
    "fence",
    "due_at",
    "created_at",
    "started_at",
    "finished_at",
    "deadline_at",
    "phase",
    "cause",
    "policy",
    "codec",
    "payload",
    "error",
    "tags",
    "unique_key",
    "trace",
    "channel",
    "parent_id",
    "rerun_of",
]
_LIVE_JOB = "state " + among(state.value for state in JOB.states if state.value in JOB.live)
_LIVE_RUN = "state " + among(state.value for state in RUN.states if state.value in RUN.live)


def _taken(table: str, live: str) -> Rule:
    # Under OR REPLACE a tenant of NULL becomes the default, and then finds its double.
    return (
        (
            f"NEW.unique_key IS NOT NULL AND EXISTS (SELECT 1 FROM {table}"
            f" WHERE tenant = coalesce(NEW.tenant, '') AND kind = NEW.kind"
            f" AND unique_key = NEW.unique_key AND {live})"
        ),
        "a live one has this unique key; look it up first",
    )


GUARDS = {
    "job": Guard(
        machine=JOB,
        columns=(
            *_COMMON,
            *[
                "worker_id",
                "queued_seq",
                "start_by",
                "errors",
                "losses",
                "polls",
                "releases",
                "retries",
                "poll_limit",
            ],
            *[
                "poison_limit",
                "timeout_us",
                "cancel_reason",
                "result",
                "limit_key",
                "run_id",
                "step",
                "ordinal",
            ],
        ),
        immutable=(
            "id",
            "tenant",
            "kind",
            "kind_version",
            "created_at",
            "codec",
            "retries",
            "poll_limit",
            "poison_limit",
            "timeout_us",
            "deadline_at",
            "start_by",
            "policy",
            "unique_key",
            "parent_id",
            "rerun_of",
            "run_id",
            "step",
            "ordinal",
        ),
        erasable=("payload", "result", "error"),
        counters={
            "errors": ("retry", "fail"),
            "losses": ("lose",),
            "polls": ("later",),
            "releases": ("release",),
        },
        leased=True,
        unique=(_taken("job", _LIVE_JOB),),
    ),
    "run": Guard(
        machine=RUN,
        columns=(
            *_COMMON,
            *[
                "current_step",
                "ending",
                "report",
                "mode",
                "watermark_before",
                "watermark_after",
                "resumes",
            ],
        ),
        immutable=(
            "id",
            "tenant",
            "kind",
            "kind_version",
            "created_at",
            "codec",
            "policy",
            "deadline_at",
            "unique_key",
            "parent_id",
            "rerun_of",
            "resumes",
        ),
        unique=(_taken("run", _LIVE_RUN),),
    ),
}


def fresh(name: str, dialect: str) -> str:
    """Render the triggers of one machine for one dialect."""
    if name == "worker":
        return _worker_sqlite() if lite(dialect) else _worker_postgres()
    return _sqlite(GUARDS[name]) if lite(dialect) else _postgres(GUARDS[name])
