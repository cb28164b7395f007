"""Queries are found in the file of their subject, and spelled for every driver."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from milepost import Invalid
from milepost.lifecycle import GROUPS, JOB, MACHINES, RUN, group_sql
from milepost.records import Claim, Job, NewStep, Pinned, Run
from milepost.store import catalog
from milepost.store.columns import CONDITIONS, columns, reader

SQL = Path(str(files("milepost.sql")))
SUBJECTS = sorted(SQL.glob("*.sql"))
EXPLAINED = (SQL / "README.md").read_text()


def test_both_databases_take_the_same_parameters():
    for name in sorted(catalog.names()):
        spellings = [catalog.query(name, dialect) for dialect in catalog.DIALECTS]
        taken = [
            {*query.shared, *(row.rstrip("*") for row in query.rows)}
            for query in spellings
            if not query.idle
        ]
        assert taken, f"{name} does nothing anywhere"
        assert taken[0] == taken[-1], name


def test_parameters_are_rewritten_and_nothing_else_is():
    query = catalog.spelled("SELECT ':a', \"b:c\", :one::text, 5 % :two -- :no\n, :one")
    assert query.parameters == ("one", "two")
    assert query.numbered == "SELECT ':a', \"b:c\", $1::text, 5 % $2 -- :no\n, $1"
    assert query.format == "SELECT ':a', \"b:c\", %(one)s::text, 5 %% %(two)s -- :no\n, %(one)s"


def test_comments_before_a_statement_are_not_sent():
    for name in catalog.names():
        for dialect in catalog.DIALECTS:
            texts = catalog.query(name, dialect).texts
            assert not [text for text in texts if text.startswith("--")], name


def test_there_are_few_files_and_each_says_what_it_is_about():
    assert 20 <= len(SUBJECTS) <= 60
    for path in SUBJECTS:
        heading, empty, first, *_ = path.read_text().splitlines()
        assert heading.startswith("-- "), path.name
        assert (empty, first[:9]) == ("", "-- name: "), path.name


def test_all_that_files_say_is_explained_beside_them():
    text = "\n".join(path.read_text() for path in SUBJECTS)
    macros = set(re.findall(r"\{(\w+)[:}]", text))
    words = re.findall(r"^-- (?:postgres|sqlite): (.*)", text, re.MULTILINE)
    assert macros >= {"now", "rows"}
    assert {macro for macro in macros - set(GROUPS) if f"{{{macro}" not in EXPLAINED} == set()
    said = {word.split()[0] for line in words for word in line.split(", ")}
    assert said >= {"each", "optimistic"}
    assert {word for word in said if f"| `{word}" not in EXPLAINED} == set()


def by_hand(text: str) -> list[str]:
    """Find the states that are listed, or compared one after the other."""
    listed = re.findall(r"\(\s*('[A-Z_]{4,}'(?:\s*,\s*'[A-Z_]{4,}')+)\s*\)", text)
    state = r"[\w.]*state (?:=|<>) '([A-Z_]{4,})'"
    compared = re.findall(rf"{state}\s+(?:OR|AND)\s+{state}", text)
    return [*listed, *(" ".join(pair) for pair in compared if len(set(pair)) > 1)]


def test_no_query_spells_a_list_of_states_by_hand():
    assert {path.name: found for path in SUBJECTS if (found := by_hand(path.read_text()))} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("state IN ('WAITING', 'RETRYING')", ["'WAITING', 'RETRYING'"]),
        ("IN ('WAITING',\n  'RETRYING')", ["'WAITING',\n  'RETRYING'"]),
        ("job.state = 'READY' OR job.state = 'QUEUED'", ["READY QUEUED"]),
        ("state <> 'FAILED'\n  AND state <> 'CANCELLED'", ["FAILED CANCELLED"]),
        ("state = 'RUNNING' OR state <> 'RUNNING'", []),
        ("state IN {sleeping} AND move IN ('retry', 'fail')", []),
    ],
)
def test_the_search_for_lists_by_hand_finds_them(text, found):
    assert by_hand(text) == found


def test_every_list_of_states_is_of_a_machine_and_asked_for():
    text = "\n".join(path.read_text() for path in SUBJECTS)
    for name, states in GROUPS.items():
        assert f" IN {{{name}}}" in text, name
        assert any(set(states) <= set(machine.states) for machine in MACHINES.values()), name
    assert set(GROUPS["final"]) == JOB.terminal == RUN.terminal
    assert set(GROUPS["open"]) == JOB.live
    assert set(GROUPS["unsuccessful"]) < RUN.terminal


def test_migrations_list_states_as_queries_do():
    """An index is found by its predicate: it says what `{name}` becomes, word for word."""
    known = {group_sql(name) for name in GROUPS}
    known.add(str(tuple(str(state) for state in RUN.states if state not in GROUPS["active"])))
    for path in sorted((SQL / "migrations").rglob("*.sql")):
        plain = re.sub(
            r"-- begin rendered.*?-- end rendered", "", path.read_text(), flags=re.DOTALL
        )
        listed = re.findall(r"\bIN (\('[A-Z_]{4,}'[^()]*\))", plain)
        assert set(listed) <= known, f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("folder", ["common", "postgres", "sqlite", "anything"])
def test_a_query_in_a_folder_of_its_own_is_refused(tmp_path, folder):
    (tmp_path / "jobs.sql").write_text("-- name: one\nSELECT 1\n")
    (tmp_path / "migrations").mkdir()
    assert set(catalog.read(tmp_path)) == {"one"}

    (tmp_path / folder).mkdir()
    (tmp_path / folder / "two.sql").write_text("SELECT 2\n")
    with pytest.raises(Invalid, match=rf"sql/{folder}/: .* the file of their subject"):
        catalog.read(tmp_path)


def test_a_name_is_given_once(tmp_path):
    for subject in ("jobs", "runs"):
        (tmp_path / f"{subject}.sql").write_text("-- About it.\n\n-- name: one\nSELECT 1\n")
    with pytest.raises(Invalid, match=r"sql/\w+\.sql: .* another query named 'one'"):
        catalog.read(tmp_path)


@pytest.mark.parametrize(
    "block",
    [
        "",
        "-- only said\n",
        "-- postgres\nSELECT 1\n",
        "-- postgres\nSELECT 1\n-- sqlite\n\n",
        "SELECT 1\n-- sqlite\nSELECT 1\n",
        "SELECT 1\n-- postgres\nSELECT 1\n-- sqlite\nSELECT 1\n",
    ],
)
def test_a_query_is_there_for_both_databases_and_once(block):
    with pytest.raises(Invalid, match="one statement for both databases, or one for each"):
        catalog.sections("one", block)


def test_a_word_that_is_unknown_is_refused():
    with pytest.raises(Invalid, match="'hopefully'"):
        catalog.sections("one", "-- postgres\nSELECT 1\n-- sqlite: each, hopefully\nSELECT 1\n")
    with pytest.raises(Invalid, match=r"{never}"):
        catalog.query(catalog.Statement("test:it", "SELECT {never}", "SELECT {never}"), "sqlite")
    with pytest.raises(Invalid, match="no query named 'nothing'"):
        catalog.query("nothing", "sqlite")


def test_a_list_of_columns_is_a_records_fields_in_their_order():
    assert columns("pinned") == ", ".join(Pinned.__struct_fields__)
    assert columns("step s.") == ", ".join(f"s.{name}" for name in NewStep.__struct_fields__)
    assert columns("run").startswith("{text:id}, kind, kind_version, ")
    shown = columns("claim | fence + 1 AS fence | {now} AS remaining_us")
    assert shown.startswith("{text:id}, kind, kind_version, fence + 1, payload, ")
    assert shown.endswith(", {now}, {text:origin_id}, waited_us, limit_key")
    with pytest.raises(Invalid, match=r"expected one of claim, job"):
        columns("jobs")
    with pytest.raises(Invalid, match="no such field: fences"):
        columns("claim | fence + 1 AS fences")


def test_no_query_spells_the_columns_of_a_record_by_hand():
    text = "\n".join(path.read_text() for path in SUBJECTS)
    for name in set(Pinned.__struct_fields__) - set(IN_CONDITIONS):
        assert not re.search(rf"\b{name}\b", text), f"{name}: say {{columns:pinned}}"


IN_CONDITIONS = (
    *("kind", "kind_version", "queue", "priority", "policy"),
    *("retries", "recoveries", "poison_limit"),
)


def test_the_bytes_of_a_packed_claim_are_its_payload():
    assert catalog.query("job_claim", "sqlite").bytes_at == Claim.__struct_fields__.index("payload")


@pytest.mark.parametrize("record", [Job, Run])
def test_a_row_is_read_by_the_types_of_its_fields(record):
    given = {name: name for name in record.__struct_fields__}
    given |= {"state": "QUEUED", "created_at": 1_000_000, "started_at": None}
    given |= dict.fromkeys(("progress", "units"))
    times = [name for name in given if name.endswith("_at") and given[name] == name]
    given |= dict.fromkeys(times, 2_000_000)
    made = reader(record)([given[name] for name in record.__struct_fields__])
    assert made.state is JOB.states.QUEUED if record is Job else RUN.states.QUEUED
    assert (made.created_at.timestamp(), made.started_at) == (1.0, None)
    assert (made.finished_at.timestamp(), made.kind) == (2.0, "kind")


def test_what_a_claim_asks_of_a_job_is_the_same_with_limits_and_without():
    migration = (SQL / "migrations/postgres/0017_limits.sql").read_text()
    words = " ".join(migration.split())
    for condition in ("spent", "suspect"):
        assert words.count(" ".join(CONDITIONS[condition].split())) >= 3, condition
    assert words.count(group_sql("active")) >= 3
    assert words.count("kind || ' ' || kind_version = ANY(asked_kinds)") >= 3
