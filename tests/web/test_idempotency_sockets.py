"""One Idempotency-Key, many callers at once over real sockets, at `milepost server` (H-95)."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import milepost as mp
from milepost.store import tokens
from tests.support.databases import Database
from tests.support.prove import size

pytestmark = pytest.mark.both_stores

APP = """
import milepost as mp

app = mp.App()


@app.job
def convert(document: str) -> str:
    return document
"""
BODY = json.dumps({"kind": "convert", "args": ["report"]}).encode()
CALL = (
    b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer %s\r\n"
    b"Idempotency-Key: once\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
)


@contextmanager
def server(database: Database, folder: Path) -> Iterator[int]:
    """Run `milepost server` and give its port."""
    (folder / "app.py").write_text(APP)
    process = subprocess.Popen(
        [sys.executable, "-m", "milepost.cli", "server", "app.py", "--port", "0"],
        cwd=folder,
        env={**os.environ, "MILEPOST_DATABASE_URL": database.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield int(process.stdout.readline().rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(timeout=60)
        process.stdout.close()


async def asked(port: int, secret: str, count: int) -> list[bytes]:
    """Connect everybody first, then let all ask at once."""
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    for _, writer in streams:
        writer.write(CALL % (secret.encode(), len(BODY), BODY))
    answers = await asyncio.gather(*(reader.read() for reader, _ in streams))
    for _, writer in streams:
        writer.close()
    return answers


def told(answer: bytes) -> tuple[bytes, ...]:
    """What an answer says, but for when."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return (*(line for line in head.split(b"\r\n") if not line.startswith(b"date:")), body)


@pytest.mark.prove
def test_h95_many_callers_with_one_key_make_one_job_and_hear_the_same(database, tmp_path):
    """1,000 under proof."""
    count = size(1000)
    app = mp.App(database.url)
    token_id, secret, hashed = tokens.new_secret()
    app.client.run(tokens.create, token_id, name="ci", hashed=hashed, scopes=["submit"])
    with server(database, tmp_path) as port:
        answers = asyncio.run(asked(port, secret, count))
    assert len(answers) == count
    [same] = {told(answer) for answer in answers}
    assert same[0] == b"HTTP/1.1 202 Accepted"
    [job] = app.jobs.list()
    assert json.loads(same[-1])["id"] == job.id
    app.close()
