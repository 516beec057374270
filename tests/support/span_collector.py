"""A receiver of spans by OTLP over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2


class Collector:
    """What an OTLP receiver was sent; `answers` has the status of each further answer, then all is well."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.answers: list[int] = []
        self.url = ""

    def spans(self) -> list[trace_pb2.Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> trace_pb2.Span:
        (span,) = (each for each in self.spans() if each.name == name)
        return span

    def parts_of(self, span: trace_pb2.Span) -> dict[str, trace_pb2.Span]:
        return {each.name: each for each in self.spans() if each.parent_span_id == span.span_id}


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """An OTLP receiver over HTTP."""
    receiver = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            status = receiver.answers.pop(0) if receiver.answers else 200
            if status == 200:
                receiver.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
