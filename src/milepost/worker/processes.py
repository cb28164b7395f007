"""A process that runs isolated attempts, as the worker holds it, and how it ends."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from milepost.client import caller
from milepost.worker import warden
from milepost.worker.execute import ProcessDied
from milepost.worker.pipe import (
    Attempt,
    Begin,
    Broken,
    Done,
    HookBegun,
    Pipe,
    Place,
    Ready,
    Report,
    Severed,
    Stop,
    Told,
)
from milepost.worker.slots import RunningJob

CANCEL_SECONDS = 0.25
"""How long a handler that is asked to stop has before its process is killed."""
START_SECONDS = 60.0
"""How long the import of an app may take."""
DYING_SECONDS = 0.5
VERDICT_SECONDS = 5.0
CLOSE_SECONDS = 2.0
OVERDUE_SECONDS = 2.0
"""How long after its timeout a process that its warden has not killed is killed with the warden."""
MAINS = ("__main__", "__mp_main__")
"""The names of the program's own module: the second where `multiprocessing` has started it."""
PROGRAM = (
    "import json, os, sys; sys.path[:] = json.loads(os.environ.pop('MILEPOST_CHILD_PATH')); "
    "from milepost.worker.child import main; main({}, {})"
)


class Verdict(msgspec.Struct, frozen=True):
    """How a process ended, as its warden tells it."""

    number: int = -1
    why: str = ""
    status: int | None = None
    held: int = 0
    before: int = 0
    spent: float = 0.0


def can_isolate() -> bool:
    """Tell whether this system has the means."""
    return os.name == "posix" and bool(sys.executable) and hasattr(os, "posix_spawn")


def can_measure() -> bool:
    """Tell whether the memory and the processor time of processes can be read here."""
    return warden.HAS_PROC


def find_place(app: object, modules: Iterable[str]) -> Place | None:
    """Find an app in modules that are loaded; None if none of them holds it by a name."""
    for name in modules:
        held = getattr(sys.modules.get(name), "__dict__", {})
        for attribute, value in list(held.items()):
            if value is app:
                return _main_place(attribute) if name in MAINS else Place(name, attribute)
    return None


def _main_place(attribute: str) -> Place | None:
    main: Any = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return Place("__main__", attribute, main_name=spec.name)
    if path is not None and Path(path).is_file():
        return Place("__main__", attribute, main_path=str(Path(path).absolute()))
    return None


class Spawned:
    """A program that was started, and a pipe to its input, whose end tells it to end.

    `subprocess` waits for its child to have closed a pipe, of which a process that another handler
    forks at that moment would hold a copy.
    """

    def __init__(self, command: list[str], *, keep: Sequence[int]) -> None:
        read, self._input = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, read, 0), *((os.POSIX_SPAWN_DUP2, d, d) for d in keep)]
        try:
            # In a session of its own: Ctrl-C is for the worker.
            self._pid = os.posix_spawn(
                command[0], command, os.environ, file_actions=actions, setsid=True, setsigmask=()
            )
        except BaseException:
            os.close(self._input)
            raise
        finally:
            os.close(read)
        self._lock = threading.Lock()
        self._is_open = self._is_running = True

    def write(self, data: bytes) -> None:
        """Write to its input, if it still reads."""
        with self._lock, suppress(OSError):
            if self._is_open:
                os.write(self._input, data)

    def kill(self) -> None:
        """Kill it, and what descends from it: later nothing would tell whose that was."""
        with self._lock:
            if not self._is_running:
                return
            below = warden.descendants(self._pid)
            with suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
            warden.kill_all(below)

    def close(self) -> None:
        """End its input, and wait for its end, which is not far."""
        with self._lock:
            if self._is_open:
                os.close(self._input)
            self._is_open = False
        until = time.monotonic() + CLOSE_SECONDS
        while not self._ended():
            if time.monotonic() > until:
                self.kill()
            time.sleep(0.002)

    def _ended(self) -> bool:
        with self._lock, suppress(ChildProcessError):
            if self._is_running:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid == 0:
                    return False
                if status != 0:  # somebody killed it before it had killed the others
                    warden.kill_session(self._pid)
        self._is_running = False
        return True


