"""An app whose handlers do their worst, each in a process of its own."""

import asyncio
import ctypes
import faulthandler
import logging
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import milepost as mp
from milepost.client import Importing

SLOW = "ISOLATED_IMPORT_SECONDS"
OLD_SOURCE = "ISOLATED_OLD_SOURCE"
"""Says that the source is that of before, in which one job was not declared."""
if Importing.now:
    time.sleep(float(os.environ.get(SLOW, "0")))

QUICK: dict[str, Any] = {
    "heartbeat": 0.2,
    "sweep": 0.05,
    "poll_max": 0.1,
    "recovery": 0.1,
    "error_wait": 0.1,
    "grace": 10.0,
}
app = mp.App("sqlite:///never-opened.db", **QUICK)
MEMORY = 300 * 1024**2


@app.job
async def neighbour(number: int) -> int:
    await asyncio.sleep(0.3)
    return number


@app.job
def plain_neighbour(number: int) -> int:
    time.sleep(0.02)
    return number


# Each passes a limit, or dies


@app.job(isolate=True, retries=0, memory=MEMORY)
def allocates() -> None:
    held = []
    while True:
        held.append(bytearray(4_000_000))


@app.job(isolate=True, retries=0, timeout=0.5)
def spins_in_c() -> None:
    # The interpreter's lock is never given up: no thread of this process runs again.
    ctypes.PyDLL(None).usleep(60_000_000)


@app.job(isolate=True, retries=0, timeout=1.0)
def forks(path: str) -> None:
    for _ in range(8):
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            with Path(path).open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(600)
    time.sleep(600)


@app.job(isolate=True, retries=0, memory=MEMORY)
def forks_and_allocates() -> None:
    """Hold little itself: what it started counts."""
    for _ in range(4):
        if os.fork() == 0:
            os.setsid()
            held = bytearray(100 * 1024**2)
            held[::4096] = b"1" * len(held[::4096])
            time.sleep(600)
    time.sleep(600)


