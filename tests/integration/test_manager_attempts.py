"""What the manager runtime makes of an attempt: its clock, its stops, its failures and its usage."""

from __future__ import annotations

from time import monotonic

import anyio
import pytest
from callsheet.managers import reports
from callsheet.v1 import manager_service_pb2, outcome_pb2

from tests.support.dispatches import make_dispatch
from tests.support.running_manager import running_manager
from tests.support.scripted_executor import ScriptedExecutor
from tests.support.scripted_scheduler import ScriptedSession
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

SchedulerItem = manager_service_pb2.SchedulerItem


def token(sequence: int) -> manager_service_pb2.FencingToken:
    return manager_service_pb2.FencingToken(epoch=1, sequence=sequence)


async def cancel(session: ScriptedSession, sequence: int) -> None:
    cancelled = manager_service_pb2.CancelAttempt(token=token(sequence), reason="the client said so")
    await session.send(SchedulerItem(cancel=cancelled))


async def end_of(script: str, **settings: float) -> manager_service_pb2.AttemptEnded:
    """Returns how an attempt ends that goes by a script, and shows that the manager still works after it."""
    async with running_manager(ScriptedExecutor(), **settings) as manager:
        session = await manager.scheduler.next_session()
        await session.dispatch(make_dispatch("a", 1, script=script))
        (end,) = await session.wait_ends()
        await session.dispatch(make_dispatch("b", 2))
        assert (await session.wait_ends(2))[1].HasField("succeeded")
    return end


async def test_a_completed_attempt_says_what_it_took(session: ScriptedSession) -> None:
    await session.dispatch(make_dispatch("a", 1, attempt=3, cpu=2))
    (end,) = await session.wait_ends()
    assert (end.token, end.key.job_id, end.key.action_id, end.attempt) == (token(1), "j", "a", 3)
    assert end.succeeded.tool_call.response.inline == b"done"
    assert end.usage.cpu_s == 0.5
    assert end.usage.cost.held["cpu"] == pytest.approx(2 * end.execution_s)
    assert end.started
    assert end.body_hash == b"hash"
    # A slow machine hears of further heartbeats.
    told = [item.WhichOneof("item") for item in session.items]
    assert told[:2] == ["registration", "heartbeat"]
    # Its end tells that it started, unless that took so long that it was told before.
    assert [name for name in told[2:] if name != "heartbeat"] in (["ended"], ["started", "ended"])


async def test_a_start_is_told_with_the_end_of_what_is_short_and_before_anything_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reports, "START_HELD_S", 3600.0)
    async with running_manager(ScriptedExecutor()) as manager:
        session = await manager.scheduler.next_session()
        await session.dispatch(make_dispatch("a", 1))
        (end,) = await session.wait_ends()
        assert end.started
        assert session.of("started") == []
        await session.dispatch(make_dispatch("b", 2, script="wait"))
        # What a heartbeat does not follow never started.
        await session.wait_count("started", 1)
        told = [item.WhichOneof("item") for item in session.items]
        assert told[-2:] == ["started", "heartbeat"]
        await cancel(session, 2)
        await session.wait_ends(2)


async def test_the_execution_clock_ends_an_attempt_with_what_there_is(session: ScriptedSession) -> None:
    await session.dispatch(make_dispatch("a", 1, script="wait", start_to_close_s=0.05))
    (end,) = await session.wait_ends()
    assert end.failed.kind == outcome_pb2.FAILURE_KIND_TIMEOUT
    assert end.failed.timeout == outcome_pb2.TIMEOUT_KIND_START_TO_CLOSE
    assert end.failed.reason == "start_to_close"
    assert end.failed.partial.tool_call.response.inline == b"part"
    assert end.execution_s >= 0.05


async def test_a_cancelled_attempt_ends_with_what_there_is(session: ScriptedSession) -> None:
    await session.dispatch(make_dispatch("a", 1, script="wait"))
    await session.wait_count("started", 1)
    await cancel(session, 1)
    (end,) = await session.wait_ends()
    assert end.cancelled.reason == "the client said so"
    assert end.cancelled.partial.tool_call.response.inline == b"part"


async def test_a_cancel_right_behind_its_dispatch_finds_the_attempt(session: ScriptedSession) -> None:
    cancelled = manager_service_pb2.CancelAttempt(token=token(1), reason="at once")
    await session.send(SchedulerItem(dispatch=make_dispatch("a", 1, script="wait")), SchedulerItem(cancel=cancelled))
    (end,) = await session.wait_ends()
    assert end.cancelled.reason == "at once"


