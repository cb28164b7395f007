"""What is generated is committed as generated, and SQL written by hand uses declared words."""

import re
from pathlib import Path

import pytest

from milepost.lifecycle import MACHINES
from milepost.specs import VIEWS
from milepost.store.reasons import REASONS
from tools import reference, triggers, views

ROOT = Path(__file__).parents[1]
MIGRATIONS = ROOT / reference.MIGRATIONS
DIALECTS = sorted(folder.name for folder in MIGRATIONS.iterdir())
REGIONS = ("job", "run", "worker", "views")

STATES = {state.value for machine in MACHINES.values() for state in machine.states}
SPEC_WORDS = {w.name for of in VIEWS.values() for view in of.values() for w in view.words}
SPEC_WORDS |= {"RETRYABLE", "TERMINAL"}  # D's errorType
PHASES = {phase for of in VIEWS.values() for view in of.values() for phase in view.phases}
OPERATIONS = {"INSERT", "UPDATE", "DELETE", "TRUNCATE"}  # what a PostgreSQL trigger calls TG_OP


def region(path, name):
    found = re.search(
        rf"^-- begin rendered: {name}\n(.*?)\n-- end rendered: {name}$",
        path.read_text(),
        flags=re.DOTALL | re.MULTILINE,
    )
    assert found, f"{path.name} has no region {name}"
    return found.group(1)


def test_the_committed_page_is_a_fresh_rendering():
    assert (ROOT / reference.PAGE).read_text() == reference.machines_page(), "run `make docs`"


def test_the_committed_page_on_reasons_is_a_fresh_rendering_and_has_them_all():
    page = reference.reasons_page()
    assert (ROOT / reference.REASONS_PAGE).read_text() == page, "run `make docs`"
    for reasons in REASONS.values():
        assert [one for one in reasons if f"| `{one}` | {one.meaning} |" not in page] == []


def test_the_page_has_every_machine_and_every_specs_words():
    page = reference.machines_page()
    for name, machine in MACHINES.items():
        assert f"## {machine.title}\n" in page
        assert machine.mermaid() in page
        assert machine.table() in page
        for view in VIEWS[name].values():
            assert view.table() in page
            assert view.mermaid() in page
    assert "Terminal states: `SUCCEEDED`, `FAILED`, `CANCELLED`." in page
    assert "Terminal states: `STOPPED`." in page


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_newest_migrations_hold_every_region(dialect):
    assert set(reference.newest(MIGRATIONS / dialect)) == set(REGIONS)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", REGIONS)
def test_a_rendered_region_of_the_newest_migration_is_fresh(dialect, name):
    path = reference.newest(MIGRATIONS / dialect)[name]
    wanted = views.fresh(dialect) if name == "views" else triggers.fresh(name, dialect)
    assert region(path, name) == wanted, "run `make docs`"


def test_only_the_newest_migration_is_rendered_again(tmp_path, monkeypatch):
    folder = tmp_path / reference.MIGRATIONS / "sqlite"
    folder.mkdir(parents=True)
    (tmp_path / reference.PAGE).parent.mkdir(parents=True)
    (tmp_path / reference.APP).write_text(reference.APP.read_text())
    stale = "-- by hand\n-- begin rendered: job\nstale\n-- end rendered: job\n-- more\n"
    (folder / "0001_jobs.sql").write_text(stale)
    (folder / "0009_jobs_again.sql").write_text(stale)
    monkeypatch.chdir(tmp_path)

    reference.main()

    assert (folder / "0001_jobs.sql").read_text() == stale
    newest = folder / "0009_jobs_again.sql"
    assert region(newest, "job") == triggers.fresh("job", "sqlite")
    assert newest.read_text().startswith("-- by hand\n")
    assert newest.read_text().endswith("-- more\n")
    assert (tmp_path / reference.PAGE).read_text() == reference.machines_page()


def undeclared(text):
    """List the quoted words in capitals that no machine declares.

    A view says a spec's own word after THEN, and compares a phase with one.
    """
    text = re.sub(r"\bTHEN '(\w+)'", lambda m: "" if m.group(1) in SPEC_WORDS else m.group(0), text)
    text = re.sub(r"\bphase = '(\w+)'", lambda m: "" if m.group(1) in PHASES else m.group(0), text)
    return set(re.findall(r"'([A-Z][A-Z_]+)'", text)) - STATES - OPERATIONS


def test_every_quoted_state_in_sql_is_a_member_of_some_machine():
    paths = sorted((ROOT / "src/milepost/sql").rglob("*.sql"))
    found = {f"{path.parent.name}/{path.name}": undeclared(path.read_text()) for path in paths}
    assert len(found) > 40
    assert {path: states for path, states in found.items() if states} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("state = 'QUEUED' AND state <> 'STOPPED'", set()),
        ("state IN ('QUEUED', 'DONE')", {"DONE"}),
        ("state = 'IN_PROGRESS'", {"IN_PROGRESS"}),
        ("WHEN state = 'RUNNING' THEN 'IN_PROGRESS'", set()),
        ("WHEN state = 'RUNNING' THEN 'IN_PROGRES'", {"IN_PROGRES"}),
        ("phase = 'RESPONSE'", set()),
    ],
)
def test_the_search_for_undeclared_states_finds_them(text, found):
    assert undeclared(text) == found
