"""Schedules, channels and pipelines."""

from typing import Any

import milepost as mp
from milepost import outcome
from milepost.store import outbox, schedules
from tests.support.scenes.jobs import HOURS
from tests.support.scenes.stage import Stage, scene

SCHEDULE, CHANNEL, PIPELINE = ["schedule"], ["channel"], ["pipeline"]
DAY = 86_400.0


# Schedules


def _nightly(stage: Stage) -> str:
    job, name = stage.app.job(name=stage.word("report"))(_report), stage.word("nightly report")
    stage.app.schedule(job, "0 2 * * *", name=name)
    stage.app.drain()
    return name


def _report() -> None: ...


@scene("fired", of=SCHEDULE)
def schedule_that_never_fired(stage: Stage) -> str:
    stage.employ()
    return _nightly(stage)


@scene("fired", of=SCHEDULE)
def schedule_that_fired(stage: Stage) -> str:
    name = _nightly(stage)
    stage.advance(DAY)
    stage.app.drain()
    stage.employ()
    return name


@scene("paused", "fired", of=SCHEDULE)
def schedule_paused(stage: Stage) -> str:
    name = _nightly(stage)
    stage.run(schedules.pause, name, paused=True, actor=stage.word("ana"))
    stage.employ()
    return name


@scene("vanished", "fired", of=SCHEDULE)
def schedule_vanished(stage: Stage) -> str:
    name = _nightly(stage)
    stage.advance(HOURS)
    stage.employ()
    return name


@scene("no_worker", "fired", of=SCHEDULE)
def schedule_without_workers(stage: Stage) -> str:
    return _nightly(stage)


@scene("overdue", "fired", of=SCHEDULE)
def schedule_overdue(stage: Stage) -> str:
    name = _nightly(stage)
    stage.advance(DAY)
    stage.run(schedules.see, [name])
    stage.employ()
    return name


# Channels


def _told(stage: Stage, *, kind: str = "webhook", number: int = 1) -> str:
    """Let messages of jobs that ended wait in a channel."""
    stage.employ()
    if kind != "pull":
        _declare(stage)
    stage.submit(number, channel=stage.word("shop news"))
    for _ in range(number):
        stage.settle(outcome.succeeded())
    return stage.word("shop news")


def _declare(stage: Stage) -> None:
    target = "https://shop.example/hooks"
    name = stage.word("shop news")
    declared = {"name": name, "kind": "webhook", "target": target, "tenant": ""}
    stage.run(outbox.declare, [declared])


def _refused(stage: Stage, *, most: int) -> None:
    [message] = stage.run(outbox.take, stage.word("shop news"), most=1, lease_seconds=1.0)
    error, delay_us = stage.word("answered 503"), int(HOURS * 1e6)
    failure = outbox.Failure(message.id, message.fence, error, delay_us=delay_us)
    stage.run(outbox.failed, [failure], most=most)


@scene("empty", of=CHANNEL)
def channel_empty(stage: Stage) -> str:
    return _told(stage, number=0)


@scene("waiting", of=CHANNEL)
def channel_waiting(stage: Stage) -> str:
    name = _told(stage)
    stage.advance(HOURS)
    _declare(stage)
    return name


@scene("waiting", of=CHANNEL)
def channel_that_is_pulled(stage: Stage) -> str:
    name = _told(stage, kind="pull", number=2)
    stage.advance(HOURS)
    return name


@scene("stopped", "waiting", of=CHANNEL)
def channel_stopped(stage: Stage) -> str:
    name = _told(stage)
    stage.run(outbox.stop, name, reason=stage.word("they moved"), actor=stage.word("ana"))
    stage.advance(HOURS)
    return name


@scene("vanished", "waiting", of=CHANNEL)
def channel_vanished(stage: Stage) -> str:
    name = _told(stage)
    stage.advance(HOURS)
    return name


@scene("no_worker", "waiting", of=CHANNEL)
def channel_without_workers(stage: Stage) -> str:
    name = _told(stage)
    stage.advance(100_000)
    _declare(stage)
    return name


@scene("failing", "waiting", of=CHANNEL)
def channel_failing(stage: Stage) -> str:
    name = _told(stage)
    _refused(stage, most=9)
    stage.advance(600)
    _declare(stage)
    return name


@scene("dead", "empty", of=CHANNEL)
def channel_dead(stage: Stage) -> str:
    name = _told(stage)
    _refused(stage, most=1)
    return name


# Pipelines


class Orders(mp.Source[Any, Any, Any]):
    """Twelve orders; the second partition may be away."""

    away = False

    def count(self, window: Any, low: Any, high: Any) -> int:
        """Count the orders of a range."""
        return len([number for number in range(12) if low <= number < high])

    def fetch(self, window: Any, partition: Any, cursor: Any) -> mp.Page[Any, Any]:
        """Read the orders of a partition."""
        if self.away and partition.ordinal == 1:
            raise mp.Fail("the server of these orders does not answer")
        numbers = [number for number in range(12) if partition.low <= number < partition.high]
        return mp.Page([{"id": number} for number in numbers])


def _orders(stage: Stage, *, away: bool = False, **options: Any) -> mp.Pipeline[Any]:
    source = Orders()
    source.away = away
    given = {"key": "id", "partition_by": "id", "partitions": 2, "table": "orders", **options}
    return stage.app.pipeline(stage.word("shop orders"), source, **given)


@scene("watermark", "run", of=PIPELINE)
def pipeline_that_waits_for_a_worker(stage: Stage) -> str:
    _orders(stage).start()
    return stage.word("shop orders")


@scene("watermark", "run", of=PIPELINE)
def pipeline_that_was_read(stage: Stage) -> str:
    _orders(stage).start()
    stage.app.drain(20)
    stage.advance(HOURS)
    return stage.word("shop orders")


@scene("watermark", "run", of=PIPELINE)
def pipeline_that_a_schedule_starts(stage: Stage) -> str:
    pipeline = _orders(stage)
    pipeline.start().cancel(stage.word("enough"))
    stage.app.schedule(pipeline, "0 2 * * *", name=stage.word("nightly orders"))
    stage.app.drain(20)
    return stage.word("shop orders")


@scene("watermark", "run", of=PIPELINE)
def pipeline_behind_the_limit_of_its_queue(stage: Stage) -> str:
    stage.app.queue(stage.queue, most=1)
    stage.submit()
    stage.employ(kinds=None)
    stage.claim()
    _orders(stage, queue=stage.queue).start()
    stage.advance(HOURS)
    return stage.word("shop orders")


@scene("watermark", "run", of=PIPELINE)
def pipeline_on_a_broker(stage: Stage) -> str:
    stage.on_broker()
    _orders(stage, queue=stage.queue).start()
    stage.employ(kinds=None)
    return stage.word("shop orders")


@scene("watermark", "gaps", "run", of=PIPELINE)
def pipeline_with_gaps(stage: Stage) -> str:
    _orders(stage, away=True).start()
    stage.app.drain(20)
    stage.advance(HOURS)
    return stage.word("shop orders")
