"""A document is converted by a partner over HTTP, who takes his time: asked, waited for, heard."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import milepost as mp

RULES = mp.Reply(
    state="$.status", complete=["done"], pending=["working"], failed=["error"], result="$.pages"
)


class Partner(BaseHTTPRequestHandler):
    """Says twice that it is working on it, then that it is done."""

    protocol_version = "HTTP/1.1"
    times: dict[str, int]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers["Idempotency-Key"]  # the same each time: it is begun once
        self.times[key] = self.times.get(key, 0) + 1
        done = self.times[key] > 2
        body = json.dumps({"status": "done", "pages": 12} if done else {"status": "working"})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


def partner() -> ThreadingHTTPServer:
    """Begin to serve on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Fresh", (Partner,), {"times": {}}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


def convert(app: mp.App, url: str, document: str) -> mp.JobHandle[Any]:
    """Have a document converted; the job is durable once this returns."""
    body = {"document": document}
    headers = {"Authorization": "Bearer s3cr3t"}
    return app.request("POST", url, json=body, headers=headers, reply=RULES, poll=0.1)


def main(store: str = "sqlite:///convert.db") -> list[str]:
    """Convert one document, and tell how it went."""
    server = partner()
    app = mp.App(store, request_allow="127.0.0.1")  # private addresses are refused by default
    job = convert(app, f"http://127.0.0.1:{server.server_port}/convert", "report")
    app.drain(timeout=10)
    notes = [json.loads(entry.detail or "{}") for entry in job.history if entry.move == "note"]
    heard = [note["json"]["status"] for note in notes if note["phase"] == "RESPONSE"]
    told = [f"{job.refresh().result} pages", f"heard: {', '.join(heard)}"]
    told.append(f"the token is on the record: {'s3cr3t' in str(notes)}")
    app.close()
    server.shutdown()
    server.server_close()
    return told


if __name__ == "__main__":
    print("\n".join(main()))
