"""Every rule a hand could break, and every way of writing the statement that breaks it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product

from hands import subject

from milepost.lifecycle import JOB, RUN, WORKER
from milepost.machine import Machine
from tools.triggers import GUARDS

STATE_IDS = {
    machine.name: {state.value: subject(base + n) for n, state in enumerate(machine.states)}
    for base, machine in ((0x100, JOB), (0x200, RUN), (0x300, WORKER))
}
TWIN, PRUNED, ABSENT = subject(0x400), subject(0x401), subject(0x402)
"""A live job with a unique key; a final one that was deleted; an id that nobody has."""


@dataclass(frozen=True)
class Script:
    """One attempt, with what must be done before and undone after."""

    attempt: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """A SET that breaks a rule, on a row in some state; `{t}` stands for the row's name."""

    rule: str
    table: str
    state: str
    changes: str
    null: bool = False

    @property
    def id(self) -> str:
        return STATE_IDS[self.table][self.state]

    def set(self, name: str | None = None) -> str:
        return self.changes.format(t=name or self.table)


@dataclass(frozen=True)
class BadInsert:
    """A row that must not be created: what differs from a lawful one."""

    rule: str
    wrong: Mapping[str, str] = field(default_factory=dict)
    table: str = "job"
    collides: bool = False
    null: bool = False
    dialects: tuple[str, ...] = ("sqlite", "postgres")

    def values(self, **others: str) -> dict[str, str]:
        lawful = {"id": f"'{ABSENT}'", "kind": "'k'", "state": "'QUEUED'", "move": "'create'"}
        return {**lawful, **others, **self.wrong}


GROWN = "version = {t}.version + 1"


def _refused_changes() -> list[Change]:
    job = [
        ("an undeclared move", "QUEUED", f"state = 'SUCCEEDED', move = 'succeed', {GROWN}"),
        ("an unknown move", "QUEUED", f"state = 'READY', move = 'grab', {GROWN}"),
        ("an unknown state", "QUEUED", f"state = 'DONE', move = 'dispatch', {GROWN}"),
        ("a creation again", "CREATED", f"state = 'QUEUED', move = 'create', {GROWN}"),
        ("a state without a version", "QUEUED", "state = 'READY', move = 'undispatch'"),
        ("a state alone", "QUEUED", "state = 'READY'"),
        ("a version by two", "QUEUED", "state = 'READY', move = 'undispatch', version = 3"),
        ("a version back", "RUNNING", "move = 'note', version = {t}.version - 1"),
        ("a version alone", "QUEUED", GROWN),
        ("no change at all", "QUEUED", "state = {t}.state"),
        ("a detail without a move", "RUNNING", "detail = 'x'"),
        ("a way out of a final state", "FAILED", f"state = 'QUEUED', move = 'due', {GROWN}"),
        ("a note on a final row", "SUCCEEDED", f"move = 'note', {GROWN}"),
        ("a detail on a final row", "CANCELLED", "detail = 'x'"),
        ("an erasure of a live row", "QUEUED", f"move = 'erase', {GROWN}"),
        ("an erasure that moves", "FAILED", f"move = 'erase', queue = 'q', {GROWN}"),
        ("an erasure that writes", "FAILED", f"move = 'erase', error = 'x', {GROWN}"),
        ("an erasure that counts", "FAILED", f"move = 'erase', errors = 9, {GROWN}"),
        (
            "running without a worker",
            "QUEUED",
            f"state = 'RUNNING', move = 'claim', {GROWN}, fence = {{t}}.fence + 1",
        ),
        (
            "a worker without running",
            "QUEUED",
            f"state='READY', move='undispatch', {GROWN}, worker_id='w'",
        ),
        ("a worker kept after the end", "RUNNING", f"state = 'FAILED', move = 'fail', {GROWN}"),
        ("another worker", "RUNNING", f"move = 'note', {GROWN}, worker_id = 'other'"),
        ("no worker", "RUNNING", f"move = 'note', {GROWN}, worker_id = NULL"),
        ("a fence by a note", "RUNNING", f"move = 'note', {GROWN}, fence = {{t}}.fence + 1"),
        ("a fence back", "RUNNING", f"move = 'note', {GROWN}, fence = 0"),
        (
            "a fence by two",
            "QUEUED",
            f"state='RUNNING', move='claim', {GROWN}, worker_id='w', fence = {{t}}.fence + 2",
        ),
        (
            "a claim without a fence",
            "QUEUED",
            f"state='RUNNING', move='claim', {GROWN}, worker_id='w'",
        ),
        ("errors by a note", "RUNNING", f"move = 'note', {GROWN}, errors = {{t}}.errors + 1"),
        (
            "errors by two",
            "RUNNING",
            f"state='RETRYING', move='retry', {GROWN}, worker_id=NULL, errors = {{t}}.errors + 2",
        ),
        (
            "the wrong counter",
            "RUNNING",
            f"state='WAITING', move='later', {GROWN}, worker_id=NULL, losses = {{t}}.losses + 1",
        ),
        ("errors forgiven", "RETRYING", f"state='QUEUED', move='due', {GROWN}, errors = -1"),
        ("errors alone", "RETRYING", "errors = 7"),
    ]
    run = [
        ("an undeclared move", "CREATED", f"state = 'RUNNING', move = 'begin', {GROWN}"),
        ("a state alone", "CREATED", "state = 'QUEUED'"),
        ("a version by two", "CREATED", "state = 'QUEUED', move = 'seal', version = 3"),
        ("a way out of a final state", "SUCCEEDED", f"state='RUNNING', move='begin', {GROWN}"),
        ("a detail on a final row", "CANCELLED", "detail = 'x'"),
        ("an erasure, which runs have not", "FAILED", f"move = 'erase', {GROWN}"),
        ("a fence", "RUNNING", f"move = 'advance', {GROWN}, fence = 1"),
    ]
    return [
        *(Change(rule, "job", state, changes) for rule, state, changes in job),
        *(Change(rule, "run", state, changes) for rule, state, changes in run),
    ]


