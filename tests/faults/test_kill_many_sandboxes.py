"""kill -9 of a real sandbox manager with 200 live sandboxes: nothing of them is left, and everybody is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import psutil
import pytest
from callsheet.client import (
    Client,
    Command,
    CommandResult,
    Demand,
    EnvStep,
    Failed,
    FailureKind,
    Hold,
    Outcome,
    Resource,
    Succeeded,
    Trajectory,
    Unservable,
)
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import STACK_RESTARTS, StackSettings
from callsheet.managers.sandbox.cgroups import probe_layout
from callsheet.managers.sandbox.janitor import ManagerDirectory, marked_processes
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.managers.sandbox.settings import Isolation

from tests.support.accounts import check_nothing_leaked
from tests.support.expected import expect
from tests.support.real_sandboxes import processes
from tests.support.stack_processes import kill_and_wait, start
from tests.support.waiting import until

# By day test_kill_live_sandboxes.py does it with few.
pytestmark = [pytest.mark.anyio, pytest.mark.alone, pytest.mark.nightly, pytest.mark.timeout(300)]

SANDBOXES = 200
RUNNING = 20
_DEADLINE_S = 280.0
_AT_ONCE = 16
_NAP = "86400.75"
_SMALL = Demand(Resource("memory", 24, hold=Hold.TRAJECTORY), cpu=0)
# The step waits for the exec: its sandbox is frozen as soon as it ends.
_DAEMON = Command.shell(f"setsid sleep {_NAP} >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do :; done")


def naps() -> int:
    return len(processes("sleep", _NAP))


def leftovers(data_directory: Path) -> dict[str, list[str]]:
    """What a manager that does not run now has left on this machine."""
    (home,) = (data_directory / "sandboxes").iterdir()
    directory = ManagerDirectory(data_directory, home.name)
    directory.release()
    layout = probe_layout()
    parents = layout.directories() if layout is not None else []
    return {
        "groups": [str(path) for parent in parents for path in parent.glob(f"{directory.marker}-*")],
        "processes": [str(process) for process in marked_processes(directory.marker)],
        "files": [path.name for path in home.iterdir() if path.name != "lock"],
        "mounts": [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(home) in line],
    }


async def reset_all(trajectories: Sequence[Trajectory]) -> None:
    at_once = anyio.CapacityLimiter(_AT_ONCE)

    async def reset(trajectory: Trajectory) -> None:
        async with at_once:
            await trajectory.open()
            expect(Succeeded, await trajectory.env_reset(demand=_SMALL))

    async with anyio.create_task_group() as tasks:
        for trajectory in trajectories:
            tasks.start_soon(reset, trajectory)


def check_lost(outcome: Outcome[CommandResult]) -> None:
    assert isinstance(outcome, Failed), outcome
    assert (outcome.kind, outcome.reason) == (FailureKind.INFRA, "state_lost")


async def test_kill_a_manager_with_200_live_sandboxes(tmp_path: Path) -> None:
    isolation = Isolation.BUBBLEWRAP if probe_bubblewrap().works else Isolation.NONE
    settings = StackSettings(
        tmp_path,
        managers=(Role.SANDBOX,),
        given={"isolation": isolation},
        restart=replace(STACK_RESTARTS, enabled=False),
    )
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(settings) as stack, Client(stack.address) as client:
            job = await client.open_job("job")
            trajectories = [job.trajectory(f"t{number}") for number in range(SANDBOXES)]
            await reset_all(trajectories)
            busy, daemons, idle = (
                trajectories[:RUNNING],
                trajectories[RUNNING : 2 * RUNNING],
                trajectories[2 * RUNNING :],
            )
            for trajectory in daemons:
                assert isinstance(await trajectory.env_step(_DAEMON, demand=Demand()), Succeeded)
            running = [
                await trajectory.submit(EnvStep(Command.argv("sleep", _NAP)), demand=Demand()) for trajectory in busy
            ]
            await until(lambda: naps() == 2 * RUNNING)

            below = psutil.Process(stack.pid(Role.SANDBOX)).children(recursive=True)
            assert len(below) >= SANDBOXES
            await kill_and_wait(stack, Role.SANDBOX)
            _, alive = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(below, timeout=60.0))
            assert alive == [], "processes outlived their manager"
            await start(stack, Role.SANDBOX)

            for action in running:
                check_lost(await action.outcome())
            for trajectory in (*daemons, *idle):
                check_lost(await trajectory.env_step(Command.argv("true"), demand=Demand()))
            again = (busy[0], daemons[0], idle[0])
            for trajectory in again:
                assert isinstance(await trajectory.env_reset(demand=_SMALL, unservable=Unservable.WAIT), Succeeded)
                step = await trajectory.env_step(Command.argv("echo", "again"), demand=Demand())
                assert step.unwrap().stdout == b"again\n"
            await check_nothing_leaked(stack.address, "job")
            await kill_and_wait(stack, Role.SANDBOX)
            await start(stack, Role.SANDBOX)
            await kill_and_wait(stack, Role.SANDBOX)
        assert leftovers(tmp_path) == {"groups": [], "processes": [], "files": [], "mounts": []}
    assert naps() == 0
