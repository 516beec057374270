"""A real sandbox manager killed by -9 while a command runs in one of its sandboxes, as its client sees it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import psutil
import pytest
from callsheet.client import Client, Command, EnvStep, Failed, FailureKind, Succeeded, Unservable
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import STACK_RESTARTS, StackSettings
from callsheet.managers.sandbox.settings import Isolation

from tests.support.accounts import check_nothing_leaked
from tests.support.real_sandboxes import processes
from tests.support.sandboxes import DOCKER_IMAGE, require_bubblewrap, require_docker
from tests.support.stack_processes import kill_and_wait, start
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

_DEADLINE_S = 100.0
_NAP = "86400.5"


def nappers() -> int:
    return len(processes("sleep", _NAP))


@pytest.mark.parametrize(
    "isolation",
    [
        Isolation.BUBBLEWRAP,
        # test_sandbox_manager_kill kills the manager of plain ones as well.
        pytest.param(Isolation.NONE, marks=pytest.mark.nightly),
        pytest.param(Isolation.DOCKER, marks=pytest.mark.docker),
    ],
)
async def test_kill_a_sandbox_manager_with_live_sandboxes(tmp_path: Path, isolation: Isolation) -> None:
    if isolation is Isolation.BUBBLEWRAP:
        require_bubblewrap()
    if isolation is Isolation.DOCKER:
        require_docker()
    settings = StackSettings(
        tmp_path,
        managers=(Role.SANDBOX,),
        given={"isolation": isolation},
        restart=replace(STACK_RESTARTS, enabled=False),
        arguments={Role.SANDBOX: ["--docker-image", DOCKER_IMAGE]},
    )
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(settings) as stack, Client(stack.address) as client:
            job = await client.open_job("job")
            busy, idle = job.trajectory("busy"), job.trajectory("idle")
            for trajectory in (busy, idle):
                await trajectory.open()
                assert isinstance(await trajectory.env_reset(), Succeeded)
            # The step waits for the exec: its sandbox is frozen as soon as it ends.
            nap = f"sleep {_NAP} >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do :; done"
            assert isinstance(await idle.env_step(Command.shell(nap)), Succeeded)
            running = await busy.submit(EnvStep(Command.argv("sleep", _NAP)))
            await until(lambda: nappers() == 2)

            below = psutil.Process(stack.pid(Role.SANDBOX)).children(recursive=True)
            await kill_and_wait(stack, Role.SANDBOX)
            await until(lambda: nappers() == 0)
            _, alive = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(below, timeout=30.0))
            assert alive == [], "processes outlived their manager"

            await start(stack, Role.SANDBOX)
            for outcome in (await running.outcome(), await idle.env_step(Command.argv("true"))):
                assert isinstance(outcome, Failed), outcome
                assert (outcome.kind, outcome.reason) == (FailureKind.INFRA, "state_lost")
            for trajectory in (busy, idle):
                assert isinstance(await trajectory.env_reset(unservable=Unservable.WAIT), Succeeded)
                assert (await trajectory.env_step(Command.argv("echo", "again"))).unwrap().stdout == b"again\n"

            await check_nothing_leaked(stack.address, "job")
