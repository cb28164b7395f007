"""What a submit promises: checked at the door, stored once, as asked."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

import milepost as mp
from milepost.store import failpoint
from milepost.store.group import GroupSize


def moves(job):
    return [entry.move for entry in job.history]


@pytest.fixture
def convert(app):
    @app.job(retries=3, retry_delay=1.0)
    def convert(document: str, *, format: str = "pdf") -> str:  # noqa: A002 - the design's own
        return f"{document}.{format}"

    return convert


def test_a_submitted_job_is_stored_runs_and_gives_its_result(app, convert):
    job = convert.submit("report", format="html")
    assert job.state == mp.JobState.QUEUED
    assert app.drain() == 1
    assert job.refresh().result == "report.html"
    assert moves(job) == ["create", "claim", "succeed"]


async def test_every_call_has_an_async_twin(app, convert):
    job = await convert.submit_async("report")
    many = await convert.submit_many_async([("a",), {"document": "b", "format": "txt"}])
    assert await app.drain_async() == 3
    assert (await job.wait_async(5)).result == "report.pdf"
    assert [(await one.refresh_async()).result for one in many] == ["a.pdf", "b.txt"]
    assert [entry.move for entry in await job.history_async()] == ["create", "claim", "succeed"]
    assert len(await app.jobs.list_async(kind="convert")) == 3
    assert (await app.jobs.get_async(job.id)).id == job.id
    await app.close_async()


WRONG_CALLS = [
    ((), {}),
    (("a", "b"), {}),
    (("a",), {"fromat": "pdf"}),
    ((7,), {}),
    ((None,), {}),
    (("a",), {"format": 7}),
    (("a",), {"document": "b"}),
    (("a\ud800",), {}),
    ((object(),), {}),
    ((float("nan"),), {}),
]


def test_wrong_arguments_are_refused_at_the_door_and_nothing_is_stored(app, convert):
    for args, kwargs in WRONG_CALLS:
        with pytest.raises(mp.Invalid):
            convert.submit(*args, **kwargs)
        with pytest.raises(mp.Invalid):
            convert.submit_many([("fine",), {**kwargs, "nope": 1} if kwargs else args])
    assert list(app.jobs.list()) == []


def test_a_refusal_names_the_job_and_what_it_takes(convert):
    with pytest.raises(mp.Invalid, match=r"convert\(document: str.*missing.*'document'"):
        convert.submit()


def test_a_payload_beyond_the_limit_is_refused(database):
    app = mp.App(database.url, max_payload=1000)

    @app.job
    def read(text: str) -> int:
        return len(text)

    with pytest.raises(mp.Invalid, match="MILEPOST_MAX_PAYLOAD"):
        read.submit("x" * 1001)
    assert read.submit("x" * 900).state == mp.JobState.QUEUED
    app.close()


def test_many_are_submitted_in_one_statement(app, convert):
    statements = []
    with failpoint.armed("before:job_create", lambda: statements.append(1)):
        handles = convert.submit_many([("a",), ["b"], {"document": "c", "format": "md"}])
    assert len(statements) == 1
    assert convert.submit_many([]) == []
    assert app.drain() == 3
    assert [job.refresh().result for job in handles] == ["a.pdf", "b.pdf", "c.md"]


def test_many_takes_a_tuple_or_a_dict_for_each_job(app, convert):
    with pytest.raises(mp.Invalid, match="tuple or a dict"):
        convert.submit_many(["abc"])
    assert list(app.jobs.list()) == []


def test_a_held_job_waits_for_its_submit(app, convert):
    job = convert.options(hold=True).submit("x")
    assert job.state == mp.JobState.CREATED
    assert app.drain() == 0
    assert job.submit().state == mp.JobState.QUEUED
    assert job.submit().state == mp.JobState.QUEUED
    assert app.drain() == 1
    assert moves(job) == ["create", "submit", "claim", "succeed"]


def test_a_held_job_with_a_start_goes_to_sleep_when_it_is_submitted(app, convert, advance):
    job = convert.options(hold=True, start_in=60).submit("x").submit()
    assert job.state == mp.JobState.WAITING
    advance(61)
    app.drain()
    assert moves(job) == ["create", "submit", "wake", "claim", "succeed"]


@pytest.mark.parametrize("way", ["start_in", "start_at"])
def test_a_later_start_waits_by_the_stores_clock(app, convert, advance, way):
    chosen = {"start_in": 60.0, "start_at": datetime.now(UTC) + timedelta(seconds=60)}
    job = convert.options(**{way: chosen[way]}).submit("x")
    assert job.state == mp.JobState.WAITING
    assert app.drain() == 0
    advance(30)
    assert app.drain() == 0
    advance(31)
    assert app.drain() == 1
    assert moves(job) == ["create", "wake", "claim", "succeed"]


def test_the_stores_clock_and_not_the_callers_says_whether_a_start_has_come(app, convert, advance):
    # The store's clock is an hour behind this machine's: what is past here is to come there.
    advance(-3600)
    job = convert.options(start_at=datetime.now(UTC) - timedelta(minutes=30)).submit("x")
    assert app.drain() == 0
    assert job.refresh().state == mp.JobState.WAITING
    advance(3600)
    assert app.drain() == 1


def test_a_start_that_is_past_runs_at_once(app, convert):
    job = convert.options(start_at=datetime.now(UTC) - timedelta(days=1)).submit("x")
    assert app.drain() == 1
    assert job.refresh().result == "x.pdf"


WRONG = [
    {"priority": 10},
    {"priority": -1},
    {"start_in": -1},
    {"start_in": float("nan")},
    {"start_in": float("inf")},
    {"start_in": 1e300},
    {"start_in": 1, "start_at": datetime.now(UTC)},
    {"start_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is the mistake
    {"deadline": -1},
    {"deadline": float("inf")},
    {"start_within": -1},
    {"timeout": -1},
    {"timeout": 0},
    {"retries": -1},
    {"poll_limit": -1},
    {"poison_limit": 0},
    {"unique": ""},
    {"unique": "a\0b"},
    {"queue": ""},
    {"queue": "a\0b"},
    {"queue": "a\ud800"},
    {"channel": "a\0b"},
    {"tags": {"a": 1}},
    {"tags": {"a": "b\0c"}},
    {"tags": {"a": "b\ud800"}},
]


def test_options_that_cannot_be_meant_are_refused_and_nothing_is_stored(app, convert):
    for wrong in WRONG:
        with pytest.raises(mp.Invalid):
            convert.options(**wrong).submit("x")
    assert list(app.jobs.list()) == []


def test_one_live_job_per_unique_key_and_a_new_one_after_its_end(app, convert):
    first = convert.options(unique="invoice-7").submit("a")
    again = convert.options(unique="invoice-7").submit("b")
    other = convert.options(unique="invoice-8").submit("c")
    assert again.id == first.id
    assert other.id != first.id
    assert app.drain() == 2
    assert again.refresh().result == "a.pdf"
    assert convert.options(unique="invoice-7").submit("d").id != first.id


def test_a_unique_key_belongs_to_its_kind(app, convert):
    @app.job
    def other() -> None: ...

    assert convert.options(unique="k").submit("a").id != other.options(unique="k").submit().id


def test_threads_that_submit_one_unique_key_get_one_job(app, convert):
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda n: convert.options(unique="k").submit(str(n)).id, range(40)))
    assert len(ids) == 1
    assert len(app.jobs.list()) == 1


def test_higher_priorities_run_first_and_equals_in_their_order(app):
    ran = []

    @app.job
    async def note(name: str) -> None:
        ran.append(name)

    for name, priority in [("a", 0), ("b", 0), ("high", 9), ("c", 0), ("middle", 5)]:
        note.options(priority=priority).submit(name)
    app.drain()
    assert ran == ["high", "middle", "a", "b", "c"]


def test_tags_and_queue_are_kept(app, convert):
    job = convert.options(queue="slow", tags={"user": "42"}, channel="orders").submit("x")
    assert (job.queue, job.kind) == ("slow", "convert")
    assert job.record.tags.replace(" ", "") == '{"user":"42"}'
    assert job.record.channel == "orders"


def test_a_deadline_ends_a_job_that_did_not_finish_in_time(app, convert, advance):
    job = convert.options(deadline=60).submit("x")
    advance(61)
    assert app.drain() == 0
    assert job.refresh().state == mp.JobState.FAILED
    assert job.error.cause == "deadline"
    assert moves(job) == ["create", "expire"]


def test_a_job_that_did_not_start_in_time_ends_and_one_that_did_goes_on(app, advance):
    @app.job(start_within=60, retry_delay=120.0)
    def flaky(*, fails: bool) -> None:
        if fails and mp.current().attempt == 1:
            raise ConnectionError

    late = flaky.options(start_in=90).submit(fails=False)
    begun = flaky.submit(fails=True)
    app.drain()
    advance(100)
    app.drain()
    advance(100)
    app.drain()
    assert (late.refresh().state, late.error.cause) == (mp.JobState.FAILED, "deadline")
    assert begun.refresh().state == mp.JobState.SUCCEEDED


def test_the_limits_of_one_submission_win_over_the_declared_ones(app):
    @app.job(retries=3, queue="a", priority=1)
    def fail() -> None:
        raise ConnectionError

    job = fail.options(retries=0, queue="b", priority=2).submit()
    app.drain()
    assert job.refresh().error.cause == "attempts_exhausted"
    assert (job.attempt, job.queue, job.record.priority) == (1, "b", 2)


def test_options_return_copies_and_never_change_what_they_came_from(app, convert):
    tags = {"user": "1"}
    slow = convert.options(queue="slow", tags=tags)
    urgent = slow.options(priority=9)
    tags["user"] = "2"
    assert convert.submit("x").queue == "default"
    assert slow.submit("x").record.priority == 0
    job = urgent.submit("x")
    assert (job.queue, job.record.priority) == ("slow", 9)
    assert '"1"' in job.record.tags
    with pytest.raises(AttributeError):
        slow._options.queue = "fast"


def test_a_hundred_threads_that_submit_at_once_share_their_statements(app, convert):
    app.counts()
    statements = []

    def first_waits_for_the_rest() -> None:
        statements.append(1)
        until = time.monotonic() + 10
        while len(statements) == 1 and len(app.client._submits._waiting) < 99:
            assert time.monotonic() < until
            time.sleep(0.001)

    with (
        failpoint.armed("before:job_create", first_waits_for_the_rest),
        ThreadPoolExecutor(100) as pool,
    ):
        handles = list(pool.map(lambda n: convert.submit(f"d{n}"), range(100)))
    assert len(statements) == 2
    assert {job.id for job in handles} == {job.id for job in app.jobs.list(limit=200)}
    assert [job.record.payload for job in handles] == [
        b'{"document":"d%d"}' % n for n in range(100)
    ]


async def test_a_hundred_tasks_that_submit_at_once_share_their_statements(app, convert):
    statements = []
    with failpoint.armed("before:job_create", lambda: statements.append(1)):
        handles = await asyncio.gather(*(convert.submit_async(f"d{n}") for n in range(100)))
    assert len(statements) <= 2
    assert {job.id for job in handles} == {job.id for job in await app.jobs.list_async(limit=200)}
    await app.close_async()


def test_a_mistake_in_one_of_many_shared_submits_is_its_own(app, convert):
    """What the store alone can refuse fails the one who asked for it."""
    from milepost.client import new_id
    from milepost.records import NewJob, Template

    good = [NewJob(new_id(), b"{}", Template(kind="convert")) for _ in range(5)]
    bad = NewJob(good[0].id, b"{}", Template(kind="convert"))  # an id that is taken
    app.client.create([good[0]])
    began = threading.Event()

    def hold_the_first() -> None:
        began.set()
        until = time.monotonic() + 10
        while len(app.client._submits._waiting) < 5 and hold.is_set():
            assert time.monotonic() < until
            time.sleep(0.001)
        hold.clear()

    hold = threading.Event()
    hold.set()
    with failpoint.armed("before:job_create", hold_the_first), ThreadPoolExecutor(8) as pool:
        first = pool.submit(convert.submit, "first")
        assert began.wait(10)
        rest = [pool.submit(app.client.create, [job]) for job in (bad, *good[1:])]
    assert first.result().state == mp.JobState.QUEUED
    assert isinstance(rest[0].exception(), mp.MilepostError)
    assert all(future.exception() is None for future in rest[1:])
    assert len(app.jobs.list()) == 6


def test_an_interrupted_submit_leaves_no_other_thread_waiting(app, convert, monkeypatch):
    app.counts()
    run = app.client.run
    asked = []

    def interrupted(operation, *args, **kwargs):
        if operation.__name__ != "create":
            return run(operation, *args, **kwargs)
        asked.append(1)
        until = time.monotonic() + 10
        while len(asked) == 1 and len(app.client._submits._waiting) < 3:
            assert time.monotonic() < until
        if len(asked) == 2:
            raise KeyboardInterrupt
        return run(operation, *args, **kwargs)

    monkeypatch.setattr(app.client, "run", interrupted)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(convert.submit, name) for name in "abcd"]
        problems = [future.exception(10) for future in futures]
    assert sorted(type(p).__name__ for p in problems) == [
        "KeyboardInterrupt",
        "NoneType",
        "Unavailable",
        "Unavailable",
    ]


def test_who_is_interrupted_with_submissions_in_hand_leaves_nobody_waiting(
    app, convert, monkeypatch
):
    app.counts()
    submits, usual = app.client._submits, GroupSize.take

    def interrupted(size, waiting, group):
        usual(size, waiting, group)
        raise KeyboardInterrupt  # before they are stored

    monkeypatch.setattr(GroupSize, "take", interrupted)
    with ThreadPoolExecutor(2) as pool:
        assert submits.take()
        futures = []
        until = time.monotonic() + 10
        for name in "ab":
            futures.append(pool.submit(convert.submit, name))
            while len(submits._waiting) < len(futures):
                assert time.monotonic() < until
        submits.pass_on()
        problems = [future.exception(10) for future in futures]
    assert [type(problem) for problem in problems] == [KeyboardInterrupt, mp.Unavailable]


def test_an_unreachable_store_answers_everybody_at_once(app, convert, monkeypatch):
    app.counts()
    run, asked = app.client.run, []
    began = threading.Event()

    def away(operation, *args, **kwargs):
        if operation.__name__ != "create":
            return run(operation, *args, **kwargs)
        asked.append(1)
        began.set()
        until = time.monotonic() + 10
        while len(asked) == 1 and len(app.client._submits._waiting) < 7:
            assert time.monotonic() < until
        raise mp.Unavailable("away")

    monkeypatch.setattr(app.client, "run", away)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(convert.submit, "x") for _ in range(8)]
        assert all(isinstance(f.exception(10), mp.Unavailable) for f in futures)
    assert len(asked) == 2


def test_unknown_settings_are_refused():
    with pytest.raises(mp.Invalid, match="leese"):
        mp.App("sqlite:///never-opened.db", leese=3)


def test_an_encrypting_codec_keeps_content_from_the_store(database, raw):
    import msgspec

    class Rot:
        name = "rot"

        def encode(self, value):
            return bytes(255 - byte for byte in msgspec.json.encode(value))

        def decode(self, data, type_=None):
            plain = bytes(255 - byte for byte in data)
            return msgspec.json.decode(plain, type=type_ or object)

    app = mp.App(database.url, codec=Rot())

    @app.job
    def greet(name: str, times: int = 1) -> str:
        return f"hello {name}" * times

    with pytest.raises(mp.Invalid):
        greet.submit(7)
    job = greet.submit("secret", times=2)
    app.drain()
    assert job.refresh().result == "hello secrethello secret"
    [(payload, result)] = raw.execute("SELECT payload, result FROM job")
    assert b"secret" not in bytes(payload) + bytes(result)
    app.close()
