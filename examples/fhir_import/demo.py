"""Import a folder of FHIR patients by two worker processes, and compare what came of it."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import milepost as mp
from fhir_import import Import, Report, SearchIndex, importer, is_sound, make_patients

HERE = Path(__file__).parent
MILEPOST = [sys.executable, "-m", "milepost.cli"]
WORKERS = 2
START_SECONDS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=300, help="how many files there are")
    count = parser.parse_args().patients
    with tempfile.TemporaryDirectory(prefix="milepost-demo-") as folder:
        os.environ["MILEPOST_DATABASE_URL"] = f"sqlite:///{folder}/demo.db"
        app = mp.App()
        good = show(importer(app), app, Path(folder) / "patients", count)
        app.close()
    sys.exit(0 if good else 1)


def show(batch: mp.Batch, app: mp.App, folder: Path, count: int) -> bool:
    """Import a folder; answer whether everything that can be imported was."""
    print(
        f"{count} FHIR patients are imported by a batch: find the files, parse each, index them\n"
        "once all are parsed, ask until they are found, report. Some files are broken, some can\n"
        "only be read at the second attempt.\n",
        flush=True,
    )
    make_patients(folder, count)
    run = batch.start(Import(folder=str(folder)))
    with at_work(app):
        watched = subprocess.run([*MILEPOST, "runs", "watch", run.id], check=False)
    if watched.returncode or not is_complete(run.refresh(), folder, count):
        return False
    return subprocess.run([*MILEPOST, "verify"], check=False).returncode == 0


@contextmanager
def at_work(app: mp.App) -> Iterator[None]:
    """Run workers for a while; the first is at work when the block begins."""
    command = [*MILEPOST, "worker", "app:app"]
    workers = [
        subprocess.Popen(command, cwd=HERE, stderr=subprocess.DEVNULL) for _ in range(WORKERS)
    ]
    try:
        until = time.monotonic() + START_SECONDS
        while not app.workers.list() and time.monotonic() < until:
            time.sleep(0.1)
        yield
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()


def is_complete(run: mp.RunHandle, folder: Path, count: int) -> bool:
    """Print the report; answer whether the search index holds every sound patient, once."""
    report: Report = run.report
    found = SearchIndex(str(folder)).names()
    sound = [f"patient-{number:04}" for number in range(1, count + 1) if is_sound(number)]
    for error in run.errors[:2]:
        print(f"refused: {error.message}")
    genders = ", ".join(f"{many} {gender}" for gender, many in report.genders.items())
    print(
        f"{report.patients} patients: {genders}; {run.failed} files were refused.\n"
        f"Of {count} files {len(sound)} can be imported; the search index holds {len(found)}.",
        flush=True,
    )
    return found == sound and report.patients == len(sound)


if __name__ == "__main__":
    main()
