"""An invented evening of a shop: a store with something of everything that pages show."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import milepost as mp
from milepost.lifecycle import WorkerState
from milepost.limit import limit_key
from milepost.store import buckets, dashboard, jobs, queues, workers
from milepost.store.jobs import Line
from milepost.store.rules import Limit, change

__all__ = ["PAGES", "Evening", "Orders", "declare", "fill"]

PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "jobs-filtered": "/jobs?q=queue%3Apayments+state%3Afailed%2Cretrying",
    "jobs-none": "/jobs?q=stat%3Afailed",
    "jobs-confirm": "/jobs/bulk?action=rerun&q=state%3Afailed&all=1",
    "job-failed": "/jobs/{0.failed}",
    "job-retrying": "/jobs/{0.retrying}",
    "job-running": "/jobs/{0.running}",
    "errors": "/errors",
    "runs": "/runs",
    "run": "/runs/{0.run}",
    "run-ended": "/runs/{0.ended_run}",
    "run-start": "/runs/new?batch=invoices",
    "pipelines": "/pipelines",
    "pipeline": "/pipelines/{0.pipeline}",
    "queues": "/queues",
    "queue-pause": "/queues/index/pause",
    "limits": "/limits",
    "limit": "/limits?name=exports",
    "limit-set": "/limits/job/exports/set",
    "limit-clear": "/limits/job/exports/clear?key=acme",
    "schedules": "/schedules",
    "channels": "/channels",
    "tokens": "/tokens",
    "login": "/login",
    "not-there": "/jobs/018f0000-0000-7000-8000-000000000000",
}
"""The pages, of subjects of the evening."""
HOUR = 3_600.0
LEASE_SECONDS = 8 * HOUR
WORKER = "shop-1-4711-aa"
LETTERS = 40
SLOW = 104
"""An invoice that waits for somebody, and keeps the gate of its run shut."""


class PaymentError(Exception):
    """The partner refused."""


@dataclass(frozen=True)
class Evening:
    """Subjects that tests look at."""

    failed: str
    retrying: str
    succeeded: str
    running: str
    waiting: str
    cancelled: str
    run: str
    """A run whose second step waits at its gate."""
    ended_run: str
    pipeline: str
    pipeline_run: str


@dataclass
class Order:
    """What is kept of an order."""

    id: int
    amount: int


class Orders(mp.Source[Any, Any, Any]):
    """A source of thirty orders, one of which nobody can read."""

    away = False
    """Whether the server of the second partition does not answer."""

    def count(self, window: Any, low: Any, high: Any) -> int:
        """Count the orders of a range."""
        return len([number for number in range(30) if low <= number < high])

    def fetch(self, window: Any, partition: Any, cursor: Any) -> mp.Page[Any, Any]:
        """Read the orders of a partition."""
        if self.away and partition.ordinal == 1:
            raise mp.Fail("the server of these orders does not answer")
        numbers = [number for number in range(30) if partition.low <= number < partition.high]
        return mp.Page([{"id": number, "amount": number * 10} for number in numbers])

    def map(self, raw: Any) -> Order:
        """Refuse one of them."""
        if raw["id"] == 13:
            raise mp.Reject("the amount is in no known currency")
        return Order(**raw)


def declare(app: mp.App) -> None:
    """Declare the shop's jobs, batches, pipelines and schedules."""

    @app.job(name="payments.charge", queue="payments", retries=3, retry_delay=1_200)
    def charge(ctx: mp.Context, order: str, *, amount: int) -> str:
        ctx.log.info("charging the card", order=order, amount=amount)
        ctx.step("reserve", lambda: f"reservation-{order}")
        ctx.progress(0.5, "reserved")
        return collect(order, amount)

    def collect(order: str, amount: int) -> str:
        if amount > 9_000:
            raise mp.Fail(f"the card of {order} is refused", code="card_refused")
        if amount > 5_000:
            raise PaymentError(f"503 from the bank for {order}")
        return f"receipt-{order}"

    @app.job(name="mail.send", queue="mail")
    def send(to: str, *, template: str = "receipt") -> str:
        return f"{template} to {to}"

    @app.job(name="carrier.pickup")
    def pickup(ctx: mp.Context, parcel: str) -> str:
        if not ctx.signals():
            raise mp.Later(6 * HOUR)
        return parcel

    @app.job(name="index.rebuild", queue="index")
    def rebuild(shard: int) -> int:
        return shard

    @app.job(name="reports.night")
    def night(day: str) -> str:
        return day

    _declare_batch(app)
    app.pipeline("orders", Orders(), key="id", partition_by="id", partitions=3)
    app.schedule(night, "0 2 * * *", args=("yesterday",), zone="Europe/Berlin", name="nightly")


