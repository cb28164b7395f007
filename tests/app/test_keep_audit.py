"""`keep_audit`: entries of the journal outlive the jobs and runs that they tell of (E, H-103)."""

import json

import pytest
from test_retention import DAY, a_run, claimed, ended, entries, moves, settle, there

import milepost as mp
from milepost import outcome
from milepost.cli import main
from milepost.client import new_id
from milepost.observe.verify import verify
from milepost.records import NewJob, Settlement, Template
from milepost.store import creation, jobs, workers

KEPT = {"keep_succeeded": "1d", "keep_failed": "2d", "keep_audit": "100d"}


@pytest.fixture
def app(database):
    made = mp.App(database.url, **KEPT)
    yield made
    made.close()


def later(app, days):
    app.client.run(workers.advance_clock, days * DAY)
    return app.maintain_once()


def findings(database):
    with database.driver() as driver:
        found = verify(driver)
    assert [str(problem) for problem in found.problems] == []
    return found


def test_entries_stay_after_their_job_and_leave_at_their_own_time(app, database, raw):
    job_id = ended(app, "FAILED")
    later(app, 3)
    assert (there(app, job_id), moves(app, job_id)) == ([], ["create", "claim", "fail"])
    assert raw.value(f"SELECT count(*) FROM audit_logs WHERE task_id = '{job_id}'") == 3
    assert (findings(database).pruned, findings(database).rows) == (1, 0)
    later(app, 96)
    assert entries(raw, job_id) == 3
    assert later(app, 2) == 1
    assert (entries(raw, job_id), findings(database).pruned, later(app, 1)) == (0, 0, 0)


def test_the_entries_of_a_run_and_its_jobs_stay_and_leave_too(app, database, raw):
    run_id = a_run(app, 3)
    later(app, 2)
    assert raw.value("SELECT count(*) FROM run") == 0
    assert moves(app, run_id, "run")[0] == "create"
    assert findings(database).pruned == 4
    later(app, 99)
    assert raw.value("SELECT count(*) FROM journal") == 0


def test_the_rest_of_a_job_leaves_as_ever(app, raw):
    @app.job
    def work(ctx: mp.Context) -> int:
        ctx.count("tokens", 7)
        return ctx.step("one", lambda: 1)

    work.submit()
    app.drain()
    later(app, 2)
    tables = ("job", "usage", "durable_step", "outbox")
    assert [raw.value(f"SELECT count(*) FROM {table}") for table in tables] == [0] * 4


def test_without_it_entries_leave_with_their_job(database, raw):
    app = mp.App(database.url, keep_succeeded="1d", keep_failed="2d")
    ended(app)
    later(app, 2)
    assert raw.value("SELECT count(*) FROM journal") == 0
    app.close()


def test_entries_of_what_is_still_there_never_leave_so(app, raw):
    """Neither those of a job that is open, however old, nor of one that is kept for longer."""

    @app.job
    def wait() -> None: ...

    opened = wait.options(start_in=1000 * DAY).submit().id
    later(app, 400)
    assert (there(app, opened), moves(app, opened)) == ([opened], ["create"])


def test_a_history_that_does_not_end_stays_for_verify_to_find(app, database, raw):
    """Retention must not remove the evidence of a row that somebody made vanish."""

    @app.job
    def wait() -> None: ...

    gone = wait.submit().id
    if raw.dialect == "postgres":
        raw.execute("ALTER TABLE job DISABLE TRIGGER USER")
        raw.execute(f"DELETE FROM job WHERE id = '{gone}'")
        raw.execute("ALTER TABLE job ENABLE TRIGGER USER")
    else:
        triggers = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        deleting = [(name, sql) for name, sql in triggers if "DELETE ON job" in sql]
        for name, _ in deleting:
            raw.execute(f"DROP TRIGGER {name}")
        raw.execute(f"DELETE FROM job WHERE id = '{gone}'")
        for _, sql in deleting:
            raw.execute(sql)
    later(app, 400)
    with database.driver() as driver:
        [problem] = verify(driver).problems
    assert "ends in QUEUED but it has no row" in str(problem)