NULLS = [
    *(
        Change(f"{name} = NULL", table, "RUNNING", f"{changes}, {name} = NULL", null=True)
        for table, move in (("job", "note"), ("run", "advance"))
        for name in ("version", "move", "state", "fence", "created_at", "tenant", "kind_version")
        for changes in (
            ", ".join(part for part in (f"move = '{move}'", GROWN) if part.split()[0] != name),
        )
    ),
    *(
        Change(
            f"{name} = NULL", "job", "RUNNING", f"move = 'note', {GROWN}, {name} = NULL", null=True
        )
        for name in GUARDS["job"].counters
    ),
    *(
        Change(f"only {name} = NULL", "job", state, f"{name} = NULL", null=True)
        for state in ("RETRYING", "FAILED")
        for name in (*GUARDS["job"].counters, "version", "state", "queue")
    ),
    Change(
        "a retry with errors = NULL",
        "job",
        "RUNNING",
        f"state='RETRYING', move='retry', {GROWN}, worker_id=NULL, errors = NULL",
        null=True,
    ),
]

_OTHER = {
    "created_at": "{time}",
    "deadline_at": "{time}",
    "start_by": "{time}",
    "payload": "{bytes}",
    "tags": "'[1]'",
}
_IDS = ("id", "parent_id", "rerun_of", "origin_id", "run_id", "resumes")
_OTHER |= dict.fromkeys(_IDS, f"'{ABSENT}'")
_TEXTS = ("tenant", "kind", "queue", "codec", "policy", "unique_key", "limit_key", "params_key")
_OTHER |= dict.fromkeys(_TEXTS, "'other'")
_LITERALS = {
    "postgres": {"time": "timestamptz '2001-01-01'", "bytes": "'\\x79'::bytea"},
    "sqlite": {"time": "1", "bytes": "x'79'"},
}


def immutable_changes(dialect: str) -> list[Change]:
    """Change each fixed column by an otherwise lawful move."""
    found = []
    for table, move in (("job", "note"), ("run", "advance")):
        for name in GUARDS[table].fixed:
            other = _OTHER.get(name, f"coalesce({{{{t}}}}.{name}, 0) + 1")
            value = other.format(**_LITERALS[dialect])
            changes = f"move = '{move}', {GROWN}, {name} = {value}"
            found.append(Change(f"{name} is fixed", table, "RUNNING", changes))
    return found


def changes(dialect: str) -> list[Change]:
    """Return every SET that must be refused."""
    return [*_refused_changes(), *NULLS, *immutable_changes(dialect)]


# How a change may be written.

Writing = Callable[[Change], Script]


def _updates(words: str = "UPDATE", **script: tuple[str, ...]) -> Writing:
    return lambda c: Script(f"{words} {c.table} SET {c.set()} WHERE id = '{c.id}'", **script)


