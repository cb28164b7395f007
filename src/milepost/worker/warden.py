"""Starts the process of isolated jobs, measures it with its descendants, and kills them all.

A program of its own between a worker and such a process, run by path with the standard library
alone. Orphans of its descendants become its children, so that a process which changed its session
or whose parent died is found too. No job passes through it: it sleeps while nothing goes wrong.

It reads lines, each a command: `watch N SECONDS MEMORY CPU` (a dash: no such limit) when attempt N
begins, `rest N` when it is over, `end N WHY SECONDS` to kill after that time. The end of its input
is the worker's death: it kills everything. Before it ends it writes one line: why, and what it
measured.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

SAMPLE_SECONDS = 0.02
LOOK_SECONDS = 0.1
"""How often new descendants are looked for; where that takes long, a tenth of the time."""
KILL_SECONDS = 0.8
"""For how long it tries to kill a process that waits for a disk, or belongs to another user."""
STUCK = ("timeout", "cpu", "memory")
"""Reasons for a kill after which people ask where the handler was."""
WHERE = int(signal.SIGRTMAX) - 2 if hasattr(signal, "SIGRTMAX") else 0
"""The signal of which a process writes its stack, without the interpreter, and dies. It must die of
it: a call that a signal only interrupts returns, and its handler goes on."""
WHERE_SECONDS = 0.05
SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
HAS_PROC = os.path.exists("/proc/self/stat")  # noqa: PTH110 - nothing else is imported for it

FORKED_SECONDS = 0.3
"""For so long a forked process may take to begin a program, on a machine that is busy."""
FORKED = 0x40
"""The kernel's flag of a process that has not begun a program of its own since it was forked."""

Sample = tuple[int, str, float, int, bool]
"""A process: its parent, its state, its processor time with that of ended children, its bytes, and
whether it runs the program that it was forked from."""


def sample(pid: int | str) -> Sample | None:
    """Measure a process; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - as above
            # Its name, in parentheses, may hold anything.
            words = file.read(4096).rpartition(b") ")[2].split()
    except OSError:
        return None
    if len(words) < 22:  # noqa: PLR2004 - a process that is going away
        return None
    spent = sum(map(int, words[11:15])) / TICKS
    held, state = int(words[21]) * PAGE, words[0].decode()
    if state == "Z" and not held:
        held = _held_by_threads(pid)
    return int(words[1]), state, spent, held, bool(int(words[6]) & FORKED)


def _held_by_threads(pid: int | str) -> int:
    """Read what a process holds whose main thread has ended: its other threads know."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - as above
            if thread != str(pid) and (found := sample(f"{pid}/task/{thread}")) and found[3]:
                return found[3]
    return 0


def children(pid: int) -> list[int] | None:
    """Name the children of a process; None where the kernel keeps no list of them."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - as above
    except OSError:
        return []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:  # noqa: PTH123
                while part := file.read(1 << 16):
                    found += map(int, part.split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}"):  # noqa: PTH110
                return None
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[int]:
    """Name all processes that descend from one."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children(waiting.pop())
        if below is None:
            return list(_scanned(pid))
        found += below
        waiting += below
    return found


def _scanned(pid: int) -> Iterator[int]:
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and (found := sample(name)) is not None:
            below.setdefault(found[0], []).append(int(name))
    waiting = [pid]
    while waiting:
        for child in below.get(waiting.pop(), ()):
            yield child
            waiting.append(child)


def kill_all(pids: list[int]) -> None:
    """Kill processes, each with its group: a process that forks and ends cannot outrun that."""
    own = os.getpgrp()
    for pid in pids:
        with suppress(OSError):  # gone, or another user's
            group = os.getpgid(pid)
            if group > 1 and group != own:  # -1 would be everybody
                os.killpg(group, signal.SIGKILL)
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def kill_session(leader: int) -> None:
    """Kill what is left of a session; while any is, its leader's number names no other."""
    until = time.monotonic() + KILL_SECONDS
    known: set[int] = set()
    while (new := _members(leader) - known) and time.monotonic() < until:
        kill_all(list(new))
        known |= new


def _members(session: int) -> set[int]:
    found = set()
    for name in os.listdir("/proc") if HAS_PROC else ():  # noqa: PTH208
        with suppress(ValueError, OSError):
            if os.getsid(int(name)) == session:
                found.add(int(name))
    return found


