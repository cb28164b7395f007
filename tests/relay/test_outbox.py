"""The transaction that ends a job or a run with a channel writes its message (H-52)."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

import milepost as mp
from milepost import outcome
from milepost.client import new_id
from milepost.observe.verify import verify
from milepost.outcome import Problem
from milepost.records import NewJob, NewRun, NewStep, Settlement, Template
from milepost.store import chains, creation, jobs, outbox, runs, workers

pytestmark = pytest.mark.both_stores

DAY = 86_400.0
REFUSED = (sqlite3.Error, psycopg.Error)


def created(app, **columns):
    template = Template(kind="k", channel="orders", **columns)
    [job_id] = app.client.run(creation.create, [NewJob(new_id(), b"{}", template)])
    return job_id


def claimed(app, worker="w"):
    app.client.run(workers.register, workers.NewWorker(id=worker, lease_us=30_000_000))
    [claim] = app.client.run(jobs.claim, worker_id=worker, line=jobs.lines(["default"]), most=1)
    return claim


def settled(app, result):
    created(app)
    app.client.run(jobs.settle, [Settlement(claimed(app), result)], actor="w")


def rejected(app):
    assert app.client.run(jobs.reject, created(app), reason="nobody", actor="x")


def cancelled(app):
    app.jobs.get(created(app)).cancel("enough")


def expired(app):
    created(app, deadline_us=1_000_000)
    app.client.run(workers.advance_clock, 2)
    app.maintain_once()


def lost(app):
    created(app, retries=0)
    claimed(app)
    app.client.run(workers.advance_clock, 31)
    app.maintain_once()


ENDS = {
    "succeed": lambda app: settled(app, outcome.succeeded(b"1")),
    "fail": lambda app: settled(app, outcome.failed(Problem("Boom", "it broke"))),
    "cancel": cancelled,
    "reject": rejected,
    "expire": expired,
    "lose": lost,
}


@pytest.mark.parametrize("move", ENDS)
def test_every_move_that_ends_a_job_writes_its_message(app, raw, move):
    ENDS[move](app)
    [message] = app.channels.messages("orders")
    [(job_id, version, state, last)] = raw.execute("SELECT id, version, state, move FROM job")
    assert last == move
    assert message.id == f"job_{job_id}_{version}"
    assert (message.machine, message.subject_id, message.state) == ("job", str(job_id), state)
    assert (message.stands, message.attempts, message.fence) == ("waiting", 0, 0)


def test_a_legal_update_by_hand_writes_its_message(app, raw):
    job_id = created(app)
    raw.execute("UPDATE job SET state = 'CANCELLED', move = 'cancel', version = version + 1")
    assert [m.subject_id for m in app.channels.messages("orders")] == [job_id]


def test_a_failure_by_hand_that_is_counted_afterwards_writes_one_message(app, raw):
    """The trigger counts it by one more UPDATE (decision 2); that one is no end."""
    created(app)
    claimed(app)
    raw.execute(
        "UPDATE job SET state = 'FAILED', move = 'fail', version = version + 1, worker_id = NULL"
    )
    assert raw.value("SELECT errors FROM job") == 1
    assert len(app.channels.messages("orders")) == 1


def test_what_is_not_final_writes_none(app):
    created(app)
    app.client.run(
        jobs.settle,
        [Settlement(claimed(app), outcome.retry(Problem("E", "later"), after=0.0))],
        actor="w",
    )
    assert app.channels.messages("orders") == []


def test_a_job_without_a_channel_writes_none(app, raw):
    app.client.run(creation.create, [NewJob(new_id(), b"{}", Template(kind="k"))])
    app.client.run(jobs.settle, [Settlement(claimed(app), outcome.succeeded(b"1"))], actor="w")
    assert raw.value("SELECT count(*) FROM outbox") == 0


def test_a_transaction_that_is_undone_leaves_none(app, database):
    """I16: no message for a state that was not committed."""
    created(app)
    with database.raw() as hand:
        hand.execute("BEGIN")
        hand.execute("UPDATE job SET state = 'CANCELLED', move = 'cancel', version = version + 1")
        assert hand.value("SELECT count(*) FROM outbox") == 1
        hand.execute("ROLLBACK")
    assert app.channels.messages("orders") == []


def test_erasing_a_finished_job_tells_nobody_again(app):
    settled(app, outcome.succeeded(b'"secret"'))
    [before] = app.channels.messages("orders")
    app.client.run(jobs.erase, before.subject_id, actor="x")
    assert [m.id for m in app.channels.messages("orders")] == [before.id]
    assert app.channels.event(before.id)["data"]["result"] is None


# Runs


def a_run(app, count=2, *, channel="orders", child_channel=None):
    run = NewRun(id=new_id(), kind="batch", channel=channel)
    template = Template(kind="k", run_id=run.id, step=0, channel=child_channel)
    made = [NewJob(new_id(), b"{}", template, ordinal=place) for place in range(count)]
    step = NewStep(number=0, name="work", kind="k", fail_fast=False, tolerance=1.0)
    app.client.run(chains.start, run, [step], made, hold=False)
    return run.id


def test_a_run_tells_once_and_its_silent_children_not_at_all(app):
    """H-57, H-58: one message per run, by whoever ends its last job."""
    run_id = a_run(app, 3)
    for _ in range(3):
        app.client.run(jobs.settle, [Settlement(claimed(app), outcome.succeeded(b"1"))], actor="w")
    assert app.client.run(runs.get, run_id).state == "SUCCEEDED"
    assert [(m.machine, m.subject_id) for m in app.channels.messages("orders")] == [("run", run_id)]


def test_last_children_that_end_together_tell_once(app):
    """H-58: neither none nor two."""
    for _ in range(10):
        run_id = a_run(app, 4, channel=f"c{_}")
        claims = [claimed(app) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            list(
                pool.map(
                    lambda claim: app.client.run(
                        jobs.settle, [Settlement(claim, outcome.succeeded(b"1"))], actor="w"
                    ),
                    claims,
                )
            )
        assert [m.subject_id for m in app.channels.messages(f"c{_}")] == [run_id]


def test_children_with_a_channel_of_their_own_tell_as_well(app):
    a_run(app, 2, child_channel="each")
    for _ in range(2):
        app.client.run(jobs.settle, [Settlement(claimed(app), outcome.succeeded(b"1"))], actor="w")
    assert len(app.channels.messages("each")) == 2
    assert len(app.channels.messages("orders")) == 1


def test_a_failed_and_a_cancelled_run_tell_too(app):
    run_id = a_run(app, 1)
    app.client.run(runs.cancel, run_id, reason="wrong folder", actor="x")
    app.maintain_once()
    [message] = app.channels.messages("orders")
    assert message.state == "CANCELLED"
    assert app.channels.event(message.id)["data"]["error"]["type"] == "Cancelled"


# Nobody forges, changes or deletes one


def a_message(app):
    settled(app, outcome.succeeded(b"1"))
    return app.channels.messages("orders")[0]


def cheats(message):
    """Name statements that must all be refused."""
    values = (
        f"('job_{message.subject_id}_9', 'job', '{message.subject_id}', 9, 77,"
        f" '{message.subject_id}', 'orders', '', 'default', 'k', 'SUCCEEDED', {{now}}, {{now}})"
    )
    columns = "id, machine, subject_id, seq, n, line, channel, tenant, queue, kind, state"
    return [
        f"INSERT INTO outbox ({columns}, created_at, due_at) VALUES {values}",
        "DELETE FROM outbox",
        "UPDATE outbox SET channel = 'mine'",
        "UPDATE outbox SET id = 'mine'",
        "UPDATE outbox SET state = 'FAILED'",
        "UPDATE outbox SET seq = seq + 1",
        "UPDATE outbox SET n = n + 1",
        "UPDATE outbox SET tenant = 'mine'",
        "UPDATE outbox SET fence = fence - 1",
        "UPDATE outbox SET delivered_at = {now}, dead_at = {now}",
        "DELETE FROM job",
    ]


def test_a_message_is_not_forged_changed_or_deleted(app, raw):
    before = a_message(app)
    for cheat in cheats(before):
        with pytest.raises(REFUSED, match=r"milepost:|duplicate key"):
            raw.execute(cheat.format(now=raw.now))
    assert app.channels.messages("orders") == [before]


def test_a_message_of_a_job_that_goes_on_is_forged(app, raw):
    job_id = created(app)
    with pytest.raises(REFUSED, match="by the move that it tells of"):
        raw.execute(
            "INSERT INTO outbox (id, machine, subject_id, seq, n, line, channel, tenant, queue,"
            f" kind, state, created_at, due_at) VALUES ('job_{job_id}_1', 'job', '{job_id}', 1, 5,"
            f" '{job_id}', 'orders', '', 'default', 'k', 'QUEUED', {raw.now}, {raw.now})"
        )


def test_what_was_delivered_is_history(app, raw):
    message = a_message(app)
    assert app.channels.ack("orders", [message.id]) == 1
    with pytest.raises(REFUSED, match="a delivered one is history"):
        raw.execute("UPDATE outbox SET delivered_at = NULL")


def test_replacing_a_message_is_refused_on_sqlite(app, raw):
    if raw.dialect != "sqlite":
        pytest.skip("only SQLite has OR REPLACE")
    a_message(app)
    with pytest.raises(sqlite3.Error, match="by the move that it tells of"):
        raw.execute("INSERT OR REPLACE INTO outbox SELECT * FROM outbox")


# What verify sees


def test_verify_finds_an_end_that_was_not_told(app, database, raw):
    """I16, past the triggers: what only the tables' owner can do."""
    message = a_message(app)
    if raw.dialect == "sqlite":
        [[again]] = raw.execute("SELECT sql FROM sqlite_master WHERE name = 'outbox_refuse_delete'")
        raw.execute("DROP TRIGGER outbox_refuse_delete")
    else:
        again = "ALTER TABLE outbox ENABLE TRIGGER outbox_refuse_delete"
        raw.execute(again.replace("ENABLE", "DISABLE"))
    [row] = raw.execute("SELECT n, line, created_at, due_at FROM outbox")
    raw.execute("DELETE FROM outbox")
    raw.execute(again)
    with database.driver() as driver:
        problems = [str(problem) for problem in verify(driver).problems]
    assert problems == [f"job {message.subject_id}: it ended and has a channel but no message"]
    # Put back as it was: the guard lets in what mirrors an end that has no message.
    raw.execute(
        "INSERT INTO outbox (id, machine, subject_id, seq, n, line, channel, tenant, queue, kind,"
        " state, created_at, due_at) VALUES (:id, 'job', :subject, :seq, :n, :line, 'orders', '',"
        " 'default', 'k', 'SUCCEEDED', :created, :due)",
        {
            "id": message.id,
            "subject": message.subject_id,
            "seq": message.seq,
            "n": row[0],
            "line": str(row[1]),
            "created": row[2],
            "due": row[3],
        },
    )


