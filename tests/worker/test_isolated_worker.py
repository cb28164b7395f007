"""A worker's process and those of its isolated jobs: how they begin, and how they end together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.databases import Backends

PROGRAM = """
import logging, os, signal, time
import milepost as mp

app = mp.App(lease=3, heartbeat=0.5, sweep=0.1, poll_max=0.1, grace=20)


@app.job(isolate=True)
def forks_and_waits() -> None:
    if os.fork() == 0:
        os.setsid()
        note("child")
        time.sleep(600)
    note("handler")
    time.sleep(600)


@app.job
def forks_from_the_worker() -> None:
    if os.fork() == 0:
        note("worker's")
        os.closerange(0, 3)
        time.sleep(600)


@app.job
def pid() -> int:
    logging.getLogger("shop").warning("password=%s", "swordfish")
    return os.getpid()


@app.job
def waits(path: str) -> str:
    note("waiting")
    while not os.path.exists(path):
        time.sleep(0.01)
    return "waited"


def note(what):
    with open("noted", "a") as file:
        file.write(f"{what} {os.getpid()}\\n")
"""

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc"),
    pytest.mark.filterwarnings("ignore:.* waits and no live worker"),
]


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return found


def noted(folder):
    path = folder / "noted"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def below(pid):
    """Name the processes that descend from one."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(") ")[2].split()[1])
        except OSError:
            continue
    found, new = set(), {pid}
    while new := {child for child, parent in parents.items() if parent in new} - found:
        found |= new
    return found


@pytest.fixture
def database(backends: Backends):
    made = backends.fresh("sqlite")
    yield made
    backends.drop(made)


@pytest.fixture
def kinds(tmp_path, database, monkeypatch):
    (tmp_path / "killed.py").write_text(PROGRAM)
    monkeypatch.setenv("MILEPOST_DATABASE_URL", database.url)
    namespace = {"__name__": "killed"}
    exec(compile(PROGRAM, "killed.py", "exec"), namespace)
    yield namespace
    namespace["app"].close()


@pytest.fixture
def start(tmp_path):
    started = []

    def work(*arguments):
        command = [sys.executable, "-m", "milepost.cli", "worker", "killed.py", *arguments]
        made = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        started.append(made)
        return made

    yield work
    for process in started:
        process.kill()
        process.communicate()


def test_a_worker_that_stops_waits_for_its_processes_and_one_that_is_killed_takes_them_along(
    kinds, start, tmp_path
):
    worker = start("--isolate", "--log-format=json")
    assert kinds["pid"].submit().wait(60).result in below(worker.pid)
    job = kinds["waits"].submit(str(tmp_path / "go"))
    until(lambda: "waiting" in noted(tmp_path))
    for pid in below(worker.pid):  # as a service manager stops all that belong to a service
        os.kill(pid, signal.SIGTERM)
    worker.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    left = below(worker.pid)
    assert job.wait(60).result == "waited"
    told = worker.communicate(timeout=60)[1]
    assert worker.returncode == 0
    assert [entry.move for entry in job.history] == ["create", "claim", "succeed"]
    assert '"event":"password=[redacted]"' in told, "lines of a process are written as the worker's"
    assert "swordfish" not in told
    until(lambda: not any(map(is_alive, left)))

    killed = start()
    for kind in ("forks_and_waits", "forks_from_the_worker"):
        kinds[kind].submit()
    try:
        until(lambda: noted(tmp_path).keys() >= {"child", "handler", "worker's"})
        left = below(killed.pid) - {noted(tmp_path)["worker's"]}
        assert {noted(tmp_path)["child"], noted(tmp_path)["handler"]} < left
        killed.kill()
        until(lambda: not any(map(is_alive, left)))
        assert is_alive(noted(tmp_path)["worker's"]), "it held what the others waited for"
    finally:
        os.kill(noted(tmp_path)["worker's"], signal.SIGKILL)


MAIN = """
import os
import milepost as mp

app = mp.App("sqlite:///main.db")


@app.job(isolate=True, retries=0)
def pid() -> int:
    return os.getpid()


{guard}:
    job = pid.submit()
    app.drain(isolate=True)
    job.refresh()
    print(job.state, job.error and job.error.message)
    assert job.error or job.result != os.getpid()
"""


@pytest.mark.parametrize(
    ("guard", "told"),
    [
        ('if __name__ == "__main__"', "SUCCEEDED None"),
        ("if True", 'put that under `if __name__ == "__main__":`'),
    ],
    ids=["guarded", "unguarded"],
)
def test_a_program_that_is_its_own_module(tmp_path, guard, told):
    (tmp_path / "main.py").write_text(MAIN.format(guard=guard))
    printed, errors = run_main(tmp_path)
    assert printed.strip().endswith(told), printed + errors


SPAWNED = (
    MAIN.partition("{guard}")[0]
    + """
def work():
    app.drain(isolate=True)


if __name__ == "__main__":
    job = pid.submit()
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
    job.refresh()
    print(job.state, job.error and job.error.message)
"""
)


@pytest.mark.parametrize("arguments", [["main.py"], ["-m", "main"]], ids=["file", "module"])
def test_a_program_that_starts_its_workers_by_multiprocessing(tmp_path, arguments):
    """Each isolated job failed: its process looked for a module named `__mp_main__`."""
    (tmp_path / "main.py").write_text(f"import multiprocessing\n{SPAWNED}")
    printed, errors = run_main(tmp_path, *arguments)
    assert printed.strip() == "SUCCEEDED None", printed + errors


def run_main(folder, *arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MILEPOST")}
    process = subprocess.Popen(
        [sys.executable, *(arguments or ["main.py"])],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process.communicate(timeout=120)
