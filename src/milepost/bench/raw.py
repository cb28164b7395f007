"""The limit: hand-written SQL on the same schema, with its triggers on.

Nothing of the engine is here but its tables: plain statements on one connection, in batches, with
payloads read and results written.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import uuid_utils

from milepost.address import StoreUrl

BATCH = 1_000
PAYLOAD = b'{"t0":0}'
SPELLED = f'"\\\\x{PAYLOAD.hex()}"'

CLAIM = """
WITH picked AS MATERIALIZED (
  SELECT id FROM job WHERE queue = 'default' AND priority = 0 AND state = 'QUEUED'
   ORDER BY queued_seq LIMIT $1 FOR UPDATE SKIP LOCKED)
UPDATE job SET state = 'RUNNING', move = 'claim', version = version + 1, fence = fence + 1,
       worker_id = 'raw', actor = 'raw'
  FROM picked WHERE job.id = picked.id RETURNING job.id, fence, payload"""
SETTLE = """
UPDATE job SET state = 'SUCCEEDED', move = 'succeed', version = version + 1, worker_id = NULL,
       result = i.result, finished_at = now()
  FROM unnest($1::uuid[], $2::bigint[], $3::bytea[]) AS i (id, fence, result)
 WHERE job.id = i.id AND job.fence = i.fence
   AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END
RETURNING job.id"""
CREATE = """
INSERT INTO job (id, payload, kind, queue, state, move, actor)
SELECT i.id, i.payload, 'noop', 'default', 'QUEUED', 'create', 'raw'
  FROM unnest($1::uuid[], $2::bytea[]) AS i (id, payload)"""
CREATE_ONE = """
INSERT INTO job (id, payload, kind, queue, state, move, actor)
VALUES ($1, $2, 'noop', 'default', 'QUEUED', 'create', 'raw')"""
CREATE_AND_TELL = f"WITH created AS ({CREATE_ONE}) SELECT pg_notify('raw', '')"

LITE_CLAIM = """
UPDATE job SET state = 'RUNNING', move = 'claim', version = version + 1, fence = fence + 1,
       worker_id = 'raw', actor = 'raw'
 WHERE rowid IN (SELECT rowid FROM job WHERE queue = 'default' AND priority = 0
                    AND state = 'QUEUED' ORDER BY queued_seq LIMIT ?)
RETURNING id, fence, payload"""
LITE_SETTLE = """
UPDATE job SET state = 'SUCCEEDED', move = 'succeed', version = version + 1, worker_id = NULL,
       result = ? WHERE id = ? AND fence = ? AND state = 'RUNNING'"""
LITE_CREATE = """
INSERT INTO job (id, payload, kind, queue, state, move, actor)
VALUES (?, ?, 'noop', 'default', 'QUEUED', 'create', 'raw')"""


def insert(url: StoreUrl, count: int, batch: int = BATCH) -> float:
    """Insert jobs, a batch to a commit; answer with the seconds it took."""
    sizes = [min(batch, count - start) for start in range(0, count, batch)]
    with _sqlite_creator(url) if url.can.file else _postgres_creator(url) as create:
        began = time.perf_counter()
        for size in sizes:
            create([str(uuid_utils.uuid7()) for _ in range(size)])
        return time.perf_counter() - began


Create = Callable[[list[str]], None]


@contextmanager
def _sqlite_creator(url: StoreUrl) -> Iterator[Create]:
    with closing(_open_sqlite(url)) as connection:

        def create(ids: list[str]) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(LITE_CREATE, [(job_id, PAYLOAD) for job_id in ids])
            connection.execute("COMMIT")

        yield create


@contextmanager
def _postgres_creator(url: StoreUrl) -> Iterator[Create]:
    import psycopg  # noqa: PLC0415 - an extra

    with psycopg.connect(url.target, autocommit=True) as connection:
        connection.execute(_entered(url).encode())
        cursor = psycopg.RawCursor(connection)

        def create(ids: list[str]) -> None:
            if len(ids) == 1:
                cursor.execute(CREATE_ONE.encode(), (ids[0], PAYLOAD), prepare=True)
            else:
                # Arrays as text: psycopg takes longer to spell a list than the server to use it.
                texts = f"{{{','.join(ids)}}}", f"{{{','.join([SPELLED] * len(ids))}}}"
                cursor.execute(CREATE.encode(), texts, prepare=True)

        with connection.transaction(force_rollback=True):  # prepares both
            create([str(uuid_utils.uuid7())])
            create([])
        yield create


def drain(url: StoreUrl, ready: Callable[[], None], batch: int = BATCH) -> tuple[int, int, int]:
    """Claim, work and settle until nothing is left; answer with (done, began, ended).

    `ready` is called once connected, and returns when all may begin.
    """
    if url.can.file:
        with closing(_open_sqlite(url)) as connection:
            return _drain_sqlite(connection, ready, batch)
    return asyncio.run(_drain_postgres(url, ready, batch))


def _drain_sqlite(
    connection: sqlite3.Connection, ready: Callable[[], None], batch: int
) -> tuple[int, int, int]:
    ready()
    began, done = time.monotonic_ns(), 0
    while True:
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(LITE_CLAIM, (batch,)).fetchall()
        connection.execute("COMMIT")
        if not rows:
            return done, began, time.monotonic_ns()
        results = _worked(rows)
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            LITE_SETTLE, [(r, row[0], row[1]) for r, row in zip(results, rows, strict=True)]
        )
        connection.execute("COMMIT")
        done += len(rows)


async def _drain_postgres(
    url: StoreUrl, ready: Callable[[], None], batch: int
) -> tuple[int, int, int]:
    import asyncpg  # noqa: PLC0415 - an extra

    connection = await asyncpg.connect(url.target)
    await connection.execute(_entered(url))
    # Prepared first, as the worker's statements are by the time that its jobs come.
    await connection.fetch(CLAIM, 0)
    await connection.fetch(SETTLE, [], [], [])
    ready()
    began, done = time.monotonic_ns(), 0
    while rows := await connection.fetch(CLAIM, batch):
        ids, fences = [row[0] for row in rows], [row[1] for row in rows]
        done += len(await connection.fetch(SETTLE, ids, fences, _worked(rows)))
    ended = time.monotonic_ns()
    await connection.close()
    return done, began, ended


def _entered(url: StoreUrl) -> str:
    """Look for the store's tables by their plain names, as a person does at a prompt."""
    return f'SET search_path TO "{url.schema}"'


