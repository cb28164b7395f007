"""Jobs of a queue that is on a broker."""

from milepost.store import hints
from tests.support.brokers import NatsServer
from tests.support.scenes.jobs import HOURS
from tests.support.scenes.stage import Stage, scene


def _submitted(stage: Stage) -> tuple[str, NatsServer]:
    server = stage.on_broker()
    [job] = stage.submit()
    stage.employ()
    return job, server


@scene("broker")
def broker(stage: Stage) -> str:
    return _submitted(stage)[0]


@scene("overdue")
def queue_left_its_broker(stage: Stage) -> str:
    job, _ = _submitted(stage)
    stage.run(hints.declare, {stage.queue: hints.STORE})
    return job


@scene("untold", "in_line")
def untold(stage: Stage) -> str:
    """It was queued for those who look in the store."""
    job, _ = _submitted(stage)
    stage.run(hints.enqueue, [stage.queue], actor="test", most=10)
    return job


@scene("untold", "in_line")
def unconfirmed(stage: Stage) -> str:
    job, server = _submitted(stage)
    server.kill()
    stage.hand_out()
    return job


@scene("told", "in_line")
def told(stage: Stage) -> str:
    """Each time it is told again later; until numbers are of minutes, which do not change."""
    job, _ = _submitted(stage)
    for seconds in (0, 31, 61, 121, 241):
        stage.advance(seconds)
        stage.hand_out()
    stage.report()
    stage.advance(120)
    stage.report()
    return job


@scene("told", "in_line")
def told_and_due_again(stage: Stage) -> str:
    job, _ = _submitted(stage)
    stage.hand_out()
    stage.advance(600)
    return job


@scene("broker_away", "told", "in_line")
def broker_went_away(stage: Stage) -> str:
    job, server = _submitted(stage)
    stage.hand_out()
    stage.report()
    server.kill()
    stage.advance(600)
    stage.report()
    return job


@scene("broker_away", "untold", "in_line")
def broker_that_never_answered(stage: Stage) -> str:
    job, server = _submitted(stage)
    server.kill()
    stage.hand_out()
    stage.report()
    return job


@scene("broker_away", "told", "in_line")
def broker_that_nobody_asks(stage: Stage) -> str:
    job, _ = _submitted(stage)
    stage.hand_out()
    stage.report()
    stage.advance(HOURS)
    return job


@scene("broker", "broker_away")
def broker_away_before_it_was_told(stage: Stage) -> str:
    job, server = _submitted(stage)
    server.kill()
    stage.report()
    stage.advance(60)
    return job
