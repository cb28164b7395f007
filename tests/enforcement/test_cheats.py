"""No hand gets past the triggers, whatever it writes: each cheat is refused and leaves no trace."""

from collections.abc import Iterator
from typing import Any

import pytest
from cheats import (
    CHANGE_WRITINGS,
    INSERT_WRITINGS,
    INSERTS,
    PRUNED,
    STATE_IDS,
    TWIN,
    changes,
    deletions,
    tampering,
)
from hands import everything, moved, put, refusal, walks

from milepost.lifecycle import JOB, RUN, WORKER
from tests.support.databases import Backends, Raw, alike, everyday_names, proof

OWN_TABLE = {
    "postgres": [
        "CREATE TABLE mine (statement text)",
        (
            "CREATE FUNCTION mine_acts() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN EXECUTE NEW.statement; RETURN NULL; END $$"
        ),
        "CREATE TRIGGER mine_acts AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION mine_acts()",
        "CREATE VIEW job_seen AS SELECT * FROM job",
        "CREATE VIEW run_seen AS SELECT * FROM run",
    ],
    "sqlite": ["CREATE TABLE mine (statement text)"],
}


@pytest.fixture(scope="module", params=alike())
def stage(request: pytest.FixtureRequest, backends: Backends) -> Iterator[Raw]:
    """A store with a row in every state. Cheats share it: none of them may leave a trace."""
    with backends.fresh(request.param).raw() as raw:
        for machine in (JOB, RUN, WORKER):
            for state, walk in walks(machine).items():
                put(raw, machine, [STATE_IDS[machine.name][state]], walk)
        raw.execute(
            "INSERT INTO job (id, kind, state, move, unique_key)"
            f" VALUES ('{TWIN}', 'k', 'QUEUED', 'create', 'u')"
        )
        put(raw, JOB, [PRUNED], (("create", "QUEUED"), ("cancel", "CANCELLED")))
        raw.execute(f"DELETE FROM job WHERE id = '{PRUNED}'")
        for statement in OWN_TABLE[raw.dialect]:
            raw.execute(statement)
        yield raw


Rows = dict[str, list[Any]]
OURS = ("milepost:",)
# PostgreSQL's own constraints may speak before our triggers do.
ANYBODYS = (*OURS, "null value", "duplicate key", "invalid input syntax for type uuid")


def verdict(
    raw: Raw,
    statement: str,
    *,
    before: Rows | None = None,
    said: tuple[str, ...] = OURS,
    may_pass: bool = False,
) -> str | None:
    """Try a cheat; return what went wrong, or nothing when it was refused without a trace.

    `before` is what the store holds, where that is known: it takes longer to read than to try.
    """
    before = before or everything(raw)
    words = refusal(raw, statement)
    if everything(raw) != before:
        return "it changed something"
    if words is None:
        return None if may_pass else "it was not refused"
    return None if any(word in words for word in said) else f"it was refused with {words!r}"


def writings(table: dict[str, dict[str, object]]) -> list[object]:
    """Pair every backend with its dialect's ways of writing."""
    return [
        pytest.param(backend, way, id=f"{backend}-{way.replace(' ', '_')}", marks=proof(backend))
        for backend in everyday_names()
        for way in table["sqlite" if backend == "sqlite" else "postgres"]
    ]


@pytest.mark.parametrize(("stage", "writing"), writings(CHANGE_WRITINGS), indirect=["stage"])
def test_no_illegal_change_gets_through_written_as(stage: Raw, writing: str):
    dialect, got_through, before = stage.dialect, {}, everything(stage)
    for change in changes(dialect):
        script = CHANGE_WRITINGS[dialect][writing](change)
        for statement in script.before:
            stage.execute(statement)
        said = ANYBODYS if change.null and dialect == "postgres" else OURS
        wrong = verdict(stage, script.attempt, before=before, said=said)
        for statement in script.after:
            stage.execute(statement)
        if wrong:
            got_through[f"{change.table}: {change.rule}"] = (wrong, script.attempt)
            before = everything(stage)
    assert got_through == {}


@pytest.mark.parametrize(("stage", "writing"), writings(INSERT_WRITINGS), indirect=["stage"])
def test_no_illegal_insert_gets_through_written_as(stage: Raw, writing: str):
    dialect, got_through, before = stage.dialect, {}, everything(stage)
    for creation in INSERTS:
        if dialect not in creation.dialects:
            continue
        attempt = INSERT_WRITINGS[dialect][writing](creation)
        own_words = dialect == "postgres" and (creation.null or creation.collides)
        # PostgreSQL does nothing where it was asked to do nothing.
        may_pass = dialect == "postgres" and creation.collides and writing == "do nothing"
        said = ANYBODYS if own_words else OURS
        wrong = verdict(stage, attempt, before=before, said=said, may_pass=may_pass)
        if wrong:
            got_through[creation.rule] = (wrong, attempt)
            before = everything(stage)
    assert got_through == {}