@app.job(isolate=True, retries=0, memory=MEMORY)
def starts_commands(times: int) -> int:
    """Hold more than half of its memory, and never all of it."""
    held = bytearray(MEMORY * 3 // 5)
    held[::4096] = b"1" * len(held[::4096])
    for _ in range(times):
        subprocess.run(["true"], check=True)
    return times


@app.job(isolate=True, retries=0)
def segfaults() -> None:
    ctypes.string_at(0)


@app.job(isolate=True, retries=0, timeout=0.5)
def ignores_everything() -> None:
    for number in range(1, signal.NSIG):
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    while True:
        with suppress(BaseException):
            time.sleep(600)


@app.job(isolate=True, retries=0)
def stops_its_warden() -> None:
    """Keep asleep whoever would kill it."""
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(600)


if OLD_SOURCE not in os.environ:

    @app.job(isolate=True, retries=0)
    def is_new() -> int:
        return os.getpid()


@app.job(isolate=True, retries=0, timeout=0.5)
def hears_everything(answer: str) -> str:
    """End by whatever signal comes, in a way of its own."""

    def hears(*_: object) -> None:
        if answer == "exit":
            os._exit(0)
        raise KeyboardInterrupt

    for number in range(1, signal.NSIG):
        with suppress(OSError, ValueError):
            signal.signal(number, hears)
    try:
        while True:
            time.sleep(0.01)
    except KeyboardInterrupt:
        return answer


@app.job(isolate=True, retries=0, cpu_seconds=0.3)
def burns() -> None:
    while True:
        pass


@app.job(isolate=True, retries=0)
def exits() -> None:
    os._exit(0)


@app.job(isolate=True, retries=0, timeout=30)
async def exits_in_a_task() -> None:
    threading.Thread(target=time.sleep, args=(600,)).start()  # the interpreter waits for its end

    async def exits_here() -> None:
        sys.exit(3)

    await asyncio.gather(exits_here())


@app.job(isolate=True, retries=0)
def closes_everything(path: str) -> str:
    os.closerange(3, 4096)
    own = Path(path)
    with own.open("w") as first, own.open("w"), own.open("w"):
        first.write("mine")
        first.flush()
        logging.getLogger("shop").warning("not into a file")
    return "?"


def _sockets() -> list[int]:
    with os.scandir("/proc/self/fd") as found:
        numbers = [int(entry.name) for entry in found]
    return [number for number in numbers if number > 2 and _is_socket(number)]


def _is_socket(number: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False


@app.job(isolate=True, retries=0, timeout=20)
def writes_where_it_should_not() -> None:
    for number in _sockets():
        os.write(number, b"12345")
    time.sleep(600)


@app.job(isolate=True, retries=0, timeout=20)
def floods(head: str) -> None:
    for number in _sockets():
        os.write(number, head.encode("latin-1"))
        while True:
            os.write(number, bytes(1 << 20))


@app.job(isolate=True, retries=1, retry_delay=0.0, memory=MEMORY)
def grows_once(ctx: mp.Context) -> int:
    if ctx.attempt == 1:
        allocates()
    return ctx.attempt


@app.job(isolate=True)
async def deaf() -> None:
    ctypes.PyDLL(None).usleep(60_000_000)


@app.job(isolate=True)
async def listens(ctx: mp.Context, path: str) -> None:
    try:
        await asyncio.sleep(600)
    finally:
        Path(path).write_text(str(ctx.reason))  # noqa: ASYNC240 - it is over


# Each uses what an attempt has


@app.job(isolate=True, timeout=0.5, retries=9, retry_delay=0)
def pid() -> int:
    return os.getpid()


@app.job(isolate=True, memory=MEMORY)
def leaks(megabytes: int) -> int:
    kept.append(b"x" * (megabytes * 1_000_000))
    return os.getpid()


kept: list[bytes] = []


@app.job(isolate=True)
def leaves_a_process() -> list[int]:
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return [os.getpid(), left.pid]


@app.job(isolate=True, retries=0, timeout=20)
def takes_a_step_in_a_fork(ctx: mp.Context) -> int:
    if (pid := os.fork()) == 0:
        ctx.step("one", lambda: 1)
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@app.job(isolate=True, retries=0, timeout=20)
async def gives_up_a_step(ctx: mp.Context) -> int:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await ctx.step_async("given up", _soon, 1)
    await asyncio.sleep(0.3)  # the hooks before it have begun by now
    return await ctx.step_async("taken", _soon, 2)


@app.job(isolate=True)
def names_a_level() -> None:
    logging.addLevelName(35, "odd\udcff")
    logging.getLogger("shop").log(35, "odd")


@app.job(isolate=True)
def leaves_a_thread(ctx: mp.Context) -> int:
    def goes_on() -> None:
        for number in range(1_000):
            ctx.progress(0.9, "not its own")
            ctx.count("not its own", 5)
            ctx.log.info("not its own", number=number)
            time.sleep(0.002)

    threading.Thread(target=goes_on, daemon=True).start()
    return os.getpid()


@app.job(isolate=True)
async def leaves_calls_in_threads() -> int:
    """Give up as many calls as the event loop has threads for."""
    calls = [asyncio.to_thread(time.sleep, 30) for _ in range(32)]
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.gather(*calls)
    return os.getpid()


@app.job(isolate=True, retries=0, timeout=10)
async def calls_in_a_thread() -> int:
    return await asyncio.to_thread(os.getpid)


@app.job(isolate=True)
def leaves_an_alarm(timer: int) -> int:
    signal.setitimer(timer, 0.5, 0.1)
    return os.getpid()


@app.job(isolate=True)
def leaves(what: str) -> int:
    if what == "limit":
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (4, most))
    elif what == "ignored":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    elif what == "blocked":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    elif what == "priority":
        os.nice(1)
    elif what == "user":
        os.seteuid(65534)
    else:
        _change_what_is_set_back(what)
    return os.getpid()


def _change_what_is_set_back(what: str) -> None:
    if what == "processors":
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    elif what == "mask":
        os.umask(0o777)
    elif what == "recursion":
        sys.setrecursionlimit(60)
    elif what == "stop":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    elif what == "watchdog":
        faulthandler.dump_traceback_later(0.3, exit=True)
    else:
        os.chdir("/")


@app.job(isolate=True, retries=0)
def finds() -> list[Any]:
    """Tell of the process what the attempt before it may have changed."""
    ended = subprocess.run(["false"], check=False).returncode
    signal.raise_signal(signal.SIGTERM)  # as a service manager does, to every process
    time.sleep(0.5)
    with tempfile.NamedTemporaryFile() as file:
        mode = stat.filemode(os.fstat(file.fileno()).st_mode)
        user, processors = Path(file.name).owner(), sorted(os.sched_getaffinity(0))
    blocked = len(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    found = [ended, blocked, os.nice(0), str(Path.cwd()), mode, user, processors]
    return [os.getpid(), *found, sys.getrecursionlimit()]


@app.job(isolate=True, retries=0)
def works_for(seconds: float) -> int:
    until = time.thread_time() + seconds  # two of the three timers count processor time
    while time.thread_time() < until:
        pass
    return os.getpid()


@app.job(isolate=True)
def is_where_waitid_is_missing() -> int:
    del os.waitid
    return os.getpid()


@app.job(isolate=True)
def closes_its_output() -> int:
    print("not into the next job's files")  # kept by Python, and not written yet
    os.close(1)
    os.close(2)
    return os.getpid()


@app.job(isolate=True)
def opens_a_file() -> list[int]:
    with Path(os.devnull).open() as file:
        return [os.getpid(), file.fileno()]


@app.job(isolate=True, retries=2, retry_delay=0.0)
def uses_everything(ctx: mp.Context, name: str) -> dict[str, Any]:
    steps = [ctx.step("one", lambda: ctx.attempt), ctx.step("two", _twice, 21, transaction=True)]
    with ctx.transaction() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS isolated (job text)")
        placeholder = "?" if isinstance(connection, sqlite3.Connection) else "%s"
        connection.execute(f"INSERT INTO isolated VALUES ({placeholder})", (ctx.id,))
        ctx.save({"at": ctx.attempt})
    ctx.count("pages", 3)
    ctx.progress(0.5, "half")
    ctx.log.info("as it goes", password=name)
    logging.getLogger("shop").warning("token=%s", name)
    mp.current().progress(0.75, f"attempt {ctx.attempt}")
    if ctx.attempt == 1:
        raise RuntimeError(f"password={name}")
    if ctx.attempt == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    neighbour.options(queue="elsewhere", start_in=600).submit(7)
    told = [ctx.id, ctx.fence, ctx.idempotency_key, ctx.cancelled]
    return {"steps": steps, "cursor": ctx.cursor, "signals": ctx.signals(), "told": told}


def _twice(connection: Any, number: int) -> int:
    connection.execute("SELECT 1")
    return 2 * number


@app.job(isolate=True)
async def uses_everything_async(ctx: mp.Context) -> dict[str, Any]:
    if not (signals := await ctx.signals_async()):
        raise mp.Later(None)
    step = await ctx.step_async("one", _soon, 1)
    async with ctx.transaction_async():
        await ctx.save_async(2)
    await ctx.progress_async(1.0)
    ctx.check()
    await neighbour.options(queue="elsewhere", start_in=600).submit_async(8)
    return {"step": step, "signals": signals, "cursor": await ctx.cursor_async()}


async def _soon(number: int) -> int:
    await asyncio.sleep(0)
    return number


@app.job(isolate=True)
def talks(times: int) -> int:
    logging.getLogger("talker").propagate = False
    logging.getLogger("talker").addHandler(logging.NullHandler())
    for number in range(times):
        sys.stdout.write("x")
        logging.getLogger("talker").warning("%s %s", number, "x" * 500)
    return times


@app.job(isolate=True, retries=1, retry_delay=0, timeout=3)
def locks_a_row(ctx: mp.Context) -> int:
    with ctx.transaction() as connection:
        connection.execute("UPDATE locked SET attempt = 1 WHERE id = 1")
        if ctx.attempt == 1:
            connection.execute("SELECT pg_sleep(60)")
    return ctx.attempt


@app.job(isolate=True, retries=1, retry_delay=0, timeout=3)
async def locks_a_row_async(ctx: mp.Context) -> int:
    async with ctx.transaction_async() as connection:
        await connection.execute("UPDATE locked SET attempt = 1 WHERE id = 2")
        if ctx.attempt == 1:
            await connection.execute("SELECT pg_sleep(60)")
    return ctx.attempt


class Odd:
    """Nothing that can be stored, and nothing that says what it is."""

    def __repr__(self) -> str:
        raise RuntimeError


@app.job(isolate=True)
def returns(what: str) -> Any:
    return {"odd": Odd(), "huge": "x" * 3_000_000, "lock": threading.Lock()}[what]


batch = app.batch("isolated")


@batch.step(isolate=True)
def split() -> Iterator[int]:
    yield from range(3)


@batch.step(isolate=True)
def double(item: int) -> int:
    return 2 * item


@batch.reduce
def total(results: Iterable[int]) -> int:
    return sum(results)
