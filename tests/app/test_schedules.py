"""Schedules: each slot fires once, by the store's clock, whoever looks; what is missed, as said."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import milepost as mp
from milepost.maintain.chores import Tally
from milepost.maintain.loop import Maintainer
from milepost.maintain.scheduler import Scheduler
from milepost.observe.verify import verify
from milepost.schedules import Schedules
from milepost.store import schedules, workers

BERLIN = "Europe/Berlin"
GAP = datetime(2027, 3, 28, 1, tzinfo=UTC)  # 02:00 becomes 03:00
OVERLAP = datetime(2027, 10, 31, 1, tzinfo=UTC)  # 03:00 becomes 02:00
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


@pytest.fixture
def at(app):
    """Set the store's clock."""

    def set_clock(moment):
        now = app.client.run(workers.now)
        app.client.run(workers.advance_clock, (moment - now).total_seconds())

    return set_clock


def declared(app, cron="0 2 * * *", **more):
    @app.job
    def report(day: str = "today") -> str:
        return day

    app.schedule(report, cron, **more)
    return app


def slots(app):
    """Name the slots that were fired, in order, by what their jobs are unique by."""
    keys = [job.record.unique_key for job in app.jobs.list(limit=1000)]
    return sorted(key.removeprefix("schedule report ") for key in keys)


def walk(at, passes, start, end, step=30 * MINUTE):
    """Move the clock on, a step at a time; every pass looks at each step."""
    moment = start
    while moment <= end:
        at(moment + SECOND)
        for maintain in passes:
            maintain()
        moment += step


def written(*times):
    return [f"{moment:%Y-%m-%dT%H:%MZ}" for moment in times]


def looked(app, scheduler):
    """Have a scheduler that may have looked before look once."""

    async def look():
        passed = Tally()
        await scheduler(await app.client.async_driver(), passed)
        await app.client.close_async()
        return passed

    return asyncio.run(look())


# What must be shown: a gap and an overlap, two schedulers, two hours in which nobody looked


OUTAGES = [
    # On the day of the gap 02:30 does not exist: it fires at 03:00, which is 01:00 in UTC.
    ("30 2 * * *", GAP, "last", [GAP]),
    ("30 2 * * *", GAP, "all", [GAP]),
    ("30 2 * * *", GAP, "skip", []),
    # On the day of the overlap 02:30 comes twice: it fires the first time.
    ("30 2 * * *", OVERLAP, "last", [OVERLAP - HOUR / 2]),
    ("30 2 * * *", OVERLAP, "all", [OVERLAP - HOUR / 2]),
    ("30 2 * * *", OVERLAP, "skip", []),
    # What counts the passing of time misses the five half hours; the one that is on time fires.
    ("*/30 * * * *", GAP, "last", [GAP + HOUR]),
    ("*/30 * * * *", GAP, "skip", [GAP + HOUR]),
    ("*/30 * * * *", GAP, "all", [GAP + n * HOUR / 2 for n in range(-1, 3)]),
    ("*/30 * * * *", OVERLAP, "all", [OVERLAP + n * HOUR / 2 for n in range(-1, 3)]),
    # The hour that does not exist has no quarters, the one that comes twice has eight.
    ("*/15 2 * * *", GAP, "all", []),
    ("*/15 2 * * *", OVERLAP, "all", [OVERLAP + n * HOUR / 4 for n in range(-3, 4)]),
    ("*/15 2 * * *", OVERLAP, "last", [OVERLAP + 3 * HOUR / 4]),
]


CHANGES = pytest.mark.parametrize("change", [GAP, OVERLAP], ids=["gap", "overlap"])


def all_declared(app, series):
    """Declare a schedule for each of a series, named by its number in it."""

    @app.job
    def report(day: str = "today") -> str:
        return day

    for number, (cron, _, missed, _) in enumerate(series):
        app.schedule(report, cron, name=f"s{number}", zone=BERLIN, missed=missed)
    return app


def slots_by_schedule(app, series):
    """Name the slots that each schedule of a series fired, in order."""
    fired = {f"s{number}": [] for number in range(len(series))}
    for job in app.jobs.list(limit=1000):
        _, name, slot = job.record.unique_key.split(" ")
        fired[name].append(slot)
    return [sorted(found) for found in fired.values()]


