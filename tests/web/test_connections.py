"""Connections are few enough, and each says in time what it wants (slowloris)."""

import json
import socket
import time
import urllib.request
from contextlib import ExitStack

import pytest

import milepost as mp
from milepost.web import serve
from tests.support.serving import served

GET = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Serve an API that takes few connections and gives them little time; give its address."""
    monkeypatch.setattr(serve, "HEADER_SECONDS", 0.3)
    app = mp.App(f"sqlite:///{tmp_path}/a.db", api_connections=5)
    with served(app) as link:
        host, _, port = link.removeprefix("http://").partition(":")
        yield host, int(port)
    app.close()


def heard(connection):
    """Read until the other side closes."""
    connection.settimeout(30)
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def answered(connection):
    """Make a request, and read all of its answer."""
    connection.settimeout(30)
    connection.sendall(GET + b"\r\n")
    answer = b""
    while not answer.endswith(b'{"status":"alive"}'):
        answer += connection.recv(65_536)


@pytest.mark.parametrize(
    "said",
    [b"", b"GET", GET, GET + b"X-More: 1\r\n"],
    ids=["nothing", "a word", "half of the headers", "more of them"],
)
@pytest.mark.parametrize("asked", [0, 1], ids=["at once", "after a request"])
def test_headers_that_do_not_come_end_the_connection(place, said, asked):
    with socket.create_connection(place) as connection:
        for _ in range(asked):
            answered(connection)
        connection.sendall(said)
        answer = heard(connection)
    if asked and not said:
        return  # uvicorn closes what rests between two requests
    assert answer.startswith(b"HTTP/1.1 408")
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["status"] == 408


def test_a_drip_does_not_keep_a_connection(place):
    """However often a byte comes: the time is for all of the headers."""
    with socket.create_connection(place) as connection:
        began = time.monotonic()
        with pytest.raises(OSError):  # noqa: PT011 - it is reset, or its pipe is broken
            dripped(connection, seconds=30)
        assert time.monotonic() - began < 30


def dripped(connection, *, seconds):
    """Send one header after the other, each well within the time."""
    connection.sendall(GET)
    for _ in range(seconds * 20):
        connection.sendall(b"X: 1\r\n")
        time.sleep(0.05)


def test_a_request_that_is_being_answered_has_its_time(place):
    """What takes longer than headers may is no trouble once it has begun."""
    with socket.create_connection(place) as connection:
        connection.sendall(
            b"GET /v1/events?seconds=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
        assert b"event: end" in heard(connection)


def test_an_answer_that_nobody_reads_ends_the_connection(place, monkeypatch):
    """It fills what lies between, and then holds what was made for it, for ever."""
    monkeypatch.setattr(serve, "READ_SECONDS", 0.3)
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(place)
        connection.settimeout(30)
        with pytest.raises(OSError) as ended:  # noqa: PT011 - a reset, or a broken pipe
            asked_on(connection, ask)
        assert not isinstance(ended.value, TimeoutError)


def asked_on(connection, ask):
    """Ask and ask again, and read nothing."""
    for _ in range(100_000):
        connection.sendall(ask)


def test_connections_are_capped_and_there_is_room_again(place):
    host, port = place
    with ExitStack() as held:
        for _ in range(5):
            connection = held.enter_context(socket.create_connection(place))
            answered(connection)
        with socket.create_connection(place) as further:
            assert heard(further).startswith(b"HTTP/1.1 503")
    deadline = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(f"http://{host}:{port}/livez", timeout=30).close()
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
