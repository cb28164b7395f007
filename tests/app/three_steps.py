"""A handler of three steps, and a process that is killed where a test says.

The first and the last step leave their effect in a file, the second one in the store's database.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TypedDict

import milepost as mp
from milepost.store import failpoint


class Reserved(TypedDict):
    seats: list[int]


class Effects:
    """What the steps do, each leaving a mark."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "effects"

    def reserve(self, count: int) -> Reserved:
        self.notify("reserve")
        return {"seats": list(range(count))}

    def load(self, connection, seats: list[int]) -> tuple[int, str]:
        connection.execute("INSERT INTO effect VALUES ('load')")
        return len(seats), "loaded"

    def notify(self, text: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{text}\n")

    async def reserve_async(self, count: int) -> Reserved:
        return self.reserve(count)

    async def load_async(self, connection, seats: list[int]) -> tuple[int, str]:
        done = connection.execute("INSERT INTO effect VALUES ('load')")
        if hasattr(done, "__await__"):  # asyncpg; sqlite3 has it done already
            await done
        return len(seats), "loaded"

    async def notify_async(self, text: str) -> None:
        self.notify(text)


def program(url: str, folder: Path) -> mp.App:
    """Declare the handler twice, plain and asynchronous."""
    app = mp.App(url)
    do = Effects(folder)

    @app.job(name="plain", retry_delay=0)
    def plain(ctx: mp.Context, count: int) -> str:
        reserved = ctx.step("reserve", do.reserve, count)
        number, word = ctx.step("load", do.load, reserved["seats"], transaction=True)
        ctx.step("notify", do.notify, "notify")
        return f"{number} {word}"

    @app.job(name="awaited", retry_delay=0)
    async def awaited(ctx: mp.Context, count: int) -> str:
        reserved = await ctx.step_async("reserve", do.reserve_async, count)
        seats = reserved["seats"]
        number, word = await ctx.step_async("load", do.load_async, seats, transaction=True)
        await ctx.step_async("notify", do.notify_async, "notify")
        return f"{number} {word}"

    return app


def arm(query: str, turn: int, moment: str) -> None:
    """Have this process killed before or after the commit of what passes a query that time."""
    mine = threading.local()
    left = turn

    def passed() -> None:
        nonlocal left
        left -= 1
        mine.doomed = left == 0

    def committing() -> None:
        if getattr(mine, "doomed", False):
            os.kill(os.getpid(), signal.SIGKILL)

    failpoint.active[f"after:{query}"] = passed
    failpoint.active[f"{moment}:commit"] = committing


if __name__ == "__main__":
    url, folder, query, turn, moment = sys.argv[1:]
    arm(query, int(turn), moment)
    program(url, Path(folder)).drain()
