"""Requests that answer pending twice: one worker process beside a bare httpx2 loop.

`python -m benchmarks.requests [--count 10000] [--concurrency 100] [--url postgresql://…]`

Both send every request three times to the same server, which runs in its own process and counts
by Idempotency-Key. The bare loop keeps nothing: no claim, no record, no outcome. The worker's time
runs from its first claim to its last outcome. Without a URL: SQLite, then the newest PostgreSQL
here. Beside the time by the clock stands that of each process's own work, which others who use
the machine meanwhile do not change much.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import ClassVar

import httpx2

import milepost as mp
from benchmarks.store import SETTINGS, new_database
from milepost.store import jobs
from tests.support.servers import binaries, running

PENDING, DONE = b'{"status":"working"}', b'{"status":"done","value":42}'
RULES = mp.Reply(state="$.status", complete=["done"], pending=["working"], failed=["error"])
SHARE, MIB = 0.4, 120


class Server(asyncio.Protocol):
    """Answers a POST: pending twice, then done."""

    seen: ClassVar[Counter[bytes]] = Counter()

    def connection_made(self, transport):
        self.transport, self.buffer = transport, b""

    def data_received(self, data):
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            size = int(_header(head, b"content-length") or 0)
            if len(self.buffer) < end + 4 + size:
                return
            self.buffer = self.buffer[end + 4 + size :]
            key = _header(head, b"idempotency-key")
            self.seen[key] += 1
            body = DONE if self.seen[key] % 3 == 0 else PENDING
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (len(body), body)
            )


def _header(head, name):
    start = head.find(b"\r\n" + name + b":")
    if start < 0:
        return b""
    start += len(name) + 3
    return head[start : head.find(b"\r\n", start) if b"\r\n" in head[start:] else None].strip()


async def serve():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def bare(url, count, concurrency):
    """What the same requests cost without an engine."""
    left = iter(range(count))

    async def lane(client):
        for number in left:
            status = "working"
            while status == "working":
                answer = await client.post(
                    url, json={"number": number}, headers={"Idempotency-Key": f"bare-{number}"}
                )
                status = answer.json()["status"]

    limits = httpx2.Limits(max_connections=concurrency)
    began = time.perf_counter()
    async with httpx2.AsyncClient(limits=limits, trust_env=False) as client:
        await asyncio.gather(*(lane(client) for _ in range(concurrency)))
    report(began, count)


async def work(store, concurrency):
    """Be one worker until nothing is open."""
    app = mp.App(
        store,
        request_allow="127.0.0.1",
        concurrency=concurrency,
        request_per_host=concurrency,
    )
    worker = asyncio.create_task(app.run_worker_async(signals=False))
    began = time.perf_counter()
    while True:
        await asyncio.sleep(0.2)
        counted = (await app.client.run_async(jobs.counts)).get("default", {})
        if set(counted) <= {"SUCCEEDED", "FAILED"}:
            break
    report(began, sum(counted.values()), failed=counted.get("FAILED", 0))
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    await app.close_async()


def report(began, count, **more):
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {"sent_per_s": 3 * count / seconds, "mib": used.ru_maxrss / 1024}
    told["sent_per_own_s"] = 3 * count / (used.ru_utime + used.ru_stime)
    print(json.dumps({"seconds": seconds, **told, **more}))


def child(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.requests", *map(str, arguments)],
        check=True,
        stdout=subprocess.PIPE,
        timeout=600,
    )
    return json.loads(done.stdout.splitlines()[-1])


def submit(store, url, count):
    app = mp.App(store)
    for start in range(0, count, 1000):
        asked = [
            app.requests.asked("POST", url, {"json": {"number": n}, "reply": RULES, "poll": 0})
            for n in range(start, min(start + 1000, count))
        ]
        asked[0][0].submit_many([(request,) for _, request in asked])
    app.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="?", default="all", choices=["all", "serve", "bare", "work"])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--url", default=None)
    parser.add_argument("--target", default="")
    given = parser.parse_args()
    runner = asyncio.Runner(loop_factory=loop_factory())
    with runner:
        if given.role == "serve":
            runner.run(serve())
        elif given.role == "bare":
            runner.run(bare(given.target, given.count, given.concurrency))
        elif given.role == "work":
            runner.run(work(given.url, given.concurrency))
    if given.role == "all":
        good = [compare(given, store) for store in stores(given.url)]
        sys.exit(0 if all(good) else 1)


def loop_factory():
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def stores(url):
    """Give out the stores to compare on, one after the other."""
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/requests.db"
    if binaries():
        with running(max(binaries(), key=int), SETTINGS) as server:
            yield new_database(server, "requests")


def compare(given, store):
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.requests", "serve"], stdout=subprocess.PIPE
    ) as server:
        try:
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/convert"
            submit(store, url, given.count)
            common = ("--count", given.count, "--concurrency", given.concurrency)
            alone = child("bare", "--target", url, *common)
            ours = child("work", "--url", store, *common)
        finally:
            server.kill()
    share, own = (ours[name] / alone[name] for name in ("sent_per_s", "sent_per_own_s"))
    print(store.partition(":")[0])
    for name, told in (("bare httpx2", alone), ("milepost", ours)):
        print(
            f"{name:11} {told['sent_per_s']:8,.0f} sent/s {told['sent_per_own_s']:8,.0f} by its own"
            f" time {told['mib']:6.0f} MiB"
        )
    print(
        f"share       {share:8.2f} {own:15.2f}  (at least {SHARE}, under {MIB} MiB)"
        f"  failed {ours['failed']}",
        flush=True,
    )
    return share >= SHARE and ours["mib"] < MIB and not ours["failed"]


if __name__ == "__main__":
    main()
