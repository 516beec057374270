"""What `callsheet up` does by default: commands share the cores, so that one which sleeps keeps nobody waiting."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from callsheet.client import Client, Command, EnvStep, Succeeded
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import ActionState
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.managers.sandbox.settings import Isolation

from tests.support.expected import expect
from tests.support.other_user import OTHER_UID, TESTS_TIMEOUT_S, run_tests_as_other_user
from tests.support.real_sandboxes import until_state

pytestmark = pytest.mark.anyio

_SLEEPERS = 8


async def test_more_sleeping_commands_than_cores_run_at_the_same_time(tmp_path: Path) -> None:
    cores = min(2, len(os.sched_getaffinity(0)))
    isolation = Isolation.BUBBLEWRAP if probe_bubblewrap().works else Isolation.NONE
    # The scoring model is the same for whoever runs it, and half of all that is started.
    managers = (Role.SANDBOX, Role.REWARD) if os.geteuid() != OTHER_UID else (Role.SANDBOX,)
    settings = StackSettings(tmp_path, managers=managers, cpus=cores, given={"isolation": isolation})
    async with (
        local_stack(settings) as stack,
        Client(stack.address) as client,
        AdminClient(stack.address) as admin,
        await client.open_job("job") as job,
        AsyncExitStack() as trajectories,
    ):
        sleepers = []
        for index in range(_SLEEPERS):
            trajectory = await trajectories.enter_async_context(job.trajectory(f"t{index}"))
            assert isinstance(await trajectory.env_reset(), Succeeded)
            sleepers.append(await trajectory.submit(EnvStep(Command.argv("sleep", "600"))))
        for sleeper in sleepers:
            await until_state(admin, "job", sleeper.action_id, ActionState.RUNNING)
        for sleeper in sleepers:
            assert (await admin.explain("job", sleeper.action_id)).state is ActionState.RUNNING
        # The scoring model has no core of the node to itself either.
        if Role.REWARD in managers:
            expect(Succeeded, await job.reward_model([1, 2, 3]))
        async with anyio.create_task_group() as tasks:
            for sleeper in sleepers:
                tasks.start_soon(sleeper.cancel)


@pytest.mark.nightly
@pytest.mark.timeout(TESTS_TIMEOUT_S)
def test_commands_of_an_unprivileged_user_share_the_cores_as_well() -> None:
    run_tests_as_other_user("sleeping", "tests/integration/test_default_sharing.py")
