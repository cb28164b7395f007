"""A program that forks after it has used its store: parent and child do not share a connection."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio
import os
import sys

import milepost as mp

app = mp.App(sys.argv[1])


@app.job
def note(number: int) -> int:
    return number


def submit(first):
    for number in range(first, first + 40):
        note.submit(number)
    with app.client.lend():
        pass


async def submit_async(first):
    await note.submit_many_async([(number,) for number in range(first, first + 20)])
    await app.close_async()


submit(0)
children = []
for first in (100, 200):
    if (child := os.fork()) == 0:
        submit(first)
        asyncio.run(submit_async(first + 40))
        app.close()
        os._exit(0)
    children.append(child)
submit(40)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
submit(80)  # what the children closed was theirs
app.drain()
print(sorted(job.result for job in app.jobs.list(limit=1000)))
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this system does not fork")
def test_a_child_opens_the_store_anew_and_leaves_the_parents_alone(database):
    """H-113: on one connection two processes would garble, or unlock, each other's work."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, database.url],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    numbers = [*range(120), *range(100, 160), *range(200, 260)]
    assert run.stdout == f"{sorted(numbers)}\n"
