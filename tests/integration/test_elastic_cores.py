"""An elastic command whose cores change while it runs, in a real sandbox of a real service."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from callsheet.cli.stack import Isolation, Role, Stack, StackSettings, local_stack
from callsheet.client import Client, Command, Demand, Elastic, EnvStep, Succeeded, Trajectory
from callsheet.managers.sandbox.probe import probe_bubblewrap

from tests.support.real_sandboxes import processes, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores that this process may use"),
]

_DEADLINE_S = 100.0
_WIDE = Demand(cpu=Elastic(1, 2))
_ONE = Demand(cpu=1)
_NAP = "86400.0625"
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
    async with local_stack(StackSettings(tmp_path, managers=(Role.SANDBOX,), cpus=2, isolation=isolation)) as stack:
        yield stack


async def begin(trajectory: Trajectory) -> None:
    assert isinstance(await trajectory.env_reset(demand=_ONE), Succeeded)


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
            running = await wide.submit(EnvStep(_SEES_CORES_CHANGE), demand=_WIDE)
            await until(lambda: len(processes("sleep", _NAP)) == 1)
            short = await competitor.env_step(Command.argv("sleep", "1.5"), demand=_ONE)
            assert isinstance(short, Succeeded)
            outcome = await running.outcome()
            assert isinstance(outcome, Succeeded), outcome
            assert outcome.value.stdout == b"2\n1\n2\n"
            granted, execution_s = outcome.usage.granted_unit_s["cpu"], outcome.timeline.execution_s
            # Two cores, but for the second and a half and more of the competitor.
            assert execution_s < granted < 2 * execution_s - 1.4
            assert short.usage.granted_unit_s["cpu"] == pytest.approx(short.timeline.execution_s, rel=0.05)