def _worked(rows: list[Any]) -> list[bytes]:
    """Do the no-op's work: read the argument, give it back."""
    return [json.dumps(json.loads(row[2])["t0"]).encode() for row in rows]


def _open_sqlite(url: StoreUrl) -> sqlite3.Connection:
    connection = sqlite3.connect(url.target, isolation_level=None, timeout=60)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def rest(turn: int) -> float:
    """Say how long to rest between two pickups: not in step with anything done at intervals."""
    return 0.01 + 0.02 * (turn % 7) / 7


def floor(url: StoreUrl, count: int) -> list[float]:
    """Measure the least that a pickup can take: insert, hint, claim; in seconds.

    With the rests between that a worker has: what lay still is slower to begin.
    """
    if url.can.file:
        with closing(_open_sqlite(url)) as client, closing(_open_sqlite(url)) as worker:
            return _floor_sqlite(client, worker, count)
    return asyncio.run(_floor_postgres(url, count))


def _floor_sqlite(
    client: sqlite3.Connection, worker: sqlite3.Connection, count: int
) -> list[float]:
    taken = []
    for turn in range(count):
        time.sleep(rest(turn))
        began = time.perf_counter()
        client.execute(LITE_CREATE, (str(uuid_utils.uuid7()), PAYLOAD))
        worker.execute("PRAGMA data_version").fetchall()
        [row] = worker.execute(LITE_CLAIM, (1,)).fetchall()
        taken.append(time.perf_counter() - began)
        worker.execute(LITE_SETTLE, (_worked([row])[0], row[0], row[1]))
    return taken


async def _floor_postgres(url: StoreUrl, count: int) -> list[float]:
    import asyncpg  # noqa: PLC0415 - an extra

    client, worker = await asyncpg.connect(url.target), await asyncpg.connect(url.target)
    await client.execute(_entered(url))
    await worker.execute(_entered(url))
    told = asyncio.Event()
    await worker.add_listener("raw", lambda *_: told.set())
    taken = []
    for turn in range(count):
        await asyncio.sleep(rest(turn))
        began = time.perf_counter()
        row, _ = await asyncio.gather(
            _told_and_claimed(told, worker.fetchrow),
            client.fetch(CREATE_AND_TELL, str(uuid_utils.uuid7()), PAYLOAD),
        )
        taken.append(time.perf_counter() - began)
        await worker.fetch(SETTLE, [row[0]], [row[1]], _worked([row]))
    await client.close()
    await worker.close()
    return taken


async def _told_and_claimed(told: asyncio.Event, fetch: Callable[..., Awaitable[Any]]) -> Any:
    await told.wait()
    told.clear()
    return await fetch(CLAIM, 1)
