"""Queues: whether their jobs are claimed, and by whom."""

import milepost as mp
from milepost.store import brokers
from tests.support.scenes.jobs import HOURS, pause
from tests.support.scenes.limits import in_order, of_customer, slowly
from tests.support.scenes.stage import Stage, scene

QUEUE = ["queue"]


@scene("in_line", of=QUEUE)
def queue_in_line(stage: Stage) -> str:
    stage.submit(2)
    stage.employ()
    stage.advance(HOURS)
    return stage.queue


@scene("empty", of=QUEUE)
def queue_empty(stage: Stage) -> str:
    [job] = stage.submit()
    stage.employ()
    stage.app.jobs.get(job).cancel("not needed any more")
    return stage.queue


@scene("queue_paused", "in_line", of=QUEUE)
def queue_that_is_paused(stage: Stage) -> str:
    stage.submit()
    stage.employ()
    pause(stage)
    stage.advance(HOURS)
    return stage.queue


@scene("no_worker", "in_line", of=QUEUE)
def queue_without_workers(stage: Stage) -> str:
    stage.submit()
    stage.advance(HOURS)
    return stage.queue


@scene("no_worker_for_queue", "in_line", of=QUEUE)
def queue_that_nobody_serves(stage: Stage) -> str:
    stage.submit()
    stage.employ(queues=["mail"])
    stage.advance(HOURS)
    return stage.queue


@scene("no_worker_for_kind", "in_line", of=QUEUE)
def queue_with_an_unknown_kind(stage: Stage) -> str:
    stage.submit(3)
    stage.employ(kinds=["other 1"])
    stage.advance(HOURS)
    return stage.queue


@scene("full", "in_line", of=QUEUE)
def queue_that_is_full(stage: Stage) -> str:
    stage.app.queue(stage.queue, max_waiting=2)
    stage.submit(2)
    stage.employ()
    stage.app.maintain_once()
    stage.advance(HOURS)
    return stage.queue


@scene("no_worker", "lease_over", "empty", of=QUEUE)
def queue_whose_workers_are_gone(stage: Stage) -> str:
    stage.submit()
    stage.employ("lost", lease=30)
    stage.claim(worker="lost")
    stage.advance(HOURS)
    return stage.queue


# Limits


def _held(stage: Stage, limit: mp.Limit | None = None) -> str:
    stage.submit(3, limit=limit)
    stage.employ()
    stage.claim()
    stage.advance(600)
    return stage.queue


@scene("limit", "in_line", of=QUEUE)
def queue_behind_a_limit(stage: Stage) -> str:
    return _held(stage, of_customer(stage))


@scene("queue_limit", "in_line", of=QUEUE)
def queue_that_somebody_shut(stage: Stage) -> str:
    stage.submit(2)
    stage.employ()
    stage.app.limits.set(stage.queue, scope="queue", most=0, reason=stage.word("the bank is down"))
    stage.advance(HOURS)
    return stage.queue


@scene("turn", "in_line", of=QUEUE)
def queue_behind_a_turn(stage: Stage) -> str:
    return _held(stage, in_order(stage))


@scene("rate", "in_line", of=QUEUE)
def queue_behind_a_rate(stage: Stage) -> str:
    return _held(stage, slowly(stage))


@scene("queue_limit", "in_line", of=QUEUE)
def queue_with_a_limit(stage: Stage) -> str:
    stage.app.queue(stage.queue, most=1)
    return _held(stage)


@scene("queue_rate", "in_line", of=QUEUE)
def queue_with_a_rate(stage: Stage) -> str:
    stage.app.queue(stage.queue, rate="1/h")
    return _held(stage)


# Brokers


@scene("unreported", "in_line", of=QUEUE)
def queue_that_nobody_reported(stage: Stage) -> str:
    stage.on_broker()
    stage.submit()
    stage.employ()
    stage.advance(HOURS)
    return stage.queue


@scene("on_broker", "in_line", of=QUEUE)
def queue_on_a_broker(stage: Stage) -> str:
    stage.on_broker()
    stage.submit(2)
    stage.employ()
    stage.hand_out()
    stage.advance(600)
    stage.report()
    return stage.queue


@scene("broker_away", "untold", "on_broker", "in_line", of=QUEUE)
def queue_whose_broker_is_away(stage: Stage) -> str:
    server = stage.on_broker()
    stage.submit()
    stage.employ()
    stage.report()
    server.kill()
    stage.advance(600)
    stage.hand_out()
    stage.advance(600)
    stage.report()
    return stage.queue


@scene("dead_hints", "on_broker", "in_line", of=QUEUE)
def queue_with_dead_hints(stage: Stage) -> str:
    """NATS does not count them; RabbitMQ, SQS and Service Bus do, and a worker stores it so."""
    stage.on_broker()
    stage.submit()
    stage.employ()
    stage.hand_out()
    stage.advance(600)
    place = (brokers.QUEUE, stage.queue)
    stage.run(brokers.ask, *place, broker="rabbitmq", address=stage.word("amqps://mq"))
    counts = {"waiting": 1, "in_flight": 0, "redelivered": None, "dead": 2}
    stage.run(brokers.answered, *place, **counts)
    return stage.queue
