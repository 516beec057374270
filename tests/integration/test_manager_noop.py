"""The no-op manager: results of all kinds, sandboxes that are only names, and its log of starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from callsheet.managers.noop import NoopExecutor, NoopService, NoopSettings
from callsheet.v1 import action_pb2, manager_service_pb2

from tests.support.dispatches import make_dispatch
from tests.support.running_manager import running_manager
from tests.support.scripted_scheduler import ScriptedSession

pytestmark = pytest.mark.anyio

SchedulerItem = manager_service_pb2.SchedulerItem
EXECUTION_S = [0.0, 0.01]


async def run_one(session: ScriptedSession, sequence: int, **dispatch: Any) -> manager_service_pb2.AttemptEnded:
    """Returns the end of the `sequence`-th attempt of a session."""
    await session.dispatch(make_dispatch(f"a{sequence}", sequence, **dispatch))
    return (await session.wait_ends(sequence))[sequence - 1]


@pytest.mark.parametrize("execution_s", EXECUTION_S)
@pytest.mark.parametrize("kind", ["generate", "env_reset", "tool_call", "reward"])
async def test_each_kind_gets_a_result_of_its_own(kind: str, execution_s: float) -> None:
    async with running_manager(NoopExecutor(NoopSettings(execution_s=execution_s))) as manager:
        end = await run_one(await manager.scheduler.next_session(), 1, kind=kind)
    assert end.succeeded.WhichOneof("result") == kind
    assert end.started
    assert end.execution_s >= execution_s
    assert end.usage.cost.held["cpu"] >= execution_s


@pytest.mark.parametrize("execution_s", EXECUTION_S)
async def test_state_is_lost_with_its_sandbox(execution_s: float) -> None:
    async with running_manager(NoopExecutor(NoopSettings(execution_s=execution_s))) as manager:
        session = await manager.scheduler.next_session()
        old = (await run_one(session, 1, kind="env_reset")).succeeded.env_reset.sandbox_id
        new = (await run_one(session, 2, kind="env_reset")).succeeded.env_reset.sandbox_id
        assert (await run_one(session, 3, kind="env_step", sandbox_id=old)).failed.reason == "state_lost"
        assert (await run_one(session, 4, kind="env_step", sandbox_id=new)).succeeded.HasField("env_step")
        assert (await run_one(session, 5, kind="test_suite", sandbox_id=new)).succeeded.HasField("reward")
        session.end()
        session = await manager.scheduler.next_session()
        (held,) = session.registration.sandboxes
        assert held == manager_service_pb2.SandboxState(job_id="j", trajectory_id="t", sandbox_id=new)
        stale = manager_service_pb2.SandboxState(job_id="j", trajectory_id="t", sandbox_id=old)
        for sandbox in (stale, held):
            release = manager_service_pb2.ReleaseSandbox(sandbox=sandbox)
            await session.send(SchedulerItem(release_sandbox=release))
        await session.dispatch(make_dispatch("b", 6, kind="env_step", sandbox_id=new))
        assert (await session.wait_ends(6))[5].failed.reason == "state_lost"


async def test_an_action_takes_the_time_it_says() -> None:
    async with running_manager(NoopExecutor(NoopSettings(execution_s=60.0))) as manager:
        end = await run_one(await manager.scheduler.next_session(), 1, expected_s=0.05)
    assert end.execution_s >= 0.05


async def test_an_attempt_can_be_stopped() -> None:
    async with running_manager(NoopExecutor(NoopSettings(execution_s=60.0))) as manager:
        session = await manager.scheduler.next_session()
        assert (await run_one(session, 1, start_to_close_s=0.05)).failed.reason == "start_to_close"


@pytest.mark.parametrize("execution_s", EXECUTION_S)
async def test_every_start_is_logged(tmp_path: Path, execution_s: float) -> None:
    path = tmp_path / "starts"
    settings = NoopSettings(execution_s=execution_s, start_log=path)
    async with running_manager(NoopExecutor(settings)) as manager:
        session = await manager.scheduler.next_session()
        dispatch = make_dispatch("a", 1)
        await session.dispatch(dispatch, dispatch, make_dispatch("b", 2, kind="env_step", sandbox_id="s", attempt=2))
        await session.wait_ends(2)
    assert sorted(map(json.loads, path.read_text().splitlines()), key=lambda line: str(line["action"])) == [
        {"kind": "tool_call", "job": "j", "action": "a", "attempt": 1, "sandbox": ""},
        {"kind": "env_step", "job": "j", "action": "b", "attempt": 2, "sandbox": "s"},
    ]


async def test_services_are_registered_as_set() -> None:
    service = NoopService("api", (action_pb2.ACTION_KIND_TOOL_CALL,), slots=3)
    async with running_manager(NoopExecutor(NoopSettings(services=(service,)))) as manager:
        (hosted,) = (await manager.scheduler.next_session()).registration.services
    assert (hosted.name, list(hosted.kinds), hosted.slots) == ("api", [action_pb2.ACTION_KIND_TOOL_CALL], 3)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="services"):
        NoopSettings(services=())
    with pytest.raises(ValueError, match="execution_s: -1"):
        NoopSettings(execution_s=-1)
