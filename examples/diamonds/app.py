"""Diamonds from a supplier, priced by rules, kept up to date: `milepost dev app.py`."""

import asyncio
import os
from datetime import datetime
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import httpx2
import msgspec

import milepost as mp

SUPPLIER = os.environ.get("DIAMONDS_SUPPLIER", "http://127.0.0.1:8900")
RULES = Path(__file__).with_name("rules.json")


class Rule(msgspec.Struct):
    """One rule of the price list: the first that fits, by priority, says the margin."""

    priority: int
    margin: float
    shape: str | None = None
    price_from: int = 0
    price_to: int = 2**62

    def fits(self, diamond: "Diamond") -> bool:
        is_shape = self.shape is None or self.shape == diamond.shape
        return is_shape and self.price_from <= diamond.price < self.price_to


class Diamond(msgspec.Struct):
    """A diamond as it is sold; prices are in cents."""

    id: str
    shape: str
    carat: float
    certificate: str
    price: int
    updated_at: datetime
    sale_price: int | None = None


class Supplier(mp.Source[dict[str, Any], Diamond, str]):
    """The supplier's HTTP interface."""

    def __init__(self, address: str = SUPPLIER) -> None:
        self.address = address
        self._clients: WeakKeyDictionary[Any, httpx2.AsyncClient] = WeakKeyDictionary()

    async def _get(self, path: str, **asked: Any) -> Any:
        loop = asyncio.get_running_loop()  # connections belong to the loop that opened them
        if loop not in self._clients:
            limits = httpx2.Limits(max_connections=32, max_keepalive_connections=32)
            self._clients[loop] = httpx2.AsyncClient(
                base_url=self.address, limits=limits, timeout=30
            )
        answer = await self._clients[loop].get(path, params=asked)
        answer.raise_for_status()  # a 429 pauses every worker for as long as it says
        return msgspec.json.decode(answer.content)

    async def count(self, window: Any, low: Any, high: Any) -> int:
        return int((await self._get("/count", **_asked(window, low, high)))["count"])

    async def fetch(self, window: Any, partition: Any, cursor: Any) -> mp.Page[Any, str]:
        asked = _asked(window, partition.low, partition.high)
        if cursor:
            asked["after"] = cursor
        found = await self._get("/diamonds", **asked, limit=partition.page)
        return mp.Page(found["items"], found["next"])

    def map(self, raw: dict[str, Any]) -> Diamond:
        if raw["price"] <= 0:
            raise mp.Reject(f"a price of {raw['price']}")
        return msgspec.convert(raw, Diamond)

    def rules(self) -> list[Any]:
        return list(msgspec.json.decode(RULES.read_bytes()))

    def enrich(self, records: list[Diamond], rules: Any) -> list[Diamond]:
        known = sorted(msgspec.convert(rules, list[Rule]), key=lambda rule: rule.priority)
        for diamond in records:
            rule = next((rule for rule in known if rule.fits(diamond)), None)
            if rule is None:
                raise mp.Reject(f"no rule fits a {diamond.shape} of {diamond.price} cents")
            diamond.sale_price = round(diamond.price * (1 + rule.margin))
        return records


def _asked(window: Any, low: Any, high: Any) -> dict[str, str]:
    asked = {"low": str(low), "high": str(high), "until": window.end.isoformat()}
    return asked if window.start is None else {**asked, "since": window.start.isoformat()}


app = mp.App()
diamonds = app.pipeline(
    "diamonds",
    Supplier(),
    key="id",
    version="updated_at",
    partition_by="price",
    partitions=30,
    overlap=900,
    page=30,
    rate=os.environ.get("DIAMONDS_RATE"),
)

if __name__ == "__main__":
    run = diamonds.start()
    app.drain(timeout=120)
    print(run.refresh().state, dict(run.counts))
