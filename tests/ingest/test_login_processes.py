"""H-90: worker processes that are refused at the same time log in once, and the others wait."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from diamond_shop import ended

import milepost as mp

PROGRAM = """
import json, os
from urllib.request import Request, urlopen
import milepost as mp

ADDRESS = os.environ["GUARDED_ADDRESS"]


def ask(path, session=None):
    headers = {"X-Session": session or "", "X-Process": str(os.getpid())}
    with urlopen(Request(ADDRESS + path, headers=headers), timeout=60) as answer:
        return json.load(answer)


class Guarded(mp.Source):
    bounds = (0, 120)

    def count(self, window, low, high):
        return len(range(int(max(0, low)), int(min(120, high))))

    def fetch(self, window, partition, cursor):
        low, high = int(max(0, partition.low)), int(min(120, partition.high))
        at = low if cursor is None else cursor
        ask("/page", self.session)
        end = min(at + 2, high)
        records = [{"id": n, "price": n} for n in range(at, end)]
        return mp.Page(records, end if end < high else None)

    def login(self):
        return ask("/login")["session"]


app = mp.App()
guarded = app.pipeline(
    "guarded", Guarded(), key="id", partition_by="price", partitions=6, retries=0
)
"""


class Server:
    """Knows one session at a time; the first pages wait until two processes have asked for one."""

    def __init__(self):
        self.valid = "none yet"
        self.logins = []
        self.served = {}
        self._lock = threading.Lock()
        self._both = threading.Event()
        self._asked = set()

    def page(self, process, session):
        with self._lock:
            self._asked.add(process)
            if len(self._asked) == 2:
                self._both.set()
        assert self._both.wait(50)
        with self._lock:
            if session != self.valid:
                return 401, {}
            self.served[process] = self.served.get(process, 0) + 1
            if sum(self.served.values()) == 20:
                self.valid = "expired in the middle"
            return 200, {}

    def login(self, process):
        with self._lock:
            self.logins.append(process)
            self.valid = f"session {len(self.logins)}"
            return 200, {"session": self.valid}


@pytest.fixture
def guard():
    known = Server()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            process = self.headers["X-Process"]
            is_page = self.path == "/page"
            told = (
                known.page(process, self.headers["X-Session"]) if is_page else known.login(process)
            )
            body = json.dumps(told[1]).encode()
            self.send_response(told[0])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    known.address = f"http://127.0.0.1:{listening.server_address[1]}"
    yield known
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_h_90_processes_that_are_refused_at_once_log_in_once(
    database, guard, tmp_path, monkeypatch
):
    (tmp_path / "guarded_app.py").write_text(PROGRAM)
    told = {"MILEPOST_DATABASE_URL": database.url, "GUARDED_ADDRESS": guard.address}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "guarded_app", raising=False)
    import guarded_app as example

    # A process has room for three of the six partitions: the others are another's.
    command = [sys.executable, "-m", "milepost.cli", "worker", "guarded_app:app", "--concurrency=3"]
    environment = {**os.environ, "MILEPOST_SWEEP": "0.1", "MILEPOST_POLL_MAX": "0.1"}
    workers = [
        subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    try:
        run = ended(example.guarded.start())
        assert run.state == mp.RunState.SUCCEEDED, run.errors
        assert example.guarded.count() == 120
        assert len(guard.logins) == 2, guard.logins  # the first, and the one after it expired
        assert len(guard.served) == 2
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        example.app.close()