@CHANGES
def test_an_outage_of_two_hours_over_a_change_of_the_clocks(app, database, at, change):
    series = [outage for outage in OUTAGES if outage[1] == change]
    before, back = change - HOUR, change + HOUR
    at(before - MINUTE)
    first, second = all_declared(app, series), all_declared(mp.App(database.url), series)
    walk(at, [first.maintain_once, second.maintain_once], before - MINUTE, before, MINUTE)
    on_time = slots_by_schedule(app, series)
    # Nobody looks for two hours; then both do, at once.
    at(back + 20 * SECOND)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda scheduler: scheduler.maintain_once(), [first, second]))
    both = zip(slots_by_schedule(app, series), on_time, strict=True)
    made_up = [[slot for slot in found if slot not in early] for found, early in both]
    shown = zip(series, made_up, strict=True)
    assert [(cron, missed, found) for (cron, _, missed, _), found in shown] == [
        (cron, missed, written(*fired)) for cron, _, missed, fired in series
    ]
    assert [first.maintain_once(), second.maintain_once()] == [0, 0]
    second.close()
    with database.driver() as driver:
        assert verify(driver).clean


SERIES = [
    ("30 2 * * *", GAP, "last", [GAP]),
    ("30 2 * * *", OVERLAP, "last", [OVERLAP - HOUR / 2]),
    ("30 1,2,3 * * *", GAP, "last", [GAP - HOUR / 2, GAP, GAP + HOUR / 2]),
    ("0 * * * *", GAP, "last", [GAP + n * HOUR for n in range(-1, 3)]),
    ("0 * * * *", OVERLAP, "last", [OVERLAP + n * HOUR for n in range(-1, 3)]),
    ("*/30 2 * * *", OVERLAP, "last", [OVERLAP + n * HOUR / 2 for n in range(-2, 2)]),
    ("*/30 2 * * *", GAP, "last", []),
]


@CHANGES
def test_two_schedulers_over_a_change_of_the_clocks(app, database, at, change):
    series = [one for one in SERIES if one[1] == change]
    at(change - HOUR - MINUTE)
    first, second = all_declared(app, series), all_declared(mp.App(database.url), series)
    passes = [first.maintain_once, second.maintain_once]
    walk(at, passes, change - HOUR - MINUTE, change - HOUR - MINUTE)
    walk(at, passes, change - HOUR, change + 2 * HOUR)
    found = zip(series, slots_by_schedule(app, series), strict=True)
    assert [(cron, slots) for (cron, *_), slots in found] == [
        (cron, written(*fired)) for cron, _, _, fired in series
    ]
    second.close()


# One fire for each slot


def test_however_many_look_at_once_each_slot_has_one_job(app, database, at):
    at(GAP)
    others = [declared(mp.App(database.url), "*/5 * * * *", missed="all") for _ in range(6)]
    declared(app, "*/5 * * * *", missed="all").maintain_once()
    for round_ in range(1, 5):
        at(GAP + round_ * 10 * MINUTE + SECOND)
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda other: other.maintain_once(), others))
    assert slots(app) == written(*(GAP + n * 5 * MINUTE for n in range(1, 9)))
    [schedule] = app.schedules.list()
    assert (schedule.fired, schedule.last_at) == (8, GAP + 40 * MINUTE)
    for other in others:
        other.close()


def test_a_slot_is_fired_with_its_job_or_not_at_all(app, at, monkeypatch):
    at(GAP)
    declared(app, "0 2 * * *").maintain_once()
    at(GAP + HOUR + MINUTE / 2)
    monkeypatch.setattr(schedules.creation, "create", _cut_off)
    app.maintain_once()
    assert slots(app) == []
    monkeypatch.undo()
    app.maintain_once()
    assert slots(app) == written(GAP + HOUR)


def _cut_off(new):
    yield from ()
    raise RuntimeError("the process dies here")


def test_a_fire_is_an_ordinary_job_that_says_where_it_comes_from(app, at):
    @app.job
    def report(day: str, *, copies: int = 1) -> str:
        return f"{day} x {copies}"

    urgent = report.options(queue="reports", priority=7, tags={"team": "a"})
    app.schedule(urgent, "0 2 * * *", args=("monday",), kwargs={"copies": 2}, name="nightly")
    at(GAP)
    app.maintain_once()
    at(GAP + HOUR)
    assert app.drain() == 1
    [job] = app.jobs.list()
    assert job.result == "monday x 2"
    assert (job.queue, job.record.priority) == ("reports", 7)
    assert json.loads(job.record.tags) == {"team": "a"}
    assert job.record.unique_key == "schedule nightly 2027-03-28T02:00Z"
    assert job.history[0].actor == "schedule nightly"
    [schedule] = app.schedules.list()
    assert (schedule.name, schedule.kind, schedule.last_job_id) == ("nightly", "report", job.id)


