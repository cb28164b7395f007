"""A counter and a latency log in a shared file: what every no-op calls, about 3 µs."""

import fcntl
import mmap
import os
import struct
import time
from pathlib import Path

SIZE = 64 + 8 * 8192
_opened: list[tuple[object, mmap.mmap]] = []


def _map() -> tuple[object, mmap.mmap]:
    if not _opened:
        path = Path(os.environ["BENCH_PROBE"])
        if not path.exists():
            reset()
        file = path.open("r+b")
        _opened.append((file, mmap.mmap(file.fileno(), SIZE)))
    return _opened[0]


def reset() -> None:
    Path(os.environ["BENCH_PROBE"]).write_bytes(b"\0" * SIZE)
    _opened.clear()


def hit(t0: int = 0) -> None:
    now = time.monotonic_ns()
    file, memory = _map()
    fcntl.lockf(file, fcntl.LOCK_EX)
    count, first, _, logged = struct.unpack_from("<4q", memory, 0)
    if t0 and logged < 8192:
        struct.pack_into("<q", memory, 64 + 8 * logged, now - t0)
        logged += 1
    struct.pack_into("<4q", memory, 0, count + 1, first or now, now, logged)
    fcntl.lockf(file, fcntl.LOCK_UN)


def read() -> tuple[int, int, int]:
    count, first, last, _ = struct.unpack_from("<4q", _map()[1], 0)
    return count, first, last


def latencies() -> list[int]:
    memory = _map()[1]
    logged = struct.unpack_from("<q", memory, 24)[0]
    return [struct.unpack_from("<q", memory, 64 + 8 * i)[0] for i in range(logged)]