def _upsert(c: Change) -> Script:
    return Script(
        f"INSERT INTO {c.table} (id, kind, state, move) VALUES ('{c.id}', 'k', 'QUEUED', 'create')"
        f" ON CONFLICT (id) DO UPDATE SET {c.set()}"
    )


def _from(c: Change) -> Script:
    named = "(SELECT CAST('{}' AS {}) AS name) AS named"
    kind = "uuid" if c.table in ("job", "run") else "text"
    return Script(
        f"UPDATE {c.table} SET {c.set()} FROM {named.format(c.id, kind)}"
        f" WHERE {c.table}.id = named.name"
    )


def _sqlite_from(c: Change) -> Script:
    return Script(
        f"UPDATE {c.table} SET {c.set()} FROM (SELECT '{c.id}' AS name) AS named"
        f" WHERE {c.table}.id = named.name"
    )


def _own_trigger_sqlite(c: Change) -> Script:
    return Script(
        "INSERT INTO mine (statement) VALUES ('')",
        before=(
            (
                f"CREATE TRIGGER mine_acts AFTER INSERT ON mine BEGIN"
                f" UPDATE {c.table} SET {c.set()} WHERE id = '{c.id}'; END"
            ),
        ),
        after=("DROP TRIGGER mine_acts",),
    )


CHANGE_WRITINGS: dict[str, dict[str, Writing]] = {
    "postgres": {
        "plain": _updates(),
        "only": _updates("UPDATE ONLY"),
        "from": _from,
        "upsert": _upsert,
        "writable cte": lambda c: Script(
            f"WITH made AS (UPDATE {c.table} SET {c.set()} WHERE id = '{c.id}' RETURNING id)"
            " SELECT count(*) FROM made"
        ),
        "merge": lambda c: Script(
            f"MERGE INTO {c.table} USING (SELECT 1) AS one ON {c.table}.id = '{c.id}'"
            f" WHEN MATCHED THEN UPDATE SET {c.set()}"
        ),
        "view": lambda c: Script(
            f"UPDATE {c.table}_seen SET {c.set(f'{c.table}_seen')} WHERE id = '{c.id}'"
        ),
        "block": lambda c: Script(
            f"DO $$ BEGIN UPDATE {c.table} SET {c.set()} WHERE id = '{c.id}'; END $$"
        ),
        "own trigger": lambda c: Script(
            f"INSERT INTO mine (statement) VALUES"
            f" ($$UPDATE {c.table} SET {c.set()} WHERE id = '{c.id}'$$)"
        ),
    },
    "sqlite": {
        "plain": _updates(),
        **{
            f"or {word}": _updates(f"UPDATE OR {word.upper()}")
            for word in ("abort", "replace", "ignore", "fail", "rollback")
        },
        "from": _sqlite_from,
        "upsert": _upsert,
        "cte": lambda c: Script(
            f"WITH named AS (SELECT '{c.id}') UPDATE {c.table} SET {c.set()} WHERE id IN named"
        ),
        "rowid": lambda c: Script(
            f"UPDATE OR REPLACE {c.table} SET {c.set()}"
            f" WHERE rowid = (SELECT rowid FROM {c.table} WHERE id = '{c.id}')"
        ),
        "own trigger": _own_trigger_sqlite,
        "recursive triggers": _updates(
            "UPDATE OR REPLACE",
            before=("PRAGMA recursive_triggers = ON",),
            after=("PRAGMA recursive_triggers = OFF",),
        ),
        "ignored checks": _updates(
            "UPDATE OR IGNORE",
            before=("PRAGMA ignore_check_constraints = ON",),
            after=("PRAGMA ignore_check_constraints = OFF",),
        ),
    },
}

# Creation.