async def until(read, seconds=60):
    """Read until there is something, for a bounded time."""
    end = asyncio.get_running_loop().time() + seconds
    while not (found := await read()):
        assert asyncio.get_running_loop().time() < end, "it did not happen in time"
        await asyncio.sleep(0.01)
    return found


async def test_a_running_worker_fires(app, at):
    declared(app, "* * * * *")
    await asyncio.to_thread(at, GAP + 50 * SECOND)
    worker = await app.worker()
    running = asyncio.create_task(worker.run())
    try:
        await until(lambda: app.client.run_async(schedules.listing))
        await asyncio.to_thread(at, GAP + MINUTE)
        jobs = await until(app.jobs.list_async)
        assert (await jobs[0].wait_async(30)).result == "today"
    finally:
        worker.drain()
        await running
    assert (await asyncio.to_thread(slots, app))[:1] == written(GAP + MINUTE)
    await app.close_async()


# Beginning, changing, vanishing


def test_a_new_schedule_begins_with_its_next_slot(app, at):
    at(GAP)
    declared(app, "0 1 * * *").maintain_once()
    assert slots(app) == []
    [schedule] = app.schedules.list()
    assert schedule.next_at == GAP + 24 * HOUR


def test_a_changed_line_takes_effect_and_begins_with_its_next_slot(app, database, at):
    at(GAP)
    old = Scheduler(declared(app, "0 2 * * *")._scheduled)
    looked(app, old)
    at(GAP + 2 * HOUR)  # 02:00 has passed unnoticed
    changed = declared(mp.App(database.url), "0 4 * * *")
    changed.maintain_once()
    assert slots(app) == []
    at(GAP + 3 * HOUR)
    looked(app, old)  # a program that runs on fires the new line: the last that started is right
    assert slots(app) == written(GAP + 3 * HOUR)
    changed.close()


def test_a_declaration_that_did_not_change_forgets_nothing_that_was_missed(app, database, at):
    at(GAP)
    declared(app, "0 2 * * *").maintain_once()
    at(GAP + 5 * HOUR)
    again = declared(mp.App(database.url), "0 2 * * *", args=("again",))
    again.maintain_once()
    assert slots(app) == written(GAP + HOUR)
    assert again.drain() == 1
    assert next(iter(again.jobs.list())).result == "again"
    again.close()


def test_one_that_vanished_from_the_code_is_shown_and_does_not_fire(app, database, at):
    at(GAP)
    declared(mp.App(database.url), "0 2 * * *").maintain_once()
    assert [schedule.state for schedule in app.schedules.list()] == ["active"]
    at(GAP + 2 * HOUR)
    app.maintain_once()
    [schedule] = app.schedules.list()
    assert (schedule.name, schedule.state) == ("report", "vanished")
    assert slots(app) == []
    declared(app, "0 2 * * *")
    assert [schedule.state for schedule in app.schedules.list()] == ["active"]


def test_programs_with_schedules_of_their_own_do_not_need_each_other(app, database, at):
    """The elected maintainer may be another program: whoever declares a schedule fires it."""
    at(GAP)
    declared(app, "0 2 * * *")

    async def look(holder, scheduled):
        driver = await app.client.async_driver()
        settings = replace(app.settings, sweep=60)
        maintainer = Maintainer(driver, settings, scheduled=scheduled)
        answer = await maintainer(holder)
        await app.client.close_async()
        return answer

    assert asyncio.run(look("elected", {}))[0] == 0
    _, pause = asyncio.run(look("other", app._scheduled))
    assert pause == 60
    at(GAP + HOUR - 20 * SECOND)
    _, pause = asyncio.run(look("other", app._scheduled))
    assert 0 < pause <= 20
    at(GAP + HOUR)
    assert asyncio.run(look("other", app._scheduled))[0] == 1


# Resting, and looking ahead


def test_slots_that_pass_while_it_is_paused_are_skipped(app, at):
    at(GAP)
    declared(app, "0 * * * *", missed="all").maintain_once()
    assert app.schedules.pause("report")
    assert not app.schedules.pause("report")
    at(GAP + 3 * HOUR)
    assert app.maintain_once() == 0
    assert [(s.state, s.paused_by) for s in app.schedules.list()] == [("paused", "client")]
    assert app.schedules.resume("report")
    assert not app.schedules.resume("report")
    app.maintain_once()
    assert slots(app) == []
    at(GAP + 4 * HOUR)
    app.maintain_once()
    assert slots(app) == written(GAP + 4 * HOUR)


