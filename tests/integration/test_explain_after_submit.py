"""An action of a closed job is explained by its id alone, as `callsheet submit` prints it and then closes its job."""

from __future__ import annotations

from pathlib import Path

import pytest
from callsheet.client import Client, NotFoundError
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import ActionState
from callsheet.managers.noop import NoopSettings
from callsheet.scheduler.service.settings import SchedulerSettings

from tests.support.raw_service import running_noop, running_service


async def submit(address: str, job_id: str) -> str:
    """Submits an action in a job of its own, as the command does; returns the action's id."""
    async with Client(address) as client, await client.open_job(job_id) as job:
        return (await job.tool_call("noop", "get", b"")).action_id


async def test_an_action_of_a_closed_job_is_explained_also_after_a_restart(tmp_path: Path) -> None:
    settings = SchedulerSettings(tmp_path, listen="127.0.0.1:0")
    async with running_service(settings) as service, running_noop(service.address, NoopSettings()):
        action_id = await submit(service.address, "submit-1")
        async with AdminClient(service.address) as admin:
            told = await admin.explain("", action_id)
        assert (told.job_id, told.state, told.job_closed) == ("submit-1", ActionState.SUCCEEDED, True)
        assert told.explanation.startswith("it has its outcome: succeeded")
    async with running_service(settings) as service, AdminClient(service.address) as admin:
        again = await admin.explain("", action_id)
        assert (again.state, again.story) == (told.state, told.story)
        with pytest.raises(NotFoundError, match="names no action of an open job"):
            await admin.explain("", "never-submitted")


async def test_a_setting_says_how_many_are_kept(tmp_path: Path) -> None:
    settings = SchedulerSettings(tmp_path, listen="127.0.0.1:0", closed_actions=1)
    async with running_service(settings) as service, running_noop(service.address, NoopSettings()):
        older = await submit(service.address, "submit-1")
        newer = await submit(service.address, "submit-2")
        async with AdminClient(service.address) as admin:
            assert (await admin.explain("submit-2", newer)).job_closed
            with pytest.raises(NotFoundError, match="forgotten"):
                await admin.explain("submit-1", older)