@pytest.mark.parametrize("machine", [JOB, RUN, WORKER], ids=lambda machine: machine.name)
def test_no_live_row_can_be_deleted(stage: Raw, machine):
    before = everything(stage)
    texts = deletions(stage.dialect, machine)
    wrong = {text: verdict(stage, text, before=before) for text in texts}
    assert {text: why for text, why in wrong.items() if why} == {}


def test_no_hand_but_the_triggers_touches_the_journal(stage: Raw):
    before = everything(stage)
    wrong = {text: verdict(stage, text, before=before) for text in tampering(stage.dialect)}
    assert {text: why for text, why in wrong.items() if why} == {}


def test_one_illegal_row_in_the_middle_refuses_the_whole_statement(stage: Raw):
    # Every job is cancelled, the final ones among them too: those may not.
    words = ["UPDATE"]
    if stage.dialect == "sqlite":
        words += [
            f"UPDATE OR {word}" for word in ("FAIL", "IGNORE", "REPLACE", "ROLLBACK", "ABORT")
        ]
    for word in words:
        statement = (
            f"{word} job SET state = 'CANCELLED', move = 'cancel', version = version + 1,"
            " worker_id = NULL"
        )
        assert verdict(stage, statement) is None


def test_a_refused_statement_leaves_the_rest_of_its_transaction_whole(stage: Raw):
    queued = STATE_IDS["job"]["QUEUED"]
    before = everything(stage)
    stage.execute("BEGIN")
    stage.execute(moved(JOB, [queued], "undispatch", "READY"))
    halfway = everything(stage)
    stage.execute("SAVEPOINT tried")
    assert "milepost:" in (refusal(stage, moved(JOB, [queued], "succeed", "SUCCEEDED")) or "")
    stage.execute("ROLLBACK TO SAVEPOINT tried")
    assert everything(stage) == halfway
    stage.execute("ROLLBACK")
    assert everything(stage) == before


def test_a_worker_row_cannot_be_bent(stage: Raw):
    idle, stopped = STATE_IDS["worker"]["IDLE"], STATE_IDS["worker"]["STOPPED"]
    cheats = [
        f"UPDATE worker SET state = 'POLLING' WHERE id = '{idle}'",
        f"UPDATE worker SET move = 'poll' WHERE id = '{idle}'",
        f"UPDATE worker SET state = 'POLLING', move = 'poll' WHERE id = '{idle}'",
        f"UPDATE worker SET id = 'other' WHERE id = '{idle}'",
        f"UPDATE worker SET state = 'STARTUP', move = 'boot' WHERE id = '{stopped}'",
        f"UPDATE worker SET lease_until = {stage.now} WHERE id = '{stopped}'",
        "INSERT INTO worker (id, state, move) VALUES ('new', 'POLLING', 'poll')",
        "INSERT INTO worker (id, state, move) VALUES ('new', 'STARTUP', 'connect')",
    ]
    if stage.dialect == "sqlite":
        created = f"INTO worker (id, state, move) VALUES ('{idle}', 'STARTUP', 'boot')"
        rowid = f"(SELECT rowid FROM worker WHERE id = '{idle}')"
        cheats += [
            c.replace("UPDATE", f"UPDATE OR {w}", 1)
            for c in cheats[:6]
            for w in ("REPLACE", "IGNORE")
        ]
        cheats += [
            *(f"{word} {created}" for word in ("INSERT", "INSERT OR REPLACE", "INSERT OR IGNORE")),
            f"REPLACE {created}",
            f"REPLACE INTO worker (rowid, id, state, move) SELECT {rowid}, 'n', 'STARTUP', 'boot'",
            f"UPDATE OR REPLACE worker SET rowid = {rowid} WHERE id = '{stopped}'",
            "INSERT INTO worker (rowid, id, state, move) VALUES (-1, 'n', 'STARTUP', 'boot')",
            f"UPDATE OR REPLACE worker SET state = NULL WHERE id = '{idle}'",
        ]
    wrong = {text: verdict(stage, text) for text in cheats}
    assert {text: why for text, why in wrong.items() if why} == {}
