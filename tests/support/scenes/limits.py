"""Jobs that a limit keeps in line: of their key, or of their queue."""

from typing import Any

import milepost as mp
from milepost.store import hosts
from milepost.store.hosts import Asking
from tests.support.scenes.jobs import HOURS
from tests.support.scenes.stage import Stage, scene


def of_customer(stage: Stage) -> mp.Limit:
    """Limit jobs to one of a customer."""
    return mp.Limit(1, key="customer", name=stage.word("exports"))


def in_order(stage: Stage, key: str | None = "customer") -> mp.Limit:
    """Let jobs of a customer, or all, run in order."""
    return mp.Limit(key=key, ordered=True, name=stage.word("exports"))


def slowly(stage: Stage) -> mp.Limit:
    """Let a job of a customer start in an hour."""
    return mp.Limit(rate="1/h", key="customer", name=stage.word("exports"))


def _second(stage: Stage, limit: mp.Limit | None = None) -> str:
    """Let a job hold a limit; give the one after it."""
    [_, waits] = stage.submit(2, limit=limit)
    stage.employ()
    stage.claim()
    stage.advance(HOURS)
    return waits


@scene("limit")
def limit(stage: Stage) -> str:
    return _second(stage, of_customer(stage))


@scene("limit")
def limit_that_somebody_set_to_none(stage: Stage) -> str:
    [job] = stage.submit(limit=of_customer(stage))
    stage.employ()
    stage.app.limits.set(stage.word("exports"), most=0, reason=stage.word("their shop is down"))
    return job


def _at_host(stage: Stage, host: str, **limit: Any) -> str:
    """Let a request be sent to a host, if that may be; give the one that asks after it."""
    _, waits = stage.submit(2)
    stage.employ()
    stage.app.limits.set(host, scope="host", **limit)
    for claim in stage.claim(2):
        stage.run(hosts.enter, [Asking(claim, "partner.example")])
        stage.advance(7)
    return waits


@scene("host", "running")
def place_at_a_host(stage: Stage) -> str:
    return _at_host(stage, "partner.example", most=1)


@scene("host", "running")
def place_at_any_host(stage: Stage) -> str:
    return _at_host(stage, "*", rate="1/h")


@scene("host", "running")
def host_that_somebody_shut(stage: Stage) -> str:
    return _at_host(stage, "partner.example", most=0, reason=stage.word("their shop is down"))


@scene("turn")
def turn(stage: Stage) -> str:
    return _second(stage, in_order(stage))


@scene("turn")
def turn_of_a_job_that_sleeps(stage: Stage) -> str:
    [_, waits] = stage.submit(2, limit=in_order(stage))
    stage.employ()
    stage.fail(after=HOURS)
    return waits


@scene("no_worker_for_kind", "turn")
def turn_of_a_job_that_nobody_knows(stage: Stage) -> str:
    [_, waits] = stage.submit(2, limit=in_order(stage))
    stage.employ(kinds=["other 1"])
    return waits


@scene("turn")
def turn_among_all(stage: Stage) -> str:
    return _second(stage, in_order(stage, None))


@scene("retry", "due", "has_turn")
def has_turn(stage: Stage) -> str:
    return _sleeps(stage, in_order(stage))


@scene("retry", "due", "has_turn")
def has_turn_among_all(stage: Stage) -> str:
    return _sleeps(stage, in_order(stage, None))


def _sleeps(stage: Stage, limit: mp.Limit) -> str:
    first, *_ = stage.submit(3, limit=limit)
    stage.employ()
    stage.fail(after=HOURS)
    return first


@scene("rate")
def rate(stage: Stage) -> str:
    [_, waits] = stage.submit(2, limit=slowly(stage))
    stage.employ()
    stage.claim()
    return waits


@scene("rate")
def rate_behind_others(stage: Stage) -> str:
    *_, last = stage.submit(4, limit=slowly(stage))
    stage.employ()
    stage.claim()
    return last


@scene("queue_limit")
def queue_limit(stage: Stage) -> str:
    stage.app.queue(stage.queue, most=1)
    return _second(stage)


@scene("queue_rate")
def queue_rate(stage: Stage) -> str:
    stage.app.queue(stage.queue, rate="1/h")
    [_, waits] = stage.submit(2)
    stage.employ()
    stage.claim()
    return waits


@scene("limit", "queue_limit", "queue_rate")
def limits_of_key_and_queue(stage: Stage) -> str:
    stage.app.queue(stage.queue, most=1, rate="1/h")
    [_, waits] = stage.submit(2, limit=of_customer(stage))
    stage.employ()
    stage.claim()
    stage.advance(600)
    return waits
