"""Retention: what has ended leaves after its time, whole; what is left is as it was (H-103)."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

import milepost as mp
from milepost import outcome
from milepost.client import new_id
from milepost.maintain import retention as chore
from milepost.maintain.chores import Tally
from milepost.observe.verify import verify
from milepost.outcome import Problem
from milepost.records import NewJob, NewRun, NewStep, Settlement, Template
from milepost.store import creation, failpoint, jobs, journal, retention, runs, timers, workers
from milepost.store.retention import FIRST, Keep

DAY = 86_400.0
KEEP = Keep(7 * DAY, 30 * DAY)
ENDS = {
    "SUCCEEDED": outcome.succeeded(b"1"),
    "FAILED": outcome.failed(Problem("Boom", "it broke")),
    "CANCELLED": outcome.cancelled("enough"),
}


@pytest.fixture(autouse=True)
def verified(database):
    """Whatever a test did, the journal and the rows agree afterwards (I8, I9)."""
    yield
    with database.driver() as driver:
        assert [str(problem) for problem in verify(driver).problems] == []


def ended(app, state="SUCCEEDED", *, worker="w"):
    """Make a job that ended so."""
    [job_id] = app.client.run(creation.create, [NewJob(new_id(), b"{}", Template(kind="k"))])
    settle(app, claimed(app, worker=worker), state)
    return job_id


def claimed(app, *, worker="w", queue="default"):
    app.client.run(workers.register, workers.NewWorker(id=worker, lease_us=30_000_000))
    [claim] = app.client.run(jobs.claim, worker_id=worker, line=jobs.lines([queue]), most=1)
    return claim


def settle(app, *claims_and_states):
    claim, state = claims_and_states
    app.client.run(jobs.settle, [Settlement(claim, ENDS[state])], actor="w")


def there(app, *ids):
    return [job_id for job_id in ids if job_id in app.client.run(jobs.find, ids)]


def counted(raw, table):
    return raw.value(f"SELECT count(*) FROM {table}")


def entries(raw, subject_id):
    return raw.value(f"SELECT count(*) FROM journal WHERE subject_id = '{subject_id}'")


def moves(app, subject_id, machine="job"):
    return [entry.move for entry in app.client.run(journal.history, subject_id, machine=machine)]


# Jobs


def test_what_ended_leaves_after_its_time_by_how_it_ended(app, advance):
    done, failed, cancelled = (ended(app, state) for state in ENDS)
    everything = (done, failed, cancelled)
    advance(7 * DAY - 10)
    app.maintain_once()
    assert there(app, *everything) == [*everything]
    advance(20)
    assert app.maintain_once() == 1
    assert there(app, *everything) == [failed, cancelled]
    assert moves(app, failed) == ["create", "claim", "fail"]
    advance(23 * DAY)
    assert app.maintain_once() == 2
    assert there(app, *everything) == []
    assert app.maintain_once() == 0


def test_it_is_the_end_that_counts_not_the_creation(app, advance):
    [job_id] = app.client.run(creation.create, [NewJob(new_id(), b"{}", Template(kind="k"))])
    advance(100 * DAY)
    app.maintain_once()
    settle(app, claimed(app), "SUCCEEDED")
    app.maintain_once()
    assert there(app, job_id) == [job_id]
    advance(7 * DAY)
    app.maintain_once()
    assert there(app, job_id) == []


def test_what_has_not_ended_never_leaves_however_old(app, advance):
    held, asleep, queued = (
        app.client.run(creation.create, [NewJob(new_id(), b"{}", template)])[0]
        for template in (
            Template(kind="k", state="CREATED"),
            Template(kind="k", state="WAITING", delay_us=10**15),
            Template(kind="k"),
        )
    )
    advance(1000 * DAY)
    app.maintain_once()
    assert there(app, held, asleep, queued) == [held, asleep, queued]
    assert moves(app, queued) == ["create"]


def test_the_settings_say_how_long(database, advance):
    app = mp.App(database.url, keep_succeeded="90m", keep_failed="2h")
    done, failed = ended(app, "SUCCEEDED"), ended(app, "FAILED")
    app.client.run(workers.advance_clock, 91 * 60)
    app.maintain_once()
    assert there(app, done, failed) == [failed]
    app.client.run(workers.advance_clock, 30 * 60)
    app.maintain_once()
    assert there(app, done, failed) == []
    app.close()


def test_a_history_is_kept_at_least_as_long_as_its_job(monkeypatch):
    """H-103: a failure that people still look at must not have lost its evidence."""
    with pytest.raises(mp.Invalid, match=r"keep_history=90d must be at least keep_failed=120d"):
        mp.App("sqlite:///x.db", keep_failed="120d")
    with pytest.raises(mp.Invalid, match=r"keep_history=12h must be at least keep_succeeded=7d"):
        mp.App("sqlite:///x.db", keep_history="12h")
    monkeypatch.setenv("MILEPOST_KEEP_HISTORY", "1s")
    with pytest.raises(mp.Invalid, match="keep_history must be between 60s"):
        mp.App("sqlite:///x.db", keep_succeeded="60s", keep_failed="60s")
    app = mp.App("sqlite:///x.db", keep_failed="120d", keep_history="120d")
    assert app.settings.keep_history == 120 * DAY


def test_maintenance_sums_up_what_is_too_old_of_what_is_still_there(database):
    app = mp.App(database.url, keep_succeeded="1h", keep_failed="1d", keep_history="60h")
    [job_id] = app.client.run(creation.create, [NewJob(new_id(), b"{}", Template(kind="k"))])
    failed = ended_later(app)
    for _ in range(3):
        app.client.run(jobs.settle, [Settlement(claimed(app), outcome.later(0))], actor="w")
        app.client.run(timers.wake, actor="m", most=10)
        app.client.run(workers.advance_clock, DAY)
        app.maintain_once()
    # What failed has left, whole; of what lives two days are left, and what they follow from.
    assert there(app, failed) == []
    assert moves(app, job_id) == ["snapshot", "claim", "later", "wake", "claim", "later", "wake"]
    assert app.client.run(jobs.get, job_id).polls == 3
    app.client.run(workers.advance_clock, 10 * DAY)
    assert app.maintain_once() == 1
    assert (moves(app, job_id), app.maintain_once()) == (["snapshot"], 0)
    app.close()


def ended_later(app):
    """Make a job that fails, in a queue of its own."""
    queue = new_id()
    [job_id] = app.client.run(
        creation.create, [NewJob(new_id(), b"{}", Template(kind="k", queue=queue))]
    )
    settle(app, claimed(app, queue=queue), "FAILED")
    return job_id


def test_a_time_that_nobody_could_see_is_refused(monkeypatch):
    with pytest.raises(mp.Invalid, match="keep_succeeded must be between 60s"):
        mp.App("sqlite:///x.db", keep_succeeded="30s")
    monkeypatch.setenv("MILEPOST_KEEP_FAILED", "99999d")
    with pytest.raises(mp.Invalid, match="keep_failed must be between"):
        mp.App("sqlite:///x.db")


def test_all_that_hangs_on_a_job_leaves_with_it(app, advance, raw):
    @app.job(retries=0)
    def fails(ctx: mp.Context) -> None:
        ctx.step("one", lambda: 1)
        raise RuntimeError

    job_id = fails.submit().id
    app.drain()
    staged = f"('{job_id}', 1, 0, 1, '{new_id()}')"
    hanging = {
        "usage": f"(job_id, fence, name, amount) VALUES ('{job_id}', 1, 'tokens', 7)",
        "signal": f"(id, job_id, at, fence) VALUES ('{new_id()}', '{job_id}', {raw.now}, 1)",
        "staged": f"(producer_id, fence, seq, step, job_id) VALUES {staged}",
        "progress": f"(job_id, fence) VALUES ('{job_id}', 1)",
    }
    for table, row in hanging.items():
        raw.execute(f"INSERT INTO {table} {row}")
    kept = ("failure", "durable_step", *hanging)
    assert [counted(raw, table) for table in kept] == [1] * 6
    advance(31 * DAY)
    app.maintain_once()
    assert [counted(raw, table) for table in (*kept, "job", "journal")] == [0] * 8
    with pytest.raises(mp.NotFound):
        app.client.run(jobs.get, job_id)


def test_a_job_ended_by_hand_leaves_by_what_the_journal_says(app, advance, raw):
    """A move by hand sets no finished_at (decision 2)."""
    [job_id] = app.client.run(creation.create, [NewJob(new_id(), b"{}", Template(kind="k"))])
    raw.execute("UPDATE job SET state = 'CANCELLED', move = 'cancel', version = version + 1")
    advance(29 * DAY)
    app.maintain_once()
    assert there(app, job_id) == [job_id]
    advance(2 * DAY)
    app.maintain_once()
    assert there(app, job_id) == []
    assert entries(raw, job_id) == 0


def test_a_worker_that_comes_late_finds_nothing_and_changes_nothing(app, advance):
    """H-103: a slow worker must not write into nothing."""
    [job_id] = app.client.run(
        creation.create, [NewJob(new_id(), b"{}", Template(kind="k", retries=0))]
    )
    claim = claimed(app)
    advance(31)
    app.maintain_once()
    advance(31 * DAY)
    app.maintain_once()
    assert there(app, job_id) == []
    late = app.client.run(jobs.settle, [Settlement(claim, ENDS["SUCCEEDED"])], actor="w")
    assert late == set()
    assert there(app, job_id) == []


# In batches


def test_many_leave_in_batches_and_the_walk_goes_on_where_it_stopped(app, advance, monkeypatch):
    monkeypatch.setattr(chore, "BATCH", 4)
    monkeypatch.setattr(chore, "ROUNDS", 2)
    kept = [ended(app, "FAILED") for _ in range(10)]  # older than all that may leave
    for _ in range(10):
        ended(app)
    advance(8 * DAY)
    retained = chore.Retention(KEEP)
    passes = [looked(app, retained) for _ in range(4)]
    assert passes == [0, 6, 4, 0]
    assert there(app, *kept) == kept


class Stopped:
    now = 0.0

    def monotonic(self):
        return self.now


def test_it_rests_though_a_partition_is_in_trouble(app, advance):
    """Else all that is old would be walked over at every pass, a second later."""

    def troubled():
        raise mp.IllegalMove("no partition")

    retained = chore.Retention(KEEP, clock=Stopped())
    with (
        failpoint.armed("before:journal_make_weeks", troubled),
        pytest.raises(mp.IllegalMove, match="no partition"),
    ):
        looked(app, retained)
    ended(app)
    advance(8 * DAY)
    assert looked(app, retained) == 0


def test_it_rests_when_all_was_looked_at(app, advance):
    clock = Stopped()
    retained = chore.Retention(KEEP, clock=clock)
    first = ended(app)
    advance(8 * DAY)
    assert looked(app, retained) == 1
    second = ended(app)
    advance(8 * DAY)
    assert looked(app, retained) == 0
    clock.now = chore.REST_SECONDS
    assert looked(app, retained) == 1
    assert there(app, first, second) == []


def looked(app, retained):
    async def look():
        passed = Tally()
        try:
            await retained(await app.client.async_driver(), passed)
        finally:
            await app.client.close_async()
        return passed.retired

    return asyncio.run(look())


def test_several_at_once_let_each_leave_once(app, database, advance):
    for _ in range(30):
        ended(app)
    advance(8 * DAY)
    others = [mp.App(database.url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        gone = list(pool.map(lambda other: looked(other, chore.Retention(KEEP)), others))
    assert sum(gone) + looked(app, chore.Retention(KEEP)) == 30
    assert list(app.jobs.list()) == []
    for other in others:
        other.close()


def test_the_walk_looks_at_a_bounded_number_of_rows(app, advance):
    for _ in range(5):
        ended(app)
    advance(8 * DAY)
    page = app.client.run(retention.forget_jobs, KEEP, after=FIRST, most=2)
    assert page.left == 2
    rest = app.client.run(retention.forget_jobs, KEEP, after=page.after, most=10)
    assert (rest.left, rest.after) == (3, None)


def test_a_job_whose_steps_a_rerun_goes_on_with_leaves_after_it(app, advance, raw):
    """Else a rerun of the rerun would do the steps again that are forgotten."""
    first = ended(app, "FAILED")
    advance(20 * DAY)
    second = app.jobs.get(first).rerun().id
    settle(app, claimed(app), "FAILED")
    advance(20 * DAY)
    looked(app, chore.Retention(KEEP))
    assert there(app, first, second) == [first, second]
    third = app.jobs.get(second).rerun().id
    advance(400 * DAY)
    looked(app, chore.Retention(KEEP))
    assert there(app, first, second, third) == [first, second, third], "the newest is open"
    settle(app, claimed(app), "SUCCEEDED")
    advance(8 * DAY)
    looked(app, chore.Retention(KEEP))
    assert there(app, first, second, third) == [], "all at once"


@pytest.mark.parametrize("fresh", [False, True], ids=["goes on", "fresh"])
def test_a_rerun_stays_as_long_as_what_it_ran_again(app, advance, fresh):
    """Else the failure would speak for its chain again, and be run again although it is done."""
    first = ended(app, "FAILED")
    second = app.jobs.get(first).rerun(fresh=fresh).id
    settle(app, claimed(app), "SUCCEEDED")
    advance(8 * DAY)
    looked(app, chore.Retention(KEEP))
    assert [job.id for job in app.jobs.list(superseded=False)] == [second]
    with pytest.raises(mp.IllegalMove):
        app.jobs.get(first).rerun()
    advance(23 * DAY)
    looked(app, chore.Retention(KEEP))
    assert there(app, first, second) == []


def test_a_job_that_was_run_again_afresh_leaves_at_its_time(app, advance):
    first = ended(app)
    fresh = app.jobs.get(first).rerun(fresh=True).id
    advance(8 * DAY)
    looked(app, chore.Retention(KEEP))
    assert there(app, first, fresh) == [fresh]


def test_a_rerun_that_comes_while_its_job_is_let_go_keeps_it(app, advance, database):
    """Between the look at a page and the deletion of it a rerun may be committed."""
    if database.dialect == "sqlite":
        pytest.skip("there is one writer: nobody comes between")
    first = ended(app, "FAILED")
    advance(31 * DAY)
    other = mp.App(database.url)
    made = []

    def run_again():
        if not made:
            made.append(first)
            made.append(other.jobs.get(first).rerun().id)

    with failpoint.armed("after:retention_jobs", run_again):
        looked(app, chore.Retention(KEEP))
    assert there(app, *made) == made
    other.close()


# Runs


def a_run(app, count=2, *, resumes=None, end="SUCCEEDED"):
    """Make a run of one step, all of whose jobs ended so."""
    run = NewRun(id=new_id(), kind="batch", resumes=resumes)
    template = Template(kind="k", run_id=run.id, step=0, queue=run.id)
    steps = [NewStep(number=0, name="only", kind="k", fail_fast=False)]
    new = [NewJob(new_id(), b"{}", template, ordinal) for ordinal in range(count)]
    app.client.run(runs.create, run, steps, new)
    if end is not None:
        for _ in range(count):
            settle(app, claimed(app, queue=run.id), end)
        assert app.client.run(runs.get, run.id).state == end
    return run.id


def test_the_jobs_of_a_run_leave_with_it_and_all_that_is_its(app, advance, raw):
    a_run(app)
    live = a_run(app, end=None)
    settle(app, claimed(app, queue=live), "SUCCEEDED")
    advance(8 * DAY)
    app.maintain_once()
    assert [run_id for (run_id,) in raw.execute("SELECT id FROM run")] == [_as(raw, live)]
    assert len(app.jobs.list()) == 2  # those of the live run, one of them long ended
    assert counted(raw, "step") == 1
    kept = raw.execute("SELECT DISTINCT run_id FROM step_count")
    assert [run_id for (run_id,) in kept] == [_as(raw, live)]
    assert {machine for (machine,) in raw.execute("SELECT machine FROM journal")} == {"job", "run"}
    settle(app, claimed(app, queue=live), "SUCCEEDED")
    advance(8 * DAY)
    app.maintain_once()
    for table in ("run", "job", "step", "step_count", "journal"):
        assert counted(raw, table) == 0


def _as(raw, run_id):
    return run_id if raw.dialect == "sqlite" else UUID(run_id)


def test_a_run_is_kept_by_how_it_ended_whatever_its_jobs_did(app, advance, raw):
    a_run(app, end="FAILED")
    advance(8 * DAY)
    app.maintain_once()
    assert (counted(raw, "run"), len(app.jobs.list())) == (1, 2)
    advance(23 * DAY)
    app.maintain_once()
    assert (counted(raw, "run"), len(app.jobs.list())) == (0, 0)


def test_a_chain_of_resumed_runs_stays_together(app, advance, raw):
    first = a_run(app, end="FAILED")
    advance(20 * DAY)
    second = a_run(app, end="FAILED", resumes=first)
    advance(20 * DAY)
    third = a_run(app, resumes=second, end=None)
    advance(20 * DAY)
    app.maintain_once()
    assert (counted(raw, "run"), len(app.jobs.list())) == (3, 6)
    for _ in range(2):
        settle(app, claimed(app, queue=third), "SUCCEEDED")
    app.maintain_once()
    assert (counted(raw, "run"), len(app.jobs.list())) == (3, 6)
    advance(8 * DAY)
    app.maintain_once()
    assert (counted(raw, "run"), len(app.jobs.list())) == (0, 0)
    assert counted(raw, "journal") == 0


def test_a_large_run_leaves_in_batches_its_row_last(app, advance, raw):
    run_id = a_run(app, 5)
    advance(8 * DAY)
    gone = [app.client.run(retention.forget_chain, run_id, KEEP, most=2) for _ in range(5)]
    assert gone == [2, 2, 1, 1, 0]
    assert entries(raw, run_id) == 0


# By the keys


def test_what_leaves_is_found_by_its_key_however_much_stays(app, raw, advance):
    """Joined with the table of old rows, the whole journal was read for every batch."""
    if raw.dialect == "sqlite":
        pytest.skip("its triggers run row by row, each with a key")
    app.client.run(
        creation.create, [NewJob(new_id(), b"{}", Template(kind="k")) for _ in range(1000)]
    )
    app.client.run(workers.register, workers.NewWorker(id="w", lease_us=30_000_000))
    claims = app.client.run(jobs.claim, worker_id="w", line=jobs.lines(["default"]), most=1000)
    done = [Settlement(claim, ENDS["SUCCEEDED"]) for claim in claims]
    app.client.run(jobs.settle, done, actor="w")
    gone = ", ".join(f"'{claim.id}'" for claim in claims[::100])
    advance(2 * 3600)
    raw.execute("BEGIN")
    raw.execute("SELECT set_config('milepost.retaining', 'on', true)")
    raw.execute(f"DELETE FROM job WHERE id IN ({gone})")
    read = raw.value(
        "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables"
        " WHERE relname LIKE 'journal%'"
    )
    # Each entry is read twice: to see how old it is, and to delete it.
    assert (read, counted(raw, "journal")) == (60, 2970)
    raw.execute("COMMIT")


# Nobody else


def test_entries_leave_by_retention_alone(app, raw):
    job_id = ended(app)
    raw.execute(f"DELETE FROM job WHERE id = '{job_id}'")  # a hand may; the journal remembers
    assert entries(raw, job_id) == 3
    with pytest.raises(Exception, match="retention"):
        raw.execute(f"DELETE FROM journal WHERE subject_id = '{job_id}'")
    with pytest.raises(Exception, match=r"retention|never change"):
        raw.execute("UPDATE journal SET detail = 'x'")
    assert entries(raw, job_id) == 3


def test_while_retention_is_at_work_entries_of_what_is_there_stay(app, database, raw):
    job_id = ended(app)
    begin = (
        "SET milepost.retaining = 'on'"
        if raw.dialect == "postgres"
        else "UPDATE retention SET active = 1"
    )
    raw.execute(begin)
    with pytest.raises(Exception, match="retention"):
        raw.execute(f"DELETE FROM journal WHERE subject_id = '{job_id}'")
    if raw.dialect == "sqlite":
        raw.execute("UPDATE retention SET active = 0")
    assert entries(raw, job_id) == 3


def test_a_transaction_that_fails_lets_nothing_leave(app, advance, raw, monkeypatch):
    job_id = ended(app)
    advance(8 * DAY)
    real = retention._forget

    def cut_off(query, ids, keep):
        yield from real(query, ids, keep)
        raise RuntimeError("the process dies here")

    monkeypatch.setattr(retention, "_forget", cut_off)
    with pytest.raises(RuntimeError):
        app.client.run(retention.forget_jobs, KEEP, after=FIRST, most=10)
    assert (there(app, job_id), entries(raw, job_id)) == ([job_id], 3)


def test_the_history_of_what_stays_and_a_move_by_hand_are_as_ever(app, advance, raw):
    """What lives keeps its whole past, so that a move that does not count itself is counted."""
    [job_id] = app.client.run(creation.create, [NewJob(new_id(), b"{}", Template(kind="k"))])
    for _ in range(2):
        app.client.run(jobs.settle, [Settlement(claimed(app), outcome.later(0))], actor="w")
        app.client.run(timers.wake, actor="m", most=10)
    advance(40 * DAY)
    app.maintain_once()
    claimed(app)
    raw.execute(
        "UPDATE job SET state = 'WAITING', move = 'later', version = version + 1, worker_id = NULL"
    )
    assert app.client.run(jobs.get, job_id).polls == 3
    assert moves(app, job_id).count("later") == 3


def test_whoever_holds_a_job_that_left_is_told_and_does_not_wait_for_ever(app, advance):
    @app.job
    def convert(document: str) -> str:
        return f"{document}.pdf"

    ended, unread = convert.submit("a"), convert.submit("b")
    waiting = app.jobs.get(unread.id)
    app.drain()
    ended.refresh()
    advance(8 * 86_400)
    app.maintain_once()
    assert app.jobs.list() == []
    assert ended.wait().result == "a.pdf"  # final is final: what was read stays true
    with pytest.raises(mp.NotFound, match="has ended and left the store"):
        waiting.wait()
    for look in (ended.refresh, ended.cancel, ended.rerun, ended.explain, ended.signal):
        with pytest.raises(mp.NotFound):
            look()
    with pytest.raises(mp.WaitTimeout, match="not visible yet"):
        unread.wait(timeout=0)  # never read here: it could be that its submit is not committed
