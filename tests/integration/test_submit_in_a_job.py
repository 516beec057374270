"""`callsheet submit ... --job`: an action in a job that others use, and with a job's own token."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from callsheet.client import Client, ClientOptions
from callsheet.credentials.channel import Credentials
from callsheet.managers.noop import NoopSettings
from callsheet.scheduler.access.identity import Scope
from callsheet.scheduler.service.settings import SchedulerSettings

from tests.support.guarded_service import guarded_scheduler
from tests.support.raw_service import running_noop, running_service

_TIMEOUT_S = 60


async def submit(address: str, *more: str, **environment: str) -> tuple[int, Any]:
    """What the command exits with and prints."""
    words = ("submit", "tool-call", "noop", "get", "--scheduler", address, "--json", *more)
    command = [sys.executable, "-m", "callsheet.cli.main", *words]
    with anyio.fail_after(_TIMEOUT_S):
        done = await anyio.run_process(command, check=False, env={**os.environ, **environment})
    return done.returncode, json.loads(done.stdout)


async def test_a_job_that_is_open_stays_open_whatever_it_was_opened_with(tmp_path: Path) -> None:
    settings = SchedulerSettings(tmp_path, listen="127.0.0.1:0")
    async with (
        running_service(settings) as service,
        running_noop(service.address, NoopSettings()),
        Client(service.address) as client,
        await client.open_job("theirs", share=3.0, max_actions=5) as job,
    ):
        for _ in range(2):  # Ids of actions and trajectories are new each time.
            code, told = await submit(service.address, "--job", "theirs")
            assert code == 0, told
            assert told["job_id"] == "theirs"
        assert (await job.status()).actions["succeeded"] == 2


@pytest.mark.parametrize("given", [["--job", "new"], []])
async def test_a_job_that_is_not_open_is_opened_and_closed(tmp_path: Path, given: list[str]) -> None:
    settings = SchedulerSettings(tmp_path, listen="127.0.0.1:0")
    async with running_service(settings) as service, running_noop(service.address, NoopSettings()):
        code, told = await submit(service.address, *given)
        assert code == 0, told
        assert told["job_id"] == "new" if given else told["job_id"].startswith("submit-")
        async with Client(service.address) as client:
            assert await client.jobs() == []


@pytest.mark.parametrize("is_open", [True, False])
async def test_the_token_of_a_job_submits_in_that_job_alone(tmp_path: Path, is_open: bool) -> None:
    async with guarded_scheduler(tmp_path) as guarded:
        mine, manager = guarded.issue(Scope.JOB, "mine"), guarded.issue(Scope.MANAGER, "m")
        async with (
            running_noop(guarded.address, NoopSettings(), credentials=Credentials(token=manager)),
            Client(guarded.address, ClientOptions(token=mine)) as client,
        ):
            if is_open:
                await client.open_job("mine")
            code, told = await submit(guarded.address, "--job", "mine", CALLSHEET_TOKEN=mine)
            assert code == 0, told
            assert len(await client.jobs()) == is_open
            for given in (["--job", "other"], []):
                code, told = await submit(guarded.address, *given, CALLSHEET_TOKEN=mine)
                assert code == 1, told
                assert (told["error"]["code"], told["error"]["field"]) == ("PERMISSION_DENIED", "job_id")
