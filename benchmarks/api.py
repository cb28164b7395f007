"""How long a submit over HTTP takes at a steady rate: python -m benchmarks.api [--rate 200].

`milepost server` runs as a process of its own on a store with durable settings; requests are sent
at their times whether or not the ones before were answered, and each is measured from the time it
was due. Every request carries a token; in one round each has an Idempotency-Key of its own. What
the server itself works for a request is told too: others on the machine do not change it much.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2

from benchmarks.store import SETTINGS, new_database
from tests.support.servers import binaries, running

APP = """
import milepost as mp

app = mp.App()

@app.job
def convert(document: str) -> str:
    return document
"""


def milepost(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "milepost.cli", *arguments]


async def send(
    client: httpx2.AsyncClient, due: float, keyed: int | None, took: list[float]
) -> None:
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    headers = {} if keyed is None else {"Idempotency-Key": f"k-{keyed}"}
    answer = await client.post(
        "/v1/jobs", json={"kind": "convert", "args": ["report"]}, headers=headers
    )
    assert answer.status_code == 202, answer.text
    took.append(time.perf_counter() - due)


async def steadily(link: str, token: str, *, rate: int, seconds: int, keyed: bool) -> list[float]:
    took: list[float] = []
    headers = {"Authorization": f"Bearer {token}"}
    limits = httpx2.Limits(max_connections=50, max_keepalive_connections=50)
    async with httpx2.AsyncClient(
        base_url=link, headers=headers, limits=limits, timeout=30
    ) as client:
        begin = time.perf_counter() + 0.5
        async with asyncio.TaskGroup() as group:
            for number in range(rate * seconds):
                key = number if keyed else None
                group.create_task(send(client, begin + number / rate, key, took))
    return took


def worked(pid: int) -> float:
    """How many seconds a process has worked."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(url: str, name: str, *, rate: int, seconds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="milepost-api-") as folder:
        (Path(folder) / "app.py").write_text(APP)
        known = {**os.environ, "MILEPOST_DATABASE_URL": url}
        token = subprocess.run(
            milepost("tokens", "create", "bench", "--scope", "submit"),
            cwd=folder,
            env=known,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        server = subprocess.Popen(
            milepost("server", "app.py", "--port", "0"),
            cwd=folder,
            env=known,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            link = server.stdout.readline().split()[1]
            asyncio.run(steadily(link, token, rate=rate, seconds=2, keyed=False))  # warm
            for keyed in (False, True):
                before = worked(server.pid)
                took = sorted(
                    asyncio.run(steadily(link, token, rate=rate, seconds=seconds, keyed=keyed))
                )
                told = "with a key" if keyed else "plain"
                shown = {
                    f"p{share}": f"{took[min(len(took) - 1, len(took) * share // 100)] * 1e3:.1f}"
                    for share in (50, 90, 99)
                }
                print(
                    f"{name:11} {told:10} {len(took)} at {rate}/s: ms {shown}"
                    f" max {took[-1] * 1e3:.1f};"
                    f" own work {(worked(server.pid) - before) / len(took) * 1e3:.2f}",
                    flush=True,
                )
        finally:
            server.terminate()
            server.wait(timeout=10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=15)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="milepost-api-") as folder:
        measure(f"sqlite:///{folder}/api.db", "sqlite", rate=asked.rate, seconds=asked.seconds)
    newest = max(binaries(), key=int)
    with running(newest, SETTINGS) as server:
        url = new_database(server, "api")
        measure(url, f"postgres{newest}", rate=asked.rate, seconds=asked.seconds)


if __name__ == "__main__":
    main()
