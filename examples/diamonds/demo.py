"""Reads 20,000 diamonds from a troublesome supplier, then what changed, and compares."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    count = parser.parse_args().count
    command = [sys.executable, str(HERE / "supplier.py"), f"--count={count}", "--port=0"]
    supplier = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = (supplier.stdout.readline() if supplier.stdout else "").strip()
        with tempfile.TemporaryDirectory() as folder:
            os.environ["MILEPOST_DATABASE_URL"] = f"sqlite:///{folder}/diamonds.db"
            os.environ["DIAMONDS_SUPPLIER"] = address
            _show(address)
    finally:
        supplier.kill()
        supplier.wait()


def _show(address: str) -> None:
    sys.path.insert(0, str(HERE))
    from app import app, diamonds  # noqa: PLC0415 - it reads the environment

    trouble = {"short_every": 9, "throttle_every": 200}
    httpx2.post(f"{address}/trouble", json=trouble).raise_for_status()
    for changes in (0, 500):
        asked = {"change": changes, "late": changes // 20}
        httpx2.post(f"{address}/trouble", json=asked).raise_for_status()
        run = diamonds.start()
        app.drain(timeout=300)
        counts = run.refresh().counts
        print(
            f"{run.mode:<12} {run.state}: {counts.fetched} fetched in {counts.pages} pages, "
            f"{counts.new} new, {counts.changed} changed, {counts.quarantined} in quarantine"
        )
    there = httpx2.get(f"{address}/all").json()
    same = {record.id: record.price for record in diamonds.records()} == there
    print(f"the target {'equals' if same else 'DIFFERS FROM'} the source: {len(there)} diamonds")
    app.close()
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main()
