"""What the database itself keeps, whoever asks: young history, and steps under their fence."""

import json

import pytest

import milepost as mp
from milepost.cli import main
from milepost.store import retention
from milepost.store.retention import FIRST, Keep

HOUR = 3600
KEEP = Keep(60, 60, history=60)


def run_one(app: mp.App) -> str:
    @app.job(name="one")
    def one() -> int:
        return 1

    job = one.submit()
    app.drain()
    return str(job.id)


def test_retention_removes_nothing_younger_than_the_minimum(app, raw, advance):
    run_one(app)
    advance(HOUR - 5)
    assert app.client.run(retention.forget_jobs, KEEP, after=FIRST, most=9).left == 0
    assert app.client.run(retention.sum_up, KEEP, after=FIRST, most=9).left == 0
    advance(10)
    assert app.client.run(retention.forget_jobs, KEEP, after=FIRST, most=9).left == 1
    assert raw.value("SELECT count(*) FROM journal") == 0


def removing(raw, statement: str) -> None:
    """Delete as retention does, by hand."""
    if raw.dialect == "sqlite":
        raw.execute("BEGIN")
        try:
            raw.execute("UPDATE retention SET active = 1")
            raw.execute(statement)
            raw.execute("UPDATE retention SET active = 0")
        except BaseException:
            raw.execute("ROLLBACK")
            raise
        raw.execute("COMMIT")
        return
    raw.execute("SET milepost.retaining = 'on'")
    try:
        raw.execute(statement)
    finally:
        raw.execute("RESET milepost.retaining")


def test_the_database_refuses_to_remove_what_is_younger_though_its_row_is_back_dated(app, raw):
    """The row's own times are whatever its writer said; the journal's are the database's."""
    job_id = run_one(app)
    past = "0" if raw.dialect == "sqlite" else "'2001-01-01'"
    raw.execute(
        "INSERT INTO job (id, kind, state, move) VALUES"
        " ('018f0000-0000-7000-8000-000000000001', 'k', 'QUEUED', 'create')"
    )
    raw.execute(
        "UPDATE job SET state = 'CANCELLED', move = 'cancel', version = version + 1,"
        f" finished_at = {past} WHERE kind = 'k'"
    )
    for kind in ("one", "k"):
        with pytest.raises(Exception, match="milepost: job"):
            removing(raw, f"DELETE FROM job WHERE kind = '{kind}'")
    assert len(app.jobs.get(job_id).history) == 3
    assert app.client.run(retention.forget_jobs, KEEP, after=FIRST, most=9).left == 0


def test_the_minimum_is_one_row_and_a_command_sets_it(app, database, raw, advance, capsys):
    run_one(app)
    for arguments in (["set", "--min", "2d"], ["show", "--json"]):
        with pytest.raises(SystemExit, match="0"):
            main(["retention", *arguments, "--store", database.url])
    shown = json.loads(capsys.readouterr().out)
    assert shown["min"] == 2 * 86_400
    assert shown["set_by"].startswith("cli:")
    advance(47 * HOUR)
    assert app.client.run(retention.forget_jobs, KEEP, after=FIRST, most=9).left == 0
    advance(2 * HOUR)
    assert app.client.run(retention.forget_jobs, KEEP, after=FIRST, most=9).left == 1
    with pytest.raises(SystemExit, match="2"):
        main(["retention", "set", "--min", "-1h", "--store", database.url])


def test_a_job_that_was_erased_a_moment_ago_leaves_when_its_end_is_old_enough(app, raw, advance):
    job_id = run_one(app)
    advance(2 * HOUR)
    app.client.run(__import__("milepost.store.jobs", fromlist=["erase"]).erase, job_id, actor="x")
    assert app.client.run(retention.forget_jobs, KEEP, after=FIRST, most=9).left == 1


@pytest.mark.parametrize(
    "forged",
    [
        "INSERT INTO durable_step (job_id, name, fence, at) VALUES ('{id}', 'charge', 9, {now})",
        "INSERT INTO durable_step (job_id, name, fence, at) VALUES ('{id}', 'charge', 1, {now})",
        "UPDATE durable_step SET result = NULL",
        "UPDATE durable_step SET fence = fence + 1",
    ],
)
def test_a_step_of_a_job_that_does_not_run_or_under_another_fence_is_refused(app, raw, forged):
    @app.job
    def pay(ctx: mp.Context) -> None:
        ctx.step("paid", lambda: 1)

    job = pay.submit()
    app.drain()
    with pytest.raises(Exception, match="under its"):
        raw.execute(forged.format(id=job.id, now=raw.now))
    assert raw.value("SELECT count(*) FROM durable_step") == 1


def test_the_journal_says_who_had_logged_in(app, raw):
    job_id = run_one(app)
    told = {entry.db_user for entry in app.jobs.get(job_id).history}
    assert told == ({None} if raw.dialect == "sqlite" else {"postgres"})


def test_what_a_person_does_at_the_prompt_is_told_by_their_login(app, database):
    import os
    import pwd

    @app.job
    def nothing() -> None: ...

    job = nothing.submit()
    with pytest.raises(SystemExit, match="0"):
        main(["jobs", "cancel", str(job.id), "--store", database.url])
    assert job.history[0].actor == "client"
    assert job.history[-1].actor == f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
