"""A worker whose queue is on a broker. Takes the addresses of store and broker, and a file.

Every run of a job is a line of the file.
"""

import asyncio
import os
import sys

import milepost as mp
from milepost.relay.broker import broker_at

# Told again soon, and at the work again soon after the broker has gone.
SETTINGS = {"hint_again": 2.0, "broker_away": 1.0, "concurrency": 8, "sweep": 0.1}


def program(store: str, broker: str, effects: str) -> tuple[mp.App, "mp.Job"]:
    """Declare the queue and its job."""
    app = mp.App(store, **SETTINGS)
    app.queue("slow", transport=broker_at(broker))
    file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @app.job(queue="slow")
    async def work(number: int) -> None:
        os.write(file, f"{number}\n".encode())
        await asyncio.sleep(0.02)

    return app, work


if __name__ == "__main__":
    program(*sys.argv[1:4])[0].run_worker()
