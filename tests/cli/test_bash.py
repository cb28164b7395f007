"""Completion as a person meets it: keys are typed into bash, and the line is read back."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import milepost as mp

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
CLEAR_LINE = b"\x15"
BELL = "\x07"


class Terminal:
    """Bash in a terminal of its own, with our completion."""

    def __init__(self, folder: Path) -> None:
        self._keys, inner = pty.openpty()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        plain = {"PS1": "> ", "TERM": "dumb", "INPUTRC": os.devnull, "PATH": path}
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=folder,
            env={**os.environ, **plain},
            start_new_session=True,
        )
        os.close(inner)
        self._read(least=1, end="> ")
        self._write('eval "$(milepost completion bash)"; PS1="ready> "\n')
        self._read(least=1, end="\nready> ")

    def typed(self, text: str) -> str:
        """Type, press Tab, and give back the line as it stands then."""
        self._write(f"{text}\t")
        shown = self._read(least=len(text) + 1, end=" ")
        os.write(self._keys, CLEAR_LINE + b"\n")
        self._read(least=1, end="\nready> ")
        return shown

    def _write(self, text: str) -> None:
        os.write(self._keys, text.encode())

    def _read(self, *, least: int, end: str) -> str:
        shown, until = "", time.monotonic() + 8
        while not (len(shown) >= least and shown.endswith(end)) and time.monotonic() < until:
            if select.select([self._keys], [], [], 0.1)[0]:
                shown += os.read(self._keys, 65536).decode().replace(BELL, "")
        return shown

    def close(self) -> None:
        self._bash.kill()
        self._bash.wait()
        os.close(self._keys)


@pytest.fixture
def terminal(folder):
    opened = Terminal(folder)
    yield opened
    opened.close()


def test_bash_completes_after_a_word_with_a_colon(terminal):
    """Bash breaks words at a colon: `newcomer:app` is three of them."""
    app = mp.App("sqlite:///milepost.db")
    app.job(name="convert")(lambda: None).options(queue="eu:slow").submit()
    app.close()
    for typed, completed in (
        ("milepost submit newcomer:app con", "vert "),
        ("true; X=1 milepost submit newcomer:app con", "vert "),
        ("milepost queues pause --store sqlite:///milepost.db eu:s", "low "),
        ("milepost jobs ls --queue=eu:s", "low "),
        ("milepost jobs ls --stat", "e "),
    ):
        assert terminal.typed(typed) == typed + completed
