"""A supplier of diamonds over HTTP, for trying pipelines: deterministic, troublesome if asked.

    python supplier.py --count 20000 --port 8900

Prices are skewed, as prices are. While it is read it can be told to change diamonds, to answer with
short pages, to say 429, to commit late, or to be away for a while; it keeps a log of what was read.

    GET  /count?low=&high=&since=&until=                 {"count": 17}
    GET  /diamonds?low=&high=&since=&until=&after=&limit=  {"items": [...], "next": "2500,17"}
    GET  /now  /log  /all                                its clock, what was read, everything it has
    POST /trouble  {"change": 50, "throttle_every": 20, "short_every": 7, "late": 5, "down": 2}
"""

import argparse
import asyncio
import bisect
import json
import random
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl

T0 = datetime(2024, 1, 1, tzinfo=UTC)
SHAPES = ("round", "princess", "emerald", "oval", "pear")
RETRY_AFTER = 0.2


class Supplier:
    """The diamonds, in the order of their prices, and what became of those who asked."""

    def __init__(self, count: int, seed: int = 7) -> None:
        self._chance = random.Random(seed)
        self._price: dict[int, int] = {}
        self._at: dict[int, datetime] = {}
        self._text: dict[int, bytes] = {}
        self._recent: set[int] = set()
        self.log: list[dict[str, str]] = []
        self.calls: Counter[str] = Counter()
        self.throttle_every = 0
        self.short_every = 0
        self.down_until = 0.0
        for number in range(count):
            self._set(number, self._some_price(), T0 + timedelta(seconds=number))
        self._order = sorted((price, number) for number, price in self._price.items())
        self._static_until = T0 + timedelta(seconds=count)

    def _some_price(self) -> int:
        return int(self._chance.lognormvariate(12.5, 1.1)) + 5_000

    def _set(self, number: int, price: int, at: datetime) -> None:
        self._price[number] = price
        self._at[number] = at
        shape = SHAPES[number % len(SHAPES)]
        record = {
            "id": f"D{number:07d}",
            "price": price,
            "shape": shape,
            "carat": round(0.3 + (number % 370) / 100, 2),
            "certificate": f"GIA-{number * 7919 % 10_000_000:07d}",
            "updated_at": at.isoformat(),
        }
        self._text[number] = json.dumps(record).encode()

    # What changes

    def change(self, count: int, *, late: float = 0.0) -> None:
        """Change some diamonds, now; or with a time that is over: they were committed late."""
        for _ in range(count):
            at = datetime.now(UTC) - timedelta(seconds=late)
            number = self._chance.randrange(len(self._price))
            if self._at[number] < at:  # a version never goes back
                self.put(number, self._some_price(), at)

    def put(self, number: int, price: int, at: datetime) -> None:
        """Change a diamond, or add one."""
        if number in self._price:
            del self._order[bisect.bisect_left(self._order, (self._price[number], number))]
        bisect.insort(self._order, (price, number))
        self._set(number, price, at)
        self._recent.add(number)

    def remove(self, number: int) -> None:
        """Take a diamond off the market."""
        del self._order[bisect.bisect_left(self._order, (self._price[number], number))]
        for of in (self._price, self._at, self._text):
            del of[number]
        self._recent.discard(number)

    # What is asked

    def _fits(self, number: int, since: datetime | None, until: datetime) -> bool:
        at = self._at[number]
        return (since is None or since <= at) and at < until

    def _rows(
        self, low: float, high: float, since: datetime | None, until: datetime
    ) -> list[tuple[int, int]]:
        """Everything that fits, in the order of the prices."""
        if since is not None and since >= self._static_until:
            found = [n for n in self._recent if low <= self._price[n] < high]
            return sorted((self._price[n], n) for n in found if self._fits(n, since, until))
        begin, end = (bisect.bisect_left(self._order, (at,)) for at in (low, high))
        return [row for row in self._order[begin:end] if self._fits(row[1], since, until)]

    def count(self, low: float, high: float, since: datetime | None, until: datetime) -> int:
        """Tell how many diamonds fit."""
        if since is not None or until < self._static_until:
            return len(self._rows(low, high, since, until))
        begin, end = (bisect.bisect_left(self._order, (at,)) for at in (low, high))
        late = (n for n in self._recent if low <= self._price[n] < high)
        return end - begin - sum(1 for n in late if self._at[n] >= until)

    def page(
        self,
        low: float,
        high: float,
        since: datetime | None,
        until: datetime,
        *,
        after: tuple[int, int] | None,
        limit: int,
    ) -> tuple[list[bytes], str | None]:
        """Read some diamonds after the last one that was read, in the order (price, id)."""
        if since is not None and since >= self._static_until:
            rows = self._rows(low, high, since, until)
            at = bisect.bisect_right(rows, after) if after else 0
            chosen = rows[at : at + limit]
            more = at + limit < len(rows)
        else:
            chosen, more = self._walk(low, high, since, until, after=after, limit=limit)
        last = f"{chosen[-1][0]},{chosen[-1][1]}" if chosen and more else None
        return [self._text[number] for _, number in chosen], last

    def _walk(
        self,
        low: float,
        high: float,
        since: datetime | None,
        until: datetime,
        *,
        after: tuple[int, int] | None,
        limit: int,
    ) -> tuple[list[tuple[int, int]], bool]:
        order = self._order
        at = bisect.bisect_right(order, after) if after else bisect.bisect_left(order, (low,))
        chosen: list[tuple[int, int]] = []
        while at < len(order) and order[at][0] < high and len(chosen) < limit:
            if self._fits(order[at][1], since, until):
                chosen.append(order[at])
            at += 1
        return chosen, at < len(order) and order[at][0] < high

    def all(self) -> dict[str, int]:
        """Every diamond's price."""
        return {f"D{number:07d}": price for number, price in self._price.items()}


