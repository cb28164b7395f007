"""A worker whose queue is on a broker. Takes two addresses, a file, and seconds.

Every run of a job is a line of the file. After so many seconds without the broker it scans.
"""

import asyncio
import os
import sys

import milepost as mp
from milepost.relay.broker import broker_at

SETTINGS = {"hint_again": 2.0, "concurrency": 8, "sweep": 0.1}  # told again soon


def program(store: str, broker: str, effects: str, away: str) -> tuple[mp.App, "mp.Job"]:
    """Declare the queue and its job."""
    app = mp.App(store, broker_away=float(away), **SETTINGS)
    app.queue("slow", transport=broker_at(broker))
    file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @app.job(queue="slow")
    async def work(number: int) -> None:
        os.write(file, f"{number}\n".encode())
        await asyncio.sleep(0.02)

    return app, work


if __name__ == "__main__":
    program(*sys.argv[1:5])[0].run_worker()