# Taking


def test_two_relays_never_hold_the_same_message(app):
    for _ in range(5):
        settled(app, outcome.succeeded(b"1"))
    first = app.client.run(outbox.take, "orders", most=3, lease_seconds=30)
    second = app.client.run(outbox.take, "orders", most=3, lease_seconds=30)
    assert [len(first), len(second)] == [3, 2]
    assert {m.id for m in first} & {m.id for m in second} == set()


def test_a_late_relay_changes_nothing(app, advance):
    """Fenced like a lease: who comes back after another took over is not heard."""
    a_message(app)
    [old] = app.client.run(outbox.take, "orders", most=1, lease_seconds=30)
    advance(31)
    [new] = app.client.run(outbox.take, "orders", most=1, lease_seconds=30)
    assert (new.id, new.fence) == (old.id, old.fence + 1)
    assert app.client.run(outbox.delivered, [old]) == set()
    late = outbox.Failure(old.id, old.fence, "late")
    assert app.client.run(outbox.failed, [late], most=1) == 0
    assert app.channels.messages("orders")[0].stands == "waiting"
    assert app.client.run(outbox.delivered, [new]) == {new.id}


def test_the_news_of_a_rerun_waits_for_that_of_the_job(app):
    settled(app, outcome.failed(Problem("Boom", "it broke")))
    [first] = app.jobs.list()
    again = first.rerun()
    app.client.run(jobs.settle, [Settlement(claimed(app), outcome.succeeded(b"1"))], actor="w")
    [taken] = app.client.run(outbox.take, "orders", most=10, lease_seconds=30)
    assert taken.subject_id == first.id
    assert app.client.run(outbox.take, "orders", most=10, lease_seconds=30) == []
    app.client.run(outbox.delivered, [taken])
    [after] = app.client.run(outbox.take, "orders", most=10, lease_seconds=30)
    assert after.subject_id == again.id