Answer = tuple[int, bytes]


class Server(asyncio.Protocol):
    """As much of HTTP/1.1 as this needs, and quick: a supplier is not what is measured."""

    def __init__(self, supplier: Supplier) -> None:
        self._supplier = supplier
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            head, _, rest = self._buffer.partition(b"\r\n\r\n")
            length = _length(head)
            if len(rest) < length:
                return
            self._buffer = rest[length:]
            line = head.partition(b"\r\n")[0].decode()
            status, body = self._answer(*line.split(" ")[:2], rest[:length])
            self._send(status, body)

    def _send(self, status: int, body: bytes) -> None:
        more = f"Retry-After: {RETRY_AFTER}\r\n" if status in (429, 503) else ""
        head = (
            f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{more}\r\n"
        )
        self._transport.write(head.encode() + body)  # type: ignore[attr-defined]

    def _answer(self, method: str, target: str, body: bytes) -> Answer:
        supplier = self._supplier
        path, _, query = target.partition("?")
        supplier.calls[path] += 1
        if path in ("/count", "/diamonds"):
            return self._read(path, dict(parse_qsl(query)))
        if method == "POST" and path == "/trouble":
            return self._trouble(json.loads(body or b"{}"))
        told = {
            "/now": lambda: {"now": datetime.now(UTC).isoformat()},
            "/log": lambda: supplier.log,
            "/all": supplier.all,
            "/calls": lambda: dict(supplier.calls),
        }
        if path not in told:
            return 404, b"{}"
        return 200, json.dumps(told[path]()).encode()

    def _read(self, path: str, asked: dict[str, str]) -> Answer:
        supplier = self._supplier
        if time.monotonic() < supplier.down_until:
            return 503, b"{}"
        if supplier.throttle_every and supplier.calls[path] % supplier.throttle_every == 0:
            return 429, b"{}"
        low, high = float(asked["low"]), float(asked["high"])
        since = datetime.fromisoformat(asked["since"]) if asked.get("since") else None
        until = datetime.fromisoformat(asked["until"])
        if path == "/count":
            return 200, b'{"count": %d}' % supplier.count(low, high, since, until)
        limit = int(asked.get("limit", "30"))
        if supplier.short_every and supplier.calls[path] % supplier.short_every == 0:
            limit = max(1, limit // 3)
        after = tuple(map(int, asked["after"].split(","))) if asked.get("after") else None
        items, onward = supplier.page(low, high, since, until, after=after, limit=limit)  # type: ignore[arg-type]
        if after is None:
            window = {name: asked.get(name, "") for name in ("low", "high", "since", "until")}
            supplier.log.append(window)
        tail = b'], "next": ' + json.dumps(onward).encode() + b"}"
        return 200, b'{"items": [' + b", ".join(items) + tail

    def _trouble(self, asked: dict[str, float]) -> Answer:
        supplier = self._supplier
        supplier.throttle_every = int(asked.get("throttle_every", supplier.throttle_every))
        supplier.short_every = int(asked.get("short_every", supplier.short_every))
        supplier.change(int(asked.get("change", 0)))
        supplier.change(int(asked.get("late", 0)), late=5.0)
        if "down" in asked:
            supplier.down_until = time.monotonic() + asked["down"]
        if "remove" in asked:
            supplier.remove(int(asked["remove"]))
        return 200, b"{}"


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def serve(supplier: Supplier, port: int) -> tuple[asyncio.Server, int]:
    """Listen on this machine alone; a port of 0 takes any that is free."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Server(supplier), "127.0.0.1", port)
    return server, server.sockets[0].getsockname()[1]


async def _main(count: int, port: int, seed: int) -> None:
    server, chosen = await serve(Supplier(count, seed), port)
    print(f"http://127.0.0.1:{chosen}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A supplier of diamonds.")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--port", type=int, default=8900)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    asyncio.run(_main(given.count, given.port, given.seed))
