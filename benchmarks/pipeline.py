"""B's headline: half a million records in thirty partitions, beside a loader written by hand.

    python benchmarks/pipeline.py postgresql://… [--count 500000]
    python benchmarks/pipeline.py sqlite:////tmp/bench.db

The hand-written loader is what a good team writes in a day: asyncio, thirty readers, COPY into a
landing table, mapping and pricing in Python, COPY again and one INSERT … SELECT. It keeps no
cursor, no journal, no counts and no watermark, and after a crash it begins again. (It loads
PostgreSQL.)
"""

import argparse
import asyncio
import hashlib
import os
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples" / "diamonds"))
PARTITIONS = 30


def supplier(count: int) -> tuple[subprocess.Popen, str]:
    process = subprocess.Popen(
        [
            sys.executable,
            str(ROOT / "examples/diamonds/supplier.py"),
            f"--count={count}",
            "--port=0",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline().strip()


async def by_hand(url: str, address: str, cuts: list) -> float:
    """Load everything; answer with the seconds it took."""
    import asyncpg

    from app import Supplier as Source
    from milepost.ingest.source import Partition, Window

    source = Source(address)
    window = Window(None, datetime.now(UTC))
    pool = await asyncpg.create_pool(url, min_size=2, max_size=10)
    async with pool.acquire() as connection:
        await connection.execute(
            "DROP TABLE IF EXISTS hand_raw, hand_new, hand;"
            "CREATE TABLE hand_raw (key text PRIMARY KEY, hash bytea, version timestamptz,"
            " payload bytea);"
            "CREATE TABLE hand (id text PRIMARY KEY, shape text, carat float8, certificate text,"
            " price bigint, updated_at timestamptz, sale_price bigint);"
            "CREATE TABLE hand_new (LIKE hand)"
        )
    began = time.perf_counter()

    async def read(low, high) -> None:
        rows, cursor = [], None
        while True:
            page = await source.fetch(window, Partition(low, high, page=30), cursor)
            for raw in page.records:
                payload = msgspec.json.encode(raw)
                digest = hashlib.blake2b(payload, digest_size=16).digest()
                at = datetime.fromisoformat(raw["updated_at"])
                rows.append((raw["id"], digest, at, payload))
            cursor = page.next
            if len(rows) >= 2000 or cursor is None:
                async with pool.acquire() as connection:
                    await connection.copy_records_to_table("hand_raw", records=rows)
                rows = []
            if cursor is None:
                return

    await asyncio.gather(*(read(low, high) for low, high in cuts))
    rules = source.rules()
    async with pool.acquire() as connection, pool.acquire() as writer, connection.transaction():
        cursor = await connection.cursor("SELECT payload FROM hand_raw")
        while batch := await cursor.fetch(2000):
            mapped = [source.map(msgspec.json.decode(row[0])) for row in batch]
            priced = source.enrich(mapped, rules)
            await writer.copy_records_to_table(
                "hand_new", records=[msgspec.structs.astuple(one) for one in priced]
            )
    async with pool.acquire() as connection:
        await connection.execute("INSERT INTO hand SELECT * FROM hand_new")
        loaded = await connection.fetchval("SELECT count(*) FROM hand")
    seconds = time.perf_counter() - began
    print(
        f"by hand      {loaded:,} records in {seconds:.1f} s = {loaded / seconds:,.0f}/s",
        flush=True,
    )
    await pool.close()
    return seconds


def by_milepost(url: str, address: str, count: int) -> float:
    """Run the example in this process, with one worker; answer with the seconds it took."""
    os.environ |= {"MILEPOST_DATABASE_URL": url, "DIAMONDS_SUPPLIER": address}
    import app as example

    example.diamonds.source.address = address
    _ = example.app.client.driver  # the store is set up before it is measured
    began = time.perf_counter()
    run = example.diamonds.start()
    example.app.drain(timeout=600)
    seconds = time.perf_counter() - began
    run.refresh()
    assert run.state == "SUCCEEDED", (run.state, run.errors[:3])
    told = {entry.move: entry.at for entry in run.history}
    first = next(e.at for e in run.history if e.move == "advance" and e.detail is None)
    counts = run.counts
    assert counts.fetched == counts.new == example.diamonds.count() == count, counts
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"by milepost  {counts.fetched:,} records, {len(run.partitions)} partitions, "
        f"{counts.pages:,} pages in {seconds:.1f} s = {counts.fetched / seconds:,.0f}/s; "
        f"plan {(told['seal'] - run.record.created_at).total_seconds():.1f} s in "
        f"{run.about.calls} calls, largest {max(p.records for p in run.partitions):,}; "
        f"consolidation {(told['finish'] - told['advance']).total_seconds():.1f} s; "
        f"worker {memory:.0f} MiB",
        flush=True,
    )
    del first
    example.app.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--count", type=int, default=500_000)
    given = parser.parse_args()
    process, address = supplier(given.count)
    try:
        ours = by_milepost(given.url, address, given.count)
        if given.url.startswith("postgres"):
            import app as example

            cuts = example.diamonds.plan(full=True).partitions
            bounds = [(part.low, part.high) for part in cuts]
            theirs = asyncio.run(by_hand(given.url, address, bounds))
            print(f"ratio        {theirs / ours:.2f}")
            example.app.close()
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
