"""What is wrong is found in at most two commands, to which `milepost --help` leads."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import milepost as mp
from milepost import outcome
from milepost.client import new_id
from milepost.records import NewJob, NewRun, NewStep, Settlement, Template
from milepost.store import jobs, outbox, runs, workers
from milepost.store.workers import NewWorker

Prompt = Callable[..., Any]


def employ(app: mp.App, name: str = "w", *, lease: float = 30.0, **known: str) -> None:
    """Enter a worker, as one that lives somewhere would enter itself."""
    new = NewWorker(id=name, lease_us=round(lease * 1e6), slots='{"FREE": 4}', **known)
    app.client.run(workers.register, new)


def claim(app: mp.App, worker: str = "w") -> Any:
    line = jobs.lines(["default"])
    [held] = app.client.run(jobs.claim, worker_id=worker, line=line, most=1)
    return held


def gated(app: mp.App) -> str:
    """Start a run of two steps, the second behind a gate."""
    run_id = new_id()
    plan = [
        NewStep(number=0, name="read", kind="convert"),
        NewStep(number=1, name="write", kind="convert", gated=True),
    ]
    children = [
        NewJob(new_id(), b"[]", Template(kind="convert", run_id=run_id, step=0)),
        NewJob(new_id(), b"[]", Template(kind="convert", run_id=run_id, step=1, state="GATED")),
    ]
    return app.client.run(runs.create, NewRun(id=run_id, kind="letters"), plan, children)


@pytest.fixture
def ask(prompt):
    """Run a command that the help names, and count it."""
    helped = prompt("--help").out

    def asked(*words: str) -> str:
        assert f"  {words[0]} " in helped, f"milepost --help does not name {words[0]}"
        return prompt(*words).out

    return asked


def test_a_stuck_job(ask, app):
    [job_id] = app.client.create([app.new_job("convert", ["a"], {}, {})])
    employ(app, kinds='["convert 2"]')
    assert job_id in ask("jobs", "ls", "--state", "queued")
    told = ask("explain", job_id)
    assert "the only live worker of its queue does not know convert version 1" in told
    assert "(it knows convert version 2)" in told
    assert "not the cause: queue default is not paused" in told
    assert "next: the first worker that is deployed with its kind and version claims it" in told


def test_a_failing_job(ask, app):
    [job_id] = app.client.create([app.new_job("refuse", [7], {}, {})])
    app.drain()
    listed = ask("jobs", "ls", "--state", "failed")
    assert job_id in listed
    assert "7 is too large" in listed
    assert "newcomer.py" in ask("jobs", "show", job_id)


def test_a_queue_without_workers(ask, app):
    app.client.create([app.new_job("convert", ["a"], {}, {"queue": "mail"})])
    employ(app, queues='["default"]')
    app.client.run(workers.advance_clock, 61.0)
    app.client.run(workers.renew, "w", lease_seconds=30.0)
    assert "queue mail: 1 job waits in it, and the only live worker does not serve it" in ask(
        "doctor"
    )
    told = ask("explain", "queue", "mail")
    assert "the only live worker does not serve it" in told
    assert "next: the first worker that serves it" in told


def test_a_worker_that_died(ask, app):
    [job_id] = app.client.create([app.new_job("convert", ["a"], {}, {})])
    employ(app, lease=1.0)
    claim(app)
    app.client.run(workers.advance_clock, 70.0)
    told = ask("doctor")
    assert "worker w: it stopped beating and holds 1 jobs" in told
    assert f"job {job_id}: its worker w is gone" in told
    told = ask("explain", job_id)
    assert "its worker is gone" in told
    assert "no worker is alive: start one with `milepost worker APP`" in told
    assert "next: nothing, until a worker runs: it takes the job away" in told


def test_a_closed_gate(ask, app, prompt):
    run_id = gated(app)
    told = ask("explain", run_id)
    assert "step read has 1 open: 1 QUEUED" in told
    assert "the gate of step write is closed: 1 job waits at it" in told
    assert "no worker is alive" in told
    assert "next: step write goes on with the end of the last open job before it" in told
    behind = next(job.id for job in app.jobs.list() if job.state == "GATED")
    told = ask("explain", behind)
    assert f"it waits at a gate: step read of run {run_id} has 1 open job" in told
    assert json.loads(prompt("explain", "run", run_id, "--json").out)["subject"] == "run"
    app.runs.get(run_id).cancel("enough")
    assert "nothing, unless it is resumed" in app.runs.get(run_id).explain().next


def test_a_lagging_channel(ask, app):
    declared = {"name": "news", "kind": "webhook", "target": "x", "tenant": ""}
    app.client.run(outbox.declare, [declared])
    app.client.create([app.new_job("convert", ["a"], {}, {"channel": "news"})])
    employ(app)
    app.client.run(jobs.settle, [Settlement(claim(app), outcome.succeeded())], actor="w")
    [message] = app.client.run(outbox.take, "news", most=9, lease_seconds=1.0)
    failure = outbox.Failure(message.id, message.fence, "answered 503", delay_us=1_000_000)
    app.client.run(outbox.failed, [failure], most=9)
    app.client.run(workers.advance_clock, 400.0)
    assert "channel news: 1 message waits, the oldest for 40" in ask("doctor")
    told = ask("explain", "channel", "news")
    assert "a message failed 1 time, last with: answered 503" in told
    assert "nobody delivers: no worker is alive" in told
    assert "next: nothing, until a worker of the program that declares it runs" in told
    app.client.run(outbox.declare, [declared])
    app.client.run(workers.register, NewWorker(id="v", lease_us=90_000_000, kinds="[]"))
    assert "next: a worker delivers the first of them" in ask("explain", "channel", "news")


def test_schedules_and_what_is_not_there(prompt, app):
    job = app.job(_later)
    app.schedule(job, "0 2 * * *", name="nightly")
    app.schedules.pause("nightly")
    told = prompt("explain", "schedule", "nightly").out
    assert "it was paused by client" in told
    assert "next: nothing, until it is resumed: `milepost schedules resume nightly`" in told
    assert prompt("explain", "schedule", "none").code == 4
    assert prompt("explain", "pipeline", "none").code == 4
    assert prompt("explain", "channel", "none").code == 4
    assert prompt("explain", "queue", "none").code == 4
    assert prompt("explain", "kettle", "none").code == 2
    alone = prompt("explain", "queue")
    assert (alone.code, "one of queue, schedule" in alone.err) == (2, True)
    assert prompt("explain", new_id()).code == 4


def _later() -> None: ...


def test_a_job_a_run_and_a_queue_as_they_stood(prompt, app):
    """The journal is folded up to then; of a queue its jobs are counted."""
    [job_id] = app.client.create([app.new_job("convert", ["a"], {}, {})])
    run_id = gated(app)
    created = app.jobs.get(job_id).record.created_at
    app.client.run(workers.advance_clock, 3_600.0)
    employ(app)
    app.client.run(jobs.settle, [Settlement(claim(app), outcome.succeeded())], actor="w")
    app.runs.get(run_id).cancel("enough")
    assert prompt("jobs", "show", job_id).out.split("state")[1].split()[0] == "SUCCEEDED"
    then = json.loads(prompt("at", "30m", job_id, "--json").out)
    assert (then["subject"], then["state"], then["attempt"]) == ("job", "QUEUED", 0)
    assert "QUEUED" in prompt("at", "30m", run_id).out
    assert '{"GATED": 1, "QUEUED": 2}' in prompt("at", "30m", "queue", "default").out
    counts = json.loads(prompt("at", "30m", "queue", "default", "--json").out)["counts"]
    assert counts == {"GATED": 1, "QUEUED": 2}
    assert "SUCCEEDED" in prompt("at", "0s", job_id).out
    early = prompt("at", "2000-01-01", job_id)
    assert (early.code, "there was no job" in early.err) == (4, True)
    assert "QUEUED" in prompt("at", (created + timedelta(seconds=60)).isoformat(), job_id).out
    assert prompt("at", "noon", job_id).code == 2
    ahead = prompt("at", "2999-01-01", job_id)
    assert (ahead.code, "is still to come" in ahead.err) == (2, True)
    none = prompt("at", "30m", "queue", "none")
    assert (none.code, "there are: default" in none.err) == (4, True)
    assert prompt("at", "1h", "channel", "news").code == 2
