"""A disk that fills up under a SQLite store: submits are refused, and nothing is lost."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, resource, signal, sys
import milepost as mp
from milepost.observe.verify import verify

ROOM = 3_000_000
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails, as on a full disk
app = mp.App(sys.argv[1], lease=2, heartbeat=0.2, error_wait=0.1)


@app.job(retries=5, retry_delay=0)
async def keep(text: str) -> str:
    return text


async def main():
    worker = asyncio.create_task(app.run_worker_async(signals=False))
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, resource.RLIM_INFINITY))
    handles = []
    try:
        while len(handles) < 10_000:
            handles.append(await keep.submit_async("x" * 20_000))
    except mp.Unavailable as error:
        print(type(error).__name__)
    while not worker.done() and not keep_errors[0]:
        await asyncio.sleep(0.01)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    ended = [await handle.wait_async(120) for handle in handles]
    print({len(handle.result) for handle in ended}, worker.done())
    worker.cancel()
    await asyncio.wait([worker])
    await app.close_async()
    return len(handles)


keep_errors = [0]
write = sys.stderr.write
sys.stderr.write = lambda text: (keep_errors.__setitem__(0, keep_errors[0] + 1), write(text))[1]
stored = asyncio.run(main())
print(len(app.jobs.list(limit=20_000)) == stored, verify(app.client.driver).clean)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="this system has no such limit")
@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_FSIZE)[1] != -1, reason="it is limited")
def test_what_was_stored_is_run_once_there_is_room_again(tmp_path: Path):
    """H-37: a worker in trouble waits and goes on; what was not stored was refused."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path}/store.db"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.stdout.splitlines() == ["Unavailable", "{20000} False", "True True"], done.stderr
