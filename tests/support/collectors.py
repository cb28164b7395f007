"""Servers on this machine that collect what is sent to them: OTLP, Sentry, partners, webhooks."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

__all__ = ["Collector", "collecting"]


@dataclass
class Collector:
    """Everything that came in: path, headers and body of each request."""

    url: str = ""
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def bodies(self, path: str) -> list[bytes]:
        """Give the bodies that were posted to a path."""
        return [body for at, _, body in self.requests if at == path]

    def headers(self, path: str) -> list[dict[str, str]]:
        """Give the headers of the requests to a path."""
        return [headers for at, headers, _ in self.requests if at == path]

    @property
    def spans(self) -> list[Span]:
        """Give the spans that were exported, in the order of their beginnings."""
        found = [
            span
            for body in self.bodies("/v1/traces")
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    @property
    def metrics(self) -> set[str]:
        """Name the metrics that were exported."""
        return {
            metric.name
            for body in self.bodies("/v1/metrics")
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@contextmanager
def collecting() -> Iterator[Collector]:
    """Serve on a free port of this machine until the end of the block."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            told = {name.lower(): value for name, value in self.headers.items()}
            collector.requests.append((self.path, told, body))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST  # noqa: N815 - the library's name

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
