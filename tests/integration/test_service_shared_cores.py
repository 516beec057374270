"""The service with a sandbox manager whose sandboxes share one core: `--share-cores`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import anyio
import pytest
from callsheet.client import (
    Client,
    Command,
    CommandResult,
    Demand,
    Failed,
    FailureKind,
    Outcome,
    Succeeded,
    Timeouts,
    Trajectory,
)
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.attempt_runner import CLOCK_TOLERANCE_S
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.managers.sandbox.settings import Isolation

pytestmark = pytest.mark.anyio

_ONE = Demand(cpu=1)
_BUSY = Command.shell("while :; do :; done")


@pytest.fixture(scope="module", params=["ranked", "plain"])
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    isolation = Isolation.BUBBLEWRAP if probe_bubblewrap().works else Isolation.NONE
    settings = StackSettings(
        tmp_path_factory.mktemp("stack"),
        managers=(Role.SANDBOX,),
        cpus=1,
        given={"isolation": isolation},
        arguments={Role.SANDBOX: ("--share-cores", request.param)},
    )
    async with local_stack(settings) as stack:
        yield stack


async def test_time_that_was_not_granted_is_not_charged(stack: Stack) -> None:
    limit_s, names = 1.0, [f"t{index}" for index in range(4)]
    outcomes: list[Outcome[CommandResult]] = []
    async with Client(stack.address) as client, await client.open_job("four") as job, AsyncExitStack() as trajectories:
        opened = [await trajectories.enter_async_context(job.trajectory(name)) for name in names]
        for trajectory in opened:
            assert isinstance(await trajectory.env_reset(service="sandbox", demand=_ONE), Succeeded)
        started = anyio.current_time()

        async def run(trajectory: Trajectory) -> None:
            timeouts = Timeouts(start_to_close_s=limit_s)
            outcomes.append(await trajectory.env_step(_BUSY, demand=_ONE, timeouts=timeouts))

        async with anyio.create_task_group() as tasks:
            for trajectory in opened:
                tasks.start_soon(run, trajectory)
        passed_s = anyio.current_time() - started
    for outcome in outcomes:
        assert isinstance(outcome, Failed), outcome
        assert outcome.kind is FailureKind.TIMEOUT
        assert limit_s - CLOCK_TOLERANCE_S <= outcome.timeline.execution_s <= passed_s
        timeline = outcome.timeline
        assert timeline.waited_s.keys() <= {"cores"}
        assert outcome.usage.cost.held["cpu"] == pytest.approx(timeline.execution_s)
        assert timeline.submitted_at is not None
        assert timeline.ended_at is not None
        told_s = timeline.queue_s + timeline.waiting_s + timeline.execution_s + timeline.overhead_s
        assert told_s == pytest.approx(timeline.ended_at - timeline.submitted_at, abs=0.01)
    # If all time were charged, nobody would have waited.
    assert sum(outcome.timeline.waiting_s for outcome in outcomes) > limit_s
