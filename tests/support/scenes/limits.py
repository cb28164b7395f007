"""Jobs that a limit keeps in line: of their key, or of their queue."""

import milepost as mp
from tests.support.scenes.jobs import HOURS
from tests.support.scenes.stage import Stage, scene

OF_CUSTOMER = mp.Limit(1, key="customer", name="exports")
IN_ORDER = mp.Limit(key="customer", ordered=True, name="exports")
SLOWLY = mp.Limit(rate="1/h", key="customer", name="exports")


def _second(stage: Stage, limit: mp.Limit | None = None) -> str:
    """Let a job hold a limit; give the one after it."""
    [_, waits] = stage.submit(2, limit=limit)
    stage.employ()
    stage.claim()
    stage.advance(HOURS)
    return waits


@scene("limit")
def limit(stage: Stage) -> str:
    return _second(stage, OF_CUSTOMER)


@scene("limit")
def limit_that_somebody_set_to_none(stage: Stage) -> str:
    [job] = stage.submit(limit=OF_CUSTOMER)
    stage.employ()
    stage.app.limits.set("exports", most=0, reason="their shop is down")
    return job


@scene("turn")
def turn(stage: Stage) -> str:
    return _second(stage, IN_ORDER)


@scene("turn")
def turn_of_a_job_that_sleeps(stage: Stage) -> str:
    [_, waits] = stage.submit(2, limit=IN_ORDER)
    stage.employ()
    stage.fail(after=HOURS)
    return waits


@scene("no_worker_for_kind", "turn")
def turn_of_a_job_that_nobody_knows(stage: Stage) -> str:
    [_, waits] = stage.submit(2, limit=IN_ORDER)
    stage.employ(kinds='["other 1"]')
    return waits


@scene("turn")
def turn_among_all(stage: Stage) -> str:
    return _second(stage, mp.Limit(ordered=True, name="exports"))


@scene("retry", "due", "has_turn")
def has_turn(stage: Stage) -> str:
    return _sleeps(stage, IN_ORDER)


@scene("retry", "due", "has_turn")
def has_turn_among_all(stage: Stage) -> str:
    return _sleeps(stage, mp.Limit(ordered=True, name="exports"))


def _sleeps(stage: Stage, limit: mp.Limit) -> str:
    first, *_ = stage.submit(3, limit=limit)
    stage.employ()
    stage.fail(after=HOURS)
    return first


@scene("rate")
def rate(stage: Stage) -> str:
    [_, waits] = stage.submit(2, limit=SLOWLY)
    stage.employ()
    stage.claim()
    return waits


@scene("rate")
def rate_behind_others(stage: Stage) -> str:
    *_, last = stage.submit(4, limit=SLOWLY)
    stage.employ()
    stage.claim()
    return last


@scene("queue_limit")
def queue_limit(stage: Stage) -> str:
    stage.app.queue("default", most=1)
    return _second(stage)


@scene("queue_rate")
def queue_rate(stage: Stage) -> str:
    stage.app.queue("default", rate="1/h")
    [_, waits] = stage.submit(2)
    stage.employ()
    stage.claim()
    return waits


@scene("limit", "queue_limit", "queue_rate")
def limits_of_key_and_queue(stage: Stage) -> str:
    stage.app.queue("default", most=1, rate="1/h")
    [_, waits] = stage.submit(2, limit=OF_CUSTOMER)
    stage.employ()
    stage.claim()
    stage.advance(600)
    return waits
