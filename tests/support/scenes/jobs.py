"""Jobs: everything that keeps one from running but limits and brokers, and how they end."""

from milepost import outcome
from milepost.batch.handles import RunHandle
from milepost.context import Context
from milepost.outcome import Output
from milepost.store import fanin, queues, runs, timers
from tests.support.scenes.stage import Stage, scene

HOURS = 2 * 3_600.0


def pause(stage: Stage) -> None:
    """Pause the queue."""
    by, reason = stage.word("ana"), stage.word("the bank is down")
    stage.run(queues.pause, stage.queue, paused=True, actor=by, reason=reason)


# In line


@scene("in_line")
def in_line(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ()
    return job


@scene("in_line")
def in_line_for_any_of_two(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ("a")
    stage.employ("b")
    return job


@scene("busy")
def busy(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ(busy=True)
    return job


@scene("busy")
def both_are_busy(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ("a", busy=True)
    stage.employ("b", busy=True)
    return job


@scene("alone")
def alone(stage: Stage) -> str:
    [job] = stage.submit(poison_limit=1)
    stage.employ()
    return job


@scene("alone")
def alone_after_a_loss(stage: Stage) -> str:
    [job] = stage.submit(retries=1)
    stage.lose()
    stage.run(timers.wake, actor="test", most=10)
    stage.employ("a")
    stage.employ("b")
    return job


@scene("no_worker")
def no_worker(stage: Stage) -> str:
    return stage.submit()[0]


@scene("no_worker_for_queue")
def no_worker_for_queue(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ("a", queues=["slow"])
    stage.employ("b", queues=["mail"])
    return job


@scene("no_worker_for_kind")
def no_worker_for_kind(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ(kinds=[f"{stage.kind} 2", f"{stage.kind} 3"])
    return job


@scene("queue_paused")
def queue_paused(stage: Stage) -> str:
    [job] = stage.submit(deadline=HOURS)
    stage.employ()
    pause(stage)
    return job


@scene("queue_paused", "no_worker")
def paused_and_no_worker(stage: Stage) -> str:
    [job] = stage.submit()
    pause(stage)
    return job


@scene("deadline")
def deadline(stage: Stage) -> str:
    [job] = stage.submit(deadline=600)
    stage.employ()
    stage.advance(HOURS)
    return job


@scene("deadline", "no_worker")
def latest_start_has_passed(stage: Stage) -> str:
    [job] = stage.submit(start_within=600)
    stage.advance(HOURS)
    return job


@scene("spent")
def spent(stage: Stage) -> str:
    """A worker that reckons otherwise, or of another version, gave it another attempt."""
    [job] = stage.submit(retries=0)
    stage.employ()
    stage.fail(after=HOURS)
    stage.run(timers.run_now, job, actor="ana")
    return job


# Asleep


@scene("due", of=["job"])
def due(stage: Stage) -> str:
    stage.employ()
    return stage.ask(start_in=HOURS)


@scene("due", of=["job"])
def due_within_its_latest_start(stage: Stage) -> str:
    stage.employ()
    return stage.ask(start_in=HOURS, start_within=5 * HOURS)


@scene("due", "deadline_first", of=["job"])
def latest_start_first(stage: Stage) -> str:
    stage.employ()
    return stage.ask(start_in=5 * HOURS, start_within=HOURS)


@scene("due", "deadline_first")
def deadline_first(stage: Stage) -> str:
    [job] = stage.submit(deadline=HOURS)
    stage.employ()
    stage.settle(outcome.later(5 * HOURS))
    return job


@scene("overdue")
def overdue(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ()
    stage.settle(outcome.later(60))
    stage.advance(HOURS)
    return job


@scene("signal")
def signal(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ()
    stage.settle(outcome.later(None))
    return job


@scene("retry", "due")
def retry(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ()
    stage.fail(after=HOURS)
    return job


@scene("retry", "overdue", "no_worker")
def retry_after_a_loss(stage: Stage) -> str:
    [job] = stage.submit()
    stage.lose()
    stage.advance(HOURS)
    return job


@scene("retry", "due")
def given_back(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ()
    stage.settle(outcome.released(after=HOURS))
    return job


@scene("retry", "due", "spent")
def retry_that_will_not_be(stage: Stage) -> str:
    [job] = stage.submit(retries=0)
    stage.employ()
    stage.fail(after=HOURS)
    return job


@scene("unfit")
def unfit(stage: Stage) -> str:
    def by_number(customer: int) -> None: ...

    [job] = stage.submit()
    older, stage.app = stage.app, stage.program()
    stage.declare(by_number)
    stage.app.drain()
    stage.app = older
    stage.employ()
    return job


@scene("held", of=["job"])
def held(stage: Stage) -> str:
    stage.employ()
    return stage.ask(hold=True)


@scene("held", of=["job"])
def held_with_its_run(stage: Stage) -> str:
    run = held_run(stage)
    run.add(["acme"])
    stage.employ()
    [job] = stage.app.jobs.list(where=f"run:{run.id}")
    return job.id


def held_run(stage: Stage) -> RunHandle:
    """Start a run that waits for its items."""
    batch = stage.batch(str)

    @batch.step(name=stage.word("work"), queue=stage.queue)
    def work(customer: str) -> None: ...

    return batch.start("acme", hold=True)


# Of a run


def two_steps(stage: Stage, *, jobs: int = 2) -> str:
    """Start a run with so many jobs in its first step, whose second step has a gate."""
    batch = stage.batch(int, first="read")

    @batch.step(name=stage.word("read"), queue=stage.queue)
    def read(number: int) -> list[int]:
        return [number]

    @batch.step(name=stage.word("write"), queue=stage.queue, gated=True)
    def write(number: int) -> None: ...

    run = batch.start(1, hold=True)
    run.add(range(jobs))
    run.submit()
    return run.id


def outputs(number: int) -> outcome.Outcome:
    """Succeed with so many items for the next step."""
    return outcome.succeeded(outputs=tuple(Output(1, b"%d" % each) for each in range(number)))


def _gated(stage: Stage, run_id: str) -> list[str]:
    return [job.id for job in stage.app.jobs.list(where=f"run:{run_id} state:gated")]


@scene("gate", of=["job"])
def gate(stage: Stage) -> str:
    run_id = two_steps(stage)
    stage.employ(kinds=None)
    stage.settle(outputs(1))
    [job] = _gated(stage, run_id)
    return job


@scene("overdue", of=["job"])
def gate_that_is_open(stage: Stage) -> str:
    """More wait at it than one transaction lets through."""
    run_id = two_steps(stage)
    stage.employ(kinds=None)
    stage.settle(outputs(fanin.AT_ONCE))
    stage.settle(outputs(1))
    [job] = _gated(stage, run_id)
    return job


@scene("run_stopping", of=["job"])
def run_stopping(stage: Stage) -> str:
    return stopping(stage)[1]


@scene("running", "run_stopping", of=["job"])
def running_while_its_run_stops(stage: Stage) -> str:
    return stopping(stage)[0]


def stopping(stage: Stage) -> tuple[str, str]:
    """Stop a run; give its job that runs, and one that waits."""
    run_id = two_steps(stage)
    stage.employ()
    [claim] = stage.claim()
    stage.run(runs.cancel, run_id, reason=stage.word("a wrong folder"), actor="ana")
    found = {job.id for job in stage.app.jobs.list(where=f"run:{run_id}")}
    [waiting] = found - {claim.id}
    return claim.id, waiting


# Running, and ended


@scene("running")
def running(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ()
    [claim] = stage.claim()
    Context(claim, stage.app.client).progress(0.4, stage.word("page 4 of 10"))
    return job


@scene("running", "asked_to_stop", of=["job"])
def asked_to_stop(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ()
    stage.claim()
    stage.app.jobs.get(job).cancel(stage.word("not needed any more"))
    return job


@scene("running", "lease_over")
def lease_over(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ("lost", lease=30)
    stage.claim(worker="lost")
    stage.advance(31)
    stage.employ()
    return job


@scene("running", "lease_over", "nobody")
def nobody(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ("lost", lease=30)
    stage.claim(worker="lost")
    stage.advance(31)
    return job


@scene("succeeded", of=["job"])
def succeeded(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ()
    stage.settle(outcome.succeeded())
    return job


@scene("succeeded", "rerun", of=["job"])
def succeeded_and_rerun(stage: Stage) -> str:
    job = succeeded(stage)
    stage.app.jobs.get(job).rerun(fresh=True)
    return job


@scene("failed", "traceback", "final", of=["job"])
def failed(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ()
    stage.fail()
    return job


@scene("failed", "final", of=["job"])
def failed_without_an_error(stage: Stage) -> str:
    [job] = stage.submit(deadline=60)
    stage.advance(HOURS)
    stage.app.maintain_once()
    return job


@scene("failed", "traceback", "rerun", of=["job"])
def rerun(stage: Stage) -> str:
    job = failed(stage)
    stage.app.jobs.get(job).rerun()
    return job


@scene("failed", "traceback", "of_run", of=["job"])
def of_run(stage: Stage) -> str:
    stage.subject = "run"
    return failed(stage)


@scene("cancelled", "final", of=["job"])
def cancelled(stage: Stage) -> str:
    [job] = stage.submit()
    stage.app.jobs.get(job).cancel(stage.word("not needed any more"))
    return job