def test_a_dead_message_lets_the_next_of_its_line_go(app):
    settled(app, outcome.failed(Problem("Boom", "it broke")))
    [first] = app.jobs.list()
    first.rerun()
    app.client.run(jobs.settle, [Settlement(claimed(app), outcome.succeeded(b"1"))], actor="w")
    [taken] = app.client.run(outbox.take, "orders", most=10, lease_seconds=30)
    failure = outbox.Failure(taken.id, taken.fence, "no")
    assert app.client.run(outbox.failed, [failure], most=1) == 1
    assert len(app.client.run(outbox.take, "orders", most=10, lease_seconds=30)) == 1


# Pulling


def test_pulling_goes_on_at_the_cursor_and_comes_again_until_acknowledged(app):
    for _ in range(5):
        settled(app, outcome.succeeded(b"1"))
    first = app.channels.pull("orders", limit=2)
    rest = app.channels.pull("orders", first.cursor)
    ids = [event["id"] for event in (*first.messages, *rest.messages)]
    assert len(set(ids)) == 5
    assert app.channels.pull("orders", rest.cursor).messages == []
    assert app.channels.ack("orders", cursor=first.cursor) == 2
    assert app.channels.ack("orders", [ids[2]]) == 1
    assert app.channels.ack("orders", [ids[2]]) == 0
    assert [event["id"] for event in app.channels.pull("orders").messages] == ids[3:]


