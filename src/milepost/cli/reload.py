"""`milepost dev --reload`: the program starts anew when a Python file next to the app's changes."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from milepost.cli.output import say
from milepost.errors import MilepostError

LOOK_SECONDS = 0.3
AGAIN_SECONDS = 1.0
"""Running jobs may end for so long; then they are given back, and begin anew with the new code."""
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})

Stamps = dict[str, tuple[int, int]]


def run_reloading(target: str, run: Callable[[], None]) -> None:
    """Run until stopped by others; after a change, start this very command in a fresh process."""
    # Until a worker has its own way with it, the signal below must not end us.
    signal.signal(signal.SIGTERM, lambda *_: None)
    changed, running = threading.Event(), threading.Event()
    running.set()
    threading.Thread(target=_watch, args=(_folder(target), changed, running), daemon=True).start()
    try:
        run()
    except MilepostError as error:
        running.clear()
        say(f"milepost: {error}")
        say("waiting until a file is changed; Ctrl-C ends")
        changed.wait()
    if changed.is_set():
        say("a file was changed: starting again")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - ourselves


def _folder(target: str) -> Path:
    place = target.partition(":")[0]
    return Path(place).absolute().parent if place.endswith(".py") else Path.cwd()


def _watch(folder: Path, changed: threading.Event, running: threading.Event) -> None:
    """Wait for a change; then drain the worker, if there is one, and give its jobs back."""
    seen, pause = dict(_stamps(folder)), threading.Event()
    while dict(_stamps(folder)) == seen:
        pause.wait(LOOK_SECONDS)
    changed.set()
    while running.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
        pause.wait(AGAIN_SECONDS)


def _stamps(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Tell time and size of each Python file, but not of environments and hidden folders."""
    for place, folders, files in os.walk(folder):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = [name for name in folders if name not in SKIPPED and name[0] != "."]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(place, name)  # noqa: PTH118 - a Path for each would be slow
                try:
                    found = os.stat(path)  # noqa: PTH116
                except OSError:
                    continue  # gone between two looks: the next one sees it
                yield path, (found.st_mtime_ns, found.st_size)