async def test_a_stuck_executor_is_cut_off() -> None:
    executor = ScriptedExecutor()
    async with running_manager(executor, stop_grace_s=0.05) as manager:
        session = await manager.scheduler.next_session()
        await session.dispatch(make_dispatch("a", 1, script="stuck"))
        await executor.wait_call("run a")
        await cancel(session, 1)
        (end,) = await session.wait_ends()
        await executor.wait_call("unstuck a")
        await session.dispatch(make_dispatch("b", 2))
        await session.wait_ends(2)
    assert end.cancelled.reason == "the client said so"
    assert not end.cancelled.HasField("partial")


@pytest.mark.parametrize(
    ("script", "settings", "reason", "message"),
    [
        ("raise", {}, "executor_error", "RuntimeError"),
        ("cancelled_rpc", {}, "executor_error", "CancelledError"),
        ("stop_unasked", {}, "executor_error", ""),
        ("read_missing", {}, "payload_missing", ""),
        ("large", {"max_end_bytes": 10_000}, "result_too_large", ""),
    ],
)
async def test_what_goes_wrong_fails_its_own_attempt_and_nothing_else(
    script: str, settings: dict[str, float], reason: str, message: str
) -> None:
    end = await end_of(script, **settings)
    assert (end.failed.kind, end.failed.reason) == (outcome_pb2.FAILURE_KIND_INFRA, reason)
    assert message in end.failed.message


async def test_only_granted_time_is_charged_and_the_scheduler_is_told_of_the_rest(
    scripted: ScriptedExecutor, session: ScriptedSession
) -> None:
    await session.dispatch(make_dispatch("a", 1, script="uncharged", start_to_close_s=0.2))
    # Told once 0.2 s have passed, and again about every 0.1 s.
    (first, *_) = await session.wait_count("progress", 1)
    scripted.go.set()
    (end,) = await session.wait_ends()
    assert (first.progress.token, first.progress.execution_s) == (token(1), 0.1)
    assert end.failed.reason == "start_to_close"
    assert end.execution_s == 0.2
    # What it waited for is told by name, and was not granted.
    assert end.usage.cost.held["cpu"] == pytest.approx(0.2)
    assert end.waited_s.keys() == {"cores"}
    assert end.waited_s["cores"] > 0.05


async def test_a_wait_is_told_by_name_and_nothing_is_granted_meanwhile(
    scripted: ScriptedExecutor, session: ScriptedSession
) -> None:
    await session.dispatch(make_dispatch("a", 1, script="wait_for_image", cpu=2))
    await scripted.wait_call("run a")
    began = monotonic()
    await until(lambda: monotonic() - began > 0.1)
    scripted.go.set()
    (end,) = await session.wait_ends()
    assert end.waited_s.keys() == {"image"}
    assert end.waited_s["image"] > 0.1
    assert end.usage.cost.held["cpu"] == pytest.approx(2 * end.execution_s)


async def test_a_resize_replaces_the_grant_as_a_whole(scripted: ScriptedExecutor, session: ScriptedSession) -> None:
    await session.dispatch(make_dispatch("a", 1, script="go", cpu=1))
    await scripted.wait_call("run a")
    before = scripted.attempts["a"].grant
    resize = manager_service_pb2.Resize(token=token(1), resources={"cpu": 3}, cores=[4, 5, 6])
    await session.send(SchedulerItem(resize=resize))
    await scripted.wait_call("resize a")
    grant = scripted.attempts["a"].grant
    scripted.go.set()
    (end,) = await session.wait_ends()
    assert (dict(before.resources), list(before.cores)) == ({"cpu": 1}, [0])
    assert (dict(grant.resources), list(grant.cores), grant.token) == ({"cpu": 3}, [4, 5, 6], token(1))
    assert end.execution_s < end.usage.cost.held["cpu"] < 3 * end.execution_s


async def test_orders_for_unknown_attempts_are_ignored(scripted: ScriptedExecutor, session: ScriptedSession) -> None:
    await session.send(
        SchedulerItem(resize=manager_service_pb2.Resize(token=token(7), resources={"cpu": 1})),
        SchedulerItem(cancel=manager_service_pb2.CancelAttempt(token=token(7))),
        SchedulerItem(ends_acknowledged=manager_service_pb2.EndsAcknowledged(epoch=1, sequences=[7])),
        SchedulerItem(),
        SchedulerItem(dispatch=make_dispatch("a", 1)),
    )
    await session.wait_ends()
    assert scripted.calls == ["run a"]


async def test_progress_is_reported_for_attempts_with_a_heartbeat_timeout(session: ScriptedSession) -> None:
    await session.dispatch(make_dispatch("a", 1, script="wait", heartbeat_s=0.06), make_dispatch("b", 2, script="wait"))
    progress = await session.wait_count("progress", 3)
    await cancel(session, 1)
    await session.wait_ends()
    await anyio.lowlevel.checkpoint()
    assert {item.progress.token.sequence for item in progress} == {1}
