"""The other side: a small HTTP server in a thread, which answers what a test told it to."""

import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass
class Asked:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Says:
    """An answer to give."""

    status: int = 200
    json: Any = None
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        return self.body if self.json is None else json.dumps(self.json).encode()

    @property
    def kind(self) -> str:
        return "application/json" if self.json is not None else "text/plain"


Answering = Callable[[Asked], Says]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Keep quiet about those who hang up."""


class Remote:
    """Answers each request by the next of `answers`; the last one stays.

    With `tls` it speaks TLS, and `names` are those that connections were made for.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.names: list[str | None] = []
        self.asked: list[Asked] = []
        self.answers: list[Says | Answering] = [Says(json={"status": "done"})]
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        if tls is not None:
            tls.sni_callback = lambda _, name, __: self.names.append(name)
            # Shaking hands is for the thread of each connection.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(timeout=10)
        self._server.server_close()

    def answer(self, asked: Asked) -> Says:
        with self._lock:
            self.asked.append(asked)
            says = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return says if isinstance(says, Says) else says(asked)


def _handler(remote: Remote) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            says = remote.answer(Asked(self.command, self.path, headers, body))
            if says.status == 0:  # hang up without a word
                self.close_connection = True
                return
            self.send_response_only(says.status)  # with no date but the test's own
            told = {"content-type": says.kind, "content-length": str(len(says.content))}
            if "transfer-encoding" in says.headers:
                del told["content-length"]
            for name, value in {**told, **says.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(says.content)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Keep quiet."""

    return Handler
