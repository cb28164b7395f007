"""Drains of queues on brokers and of the store's own queue, interleaved, by two worker processes.

    python -m benchmarks.brokers [--jobs 10000] [--rounds 5] [--brokers nats rabbitmq]

Every round drains each queue once, each on a fresh database of the same server (PostgreSQL with its
own safe settings). A drain is N / (all N completions visible in the store - first job's start). The
statements are those that the workers sent to the database, maintenance and heartbeats included.
Figures are medians; what counts are their ratios.
"""

import argparse
import atexit
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import milepost as mp
from milepost.relay.broker import broker_at
from tests.support.brokers import BrokerServer, NatsServer, RedisServer
from tests.support.rabbitmq import RabbitMQServer
from tests.support.servers import running

QUEUE = "measured"
STORE = "store"
GOAL = 0.5


SERVERS = {"nats": NatsServer, "rabbitmq": RabbitMQServer, "redis": RedisServer}


def serve(broker: str, folder: Path) -> BrokerServer:
    """Start a broker, for the workers to find."""
    server = SERVERS[broker](folder)
    server.start()
    os.environ[f"BENCH_{broker}"] = server.url
    return server


def program(url: str, broker: str) -> tuple[mp.App, Any]:
    """An app with one no-op, whose queue is on a broker or on the store."""
    app = mp.App(url, concurrency=int(os.environ.get("BENCH_CONC", "100")))
    if broker != STORE:
        app.queue(QUEUE, transport=broker_at(os.environ[f"BENCH_{broker}"]))

    @app.job(queue=QUEUE, retries=0)
    async def noop(number: int) -> int:
        return number

    return app, noop


def work(url: str, broker: str) -> None:
    """Run a worker that counts its statements, and prints their number at the end."""
    import asyncpg

    sent = {"statements": 0}
    for name in ("fetch", "execute"):
        call = getattr(asyncpg.Connection, name)

        async def counted(self: Any, *args: Any, call: Any = call, **kwargs: Any) -> Any:
            sent["statements"] += 1
            return await call(self, *args, **kwargs)

        setattr(asyncpg.Connection, name, counted)
    atexit.register(lambda: print(json.dumps(sent), flush=True))
    app, _ = program(url, broker)
    app.run_worker()


def drain(url: str, broker: str, jobs: int, workers: int) -> tuple[float, float]:
    """Drain a backlog; answer with jobs a second, and statements a job."""
    import psycopg

    app, noop = program(url, broker)
    app.maintain_once()  # the queue is declared before its first job
    for start in range(0, jobs, 1_000):
        noop.submit_many([(n,) for n in range(start, min(start + 1_000, jobs))])
    app.close()
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.brokers", "--work", url, broker]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(workers)
    ]
    with psycopg.connect(url, autocommit=True, options="-c search_path=milepost") as link:
        until = time.monotonic() + 60 + jobs / 100
        done = "SELECT count(*) FILTER (WHERE state = 'SUCCEEDED') FROM job"
        while link.execute(done).fetchone()[0] < jobs:
            if time.monotonic() > until:
                raise RuntimeError(f"{broker}: the backlog was not drained in time")
            time.sleep(0.02)
        span = "SELECT extract(epoch FROM max(finished_at) - min(started_at)) FROM job"
        seconds = float(link.execute(span).fetchone()[0])
    for process in processes:
        process.send_signal(signal.SIGTERM)
    said = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    return jobs / seconds, sum(one["statements"] for one in said) / jobs


@contextmanager
def databases() -> Iterator[Any]:
    """Hand out fresh databases of one server with its own settings."""
    import psycopg

    with running(os.environ.get("BENCH_PG", "18"), {}) as server:
        made = iter(range(1_000_000))

        def fresh() -> str:
            name = f"brokers_{next(made)}"
            with psycopg.connect(server.url(), autocommit=True) as link:
                link.execute(f"CREATE DATABASE {name}")
                link.execute("CHECKPOINT")
            return server.url(name)

        yield fresh


def compare(fresh: Any, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Drain each queue once a round; answer with the medians of each."""
    rates: dict[str, list[float]] = {}
    statements: dict[str, list[float]] = {}
    for number in range(options.rounds):
        for broker in (STORE, *options.brokers):
            rate, sent = drain(fresh(), broker, options.jobs, options.workers)
            rates.setdefault(broker, []).append(rate)
            statements.setdefault(broker, []).append(sent)
            told = f"{rate:,.0f} jobs/s, {sent:.3f} statements a job"
            print(f"  {number + 1}/{options.rounds} {broker}: {told}", flush=True)
    return {
        broker: {
            "rate": statistics.median(rates[broker]),
            "ratio": statistics.median(
                mine / own for mine, own in zip(rates[broker], rates[STORE], strict=True)
            ),
            "statements": statistics.median(statements[broker]),
        }
        for broker in rates
    }


def main() -> None:
    """Compare, and fail where NATS is slower than half of the store's own queue."""
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:4])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--brokers", nargs="*", default=["nats", "rabbitmq"])
    options = parser.parse_args()
    with ExitStack() as stack:
        for broker in options.brokers:
            folder = Path(tempfile.mkdtemp(prefix="milepost-broker-"))
            stack.callback(serve(broker, folder).stop)
        found = compare(stack.enter_context(databases()), options)
    for broker, figures in found.items():
        print(
            f"{broker}: {figures['rate']:,.0f} jobs/s, {figures['ratio']:.2f} of the store's, "
            f"{figures['statements']:.3f} statements a job"
        )
    if "nats" in found and found["nats"]["ratio"] < GOAL:
        sys.exit(1)


if __name__ == "__main__":
    main()
