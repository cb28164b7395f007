"""A warden and what it holds: whatever descends from a process ends with its attempt."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from milepost.worker import warden
from milepost.worker.processes import Spawned

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="this system has no /proc"
)

SECONDS = 3
"""How long a process that nobody kills goes on."""
PROGRAM = """
import ctypes, os, signal, subprocess, threading, time
libc = ctypes.CDLL(None)
end = time.monotonic() + {seconds}
held = {held}
def ready():
    os.write(held, b"x")
def stay():
    while time.monotonic() < end:
        time.sleep(0.05)
{body}
stay()
"""
CHAIN = """
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    setsid();
    write(atoi(words[1]), "x", 1);
    for (int left = 4000; left; left--)
        if (fork()) _exit(0);
    write(atoi(words[1]), "end", 3);
    return 0;
}
"""
"""Bounded: whoever adopts a chain that escapes has that many processes to bury."""
MISSES = """
from milepost.worker import warden
look, looks = warden.descendants, iter(range(3))
warden.descendants = lambda pid: look(pid) if next(looks, None) is None else []
warden.main()
"""
"""A warden whose first looks miss what the handler started, as one may while that forks."""
LEADERLESS = """
def live():
    time.sleep(0.2)
    kept = b"x" * 1_000_000 * {megabytes}
    ready()
    stay()
if os.fork() == 0:
    threading.Thread(target=live).start()
    libc.pthread_exit(None)
"""
STARTS = """
libc.prctl(1, int(signal.SIGKILL), 0, 0, 0)
if os.fork() == 0:
    {leave}()
    stay()
    os._exit(0)
time.sleep(0.1)
ready()
"""


class Held:
    """A program under a warden; a pipe that all its processes hold ends with the last of them."""

    def __init__(self, body, *, run=("-I", "-S", warden.__file__)):
        self.verdict, tell = os.pipe()
        self.held, held = os.pipe()
        self.warden = Spawned([sys.executable, *run], keep=(held, tell))
        program = PROGRAM.format(body=body, seconds=SECONDS, held=held)
        command = [sys.executable, "-S", "-c", program]
        start = {"command": command, "environment": {}, "keep": [held], "tell": tell}
        self.tell(json.dumps(start))
        os.close(tell)
        os.close(held)

    def tell(self, line):
        self.warden.write(f"{line}\n".encode())

    def wait_ready(self):
        assert os.read(self.held, 1) == b"x"

    def told(self):
        """Read how it ended; the warden tells when everything has."""
        return json.loads(os.read(self.verdict, 4096))

    def is_over(self, seconds=0.0):
        """Tell whether no process is left, after so long at most, and no chain came to its end."""
        until, read = time.monotonic() + seconds, b""
        while select.select([self.held], [], [], max(0.0, until - time.monotonic()))[0]:
            if not (part := os.read(self.held, 64)):
                return b"end" not in read
            read += part
        return False

    def close(self):
        self.warden.close()
        self.is_over(5 * SECONDS)  # they end by themselves
        os.close(self.held)
        os.close(self.verdict)


@pytest.fixture
def chain(tmp_path):
    """Compile a program that forks and ends, again and again."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler")
    path = tmp_path / "chain"
    (tmp_path / "chain.c").write_text(CHAIN)
    subprocess.run([compiler, "-w", "-o", str(path), f"{path}.c"], check=True)
    return path


def test_a_chain_of_forks_ends_with_its_attempt(chain):
    for number in range(10):
        body = f"os.posix_spawn('{chain}', ['chain', str(held)], os.environ)"
        with closing(Held(body)) as held:
            held.wait_ready()
            held.tell("watch 1 0.02 - -")
            assert held.told()["why"] == "timeout"
            assert held.is_over(), f"the {number + 1}th outlived its attempt"


def test_a_process_that_a_look_misses_ends_with_its_attempt():
    with closing(Held(STARTS.format(leave="os.setsid"), run=("-c", MISSES))) as held:
        held.wait_ready()
        held.tell("watch 1 0.05 - -")
        assert held.told()["why"] == "timeout"
        assert held.is_over()


def test_a_process_whose_main_thread_has_ended_ends_with_the_attempt():
    with closing(Held(LEADERLESS.format(megabytes=1))) as held:
        held.wait_ready()
        held.tell("watch 1 0.05 - -")
        assert held.told()["why"] == "timeout"
        assert held.is_over()


def test_what_a_process_holds_counts_though_its_main_thread_has_ended():
    with closing(Held(LEADERLESS.format(megabytes=120))) as held:
        held.tell(f"watch 1 2 {100_000_000} -")
        told = held.told()
        assert (told["why"], told["held"] > 100_000_000) == ("memory", True)
        assert held.is_over()


def test_what_a_handler_started_ends_with_a_warden_that_the_worker_kills():
    """A warden that is overdue: its handler may have stopped it."""
    with closing(Held(STARTS.format(leave="os.setsid"))) as held:
        held.wait_ready()
        os.kill(held.warden._pid, signal.SIGSTOP)
        held.warden.kill()
        assert held.is_over(1)


def test_what_a_handler_started_ends_with_a_warden_that_somebody_kills():
    with closing(Held(STARTS.format(leave="os.setpgrp"))) as held:
        held.wait_ready()
        os.kill(held.warden._pid, signal.SIGKILL)
        held.warden.close()
        assert held.is_over(1)