def prctl(option: int, value: int) -> None:
    """Ask something of the kernel, where it is Linux."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Warden:
    """Guards one process, and what descends from it."""

    def __init__(self, command: list[str], environment: dict[str, str], keep: list[int]) -> None:
        self._worker = os.getppid()
        self._woken, waking = os.pipe()
        os.set_blocking(waking, False)
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Not ignored: that would be inherited. The worker says when it is over.
            signal.signal(number, lambda *_: None)
        self._process = subprocess.Popen(  # noqa: S603 - the worker's own
            command, env=environment, pass_fds=keep, stdin=subprocess.DEVNULL, process_group=0
        )
        for descriptor in keep:
            os.close(descriptor)
        self._pid = self._process.pid
        self._status: int | None = None
        self._reaped = 0.0
        """Processor time of orphans that have ended."""
        self._number = 0
        self._why = self._ends_for = ""
        self._end_at = float("inf")
        self._memory: int | None = None
        self._cpu: float | None = None
        self._spent_before = 0.0
        self._held = self._held_before = 0
        self._spent = 0.0
        self._tree: dict[int, float] = {}
        """It and what descends from it, and when each was found."""
        self._look_at = 0.0
        self._buffer = b""

    def run(self) -> dict[str, object]:
        """Wait until it dies or is to be killed; kill what is left, and say how it ended."""
        is_open = True
        # A process that another handler forked from the worker may hold our input open.
        while self._status is None and not self._why and is_open and os.getppid() == self._worker:
            ready, _, _ = select.select([0, self._woken], [], [], self._pause)
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._reap()
            if 0 in ready and self._status is None:
                is_open = self._listen()
            if self._status is None and is_open:
                self._look()
        self._reap()
        asks = bool(WHERE) and self._why in STUCK and self._status is None
        if asks:
            self._ask_where()
        self._kill()
        if not asks and self._status not in (None, -signal.SIGKILL):
            self._why = ""  # it had ended before it was killed
        return {
            "number": self._number,
            "why": self._why,
            "status": self._status,
            "held": self._held,
            "before": self._held_before,
            "spent": self._spent,
        }

    @property
    def _pause(self) -> float | None:
        left = max(0.0, self._end_at - time.monotonic())
        if self._memory is not None:
            return min(left, SAMPLE_SECONDS)
        if self._cpu is not None:
            return min(left, LOOK_SECONDS)
        return None if left == float("inf") else left

    # Commands

    def _listen(self) -> bool:
        read = os.read(0, 1 << 16)
        self._buffer += read
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._obey(line.decode().split(" "))
        return bool(read)

    def _obey(self, words: list[str]) -> None:
        name, number = words[0], int(words[1])
        if name == "watch":
            self._reap()
            if self._status is not None:
                return  # it had ended before: that attempt has not begun
            self._number = number
            seconds, memory, cpu = words[2:]
            self._end_at = float("inf") if seconds == "-" else time.monotonic() + float(seconds)
            self._ends_for = "timeout"
            self._memory = None if memory == "-" else int(memory)
            self._cpu = None if cpu == "-" else float(cpu)
            if self._memory is not None or self._cpu is not None:
                self._begin()
        elif name == "rest" and number == self._number:
            self._end_at, self._memory, self._cpu = float("inf"), None, None
        elif name == "end" and number == self._number:
            self._ends_for = words[2]
            self._end_at = min(self._end_at, time.monotonic() + float(words[3]))

    def _begin(self) -> None:
        """Measure before the attempt: nothing descends from a process that is used again."""
        found = sample(self._pid)
        if found is not None:
            self._held_before = found[3]
            self._spent_before = found[2] + self._reaped
        self._tree, self._look_at = {self._pid: 0.0}, 0.0

    # Limits

    def _look(self) -> None:
        """See whether a limit was passed."""
        now = time.monotonic()
        if now >= self._end_at:
            self._why = self._ends_for
        elif self._memory is not None or self._cpu is not None:
            self._measure(now)

    def _measure(self, now: float) -> None:
        if now >= self._look_at:
            self._tree = {pid: self._tree.get(pid, now) for pid in descendants(os.getpid())}
            after = time.monotonic()
            self._look_at = after + max(LOOK_SECONDS, 10 * (after - now))
        found = {pid: one for pid in self._tree if (one := sample(pid)) is not None}
        self._held = sum(self._held_by(pid, found, now) for pid in found)
        self._spent = sum(one[2] for one in found.values()) + self._reaped - self._spent_before
        if self._memory is not None and self._held > self._memory:
            self._why = "memory"
        elif self._cpu is not None and self._spent > self._cpu:
            self._why = "cpu"

    def _held_by(self, pid: int, found: dict[int, Sample], now: float) -> int:
        """Say how many bytes of a process count.

        One that has just been forked, as for each command that is started, has its parent's pages
        until it begins a program: what it holds beyond them counts.
        """
        parent, _, _, held, is_forked = found[pid]
        if is_forked and parent in found and now - self._tree[pid] < FORKED_SECONDS:
            return max(0, held - found[parent][3])
        return held

    # The end

    def _reap(self) -> bool:
        """Take note of processes that have ended: ours, and orphans; True when none is left."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._pid:
                self._status = self._process.returncode = os.waitstatus_to_exitcode(status)
            else:
                self._reaped += used.ru_utime + used.ru_stime

    def _ask_where(self) -> None:
        """Have the process write its stack and die; if it does not, `_kill` follows."""
        with suppress(OSError):
            os.kill(self._pid, WHERE)
        until = time.monotonic() + WHERE_SECONDS
        while self._status is None and time.monotonic() < until:
            time.sleep(0.001)
            self._reap()

    def _kill(self) -> None:
        """Kill everything that is left, until nothing is."""
        if not HAS_PROC:
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        until = time.monotonic() + KILL_SECONDS
        # A look at /proc may miss a process; that we have no child left, orphans included, is sure.
        while not self._reap() and time.monotonic() < until:
            kill_all(descendants(os.getpid()) if HAS_PROC else [self._pid])
            time.sleep(0.0002)


def main() -> None:
    """Read what to start, and guard it until its end."""
    # It wakes us when the worker dies, or only the thread that started us.
    prctl(SET_PDEATHSIG, signal.SIGHUP)
    prctl(SET_CHILD_SUBREAPER, 1)
    first = b""
    while not first.endswith(b"\n"):
        if not (read := os.read(0, 1)):
            return
        first += read
    start = json.loads(first)
    environment = {**os.environ, **start["environment"]}
    told = Warden(start["command"], environment, start["keep"]).run()
    with suppress(OSError):
        os.write(start["tell"], json.dumps(told).encode() + b"\n")


if __name__ == "__main__":
    main()
