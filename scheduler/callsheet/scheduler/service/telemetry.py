"""Sends spans of finished actions to a collector, in a thread: by OpenTelemetry's SDK, OTLP over HTTP.

Imported by who wants it alone: its packages are an extra.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Final

import structlog
from callsheet.scheduler.core.words.records import ActionFinished
from callsheet.scheduler.service.codec.spans import SpanFacts, span_of
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

# What waits to be sent; a collector that is not there costs no more, and no less than that is lost of a busy minute.
MAX_WAITING: Final = 8192
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
BATCH: Final = 256
# Seconds in which a batch gathers, and in which the rest is sent at the end.
GATHERING_S: Final = 0.2
CLOSE_S: Final = 2.0

_log = structlog.get_logger(__name__)


class SpanSender:
    """Makes spans of committed outcomes and sends them. The event loop only queues; nothing ever waits for a collector.

    Attributes:
        counts: Actions whose spans were "sent", that the collector "failed" to take, and that were "dropped", as too
            many waited.
    """

    def __init__(self, endpoint: str, counts: Counter[str]) -> None:
        # All keys are there from now on, as a scrape may iterate over them while the thread counts.
        counts.update(sent=0, failed=0, dropped=0)
        self.counts = counts
        self._waiting: deque[ActionFinished] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._some = threading.Event()
        self._closing = threading.Event()
        self._exporter = OTLPSpanExporter(endpoint=endpoint)
        # What the environment says, such as OTEL_SERVICE_NAME, goes before our own.
        resource = Resource.create({SERVICE_NAME: "callsheet-scheduler"}).merge(OTELResourceDetector().detect())
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._made = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._made))
        self._tracer = provider.get_tracer("callsheet-scheduler")
        # A collector may take its time: the process does not wait for it.
        self._thread = threading.Thread(target=self._run, name="span-sender", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def committed(self, record: ActionFinished) -> None:
        """Queues an action whose outcome was committed, or drops it if too many wait."""
        size = len(record.outcome)
        with self._lock:
            fits = len(self._waiting) < MAX_WAITING and self._bytes + size <= MAX_WAITING_BYTES
            if fits:
                self._waiting.append(record)
                self._bytes += size
        if fits:
            self._some.set()
        else:
            self.counts["dropped"] += 1

    def close(self) -> None:
        """Sends what waits, within `CLOSE_S`; blocks. What is left then is lost."""
        self._closing.set()
        self._some.set()
        self._thread.join(CLOSE_S)
        self._exporter.shutdown()  # type: ignore[no-untyped-call, unused-ignore]
        if self._waiting:
            _log.warning("spans_lost", actions=len(self._waiting))

    def _run(self) -> None:
        went_well = True
        while batch := self._next_batch():
            sent = self._send(batch)
            self.counts["sent" if sent else "failed"] += len(batch)
            if sent is not went_well:
                _log.warning("spans_sent_again" if sent else "spans_not_sent", actions=len(batch))
            went_well = sent

    def _next_batch(self) -> list[ActionFinished]:
        """Waits for some; none once all are sent and no more come."""
        while True:
            self._some.wait()
            self._closing.wait(GATHERING_S)
            with self._lock:
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                self._bytes -= sum(len(record.outcome) for record in batch)
                if not self._waiting and not self._closing.is_set():
                    self._some.clear()
            if batch or self._closing.is_set():
                return batch

    def _send(self, batch: list[ActionFinished]) -> bool:
        """Makes the spans of a batch and sends them; whether that went well."""
        try:
            for record in batch:
                parent = record.summary.traceparent if record.summary is not None else ""
                context = TraceContextTextMapPropagator().extract({"traceparent": parent}, Context())
                _make(self._tracer, span_of(record), context, SpanKind.SERVER)
            # Of callers whose traces are not sampled there are none.
            spans = self._made.get_finished_spans()
            return not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:
            _log.exception("spans_not_made")
            return False
        finally:
            self._made.clear()


def _make(tracer: Tracer, facts: SpanFacts, parent: Context, kind: SpanKind = SpanKind.INTERNAL) -> None:
    span = tracer.start_span(facts.name, parent, kind, facts.attributes, start_time=facts.start)
    for part in facts.parts:
        _make(tracer, part, set_span_in_context(span, parent))
    if facts.error:
        span.set_status(StatusCode.ERROR, facts.error)
    span.end(facts.end)
