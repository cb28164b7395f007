"""Work that stood still in a file when it was moved goes on and ends on PostgreSQL."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from contents import types

import milepost as mp
from milepost.address import StoreUrl
from milepost.observe.doctor import diagnose
from milepost.store import events, jobs, workers
from milepost.store.jobs import Line
from tests.request.remote import Remote, Says
from tests.support.databases import Database

pytestmark = pytest.mark.every_version

HOUR = 3600.0


def healthy(database: Database) -> list[str]:
    with database.driver() as driver:
        found = diagnose(driver, StoreUrl.parse(database.url)).findings
    return [str(one) for one in found if one.code != "clock"]  # tests move it


@pytest.fixture
def carried(file: Database, server: Database, move) -> Iterator[Callable[..., Any]]:
    """Let a program do a part of its work in a file, move that, and go on on a server.

    `declare(app, there)` declares it on both sides and returns what a test needs.
    """
    apps: list[mp.App] = []

    def run(declare: Any, begin: Any, **options: Any) -> tuple[mp.App, Any, Any]:
        here = mp.App(file.url, **options)
        begun = begin(here, declare(here))
        here.close()
        ended = move(file, server)
        assert ended.code == 0, ended.said
        there = mp.App(server.url, **options)
        apps.append(there)
        return there, declare(there), begun

    yield run
    for app in apps:
        app.drain()
        app.close()
    assert healthy(server) == []


def test_limits_hold_what_they_held_l23(carried):
    """Nothing of a limit stands with the jobs: what moves is rules and buckets (L-23)."""
    ran: list[str] = []

    def declare(app: mp.App) -> Any:
        @app.job(name="calls", limit=mp.Limit(rate="1/h", key="who"))
        def calls(who: str, n: int) -> None:
            ran.append(f"{who}{n}")

        return calls

    def begin(app: mp.App, calls: Any) -> None:
        calls.submit_many([(who, n) for n in (1, 2) for who in "ab"])
        app.drain()
        assert sorted(ran) == ["a1", "b1"]

    there, calls, _ = carried(declare, begin)
    calls.submit("c", 1)
    there.drain()
    assert sorted(ran) == ["a1", "b1", "c1"]  # a and b have taken what this hour gives
    there.client.run(workers.advance_clock, HOUR)
    there.drain()
    assert sorted(ran) == ["a1", "a2", "b1", "b2", "c1"]


def test_an_ordered_key_keeps_its_order_though_all_came_at_once(carried):
    """One that is between two attempts holds its turn (L-11), and goes before the others."""
    ran: list[int] = []

    def declare(app: mp.App) -> Any:
        @app.job(name="step", limit=mp.Limit(ordered=True), retries=2, retry_delay=60)
        def step(n: int) -> None:
            ran.append(n)
            if ran.count(n) < 3 and n == 2:
                raise ValueError(n)

        return step

    def begin(app: mp.App, step: Any) -> None:
        step.submit_many([(n,) for n in range(1, 6)])
        app.drain()
        assert ran == [1, 2]

    there, step, _ = carried(declare, begin)
    step.submit(6)
    there.drain()
    assert ran == [1, 2]
    for _ in range(2):
        there.client.run(workers.advance_clock, 61.0)
        there.drain()
    assert ran == [1, 2, 2, 2, 3, 4, 5, 6]


def test_a_gated_batch_goes_on_behind_its_gate(carried):
    slow = {"open": False}
    told: list[int] = []

    def declare(app: mp.App) -> Any:
        batch = app.batch("letters", params=int)

        @batch.step
        def find(count: int) -> Iterator[int]:
            yield from range(count)

        @batch.step
        def write(number: int) -> int:
            if number == 3 and not slow["open"]:
                raise mp.Later(60)
            return number

        @batch.step(gated=True)
        def post(number: int) -> int:
            told.append(number)
            return number

        @batch.reduce
        def count(numbers: Any) -> int:
            return sum(numbers)

        return batch

    def begin(app: mp.App, batch: Any) -> str:
        run = batch.start(8)
        app.drain()
        assert run.refresh().steps[1].counts == {"SUCCEEDED": 7, "WAITING": 1}
        return str(run.id)

    there, _, run_id = carried(declare, begin)
    slow["open"] = True
    there.drain()
    assert told == []
    there.client.run(workers.advance_clock, 61.0)
    there.drain()
    run = there.runs.get(run_id)
    assert (sorted(told), run.state, run.report) == ([*range(8)], "SUCCEEDED", 28)


class Stone(msgspec.Struct):
    id: int
    flag: bool
    weight: float
    price: Decimal
    found: date
    seen_at: datetime
    serial: UUID
    picture: bytes
    labels: list[str]
    note: str | None = None


def stone(number: int) -> Stone:
    return Stone(
        id=number,
        flag=number % 2 == 0,
        weight=0.1 + number,
        price=Decimal("1234567890.123456789") * number,
        found=date(1, 1, 1),
        seen_at=datetime(2026, 1, 2, 3, 4, 5, number, tzinfo=UTC),
        serial=UUID(int=number),
        picture=bytes([number, 0, 255]),
        labels=["a\\b", 'c"d', "\t"],
        note=None if number % 3 else "tab\there",
    )


class Mine(mp.Source[Any, Any, Any]):
    """Thirty records, of which the upper half cannot be read until it is open."""

    is_open = False

    def count(self, window: Any, low: Any, high: Any) -> int:
        return sum(low <= n < high for n in range(1, 31))

    def fetch(self, window: Any, partition: Any, cursor: Any) -> mp.Page[Any, Any]:
        if partition.high > 15 and not self.is_open:
            raise ConnectionError("the tunnel is flooded")
        found = [n for n in range(1, 31) if partition.low <= n < partition.high]
        return mp.Page([{"id": n, "updated_at": 1} for n in found], None)

    def map(self, raw: Any) -> Stone:
        if raw["id"] == 13:
            raise mp.Reject("unlucky")
        return stone(raw["id"])


def test_a_pipeline_goes_on_in_the_middle_of_a_run(carried, server):
    """Pages that were read are not read again; the table has every type that a record may have."""
    mine = Mine()

    def declare(app: mp.App) -> Any:
        return app.pipeline(
            *("stones", mine),
            key="id",
            partition_by="id",
            partitions=4,
            retries=5,
            retry_delay=60,
        )

    def begin(app: mp.App, pipeline: Any) -> str:
        mine.is_open = True
        first = pipeline.start()
        app.drain(timeout=10)
        assert first.refresh().state == "SUCCEEDED"
        mine.is_open = False
        second = pipeline.start(full=True)
        app.drain()
        assert second.refresh().state == "RUNNING"
        return str(second.id)

    there, pipeline, run_id = carried(declare, begin)
    expected = [stone(n) for n in range(1, 31) if n != 13]
    assert list(pipeline.records()) == expected
    with server.raw() as raw:
        kinds = "SELECT attname, format_type(atttypid, -1) FROM pg_attribute WHERE attnum > 0"
        found = dict(raw.execute(f"{kinds} AND attrelid = 'public.stones'::regclass"))
    assert (found["price"], found["flag"], found["removed_at"]) == (
        "numeric",
        "boolean",
        "timestamp with time zone",
    )
    mine.is_open = True
    there.client.run(workers.advance_clock, 61.0)
    there.drain(timeout=10)
    run = there.runs.get(run_id)
    assert run.state == "SUCCEEDED"
    assert list(pipeline.records()) == expected
    assert len(pipeline.quarantine) == 1


def test_a_request_that_was_told_to_wait_is_sent_again_with_its_key(carried):
    with Remote() as remote:
        remote.answers = [Says(json={"status": "working"}), Says(json={"status": "done"})]
        reply = mp.Reply(state="$.status", complete=["done"], pending=["working"])

        def begin(app: mp.App, _: Any) -> str:
            url = f"{remote.url}/convert"
            job = app.request("POST", url, json={"a": 1}, reply=reply, poll=30, channel="news")
            app.drain()
            assert job.refresh().state == "WAITING"
            return str(job.id)

        allowed = f"127.0.0.1:{remote.port}"
        there, _, job_id = carried(lambda _: None, begin, request_allow=allowed)
        there.client.run(workers.advance_clock, 31.0)
        there.drain()
        assert there.jobs.get(job_id).result == {"status": "done"}
        keys = {asked.headers["idempotency-key"] for asked in remote.asked}
        assert (len(remote.asked), keys) == (2, {job_id})
        [message] = there.channels.pull("news").messages
        assert message["subject"] == job_id


def test_a_schedule_fires_where_it_left_off(carried):
    ran: list[str] = []

    def declare(app: mp.App) -> Any:
        @app.job(name="night")
        def night() -> None:
            ran.append("night")

        app.schedule(night, "0 * * * *", name="hourly", missed="all")

    def begin(app: mp.App, _: Any) -> None:
        app.drain()
        app.client.run(workers.advance_clock, HOUR)
        app.drain()
        assert ran == ["night"]

    there, _, _ = carried(declare, begin)
    there.drain()
    assert ran == ["night"]
    there.client.run(workers.advance_clock, 2 * HOUR)
    there.drain()
    assert ran == ["night"] * 3


def test_a_job_of_a_worker_that_died_is_lost_and_run_again(carried):
    """It is carried as it is, with its worker: recovery is the same on both sides."""

    def declare(app: mp.App) -> Any:
        return app.job(name="work", retries=1)(lambda n: n)

    def begin(app: mp.App, work: Any) -> str:
        job = work.submit(7)
        run = app.client.run
        run(workers.register, workers.NewWorker(id="w", lease_us=30_000_000))
        [claim] = run(jobs.claim, worker_id="w", line=[Line("default", 0)], most=1)
        run(workers.advance_clock, 31.0)
        return str(claim.id or job.id)

    there, _, job_id = carried(declare, begin)
    assert there.jobs.get(job_id).state == "RUNNING"
    there.drain(timeout=5)
    job = there.jobs.get(job_id)
    moves = [entry.move for entry in job.history]
    assert (job.result, moves[:3]) == (7, ["create", "claim", "lose"])
    assert (job.record.losses, job.record.fence) == (1, 2)


def test_steps_signals_unique_keys_and_reruns_are_remembered(carried):
    done: list[str] = []

    def declare(app: mp.App) -> Any:
        @app.job(name="order", retries=1, retry_delay=60)
        def order(ctx: mp.Context, name: str) -> str:
            key = ctx.step("reserve", lambda: done.append(name) or f"key-{name}")
            if ctx.attempt == 1:
                raise ValueError("the bank is closed")
            if not ctx.signals():
                raise mp.Later(60)
            return str(key)

        return order

    def begin(app: mp.App, order: Any) -> str:
        job = order.options(unique="order-1", tags={"who": "ann"}).submit("a")
        app.drain()
        job.signal("paid")
        return str(job.id)

    there, order, job_id = carried(declare, begin)
    assert order.options(unique="order-1").submit("a").id == job_id
    assert [job.id for job in there.jobs.list(where="tag.who:ann")] == [job_id]
    there.client.run(workers.advance_clock, 61.0)
    there.drain()
    assert (there.jobs.get(job_id).result, done) == ("key-a", ["a"])
    again = there.jobs.get(job_id).rerun(fresh=True)
    assert again.id != job_id


def test_content_that_is_encrypted_moves_as_it_is(carried, server):
    key = mp.EncryptingCodec.new_key()

    def declare(app: mp.App) -> Any:
        return app.job(name="work", retries=1, retry_delay=60)(read)

    def read(ctx: mp.Context, secret: str) -> str:
        if ctx.attempt == 1:
            raise ValueError(secret)
        return secret

    def begin(app: mp.App, work: Any) -> str:
        job = work.submit("canary")
        app.drain()
        return str(job.id)

    there, _, job_id = carried(declare, begin, codec=mp.EncryptingCodec({"k1": key}))
    with server.raw() as raw:
        for table in types(server):
            assert "canary" not in str(raw.execute(f"SELECT * FROM {table}"))
    there.client.run(workers.advance_clock, 61.0)
    there.drain()
    assert there.jobs.get(job_id).result == "canary"


def test_whoever_pulls_messages_goes_on_at_the_cursor(carried):
    def declare(app: mp.App) -> Any:
        return app.job(name="work")(lambda n: n)

    def begin(app: mp.App, work: Any) -> Any:
        told = work.options(channel="orders")
        ids = [told.submit(n).id for n in range(3)]
        app.drain()
        return ids, app.channels.pull("orders", limit=2).cursor

    there, work, (ids, cursor) = carried(declare, begin)
    ids.append(work.options(channel="orders").submit(3).id)
    there.drain()
    messages = there.channels.pull("orders", cursor).messages
    assert [message["subject"] for message in messages] == ids[2:]


def test_whoever_follows_moves_is_told_that_some_may_be_missing(carried):
    """A place in the stream is a number in a file, and a snapshot on a server."""

    def declare(app: mp.App) -> Any:
        return app.job(name="work")(lambda n: n)

    def begin(app: mp.App, work: Any) -> events.Cursor:
        cursor = app.client.run(events.here)
        work.submit(1)
        _, cursor, _ = app.client.run(events.follow, cursor, most=10)
        return cursor

    there, work, cursor = carried(declare, begin)
    found, cursor, lost = there.client.run(events.follow, cursor, most=10)
    assert (found, lost) == ([], True)
    job = work.submit(2)
    found, _, lost = there.client.run(events.follow, cursor, most=10)
    assert ([event.id for event in found], lost) == ([job.id], False)


def test_a_history_that_was_summed_up_goes_on_and_leaves_with_its_job(carried, server):
    """What retention keeps and removes is the same on both sides, and so is what it leaves."""
    kept = {"keep_succeeded": "1h", "keep_failed": "1d", "keep_history": "60h"}

    def declare(app: mp.App) -> Any:
        @app.job(name="poll", poll_limit=100)
        def poll(ctx: mp.Context) -> str:
            if ctx.signals():
                return "done"
            raise mp.Later(HOUR)

        return poll

    def begin(app: mp.App, poll: Any) -> str:
        job = poll.submit()
        for _ in range(70):
            app.drain()
            app.client.run(workers.advance_clock, HOUR + 1)
        for _ in range(3):
            app.maintain_once()
            app.client.run(workers.advance_clock, 61.0)
        assert job.history[0].move == "snapshot"
        return str(job.id)

    there, _, job_id = carried(declare, begin, **kept)
    before = there.jobs.get(job_id)
    assert (before.record.polls, before.history[0].move) == (70, "snapshot")
    there.jobs.get(job_id).signal("enough")
    there.drain()
    assert there.jobs.get(job_id).result == "done"
    assert healthy(server) == []
    there.client.run(workers.advance_clock, 70 * HOUR)
    for _ in range(3):
        there.maintain_once()
    with pytest.raises(mp.NotFound):
        there.jobs.get(job_id)
    with server.raw() as raw:
        assert raw.value("SELECT count(*) FROM journal") == 0


def test_a_run_that_failed_is_resumed_there(carried):
    fails = {"now": True}

    def declare(app: mp.App) -> Any:
        parts = app.batch("parts", params=int)

        @parts.step(retries=0)
        def part(number: int) -> int:
            if number == 2 and fails["now"]:
                raise mp.Fail("no ink")
            return number

        return parts

    def begin(app: mp.App, parts: Any) -> str:
        run = parts.start(2)
        app.drain()
        assert run.refresh().state == "FAILED"
        return str(run.id)

    there, _, run_id = carried(declare, begin)
    fails["now"] = False
    resumed = there.runs.get(run_id).resume()
    there.drain()
    assert resumed.refresh().state == "SUCCEEDED"