class IsolatedProcess:
    """A process that runs one attempt after the other, and its warden."""

    def __init__(self, begin: Begin) -> None:
        # Whatever cannot be started leaves nothing open: there may be little left to open.
        with ExitStack() as passed_on, ExitStack() as kept:
            own, others = socket.socketpair()
            kept.callback(own.close)
            passed_on.callback(others.close)
            self._told, tell = os.pipe()
            kept.callback(os.close, self._told)
            passed_on.callback(os.close, tell)
            self._crash = _memory_file()
            if self._crash >= 0:
                kept.callback(os.close, self._crash)
            keep = [others.fileno(), *([] if self._crash < 0 else [self._crash])]
            start = json.dumps({**_child(keep[0], self._crash), "keep": keep, "tell": tell})
            command = [sys.executable, "-I", "-S", warden.__file__]
            self._warden = Spawned(command, keep=(*keep, tell))
            kept.pop_all()
        self._pipe = Pipe(own, until=self._told)
        self._pipe.seconds = START_SECONDS
        self._command(start)
        with suppress(Severed):
            self._pipe.send(begin)
        self.is_ready = False
        self.number = 0
        """The number of the last attempt that was handed over."""
        self._held = self._base = 0

    def wait_ready(self) -> None:
        """Wait until it can take attempts, or raise `ProcessDied`."""
        if self.is_ready:
            return
        try:
            first = self._pipe.read()
        except Severed as error:
            verdict = self.verdict()
            closed = verdict.why == "closed"
            told = str(error) if closed else ended(verdict, before="it was ready")
            raise ProcessDied(f"its process could not be started: {told}") from error
        if isinstance(first, Broken):
            raise ProcessDied(
                f"its process could not import the app: {first.message}", code="configuration"
            )
        self._pipe.seconds = None
        self._held = self._base = first.held if isinstance(first, Ready) else 0
        self.is_ready = True

    @property
    def has_ended(self) -> bool:
        """Tell whether it, or its warden, has ended since the last attempt."""
        ended = select.poll()
        ended.register(self._told, select.POLLIN)
        return self._pipe.is_severed or bool(ended.poll(0))

    def has_grown(self, memory: int | None) -> bool:
        """Tell whether earlier attempts have left it little of what the next one may hold."""
        return memory is not None and self._held > (self._base + max(self._base, memory)) // 2

    def begin(self, running: RunningJob, seconds: float | None, hooked: tuple[str, ...]) -> None:
        """Hand an attempt over, under its limits."""
        self.number += 1
        running.number = self.number
        definition = running.definition
        limits = (seconds, definition.memory, definition.cpu_seconds)
        words = " ".join("-" if limit is None else str(limit) for limit in limits)
        self._command(f"watch {self.number} {words}")
        self._pipe.send(Attempt(self.number, running.claim, caller(), hooked))

    def messages(self) -> Iterator[Told]:
        """Read what the attempt tells, up to its outcome; raise `Severed` when it ends without."""
        while True:
            message = self._pipe.read()
            if isinstance(message, Done):
                self._held = message.held
                self._command(f"rest {self.number}")  # whoever reads it reads no further
            if isinstance(message, Report) and message.number != self.number:
                continue  # a thread that the handler of an earlier attempt left was quick
            if isinstance(message, Told):
                yield message

    def answer(self, message: HookBegun) -> None:
        """Answer an attempt that waits."""
        self._pipe.send(message)

    def end(self, number: int, why: str, *, seconds: float = 0.0) -> None:
        """Have it killed, after so long, if that attempt is still the last one."""
        self._command(f"end {number} {why} {seconds}")

    def ask_to_stop(self, number: int, reason: str) -> None:
        """Tell an attempt's handler to stop; one that has not ended soon is killed."""
        with suppress(Severed):
            self._pipe.send(Stop(number, reason), blocking=False)
        self.end(number, "cancel", seconds=CANCEL_SECONDS)

    def _command(self, line: str) -> None:
        # Short enough to be written whole, whichever threads write.
        self._warden.write(f"{line}\n".encode())

    def verdict(self) -> Verdict:
        """Learn how it ended; one that lives on, and says nothing any more, is killed."""
        # A dying process closes its connection before it can be seen to be dead.
        self.end(self.number, "closed", seconds=DYING_SECONDS)
        waiting = select.poll()
        waiting.register(self._told, select.POLLIN)
        told = os.read(self._told, 1 << 16) if waiting.poll(VERDICT_SECONDS * 1000) else b""
        try:
            return msgspec.json.decode(told, type=Verdict)
        except msgspec.MsgspecError:
            return Verdict(self.number, "unknown")

    @property
    def where(self) -> str | None:
        """Where its handler was, as the interpreter wrote it when it was killed or crashed."""
        if self._crash < 0:
            return None
        with suppress(OSError):
            return os.pread(self._crash, 1 << 16, 0).decode(errors="replace") or None
        return None

    def kill(self) -> None:
        """Kill the warden, with which the process dies."""
        self._warden.kill()

    def close(self) -> None:
        """Have everything killed, and wait for it."""
        self.end(self.number, "stop")
        self._pipe.close()
        self._warden.close()
        for descriptor in (self._told, self._crash):
            if descriptor >= 0:
                os.close(descriptor)


def _child(connection: int, crash: int) -> dict[str, Any]:
    """Say how to start the process itself: as this one, with its modules."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does
    # Imports pass over what is no text, and so is none of it needed.
    path = [folder for folder in sys.path if isinstance(folder, str)]
    return {
        "command": [sys.executable, *flags, "-c", PROGRAM.format(connection, crash)],
        "environment": {"MILEPOST_CHILD_PATH": json.dumps(path)},
    }


def _memory_file() -> int:
    """Make a file for the last words of a process; -1 where the system has none."""
    make = getattr(os, "memfd_create", None)
    with suppress(OSError):  # some sandboxes refuse it
        return -1 if make is None else make("milepost-crash")
    return -1


def ended(verdict: Verdict, *, before: str = "its handler returned") -> str:
    """Tell how it ended, in words."""
    status = verdict.status
    if verdict.why == "closed":
        return "its process closed its connection to the worker"
    if status is None:
        return "nothing was heard of its process any more"
    if status < 0:
        with suppress(ValueError):
            return f"its process was killed by signal {-status} ({signal.Signals(-status).name})"
        return f"its process was killed by signal {-status}"
    return f"its process ended with code {status} before {before}"