def _declare_batch(app: mp.App) -> None:
    invoices = app.batch("invoices", params=dict[str, int], policy=mp.Tolerate(0.2))

    @invoices.step(queue="invoices")
    def collect(params: dict[str, int]) -> Iterator[int]:
        yield from range(params.get("first", 0), params.get("first", 0) + params["count"])

    @invoices.step(queue="invoices", retries=0)
    def render(ctx: mp.Context, number: int) -> int:
        if number == SLOW and not ctx.signals():
            raise mp.Later(6 * HOUR)
        if number % 10 == 7:
            raise mp.Fail(f"invoice {number} has no address")
        return number

    @invoices.step(queue="invoices-out", gated=True)
    def post(number: int) -> int:
        return number


@contextmanager
def _ago(app: mp.App, seconds: float) -> Iterator[None]:
    """Let what follows have happened some time ago."""
    app.client.run(workers.advance_clock, -seconds)
    try:
        yield
    finally:
        app.client.run(workers.advance_clock, seconds)


def fill(app: mp.App) -> Evening:
    """Fill an empty store with the evening; `app` has declared what happens in it."""
    with _ago(app, 6 * HOUR):
        runs = _ended_runs(app)
    for hours in (5.0, 3.0, 1.5):
        with _ago(app, hours * HOUR):
            _orders(app, 6)
            app.drain()
    with _ago(app, 600.0):
        [batch] = app.batches
        runs["run"] = batch.start({"count": 10, "first": 100}).id
        app.drain(queues=["invoices"])
        found = _orders(app, 12)
        app.drain(queues=["payments", "mail", "default"])
    waiting = app.jobs.list(kind="carrier.pickup", limit=1)[0].id
    cancelled = _submit(app, "index.rebuild", [99])
    app.jobs.get(cancelled).cancel(reason="a shard that is not there any more")
    running = _leave_open(app)
    slower = Limit(most=3, rate=20, per_us=60_000_000, burst=5)
    app.client.run(change, ("job", "exports"), slower, actor="ann", reason="their shop is slow")
    for customer, units in (("acme", 9_000), ("tiny", 4)):
        app.client.run(buckets.take, "job", limit_key("exports", customer), units, limit=slower)
    return Evening(*found, running=running, waiting=waiting, cancelled=cancelled, **runs)


def _submit(app: mp.App, kind: str, args: list[Any], **options: Any) -> str:
    kwargs = options.pop("kwargs", {})
    [job_id] = app.client.create([app.new_job(kind, args, kwargs, options)])
    return job_id


def _orders(app: mp.App, number: int) -> tuple[str, str, str]:
    """Submit orders: return one that fails, one that is tried again, one that succeeds."""
    made = {}
    for order in range(number):
        amount = {0: 9_900, 1: 5_500}.get(order % 6, 1_200 + order)
        made[order] = _submit(
            app,
            "payments.charge",
            [f"A-20{order:03}"],
            kwargs={"amount": amount},
            tags={"customer": f"c-{order}", "country": "AT"},
            channel="shop",
        )
        _submit(app, "mail.send", [f"customer{order}@example.org"])
    _submit(app, "carrier.pickup", ["P-1"])
    return made[0], made[1], made[2]


def _ended_runs(app: mp.App) -> dict[str, str]:
    """Let a run of the batch and one of the pipeline end; nothing else is open yet."""
    [batch] = app.batches
    ended = batch.start({"count": LETTERS})
    pipeline = app.pipelines["orders"].start()
    app.drain(timeout=30)
    return {"ended_run": ended.id, "pipeline": "orders", "pipeline_run": pipeline.id}


def _leave_open(app: mp.App) -> str:
    """Leave jobs in open states, a worker that is alive, a pause, a view and a check."""
    for shard in range(8):
        _submit(app, "index.rebuild", [shard], priority=shard % 3)
    for order in range(5):
        _submit(app, "mail.send", [f"late{order}@example.org"])
    _submit(app, "reports.night", ["held"], hold=True)
    run = app.client.run
    run(queues.pause, "mail", paused=True, actor="ana", reason="bounce storm at the provider")
    slots = '{"FREE":14,"EXECUTING":2}'
    queues_json = '["payments","mail","default"]'
    new = workers.NewWorker(
        id=WORKER,
        lease_us=int(LEASE_SECONDS * 1e6),
        host="shop-1",
        pid=4711,
        program="milepost",
        queues=queues_json,
        slots=slots,
    )
    run(workers.register, new)
    run(workers.walk, WORKER, WorkerState.STARTUP, WorkerState.POLLING, slots=slots)
    held = [
        _submit(app, "payments.charge", [f"A-30{n}"], kwargs={"amount": 1_999}) for n in range(2)
    ]
    run(jobs.claim, worker_id=WORKER, line=[Line("payments", 0)], most=2)
    run(dashboard.save_view, "Late payments", "queue:payments state:retrying", actor="ana")
    run(dashboard.note_check, "verify", clean=True, summary="folds clean")
    return held[0]
