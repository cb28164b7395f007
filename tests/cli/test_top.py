"""top draws on a real terminal, without flicker, and gives it back as it was."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import pytest

from milepost.cli.top import BEGIN, END, HOME
from milepost.store import jobs, workers
from milepost.store.workers import NewWorker

PATIENCE = 60.0


class Terminal:
    """A program at a terminal of its own: what it writes, in order, and a keyboard."""

    def __init__(self, *words: str, size: tuple[int, int] = (30, 90)) -> None:
        self.master, self._slave = pty.openpty()
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.before = termios.tcgetattr(self._slave)
        at = {"stdin": self._slave, "stdout": self._slave, "stderr": self._slave}
        self.process = subprocess.Popen([sys.executable, "-m", "milepost", *words], **at)
        self.text = ""

    def until(self, wanted: str, *, since: int = 0) -> int:
        """Read until it has written this; answer with where that stands."""
        deadline = time.monotonic() + PATIENCE
        while wanted not in self.text[since:]:
            left = deadline - time.monotonic()
            assert left > 0, f"{wanted!r} never came: {self.text[since:]!r}"
            if select.select([self.master], [], [], left)[0]:
                try:
                    self.text += os.read(self.master, 65_536).decode(errors="replace")
                except OSError:  # it ended
                    assert wanted in self.text[since:], self.text[since:]
        return self.text.index(wanted, since)

    def press(self, keys: str) -> int:
        """Press keys; answer with where what follows begins."""
        here = len(self.text)
        os.write(self.master, keys.encode())
        return here

    def close(self) -> int:
        code = self.process.wait(PATIENCE)
        after = termios.tcgetattr(self._slave)
        os.close(self.master)
        os.close(self._slave)
        assert after == self.before, "the terminal was not given back as it was"
        return code


@pytest.fixture
def busy(app):
    """A store with two queues, a running job, a failed one and a worker."""
    app.client.create([app.new_job("refuse", [7], {}, {})])
    app.drain()
    app.client.create([app.new_job("convert", ["a"], {}, {"queue": "mail"})])
    app.client.create([app.new_job("convert", [letter], {}, {}) for letter in "abc"])
    new = NewWorker(
        id="w-1", lease_us=3_600_000_000, host="box", slots='{"FREE": 3, "PROCESSING": 1}'
    )
    app.client.run(workers.register, new)
    app.client.run(jobs.claim, worker_id="w-1", line=jobs.lines(["default"]), most=1)
    return app


def test_one_frame_without_a_terminal_is_plain(busy, prompt):
    told = prompt("top", "--once").out
    assert "\x1b" not in told
    assert re.search(r"^default +2 +1 +0 +1 +\d+ s$|^default +2 +1 +0 +1 +-$", told, re.MULTILINE)
    assert re.search(r"^w-1 box +STARTUP +1 ", told, re.MULTILINE)
    assert "1 live worker\n" in told
    assert re.search(r"\d+\.\d s  convert +[0-9a-f-]{36}  w-1", told)
    assert "1 x  refuse  Fail: 7 is too large" in told
    document = json.loads(prompt("top", "--json").out)
    assert {queue["queue"] for queue in document["queues"]} == {"default", "mail"}


def test_it_is_watched_sorted_paused_and_left_by_keys(busy):
    del busy
    terminal = Terminal("top", "--interval", "1")
    terminal.until("q quit")
    assert terminal.text.startswith(BEGIN + HOME)
    first = terminal.text
    assert first.index("default ") < first.index("mail ")
    assert "\x1b[7m    queued\x1b[0m" in first
    here = terminal.press("\x1b[D")  # by name, descending
    terminal.until("\x1b[7mqueue ", since=here)
    terminal.until("q quit", since=here)
    assert terminal.text.index("mail ", here) < terminal.text.index("default ", here)
    here = terminal.press("\x1b[A")
    at = terminal.until("default ", since=here)
    assert "mail " not in terminal.text[here:at]
    here = terminal.press("p")
    terminal.until("   paused", since=here)
    here = terminal.press("p")
    terminal.until("jobs/s", since=here)
    terminal.press("q")
    terminal.until(END)
    assert terminal.close() == 0
    # Nothing is wiped before it is drawn: a frame overwrites the one before.
    assert "\x1b[2J" not in terminal.text
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", first)
    assert max(map(len, plain.splitlines())) < 90


@pytest.mark.parametrize("ended", ["interrupt", "terminate"])
def test_the_terminal_comes_back_however_it_ends(busy, ended):
    del busy
    terminal = Terminal("top", size=(8, 40))
    terminal.until("q quit")
    if ended == "terminate":
        terminal.process.terminate()
    else:
        terminal.process.send_signal(2)
    terminal.until(END)
    assert terminal.close() == (143 if ended == "terminate" else 0)
