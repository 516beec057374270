"""Spans of actions: by a real scheduler to a collector of the test, to one that is dead, and to none."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from callsheet.client import Client, Failed, Retry, Succeeded, ToolCall
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.noop import NoopExecutor, NoopSettings
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings
from callsheet.scheduler.core.words.records import ActionFinished
from callsheet.scheduler.service import telemetry
from callsheet.scheduler.service.server import serve
from callsheet.scheduler.service.settings import SchedulerSettings, collector
from callsheet.scheduler.web.tally import Tally
from callsheet.v1 import outcome_pb2
from opentelemetry.proto.trace.v1 import trace_pb2
from prometheus_client.parser import text_string_to_metric_families

from tests.support.expected import expect, present
from tests.support.ports import free_port
from tests.support.raw_service import NODE, running_service
from tests.support.scripted_executor import ScriptedExecutor
from tests.support.span_collector import collecting
from tests.support.waiting import WAIT_S, block_until

pytestmark = pytest.mark.anyio
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def attributes(span: trace_pb2.Span) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in span.attributes:
        value = each.value
        kind = present(value.WhichOneof("value"))
        values = [item.int_value for item in value.array_value.values]
        found[each.key.removeprefix("callsheet.")] = values if kind == "array_value" else getattr(value, kind)
    return found


@asynccontextmanager
async def serving(directory: Path, endpoint: str | None, executor: Any = None) -> AsyncIterator[Client]:
    settings = SchedulerSettings(
        directory, listen="127.0.0.1:0", otlp_endpoint=None if endpoint is None else collector(endpoint)
    )
    async with (
        running_service(settings) as service,
        anyio.create_task_group() as tasks,
        Client(service.address) as client,
    ):
        manager = ManagerSettings(service.address, "m", NODE, handle_signals=False)
        await tasks.start(partial(run_manager, manager, executor or NoopExecutor(NoopSettings())))
        yield client
        tasks.cancel_scope.cancel()


async def test_a_committed_action_is_a_span_below_its_callers(tmp_path: Path) -> None:
    with collecting() as receiver:
        async with serving(tmp_path, receiver.url) as client, await client.open_job("j") as job:
            async with job.trajectory("t") as trajectory:
                assert isinstance(await trajectory.env_reset(service="noop"), Succeeded)
            parent = f"00-{TRACE}-{SPAN}-01"
            outcome = await job.tool_call(
                "noop", "secret-method", b"secret-argument", label="search", action_id="a", traceparent=parent,
                expected_duration_s=0.05,
            )  # fmt: skip
            assert isinstance(outcome, Succeeded)
            assert isinstance(await job.tool_call("noop", "m", label="alone"), Succeeded)
            unwanted = f"00-{TRACE}-{SPAN}-00"
            assert isinstance(await job.tool_call("noop", "m", label="not sampled", traceparent=unwanted), Succeeded)
        # The scheduler has ended, and sent what it had.
        span, alone = receiver.named("tool_call search"), receiver.named("tool_call alone")
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
        assert not alone.parent_span_id
        assert alone.trace_id != span.trace_id
        timeline = outcome.timeline
        assert timeline.ended_at is not None
        assert span.start_time_unix_nano / 1e9 == pytest.approx(timeline.submitted_at, abs=1e-6)
        assert span.end_time_unix_nano / 1e9 == pytest.approx(timeline.ended_at, abs=1e-6)
        told = attributes(span)
        assert (told["job_id"], told["action_id"], told["kind"], told["label"]) == ("j", "a", "tool_call", "search")
        assert (told["manager_id"], told["attempts"], told["outcome"]) == ("m", 1, "succeeded")
        assert attributes(receiver.named("env_reset"))["trajectory_id"] == "t"
        execution = receiver.parts_of(span)["execution"]
        length = (execution.end_time_unix_nano - execution.start_time_unix_nano) / 1e9
        assert length == pytest.approx(timeline.execution_s, abs=1e-6)
        assert all(part.trace_id == span.trace_id for part in receiver.parts_of(span).values())
        assert not [each for each in receiver.spans() if each.name == "tool_call not sampled"]
        assert "secret" not in str(receiver.requests), "no contents"
        (resource,) = {str(each.resource) for request in receiver.requests for each in request.resource_spans}
        assert "callsheet-scheduler" in resource


async def test_failures_retries_and_cancels_are_told(tmp_path: Path) -> None:
    with collecting() as receiver:
        executor = ScriptedExecutor()
        async with serving(tmp_path, receiver.url, executor) as client, await client.open_job("j") as job:
            retry = Retry(max_attempts=3, initial_backoff_s=0.02)
            failed = expect(Failed, await job.tool_call("scripted", "m", label="raise", idempotent=True, retry=retry))
            running = await job.submit(ToolCall("scripted", "m"), label="wait", action_id="wait")
            await executor.wait_call("run wait")
            await running.cancel("somebody's own words")
            await running.outcome()
        span = receiver.named("tool_call raise")
        assert span.status.code == trace_pb2.Status.STATUS_CODE_ERROR
        assert span.status.message == attributes(span)["failure"] == f"infra {failed.reason}"
        assert attributes(span)["attempts"] == 3
        assert "waiting attempts" in receiver.parts_of(span)
        cancelled = receiver.named("tool_call wait")
        assert cancelled.status.code == trace_pb2.Status.STATUS_CODE_UNSET
        assert attributes(cancelled)["outcome"] == "cancelled"
        assert "own words" not in str(receiver.requests)


async def test_a_dead_collector_costs_spans_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    settings = StackSettings(
        tmp_path,
        managers=(Role.NOOP,),
        arguments={Role.SCHEDULER: ("--otlp-endpoint", f"http://127.0.0.1:{free_port()}")},
    )
    async with local_stack(settings) as stack, Client(stack.address) as client, await client.open_job("j") as job:
        handles = [await job.submit(ToolCall("noop", "m")) for _ in range(100)]
        assert all([isinstance(await handle.outcome(), Succeeded) for handle in handles])
        with anyio.fail_after(WAIT_S):
            while await _failed(stack) < 100:
                assert isinstance(await job.tool_call("noop", "m"), Succeeded)
        assert isinstance(await job.tool_call("noop", "m"), Succeeded)


async def _failed(stack: Stack) -> float:
    assert stack.metrics_url is not None
    async with aiohttp.ClientSession() as session, session.get(stack.metrics_url) as answer:
        families = text_string_to_metric_families(await answer.text())
    samples = (sample for family in families for sample in family.samples)
    return sum(
        sample.value
        for sample in samples
        if sample.name == "callsheet_span_actions_total" and sample.labels == {"result": "failed"}
    )


def test_what_no_collector_takes_in_time_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "MAX_WAITING", 3)
    monkeypatch.setattr(telemetry, "MAX_WAITING_BYTES", 1000)
    record = ActionFinished("j", "a", "succeeded", outcome_pb2.Outcome().SerializeToString(), 1.0)
    with collecting() as receiver:
        tally = Tally()
        sender = telemetry.SpanSender(collector(receiver.url) or "", tally.spans)
        for _ in range(5):
            sender.committed(record)
        assert tally.spans == Counter(dropped=2)
        sender.start()
        block_until(lambda: tally.spans["sent"] == 3)
        # One that is too large for what may wait.
        sender.committed(ActionFinished("j", "a", "succeeded", bytes(1001), 1.0))
        assert tally.spans["dropped"] == 3
        # What cannot be read is told of in the log, and the next goes out.
        sender.committed(ActionFinished("j", "a", "succeeded", b"\xff", 1.0))
        block_until(lambda: tally.spans["failed"] == 1)
        # A collector that does not want them.
        receiver.answers = [400]
        sender.committed(record)
        block_until(lambda: tally.spans["failed"] == 2)
        sender.committed(record)
        sender.close()
        assert tally.spans == Counter(dropped=3, failed=2, sent=4)
        assert list(tally.spans) == ["sent", "failed", "dropped"]
        assert len(receiver.spans()) == 4


def test_a_collector_that_does_not_answer_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "CLOSE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sender = telemetry.SpanSender(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces", Tally().spans)
        sender.start()
        sender.committed(ActionFinished("j", "a", "succeeded", b"", 1.0))
        taken, _ = silent.accept()
        with taken:
            sender.close()


OFF = """
import anyio, sys
from pathlib import Path
from callsheet.scheduler.service.server import serve
from callsheet.scheduler.service.server import serve
from callsheet.scheduler.service.settings import SchedulerSettings

