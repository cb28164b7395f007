"""A receiver of webhooks: a real HTTP server that answers as it is told and keeps what came."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """What a test tells it, and what it got."""

    url: str = ""
    port: int = 0
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    got: list[Received] = field(default_factory=list)
    silent: threading.Event = field(default_factory=threading.Event)
    """While it is set, nothing is answered."""

    def next_answer(self) -> tuple[int, dict[str, str]]:
        """Say what to answer: what was told, and 204 after that."""
        return self.answers.pop(0) if self.answers else (204, {})


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Serve on a port of its own."""
    receiver = Receiver()
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.got.append(Received(self.path, headers, self.rfile.read(size)))
            while receiver.silent.is_set() and not ended.wait(0.01):
                pass
            status, more = receiver.next_answer()
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - the server's own spelling

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.port = server.server_address[1]
    receiver.url = f"http://127.0.0.1:{receiver.port}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
