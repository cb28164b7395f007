"""What an attempt may leave behind in the process of isolated jobs, for the next one to meet."""

import faulthandler
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from milepost.worker import warden
from milepost.worker.pipe import identity

STREAMS = (0, 1, 2)
"""The descriptors of input and output. The next file that is opened gets one that was closed."""
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
"""Each ends the process, whichever job runs in it then, unless its signal is handled."""
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals of a service manager, which sends them to every process."""
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def hears_warden() -> bool:
    """Tell whether a handler has taken the signal by which the process should have died."""
    return bool(warden.WHERE) and signal.getsignal(warden.WHERE) != signal.SIG_DFL


def _has_children() -> bool:
    """Tell whether any process that was started here is left: orphans among them are ours too.

    It may take the end of one from whoever waits for it; a process that has any is replaced.
    """
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


class Surroundings:
    """The parts of the process that every attempt shares, as they were before the first."""

    def __init__(self) -> None:
        self._streams = [identity(number) for number in STREAMS]
        self._timers = [timer for timer in TIMERS if any(signal.getitimer(timer))]
        self._stops = [signal.getsignal(number) for number in STOPS]
        self._depth, self._mask = sys.getrecursionlimit(), os.umask(0)
        os.umask(self._mask)
        self._processors = _processors()
        self._rules, self._folder = _rules(), "."
        with suppress(OSError):  # it may have been removed
            self._folder = str(Path.cwd())

    def restore(self) -> bool:
        """Stop timers, go back, and write output; tell whether anything else was not as before.

        Such a process is replaced.
        """
        self._set_back()
        left = [timer for timer in TIMERS if timer not in self._timers]
        stopped = [any(signal.setitimer(timer, 0)) for timer in left]
        same = [identity(number) == was for number, was in zip(STREAMS, self._streams, strict=True)]
        for is_same, stream in zip(same[1:], (sys.stdout, sys.stderr), strict=True):
            if is_same:  # it may be the store's connection that has this number now
                with suppress(Exception):
                    stream.flush()
        same.append(_rules() == self._rules)
        return any(stopped) or not all(same) or hears_warden() or _has_children()

    def _set_back(self) -> None:
        """Set back what can be: the process is as good as before."""
        faulthandler.cancel_dump_traceback_later()
        for number, was in zip(STOPS, self._stops, strict=True):
            if was is not None:  # None: not Python's
                signal.signal(number, was)
        os.umask(self._mask)
        # A module that was imported meanwhile may need more.
        sys.setrecursionlimit(max(self._depth, sys.getrecursionlimit()))
        with suppress(OSError):
            os.chdir(self._folder)
        if self._processors != _processors():
            with suppress(OSError):
                os.sched_setaffinity(0, self._processors)


def _processors() -> set[int]:
    """Name the processors that the process may use; none where the system does not tell."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _rules() -> list[Any]:
    """Read what holds for a process, and those that it starts: limits, priority, user, signals."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]
    limits = [resource.getrlimit(limit) for limit in LIMITS]
    user = [os.getuid(), os.geteuid(), os.getgid(), os.getegid(), os.getgroups()]
    return [limits, os.getpriority(os.PRIO_PROCESS, 0), user, blocked, ignored]
