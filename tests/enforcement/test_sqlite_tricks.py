"""What only SQLite offers a hand: conflict clauses, rowids, pragmas, triggers inside triggers."""

import pytest
from hands import assignments, everything, moved, put, refusal, subject, walks

from milepost.lifecycle import JOB
from tests.support.databases import Backends, Raw

JOB_ID, CHILD_ID = subject(1), subject(2)


@pytest.fixture
def lite(backends: Backends):
    with backends.fresh("sqlite").raw() as raw:
        put(raw, JOB, [JOB_ID], walks(JOB)["RUNNING"])
        yield raw


def moves_without_an_entry(raw: Raw) -> int:
    moves = raw.value("SELECT sum(version) FROM job")
    return int(moves - raw.value("SELECT count(*) FROM journal WHERE machine = 'job'"))


@pytest.mark.parametrize("word", ["IGNORE", "REPLACE", "FAIL"])
def test_a_move_is_journalled_even_when_the_clock_has_lost_its_row(lite: Raw, word: str):
    lite.execute("DELETE FROM clock")
    changes = assignments(JOB, "succeed", "SUCCEEDED")
    lite.execute(f"UPDATE OR {word} job SET {changes}")
    assert moves_without_an_entry(lite) == 0
    assert lite.value("SELECT at FROM journal WHERE move = 'succeed'") > 0


def test_a_clock_that_overflows_refuses_the_move(lite: Raw):
    lite.execute("UPDATE clock SET offset_us = 9223372036854775807")
    before = everything(lite)
    changes = assignments(JOB, "succeed", "SUCCEEDED")
    assert refusal(lite, f"UPDATE OR IGNORE job SET {changes}") is not None
    assert everything(lite) == before


FOLLOW = (
    "UPDATE job SET move = 'note', version = version + 1 WHERE id = NEW.subject_id"
    " AND NEW.move = 'note' AND version < 6"
)
BEAR = f"INSERT INTO job (id, kind, state, move) SELECT '{CHILD_ID}', 'k', 'QUEUED', 'create'"


@pytest.mark.parametrize("recursive", ["OFF", "ON"])
def test_a_move_made_by_a_trigger_on_the_journal_is_journalled_or_refused(
    lite: Raw, recursive: str
):
    lite.execute(f"PRAGMA recursive_triggers = {recursive}")
    lite.execute(f"CREATE TRIGGER follow AFTER INSERT ON journal BEGIN {FOLLOW}; END")
    before = everything(lite)

    said = refusal(lite, moved(JOB, [JOB_ID], "note", "RUNNING"))

    assert moves_without_an_entry(lite) == 0
    if recursive == "ON":
        assert said is None
        assert lite.value("SELECT version FROM job") == 6
    else:
        assert "recursive_triggers = ON" in (said or "")
        assert everything(lite) == before


def test_a_row_created_by_a_trigger_on_a_creations_entry_is_journalled_or_refused(lite: Raw):
    lite.execute("CREATE TABLE mine (id TEXT)")
    lite.execute(
        "CREATE TRIGGER tell AFTER INSERT ON journal WHEN NEW.move = 'create'"
        " BEGIN INSERT INTO mine VALUES (NEW.subject_id); END"
    )
    lite.execute(
        f"CREATE TRIGGER bear AFTER INSERT ON mine WHEN NEW.id <> '{CHILD_ID}' BEGIN {BEAR}; END"
    )
    before = everything(lite)
    said = refusal(
        lite,
        f"INSERT INTO job (id, kind, state, move) VALUES ('{subject(3)}', 'k', 'QUEUED', 'create')",
    )
    assert "milepost:" in (said or "")
    assert everything(lite) == before


@pytest.mark.parametrize("temporary", ["", "TEMP"])
def test_an_entry_that_is_swallowed_takes_its_move_with_it(lite: Raw, temporary: str):
    lite.execute(
        f"CREATE {temporary} TRIGGER swallow BEFORE INSERT ON journal"
        " BEGIN SELECT RAISE(IGNORE); END"
    )
    before = everything(lite)
    assert "milepost:" in (refusal(lite, moved(JOB, [JOB_ID], "note", "RUNNING")) or "")
    assert everything(lite) == before


def test_a_temporary_table_does_not_stand_in_for_the_journal(lite: Raw):
    lite.execute("CREATE TEMP TABLE journal AS SELECT * FROM main.journal WHERE false")
    lite.execute(moved(JOB, [JOB_ID], "note", "RUNNING"))
    assert lite.value("SELECT count(*) FROM temp.journal") == 0
    assert lite.value("SELECT count(*) FROM main.journal WHERE move = 'note'") == 1


@pytest.mark.parametrize("alias", ["rowid", "_rowid_", "oid"])
def test_a_rowid_cannot_be_moved_onto_another_row(lite: Raw, alias: str):
    put(lite, JOB, [CHILD_ID], (("create", "QUEUED"), ("cancel", "CANCELLED")))
    before = everything(lite)
    for word in ("", "OR REPLACE", "OR IGNORE"):
        for changes in (f"{alias} = 1", f"{alias} = 1, move = 'erase', version = version + 1"):
            said = refusal(lite, f"UPDATE {word} job SET {changes} WHERE id = '{CHILD_ID}'")
            assert "milepost:" in (said or "")
    assert everything(lite) == before


@pytest.mark.parametrize("value", ["'4'", "4.0", "'4.0'"])
def test_a_version_in_other_clothes_is_the_same_version(lite: Raw, value: str):
    put(lite, JOB, [CHILD_ID], walks(JOB)["RUNNING"])
    lite.execute(f"UPDATE job SET move = 'note', version = {value} - 1 WHERE id = '{CHILD_ID}'")
    assert lite.value(f"SELECT typeof(version) FROM job WHERE id = '{CHILD_ID}'") == "integer"
    assert moves_without_an_entry(lite) == 0


@pytest.mark.parametrize("value", ["2.5", "'three'", "x'03'"])
def test_a_version_that_is_no_whole_number_is_refused(lite: Raw, value: str):
    before = everything(lite)
    for word in ("", "OR IGNORE", "OR REPLACE"):
        said = refusal(lite, f"UPDATE {word} job SET move = 'note', version = {value}")
        assert said is not None
    assert everything(lite) == before