def test_a_cursor_never_passes_a_message_that_commits_late(app, database):
    """The sabotage 'relay by highest id': a lower number may appear after a higher one."""
    if database.dialect == "sqlite":
        pytest.skip("one writer at a time: nothing commits out of order")
    slow, quick = created(app), created(app)
    move = "state = 'CANCELLED', move = 'cancel', version = version + 1"
    with database.raw() as late, database.raw() as hand:
        late.execute("BEGIN")
        late.execute(f"UPDATE job SET {move} WHERE id = '{slow}'")
        hand.execute(f"UPDATE job SET {move} WHERE id = '{quick}'")
        page = app.channels.pull("orders")
        assert [event["subject"] for event in page.messages] == [quick]
        late.execute("COMMIT")
    later = app.channels.pull("orders", page.cursor)
    assert [event["subject"] for event in later.messages] == [slow]


def test_what_cannot_be_meant_is_refused(app):
    with pytest.raises(mp.Invalid, match="cursor"):
        app.channels.pull("orders", "-1")
    with pytest.raises(mp.Invalid, match="one of the two"):
        app.channels.ack("orders")
    with pytest.raises(mp.Invalid, match="list"):
        app.channels.ack("orders", "job_x_1")
    with pytest.raises(mp.NotFound, match="there are: none"):
        app.channels.stop("nowhere")
    with pytest.raises(mp.Invalid, match="waiting, delivered, dead"):
        app.channels.messages("orders", state="lost")


# Retention


def test_a_message_that_was_not_delivered_keeps_its_job_and_then_dies(app, advance):
    message = a_message(app)
    advance(8 * DAY)
    app.maintain_once()
    assert app.jobs.get(message.subject_id).done
    advance(23 * DAY)
    app.maintain_once()
    app.maintain_once()
    assert app.channels.messages("orders") == []
    with pytest.raises(mp.NotFound):
        app.jobs.get(message.subject_id)


def test_a_message_nobody_took_is_dead_before_it_leaves_and_can_be_revived(app, advance):
    settled(app, outcome.failed(Problem("Boom", "it broke")))
    advance(30 * DAY + 1)
    app.client.run(outbox.give_up, keep_seconds=30 * DAY, most=10)
    [dead] = app.channels.messages("orders", state="dead")
    assert dead.error == "nobody took it in time"
    assert app.channels.retry("orders") == 1
    assert [e["id"] for e in app.channels.pull("orders").messages] == [dead.id]


def test_delivered_messages_leave_with_their_job(app, advance, raw):
    message = a_message(app)
    app.channels.ack("orders", [message.id])
    advance(8 * DAY)
    app.maintain_once()
    assert raw.value("SELECT count(*) FROM outbox") == 0
    assert raw.value("SELECT count(*) FROM job") == 0
