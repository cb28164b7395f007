"""What is too large or of the wrong kind is refused at the door, alike on every store (H-105)."""

import hashlib
from inspect import isawaitable
from itertools import count

import pytest

import milepost as mp
from milepost.batch.handles import RunHandle
from milepost.ingest.handles import Quarantine, Removals


def noise(size: int) -> str:
    """A text that no database can compress: an index must take all of it."""
    lines = (hashlib.sha256(str(number).encode()).hexdigest() for number in range(size // 64 + 1))
    return "".join(lines)[:size]


@pytest.fixture
def echo(app):
    @app.job(name=noise(500))
    def echo(value: int) -> int:
        return value

    return echo


def test_names_of_the_greatest_length_go_all_the_way(app, echo):
    """H-105, H-113: each fits into every index that it meets, also where a job ends."""
    longest = {"queue": noise(500), "unique": noise(1_000), "channel": noise(500)}
    job = echo.options(**longest, tags={noise(500): noise(4_000)}).submit(1)
    assert echo.options(unique=noise(1_000)).submit(2).id == job.id
    assert app.drain() == 1
    assert job.refresh().result == 1
    assert [entry.move for entry in job.history] == ["create", "claim", "succeed"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"queue": noise(501)}, "queue="),
        ({"queue": "ü" * 251}, "queue="),
        ({"unique": noise(1_001)}, "unique="),
        ({"channel": noise(501)}, "channel="),
        ({"tags": {noise(501): "x"}}, "name of a tag"),
        ({"tags": {"a": noise(4_001)}}, "tags"),
        ({"tags": {"a": None}}, "tags"),
        ({"tags": {str(number): noise(1_000) for number in range(20)}}, "tags"),
        ({"hold": "yes"}, "hold="),
    ],
    ids=lambda case: case if isinstance(case, str) else "-".join(case),
)
def test_what_is_too_long_is_refused_and_nothing_is_stored(app, echo, wrong, told):
    with pytest.raises(mp.Invalid, match=told) as caught:
        echo.options(**wrong).submit(1)
    assert len(str(caught.value)) < 200
    assert app.jobs.list() == []


def test_a_declaration_with_too_long_a_name_is_refused(app):
    with pytest.raises(mp.Invalid, match="name="):
        app.job(name=noise(501))(print)
    with pytest.raises(mp.Invalid, match="queue="):
        app.job(queue=noise(501))(lambda: None)


class Things(mp.Source[dict, dict, int]):
    """Nothing to read."""


NUMBERS = count()


def _step(app, _, name):
    app.batch(f"counts{next(NUMBERS)}").step(name=name)(lambda: None)


def _queue_of_a_step(app, _, name):
    app.batch(f"counts{next(NUMBERS)}").step(queue=name)(lambda: None)


def _channel_of_a_run(app, _, name):
    batch = app.batch(f"counts{next(NUMBERS)}")
    batch.step(lambda: None)
    batch.start(channel=name)


def _pipeline(app, name="things", **options):
    given = {"key": "id", "partition_by": "id", "version": "at", **options}
    app.pipeline(name, Things(), **given)


URL = "https://partner.example/"
DECLARATIONS = {
    "job": lambda app, _, name: app.job(name=name)(print),
    "queue": lambda app, _, name: app.job(queue=name)(lambda: None),
    "queue of options": lambda _app, echo, name: echo.options(queue=name).submit(1),
    "channel of options": lambda _app, echo, name: echo.options(channel=name).submit(1),
    "batch": lambda app, _, name: app.batch(name),
    "step": _step,
    "queue of a step": _queue_of_a_step,
    "channel of a run": _channel_of_a_run,
    "pipeline": lambda app, _, name: _pipeline(app, name),
    "queue of a pipeline": lambda app, _, name: _pipeline(app, queue=name),
    "channel of a pipeline": lambda app, _, name: _pipeline(app, channel=name),
    "schedule": lambda app, echo, name: app.schedule(echo, "0 2 * * *", args=(1,), name=name),
    "channel": lambda app, _, name: app.channel(name, webhook=URL),
    "queue of a request": lambda app, _, name: app.request("GET", URL, queue=name),
    "channel of a request": lambda app, _, name: app.request("GET", URL, channel=name),
    "channel of requests": lambda app, _, name: app.request_batch([URL], channel=name),
    "queue of requests": lambda app, _, name: app.request_batch([URL], queue=name),
    "queue that is paused": lambda app, _, name: app.queues.pause(name),
    "queue of a worker": lambda app, _, name: app.run_worker(queues=[name]),
    "queue that is drained": lambda app, _, name: app.drain(queues=[name]),
}
BLANKS = ["", " ", "\t\n", "\u2003"]


@pytest.mark.parametrize("what", DECLARATIONS)
def test_a_blank_name_is_refused_where_it_is_declared(app, echo, what, subtests):
    for name in BLANKS:
        with subtests.test(name=name), pytest.raises(mp.Invalid, match="not blank"):
            DECLARATIONS[what](app, echo, name)
    assert app.jobs.list() == []


@pytest.mark.parametrize("name", BLANKS)
def test_prose_and_the_values_of_tags_may_be_blank(app, echo, name):
    job = echo.options(tags={"note": name}).submit(1)
    assert job.cancel(name or " ") == mp.JobState.CANCELLED


@pytest.mark.parametrize("reason", ["", None, 5, b"x", "a\0b", "\ud800", "x" * 4_001])
def test_a_reason_that_cannot_be_kept_cancels_nothing(app, echo, reason):
    job = echo.submit(1)
    with pytest.raises(mp.Invalid, match="reason="):
        job.cancel(reason)
    assert job.refresh().state == mp.JobState.QUEUED
    assert job.cancel("x" * 4_000) == mp.JobState.CANCELLED


def test_a_signal_carries_no_more_than_a_payload(app, echo):
    job = echo.options(start_in=60).submit(1)
    with pytest.raises(mp.Invalid, match="the signal's data"):
        job.signal("x" * app.settings.max_payload)
    assert job.refresh().state == mp.JobState.WAITING


def test_an_argument_may_have_any_name(app):
    @app.job
    def odd(**named: int) -> list[str]:
        return sorted(named)

    job = odd.submit(**{"self": 1, "args": 2, "a b": 3, "": 4})
    app.drain()
    assert job.refresh().result == ["", "a b", "args", "self"]
    assert odd(self=1) == ["self"]


LISTS = {
    "changes": lambda app, limit: app.limits.changes(limit=limit),
    "workers": lambda app, limit: app.workers.list(limit=limit),
    "errors": lambda app, limit: app.errors.list(limit=limit),
    "jobs": lambda app, limit: app.jobs.list(limit=limit),
    "runs": lambda app, limit: app.runs.list(limit=limit),
    "messages": lambda app, limit: app.channels.messages("hook", limit=limit),
    "errors of a run": lambda app, limit: RunHandle(app.client, "r", None).errors_async(limit),
    "quarantine": lambda app, limit: Quarantine(app.client, "p").list(limit=limit),
    "removals": lambda app, limit: Removals(app.client, "p").list(limit=limit),
}


@pytest.mark.parametrize("listing", LISTS.values(), ids=LISTS)
async def test_a_list_of_no_length_that_there_is_is_refused_alike(app, listing):
    """-1 was everything on SQLite and PostgreSQL's own error there; 10**30 an OverflowError."""

    async def ask(limit: object) -> None:
        found = listing(app, limit)
        if isawaitable(found):
            await found

    for limit in (0, -1, 1.5, "x", True, 10**30):
        with pytest.raises(mp.Invalid, match="must be a whole number between 1 and"):
            await ask(limit)