INSERTS = [
    *(
        BadInsert(f"created {state.value}", {"state": f"'{state.value}'"})
        for state in JOB.states
        if state.value not in JOB.initial
    ),
    *(
        BadInsert(f"a run created {state.value}", {"state": f"'{state.value}'"}, "run")
        for state in RUN.states
        if state.value not in RUN.initial
    ),
    BadInsert("created by another move", {"move": "'submit'"}),
    BadInsert("created unknown", {"state": "'DONE'"}),
    BadInsert("version 2", {"version": "2"}),
    BadInsert("version 0", {"version": "0"}, "run"),
    BadInsert("version NULL", {"version": "NULL"}, null=True),
    BadInsert("fence 1", {"fence": "1"}),
    BadInsert("a run's fence 1", {"fence": "1"}, "run"),
    BadInsert("fence NULL", {"fence": "NULL"}, null=True),
    BadInsert("created with a worker", {"worker_id": "'w'"}),
    *(BadInsert(f"created with {name}", {name: "1"}) for name in GUARDS["job"].counters),
    BadInsert("errors NULL", {"errors": "NULL"}, null=True),
    BadInsert("no id", {"id": "NULL"}, null=True),
    BadInsert("no state", {"state": "NULL"}, null=True),
    BadInsert("no move", {"move": "NULL"}, null=True),
    *(
        BadInsert(f"the id of a {state} job", {"id": f"'{name}'"}, collides=True)
        for state, name in STATE_IDS["job"].items()
    ),
    *(
        BadInsert(f"the id of a {state} run", {"id": f"'{name}'"}, "run", collides=True)
        for state, name in STATE_IDS["run"].items()
    ),
    BadInsert("the id of a deleted job", {"id": f"'{PRUNED}'"}, collides=True),
    BadInsert("a taken unique key", {"unique_key": "'u'"}, collides=True),
    BadInsert(
        "a taken unique key under a default tenant",
        {"unique_key": "'u'", "tenant": "NULL"},
        collides=True,
        null=True,
    ),
    BadInsert("an id that is no UUID", {"id": "'x'"}, null=True),
    BadInsert("an id in upper case", {"id": f"'{ABSENT.upper()}'"}, dialects=("sqlite",)),
    BadInsert("an id with a tail", {"id": f"'{ABSENT}' || char(0) || 'x'"}, dialects=("sqlite",)),
    BadInsert(
        "the rowid of another",
        {"rowid": f"(SELECT rowid FROM job WHERE id = '{TWIN}')"},
        dialects=("sqlite",),
    ),
    BadInsert("a rowid below one", {"rowid": "-1"}, dialects=("sqlite",)),
]
_LAWFUL = {"version": "1", "fence": "0", "worker_id": "NULL", "unique_key": "NULL", "tenant": "''"}
_LAWFUL |= {**dict.fromkeys(GUARDS["job"].counters, "0"), "rowid": "NULL"}

Writing = Callable[[BadInsert], str]


def _insert(values: Mapping[str, str], table: str, words: str = "INSERT INTO") -> str:
    return f"{words} {table} ({', '.join(values)}) VALUES ({', '.join(values.values())})"


def _inserts(words: str = "INSERT INTO", tail: str = "") -> Writing:
    return lambda b: _insert(b.values(), b.table, words) + tail


def _amid_others(b: BadInsert) -> str:
    bad = b.values()
    rows = [
        {name: _LAWFUL.get(name, value) for name, value in bad.items()}
        | {"id": f"'{subject(0x500 + n)}'", "state": "'QUEUED'", "move": "'create'"}
        for n in range(2)
    ]
    listed = ", ".join(f"({', '.join(row.values())})" for row in (rows[0], bad, rows[1]))
    return f"INSERT INTO {b.table} ({', '.join(bad)}) VALUES {listed}"


INSERT_WRITINGS: dict[str, dict[str, Writing]] = {
    "postgres": {
        "plain": _inserts(),
        "do nothing": _inserts(tail=" ON CONFLICT DO NOTHING"),
        "do update": _inserts(tail=" ON CONFLICT (id) DO UPDATE SET detail = 'x'"),
        "amid others": _amid_others,
        "writable cte": lambda b: (
            f"WITH made AS ({_insert(b.values(), b.table)} RETURNING id) SELECT * FROM made"
        ),
        "merge": lambda b: (
            f"MERGE INTO {b.table} USING (SELECT 1) AS one ON false WHEN NOT MATCHED THEN"
            f" INSERT ({', '.join(b.values())}) VALUES ({', '.join(b.values().values())})"
        ),
        "delete and insert": lambda b: (
            f"WITH gone AS (DELETE FROM {b.table} WHERE id::text = {b.values()['id']})"
            f" {_insert(b.values(), b.table)}"
        ),
        "own trigger": lambda b: (
            f"INSERT INTO mine (statement) VALUES ($${_insert(b.values(), b.table)}$$)"
        ),
    },
    "sqlite": {
        "plain": _inserts(),
        **{
            f"or {word}": _inserts(f"INSERT OR {word.upper()} INTO")
            for word in ("abort", "replace", "ignore", "fail", "rollback")
        },
        "replace": _inserts("REPLACE INTO"),
        "do nothing": _inserts(tail=" ON CONFLICT DO NOTHING"),
        "do update": _inserts(tail=" ON CONFLICT (id) DO UPDATE SET detail = 'x'"),
        "amid others": _amid_others,
        "select": lambda b: (
            f"INSERT OR IGNORE INTO {b.table} ({', '.join(b.values())})"
            f" SELECT {', '.join(b.values().values())}"
        ),
    },
}


