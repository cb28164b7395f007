"""A counter and a latency log in a shared file, called by every no-op; about 3 µs."""

import fcntl
import mmap
import os
import struct
import time
from io import BufferedRandom
from pathlib import Path
from threading import Lock

VARIABLE = "BENCH_PROBE"
LOGGED_MOST = 8192
SIZE = 64 + 8 * LOGGED_MOST
_threads = Lock()
_opened: list[tuple[BufferedRandom, mmap.mmap]] = []


def _map() -> tuple[BufferedRandom, mmap.mmap]:
    if not _opened:
        path = Path(os.environ[VARIABLE])
        if not path.exists():
            reset()
        file = path.open("r+b")
        _opened.append((file, mmap.mmap(file.fileno(), SIZE)))
    return _opened[0]


def reset() -> None:
    """Start again from nothing."""
    while _opened:
        file, memory = _opened.pop()
        memory.close()
        file.close()
    Path(os.environ[VARIABLE]).write_bytes(b"\0" * SIZE)


def hit(t0: int = 0) -> None:
    """Count one call; with the time of its submission, log how long it took to come here."""
    now = time.monotonic_ns()
    with _threads:  # a lock on a file keeps out other processes, not other threads
        file, memory = _map()
        fcntl.lockf(file, fcntl.LOCK_EX)
        count, first, _, logged = struct.unpack_from("<4q", memory, 0)
        if t0 and logged < LOGGED_MOST:
            struct.pack_into("<q", memory, 64 + 8 * logged, now - t0)
            logged += 1
        struct.pack_into("<4q", memory, 0, count + 1, first or now, now, logged)
        fcntl.lockf(file, fcntl.LOCK_UN)


def read() -> tuple[int, int, int]:
    """Answer with how many calls came, and when the first and the last did."""
    count, first, last, _ = struct.unpack_from("<4q", _map()[1], 0)
    return count, first, last


def latencies() -> list[int]:
    """Read the logged latencies, in nanoseconds."""
    memory = _map()[1]
    logged = struct.unpack_from("<q", memory, 24)[0]
    return [struct.unpack_from("<q", memory, 64 + 8 * i)[0] for i in range(logged)]