def test_entries_that_are_younger_than_the_minimum_stay(database, raw):
    app = mp.App(database.url, keep_succeeded="1d", keep_failed="1d", keep_audit="60s")
    job_id = ended(app)
    raw.execute(f"DELETE FROM job WHERE id = '{job_id}'")  # a hand may; the journal remembers
    app.client.run(workers.advance_clock, 1800)
    app.maintain_once()
    assert entries(raw, job_id) == 3
    later(app, 2)
    assert entries(raw, job_id) == 0
    app.close()


def test_a_hand_lets_no_kept_entry_leave(app, raw):
    job_id = ended(app)
    later(app, 2)
    with pytest.raises(Exception, match="retention"):
        raw.execute(f"DELETE FROM journal WHERE subject_id = '{job_id}'")
    assert entries(raw, job_id) == 3


def test_no_upkeep_forgets_entries_of_what_is_there(app, raw):
    """The database looks again, however long ago the job ended."""
    if raw.dialect == "sqlite":
        pytest.skip("its trigger looks: see test_retention")
    job_id = ended(app)
    app.client.run(workers.advance_clock, 400 * DAY)
    raw.execute("SET milepost.retaining = 'on'")
    forget = f"INSERT INTO journal_upkeep (task, subject_id) VALUES ('forget', '{job_id}')"
    raw.execute(forget)
    assert entries(raw, job_id) == 3
    raw.execute("SET milepost.keeping_entries = 'on'")
    raw.execute(f"DELETE FROM job WHERE id = '{job_id}'")
    assert entries(raw, job_id) == 3
    raw.execute(forget)
    assert entries(raw, job_id) == 0


def test_what_was_summed_up_stays_summed_up(database, raw):
    app = mp.App(database.url, **KEPT, keep_history="3d")
    [job_id] = app.client.run(creation.create, [NewJob(new_id(), b"{}", Template(kind="k"))])
    app.client.run(jobs.settle, [Settlement(claimed(app), outcome.later(0))], actor="w")
    later(app, 4)
    settle(app, claimed(app), "SUCCEEDED")
    later(app, 2)
    assert (there(app, job_id), moves(app, job_id)) == (
        [],
        ["snapshot", "wake", "claim", "succeed"],
    )
    assert findings(database).pruned == 1
    later(app, 100)
    assert entries(raw, job_id) == 0
    app.close()


def test_kept_entries_outlive_their_week_of_the_journal(database, raw):
    if raw.dialect == "sqlite":
        pytest.skip("there are no partitions")
    app = mp.App(database.url, **KEPT, keep_history="3d")
    job_id = ended(app)
    weeks = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'journal'::regclass"
    before = raw.value(weeks)
    later(app, 30)
    in_default = f"SELECT count(*) FROM journal_default WHERE subject_id = '{job_id}'"
    assert (raw.value(in_default), moves(app, job_id)) == (3, ["create", "claim", "succeed"])
    assert (raw.value(weeks) >= before, findings(database).pruned) == (True, 1)
    later(app, 100)
    assert entries(raw, job_id) == 0
    app.close()


def test_a_kept_history_is_read_by_its_whole_id(app, database, capsys, monkeypatch):
    job_id = ended(app)
    later(app, 2)
    monkeypatch.setenv("MILEPOST_DATABASE_URL", database.url)
    with pytest.raises(SystemExit) as ended_with:
        main(["jobs", "history", job_id, "--json"])
    assert ended_with.value.code in (None, 0)
    told = json.loads(capsys.readouterr().out)
    assert [entry["move"] for entry in told] == ["create", "claim", "succeed"]


@pytest.mark.parametrize("given", ["30s", "99999d"])
def test_a_time_out_of_bounds_is_refused(given):
    with pytest.raises(mp.Invalid, match="keep_audit must be between 60s"):
        mp.App("sqlite:///x.db", keep_audit=given)


def test_it_is_none_unless_it_is_set(monkeypatch):
    assert mp.App("sqlite:///x.db").settings.keep_audit is None
    monkeypatch.setenv("MILEPOST_KEEP_AUDIT", "730d")
    assert mp.App("sqlite:///x.db").settings.keep_audit == 730 * DAY
