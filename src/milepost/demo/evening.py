"""An invented evening of a shop: the jobs, batch, pipeline and schedules that the pages show.

Handlers do nothing real, but they fail, wait, log and take their time as real ones do.
"""

import asyncio
import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from milepost.app import App
from milepost.batch.declaration import Tolerate
from milepost.context import Context
from milepost.ingest.source import Page, Reject, Source
from milepost.policy import Fail, Later

PACE = "EVENING_PACE"
"""How long handlers take, as a share of what they would; an evening is filled in faster."""
TROUBLE = "EVENING_TROUBLE"
"""Which partners do not answer: words of `payments` and `supplier`."""

FILES, ROWS = 400, 24
STONES, PRICES = 1_200, (40, 8_000)
UNWELL = (1_211, 1_388)
"""Prices at which the supplier does not answer any more."""

app = App()
_random = random.Random(20261118)  # noqa: S311 - an invention, always the same


class PaymentsDownError(ConnectionError):
    """The payment partner's server is not there."""


async def _work(seconds: float) -> None:
    share = float(os.environ.get(PACE, "1"))
    await asyncio.sleep(seconds * share * _random.uniform(0.4, 1.8))


def _in_trouble(partner: str) -> bool:
    return partner in os.environ.get(TROUBLE, "").split()


def _is_unwell(partition: Any) -> bool:
    low, high = partition.low, partition.high
    return low is not None and low < UNWELL[1] and (high is None or high > UNWELL[0])


@app.job(queue="payments", retries=3, retry_delay=45, backoff="exponential", version=2)
async def charge_card(ctx: Context, order: str, amount: int) -> str:
    """Charge a card."""
    ctx.log.info("charging", order=order, attempt=ctx.attempt)
    hold = await ctx.step_async("reserve_stock", _reserve, order)
    await _work(0.4)
    if _in_trouble("payments"):
        ctx.log.error("503 from api.pay.example")
        return _charge(order, amount)
    ctx.count("cents", amount)
    return f"receipt {hold}"


def _charge(order: str, amount: int) -> str:
    del order, amount
    raise PaymentsDownError("503 Service Unavailable from api.pay.example/v2/charges")


async def _reserve(order: str) -> int:
    return int(order.rpartition("-")[2]) % 10_000


@app.job(queue="payments", retries=0)
async def refund(order: str) -> str:
    """Give money back."""
    await _work(0.2)
    if int(order[-1]) == 7:  # noqa: PLR2004 - one order in ten
        raise Fail("nothing to refund")
    return order


@app.job(queue="convert", retries=2, retry_delay=20)
async def convert(ctx: Context, document: str, *, format: str = "pdf") -> str:  # noqa: A002
    """Convert a document."""
    for page in range(1, 6):
        ctx.progress(page / 5, f"page {page} of 5")
        await _work(0.25)
    if _random.random() < 0.04:  # noqa: PLR2004
        raise TimeoutError("converter did not answer in 60 s")
    return f"{document}.{format}"


@app.job(queue="mail")
async def send_mail(customer: int, template: str) -> str:
    """Send a mail."""
    await _work(0.05)
    return f"{template} to {customer}"


@app.job(queue="index", retries=1, retry_delay=30)
async def index_document(document: str) -> None:
    """Put a document into the index."""
    await _work(0.1)
    if _random.random() < 0.02:  # noqa: PLR2004
        (document.encode() + b"\x92").decode()


@app.job(poll_limit=50)
async def await_approval(ctx: Context, contract: str) -> str:
    """Ask a partner again and again."""
    if ctx.claim.polls < 30:  # noqa: PLR2004
        raise Later(600)
    return contract


catalogue = app.batch("import-catalogue", params=dict[str, str], policy=Tolerate(0.03))


@catalogue.step
def find(params: dict[str, str]) -> Iterator[str]:
    """Find the files of a folder."""
    yield from (f"{params['folder']}/{number:03d}.csv" for number in range(FILES))


@catalogue.step
async def load(ctx: Context, file: str) -> list[str]:
    """Read a file."""
    await _work(0.8)
    ctx.progress(1.0, f"{ROWS} rows")
    return [f"{file}#{row}" for row in range(ROWS)]


@catalogue.step(retries=0)
async def check(rows: list[str]) -> str:
    """Check the rows of a file."""
    await _work(1.5)
    if _random.random() < 0.01:  # noqa: PLR2004
        raise ValueError("`iban` has 21 characters, not 22")
    return rows[0]


@catalogue.step(gated=True)
async def link(row: str) -> str:
    """Link a file's rows, once all are checked."""
    await _work(3.0)
    return row


@catalogue.reduce
def report(rows: Iterator[str]) -> int:
    """Count what was linked."""
    return sum(1 for _ in rows)


class Stone(msgspec.Struct):
    """A stone as it is sold."""

    id: str
    price: int
    updated_at: datetime


class Supplier(Source[dict[str, Any], Stone, int]):
    """A supplier's stones, denser where they are cheap; lately some of them cannot be read."""

    def __init__(self) -> None:
        low, high = PRICES
        self._prices = sorted(
            int(low + (high - low) * _random.random() ** 1.7) for _ in range(STONES)
        )

    def _between(self, low: Any, high: Any) -> list[tuple[int, int]]:
        return [
            (number, price)
            for number, price in enumerate(self._prices)
            if (low is None or price >= low) and (high is None or price < high)
        ]

    def count(self, window: Any, low: Any, high: Any) -> int:
        """Count the stones of some prices."""
        del window
        return len(self._between(low, high))

    def fetch(self, window: Any, partition: Any, cursor: Any) -> Page[Any, int]:
        """Read a page of stones."""
        if _in_trouble("supplier") and _is_unwell(partition):
            raise TimeoutError("ReadTimeout after 30 s at page 7")
        begin = cursor or 0
        at = (window.end or datetime.now(UTC)).isoformat()
        found = self._between(partition.low, partition.high)[begin : begin + partition.page]
        records = [
            {"id": f"S{number}", "price": price if number % 97 else -1, "updated_at": at}
            for number, price in found
        ]
        return Page(records, begin + len(found) if len(found) == partition.page else None)

    def map(self, raw: dict[str, Any]) -> Stone:
        """Refuse a stone without a price."""
        if raw["price"] <= 0:
            raise Reject(f"a price of {raw['price']}")
        return msgspec.convert(raw, Stone)


stones = app.pipeline(
    "stones",
    Supplier(),
    key="id",
    version="updated_at",
    partition_by="price",
    partitions=20,
    page=30,
    queue="ingest",
    fresh_within=3_600,
)
app.schedule(stones, "*/30 * * * *", name="stones every half hour")
app.schedule(index_document, "0 3 * * *", args=("sitemap",), name="sitemap")
app.channel("orders")
