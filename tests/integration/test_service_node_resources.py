"""Pools, quotas and acknowledged cancels through the real service and the real manager runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from callsheet.client import Cancelled, Client, Demand, Succeeded, ToolCall, Unservable
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import ActionState
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.v1 import action_pb2, manager_service_pb2
from typing_extensions import override

from tests.support.ports import free_port
from tests.support.raw_service import NODE, running_noop, running_service
from tests.support.real_sandboxes import until_state
from tests.support.scripted_executor import ScriptedExecutor

pytestmark = pytest.mark.anyio


class SharingExecutor(ScriptedExecutor):
    """Shares both cores of its node among its attempts."""

    @override
    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """See Executor."""
        kinds = [action_pb2.ACTION_KIND_TOOL_CALL]
        return [manager_service_pb2.HostedService(name="scripted", kinds=kinds, shared={"cpu": 2})]


async def test_attempts_on_a_pool_all_start_at_once(tmp_path: Path) -> None:
    executor = SharingExecutor()
    async with (
        running_service(SchedulerSettings(tmp_path, listen="127.0.0.1:0")) as service,
        anyio.create_task_group() as tasks,
        Client(service.address) as client,
    ):
        await tasks.start(
            partial(run_manager, ManagerSettings(service.address, "m", NODE, handle_signals=False), executor)
        )
        job = await client.open_job("job")
        names = [f"a{number}" for number in range(6)]
        handles = [
            await job.submit(ToolCall("scripted", "m"), label="go", action_id=name, demand=Demand(cpu=2))
            for name in names
        ]
        for name in names:
            await executor.wait_call(f"run {name}")
        assert [tuple(cores) for cores in executor.shared_cores] == [(0, 1)]
        for name in names:
            grant = executor.attempts[name].grant
            assert (dict(grant.resources), list(grant.cores)) == ({"cpu": 2}, [])
        executor.go.set()
        assert all([isinstance(await handle.outcome(), Succeeded) for handle in handles])
        tasks.cancel_scope.cancel()


async def test_a_quota_spreads_calls_over_time(tmp_path: Path) -> None:
    node = manager_service_pb2.NodeSpec(
        node_id="api", quotas={"requests": manager_service_pb2.QuotaSpec(per_second=20.0, burst=2)}
    )
    async with (
        running_service(SchedulerSettings(tmp_path, listen="127.0.0.1:0")) as service,
        running_noop(service.address, node=node),
        Client(service.address) as client,
    ):
        job = await client.open_job("job")
        demand = Demand(requests=1)
        handles = [await job.submit(ToolCall("noop", "get"), action_id=f"a{n}", demand=demand) for n in range(8)]
        timelines = [(await handle.outcome()).timeline for handle in handles]
    dispatched = sorted(timeline.dispatched_at or 0.0 for timeline in timelines)
    # Two at once and six at twenty a second.
    assert dispatched[-1] - dispatched[0] >= 6 / 20 - 0.001


async def test_an_acknowledged_cancel_survives_a_restart_of_the_scheduler(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    settings = SchedulerSettings(tmp_path, listen=address, shutdown_grace=0.1, cancel_grace=600.0)
    manager = ManagerSettings(
        address, "m", NODE, handle_signals=False, reconnect_max_s=0.1, stop_grace_s=600.0, drain_timeout_s=0.0
    )
    executor = ScriptedExecutor()
    async with Client(address) as client, AdminClient(address) as admin, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(run_manager, manager, executor))
        async with running_service(settings):
            job = await client.open_job("job")
            handle = await job.submit(
                ToolCall("scripted", "m"), label="stuck", action_id="a", unservable=Unservable.WAIT
            )
            await until_state(admin, "job", "a", ActionState.RUNNING)
            await handle.cancel("no longer wanted")
        # The attempt does not stop, so that the outcome is the scheduler's own.
        async with running_service(replace(settings, cancel_grace=0.1)):
            story = [event.event for event in (await admin.explain("job", "a")).story]
            assert "recovered after a restart of the scheduler" in story
            outcome = await admin.outcome("job", "a", wait_s=30.0)
        tasks.cancel_scope.cancel()
    assert isinstance(outcome, Cancelled), outcome
    assert outcome.reason == "no longer wanted"
