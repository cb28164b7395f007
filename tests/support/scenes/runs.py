"""Runs: what holds them besides the job that they wait for, and how they end."""

from collections.abc import Iterator

import milepost as mp
from milepost import outcome
from milepost.store import fanin
from milepost.store.runs import cancel_rest
from tests.support.scenes.jobs import held_run, outputs, stopping, two_steps
from tests.support.scenes.stage import Stage, scene

RUN = ["run"]


@scene("held", of=RUN)
def held_and_empty(stage: Stage) -> str:
    return held_run(stage).id


@scene("held", "step", "held", of=RUN)
def held_with_a_job(stage: Stage) -> str:
    run = held_run(stage)
    run.add(["acme"])
    stage.employ()
    return run.id


@scene("stopping", "step", "run_stopping", of=RUN)
def stopping_with_jobs_in_line(stage: Stage) -> str:
    _, waiting = stopping(stage)
    return _run_of(stage, waiting)


@scene("stopping", "step", "running", of=RUN)
def stopping_with_a_job_that_runs(stage: Stage) -> str:
    held, _ = stopping(stage)
    run_id = _run_of(stage, held)
    stage.run(cancel_rest, run_id, actor="test", most=10)
    return run_id


def _run_of(stage: Stage, job_id: str) -> str:
    return str(stage.app.jobs.get(job_id).record.run_id)


@scene("step", "gate", "in_line", of=RUN)
def gate_of_a_run(stage: Stage) -> str:
    run_id = two_steps(stage)
    stage.employ()
    stage.settle(outputs(1))
    return run_id


@scene("overdue", of=RUN)
def overdue_run(stage: Stage) -> str:
    """Its jobs are done; what they gave is more than one transaction takes."""
    run_id = two_steps(stage, jobs=1)
    stage.employ()
    stage.settle(outputs(fanin.AT_ONCE + 1))
    return run_id


@scene("step", "step", of=RUN)
def batch_within_a_batch(stage: Stage) -> str:
    return stage.app.request_batch([{"batch": [("GET", "https://partner.example/a")]}]).id


@scene("succeeded", of=RUN)
def run_that_succeeded(stage: Stage) -> str:
    return _ended(stage, failing=0)


@scene("failed", of=RUN)
def run_that_failed_by_its_policy(stage: Stage) -> str:
    return _ended(stage, failing=2)


def _ended(stage: Stage, *, failing: int) -> str:
    batch = stage.batch(int, policy=mp.Tolerate(0.1))

    @batch.step(queue=stage.queue)
    def read(count: int) -> Iterator[int]:
        yield from range(count)

    @batch.step(name=stage.word("write"), retries=0)
    def write(number: int) -> None:
        if number < failing:
            raise mp.Fail(f"{number} is torn")

    run = batch.start(4)
    stage.app.drain(20)
    return run.id


@scene("failed", of=RUN)
def run_that_missed_its_deadline(stage: Stage) -> str:
    batch = stage.batch(int)

    @batch.step(queue=stage.queue)
    def read(count: int) -> None: ...

    run = batch.start(1, deadline=60)
    stage.advance(61)
    stage.app.maintain_once()
    stage.app.maintain_once()
    return run.id


@scene("cancelled", of=RUN)
def run_that_was_cancelled(stage: Stage) -> str:
    run_id = two_steps(stage)
    stage.app.runs.get(run_id).cancel(stage.word("a wrong folder"))
    stage.app.maintain_once()
    return run_id


@scene("running", of=RUN)
def reducer_that_runs(stage: Stage) -> str:
    batch = stage.batch(int)

    @batch.step(queue=stage.queue)
    def read(count: int) -> int:
        return count

    @batch.reduce(name=stage.word("add_up"), queue=stage.queue)
    def add_up(found: list[int]) -> int:
        return sum(found)

    run = batch.start(1)
    stage.employ(kinds=None)
    stage.settle(outcome.succeeded(b"1"))
    stage.claim()
    return run.id


@scene("step", "limit", of=RUN)
def run_whose_limit_is_used_up(stage: Stage) -> str:
    """It goes on: as many of its jobs run as may."""
    batch = stage.batch(int, first="read")

    @batch.step(name=stage.word("read"), queue=stage.queue, limit=mp.Limit(1, name="exports"))
    def read(number: int) -> None: ...

    run = batch.start(1, hold=True)
    run.add(range(3))
    run.submit()
    stage.employ()
    stage.claim()
    stage.advance(600)
    return run.id