async def main():
    async with anyio.create_task_group() as tasks:
        settings = SchedulerSettings(Path(sys.argv[1]), listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")
        await tasks.start(serve, settings)
        tasks.cancel_scope.cancel()

anyio.run(main)
print([name for name in sys.modules if name.startswith(("opentelemetry", "callsheet.scheduler.service.telemetry"))])
"""


def test_it_is_off_and_not_even_imported_by_default(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OFF, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert told.stdout.splitlines()[-1] == "[]", told.stderr


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("none", None),
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://otel.example/", "https://otel.example/v1/traces"),
        ("https://otel.example/tenant", "https://otel.example/tenant/v1/traces"),
        ("http://[::1]:4318/v1/traces", "http://[::1]:4318/v1/traces"),
    ],
)
def test_where_spans_go_is_read(text: str, endpoint: str | None) -> None:
    assert collector(text) == endpoint


@pytest.mark.parametrize(
    "text",
    ["", "127.0.0.1:4318", "grpc://h:4317", "http://", "http://h?x=1", "http://user:s3cret@h:4318", "http://h:x"],
)
def test_where_spans_cannot_go_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be http") as refused:
        collector(text)
    assert "s3cret" not in str(refused.value)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "callsheet.scheduler.service.telemetry", None)
    settings = SchedulerSettings(tmp_path, listen="127.0.0.1:0", otlp_endpoint="http://127.0.0.1:1/v1/traces")
    with pytest.raises(ValueError, match=r"otlp_endpoint: .*callsheet\[telemetry\]"):
        anyio.run(serve, settings)
