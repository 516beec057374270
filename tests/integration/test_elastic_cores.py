"""An elastic command whose cores change while it runs, in a real sandbox of a real service."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from callsheet.client import (
    ActionHandle,
    Cancelled,
    Client,
    Command,
    CommandResult,
    Demand,
    Elastic,
    EnvStep,
    Succeeded,
    Trajectory,
)
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.managers.sandbox.settings import CoreSharing, Isolation

from tests.support.expected import expect
from tests.support.real_sandboxes import processes
from tests.support.waiting import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores that this process may use"),
]

_DEADLINE_S = 100.0
_WIDE = Demand(cpu=Elastic(1, 2))
_ONE = Demand(cpu=1)
_NAP = "86400.0625"
_COMPETITORS_NAP = "86400.1875"
# Two processes that use all they get, and the number of cores, which they see change: two, one, and two again.
_SEES_CORES_CHANGE = Command.shell(
    'for _ in 1 2; do while :; do :; done & all="$all $!"; done;'
    "see() { until [ $(nproc) = $1 ]; do :; done; echo $1; };"
    f'see 2; sleep {_NAP} >/dev/null & all="$all $!"; see 1; see 2; kill $all'
)


@pytest.fixture(params=[Isolation.BUBBLEWRAP, Isolation.NONE], ids=lambda isolation: isolation.value)
async def stack(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stack]:
    isolation: Isolation = request.param
    if isolation is Isolation.BUBBLEWRAP and not (probe := probe_bubblewrap()).works:
        pytest.skip(f"bubblewrap does not work here: {probe.reason}")
    settings = StackSettings(
        tmp_path, managers=(Role.SANDBOX,), cpus=2, given={"isolation": isolation, "share_cores": CoreSharing.RESERVED}
    )
    async with local_stack(settings) as stack:
        yield stack


async def begin(trajectory: Trajectory) -> None:
    assert isinstance(await trajectory.env_reset(demand=_ONE), Succeeded)


async def until_printed(running: ActionHandle[CommandResult], expected: bytes) -> None:
    """Waits until a command has printed something."""
    printed = b""
    async for chunk in running.output():
        printed += chunk.content
        if printed.startswith(expected):
            return
    pytest.fail(f"it ended after {printed!r}")


async def test_a_competitor_takes_a_core_of_a_wide_command_and_gives_it_back(stack: Stack) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with (
            Client(stack.address) as client,
            await client.open_job("job") as job,
            job.trajectory("wide") as wide,
            job.trajectory("competitor") as competitor,
        ):
            await begin(wide)
            await begin(competitor)
            running = await wide.submit(EnvStep(_SEES_CORES_CHANGE, stream_output=True), demand=_WIDE)
            await until(lambda: len(processes("sleep", _NAP)) == 1)
            competing = await competitor.submit(EnvStep(Command.argv("sleep", _COMPETITORS_NAP)), demand=_ONE)
            await until(lambda: len(processes("sleep", _COMPETITORS_NAP)) == 1)
            await until_printed(running, b"2\n1\n")
            await competing.cancel()
            beside = expect(Cancelled, await competing.outcome())
            outcome = expect(Succeeded, await running.outcome())
            assert outcome.value.stdout == b"2\n1\n2\n"
            # Two cores, but for the time of the competitor, which had one.
            execution_s, competitor_s = outcome.timeline.execution_s, beside.timeline.execution_s
            assert execution_s < outcome.usage.cost.held["cpu"] <= 2 * execution_s - competitor_s
            assert beside.usage.cost.held["cpu"] == pytest.approx(competitor_s)