def deletions(dialect: str, machine: Machine) -> list[str]:
    """Delete each live row in every way, and all rows at once."""
    table = machine.name
    ways = ["DELETE FROM {t} WHERE id = '{id}'"]
    if dialect == "postgres":
        ways += [
            "DELETE FROM ONLY {t} WHERE id = '{id}'",
            "DELETE FROM {t} USING (SELECT 1) AS one WHERE id = '{id}'",
            "WITH gone AS (DELETE FROM {t} WHERE id = '{id}' RETURNING id) SELECT * FROM gone",
            "MERGE INTO {t} USING (SELECT 1) AS one ON {t}.id = '{id}' WHEN MATCHED THEN DELETE",
            "INSERT INTO mine (statement) VALUES ($$DELETE FROM {t} WHERE id = '{id}'$$)",
        ]
    else:
        ways.append("WITH named AS (SELECT '{id}') DELETE FROM {t} WHERE id IN named")
    live = [name for state, name in STATE_IDS[table].items() if state in machine.live]
    each = [way.format(t=table, id=name) for way, name in product(ways, live)]
    return [*each, f"DELETE FROM {table}"]


def tampering(dialect: str) -> list[str]:
    """Lay a hand on the journal in every way."""
    names = "subject_id, machine, seq, at, fence, move, from_state, to_state"
    at = "now()" if dialect == "postgres" else "1"
    live = STATE_IDS["job"]["RUNNING"]
    entries = [
        f"'{live}', 'job', 1, {at}, 0, 'create', NULL, 'QUEUED'",  # is there already
        f"'{live}', 'job', 2, {at}, 1, 'claim', 'QUEUED', 'RUNNING'",  # the row's own last entry
        f"'{live}', 'job', 3, {at}, 1, 'note', 'RUNNING', 'RUNNING'",  # what might come next
        f"'{ABSENT}', 'job', 1, {at}, 0, 'create', NULL, 'QUEUED'",
        f"'{PRUNED}', 'job', 9, {at}, 0, 'erase', 'CANCELLED', 'CANCELLED'",
        f"'{ABSENT}', 'planet', 1, {at}, 0, 'create', NULL, 'QUEUED'",
    ]
    tables = ("journal", "journal_default") if dialect == "postgres" else ("journal",)
    inserts = [f"INSERT INTO {t} ({names}) VALUES ({e})" for t in tables for e in entries]
    edits = [
        text.format(t=t)
        for t in tables
        for text in (
            "UPDATE {t} SET detail = 'x'",
            "UPDATE {t} SET seq = seq + 100",
            "UPDATE {t} SET move = 'snapshot', from_state = NULL, detail = '{{}}'",
            f"UPDATE {{t}} SET move = 'note' WHERE subject_id = '{live}' AND seq = 2",
            "DELETE FROM {t}",
            f"DELETE FROM {{t}} WHERE subject_id = '{PRUNED}'",
        )
    ]
    upserts = [
        f"{insert} ON CONFLICT (subject_id, machine, seq) DO UPDATE SET detail = 'x'"
        for insert in inserts
    ]
    if dialect == "sqlite":
        words = [f"INSERT OR {w} INTO" for w in ("REPLACE", "IGNORE", "FAIL", "ROLLBACK")]
        others = [i.replace("INSERT INTO", w) for i in inserts for w in (*words, "REPLACE INTO")]
        others += [e.replace("UPDATE", "UPDATE OR REPLACE") for e in edits if "UPDATE" in e]
        return [*inserts, *edits, *upserts, *others]
    others = [f"INSERT INTO mine (statement) VALUES ($${text}$$)" for text in (*inserts, *edits)]
    others += [f"TRUNCATE {t}" for t in (*tables, "job", "run CASCADE", "worker")]
    others += [
        f"WITH made AS ({inserts[2]} RETURNING 1) SELECT * FROM made",
        f"DO $$ BEGIN {inserts[2]}; END $$",
        (
            f"MERGE INTO journal USING (SELECT 1) AS one ON false"
            f" WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({entries[2]})"
        ),
    ]
    return [*inserts, *edits, *upserts, *others]