def test_one_can_be_paused_before_any_worker_ran(app, at):
    at(GAP)
    declared(app)
    assert app.schedules.pause("report")
    at(GAP + 24 * HOUR)
    assert app.maintain_once() == 0
    with pytest.raises(mp.NotFound, match="no schedule 'nightly'; there are: report"):
        app.schedules.pause("nightly")


def test_the_next_fires_are_told_in_its_own_zone(app, at):
    at(GAP - 2 * 24 * HOUR)
    declared(app, "30 2 * * *", zone=BERLIN)
    told = [slot.isoformat() for slot in app.schedules.next("report", 5)]
    assert told == [
        "2027-03-26T02:30:00+01:00",
        "2027-03-27T02:30:00+01:00",
        "2027-03-28T03:00:00+02:00",
        "2027-03-29T02:30:00+02:00",
        "2027-03-30T02:30:00+02:00",
    ]
    with pytest.raises(mp.NotFound, match="there are: report"):
        app.schedules.next("nightly")
    with pytest.raises(mp.Invalid, match="between 1 and 1000"):
        app.schedules.next("report", 0)


async def test_every_call_has_an_async_twin(app):
    declared(app)
    assert await app.schedules.pause_async("report")
    assert [schedule.state for schedule in await app.schedules.list_async()] == ["paused"]
    assert await app.schedules.resume_async("report")
    assert len(await app.schedules.next_async("report", 2)) == 2
    await app.close_async()


# What is refused, when it is declared


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"args": (1, 2, 3)}, "too many positional arguments"),
        ({"kwargs": {"size": 1}}, "unexpected keyword argument 'size'"),
        ({"args": (object(),)}, "object"),
        ({"args": (7,)}, "Expected `str"),
        ({"missed": "some"}, "missed='some' must be one of 'skip', 'last', 'all'"),
        ({"zone": "Nowhere"}, "no time zone 'Nowhere'"),
        ({"cron": "0 25 * * *"}, "Bad hour"),
        ({"name": ""}, "name"),
    ],
)
def test_what_could_never_fire_well_is_refused(app, more, says):
    with pytest.raises(mp.Invalid, match=says):
        declared(app, **more)
    assert app.schedules.list() == []


def test_jobs_that_cannot_be_scheduled_are_refused(app, database):
    declared(app)

    @app.job
    def other() -> None: ...

    for job in (other.options(unique="x"), other.options(start_in=5), other.options(hold=True)):
        with pytest.raises(mp.Invalid, match="a scheduled job takes no"):
            app.schedule(job, "* * * * *")
    with pytest.raises(mp.Invalid, match="is no job"):
        app.schedule(print, "* * * * *")
    with pytest.raises(mp.Invalid, match="another app's"):
        mp.App(database.url).schedule(other, "* * * * *")
    app.schedule(other, "* * * * *")
    with pytest.raises(mp.Invalid, match="'other' is declared twice; give one of them a name="):
        app.schedule(other, "0 * * * *")


def test_one_sick_schedule_does_not_stop_the_others(app, at, raw):
    """H-100, for schedules."""
    at(GAP)

    @app.job
    def other() -> None: ...

    app.schedule(other, "0 * * * *")
    scheduler = Scheduler(declared(app, "0 * * * *")._scheduled)
    looked(app, scheduler)
    raw.execute("UPDATE schedule SET zone = 'Europe/Atlantis' WHERE name = 'other'")
    at(GAP + HOUR)
    passed = looked(app, scheduler)
    assert (passed.fired, passed.failed) == (1, 1)
    assert slots(app) == written(GAP + HOUR)
    looked(app, scheduler)
    assert scheduler.next_in > 0  # nobody runs in circles around what cannot fire


def test_what_is_declared_is_said_again_now_and_then(app, at):
    class Stopped:
        now = 0.0

        def monotonic(self):
            return self.now

    clock = Stopped()
    scheduler = Scheduler(declared(app)._scheduled, clock=clock)
    other = Schedules(app.client, {})
    at(GAP)
    looked(app, scheduler)
    at(GAP + 2 * MINUTE)
    looked(app, scheduler)
    assert [schedule.state for schedule in other.list()] == ["vanished"]
    clock.now = schedules.SEEN_SECONDS
    looked(app, scheduler)
    assert [schedule.state for schedule in other.list()] == ["active"]
