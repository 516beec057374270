"""`callsheet top` of a scheduler with actions that run and one that waits."""

from __future__ import annotations

import json
import os
import re
import sys
from functools import partial
from pathlib import Path

import anyio
from callsheet.client import Client
from callsheet.managers.noop import NoopService, NoopSettings
from callsheet.scheduler.service.settings import SchedulerSettings

from tests.support.raw_service import running_noop, running_service
from tests.support.waiting import until_so

_TIMEOUT_S = 60


async def top(address: str, *words: str) -> tuple[int, str]:
    """What the command exits with, and prints."""
    command = [sys.executable, "-m", "callsheet.cli.main", "top", "--scheduler", address, *words]
    with anyio.fail_after(_TIMEOUT_S):
        done = await anyio.run_process(command, check=False, env={**os.environ, "COLUMNS": "200"}, stderr=sys.stderr)
    return done.returncode, done.stdout.decode()


async def test_jobs_and_what_waits_are_shown(tmp_path: Path) -> None:
    settings = SchedulerSettings(tmp_path, listen="127.0.0.1:0")
    noop = NoopSettings((NoopService(slots=1),), execution_s=600.0)
    async with (
        running_service(settings) as service,
        running_noop(service.address, noop),
        Client(service.address) as client,
        await client.open_job("training") as job,
        anyio.create_task_group() as tasks,
    ):
        for number in range(3):
            tasks.start_soon(partial(job.tool_call, "noop", "get", label=f"call-{number}"))
        # Other programs signal nothing.
        await until_so(job.status, lambda it: it.actions == {"queued": 2, "running": 1}, every_s=0.02)
        code, shown = await top(service.address, "--looks", "2", "--interval", "0.2")
        _, told = await top(service.address, "--json")
        tasks.cancel_scope.cancel()
    assert code == 0
    first, shown = shown.split("scheduler ")[1:]
    assert "queued 2, running 1" in first
    assert re.search(r"training +│ +0 │ queued 2, running 1 │ +0.0 │", shown), shown
    assert len(re.findall(r"│ training │ tool_call │ \d+ s │ .*slot", shown)) == 2, shown
    assert [each["action_id"] for each in json.loads(told)["waiting"]] == re.findall(
        r"│ (\S+) +│ training │ tool", shown
    )


async def test_a_pipe_gets_one_look_and_an_empty_scheduler_is_shown(tmp_path: Path) -> None:
    async with running_service(SchedulerSettings(tmp_path, listen="127.0.0.1:0")) as service:
        code, shown = await top(service.address)
    assert code == 0
    assert shown.count("Waiting longest") == 1
    assert shown.endswith("\n")
    assert "Jobs: 0" in shown


async def test_a_scheduler_that_comes_again_is_shown_again(tmp_path: Path, free_tcp_port: int) -> None:
    address = f"127.0.0.1:{free_tcp_port}"
    service = SchedulerSettings(tmp_path, listen=address)
    words = ["top", "--scheduler", address, "--interval", "0.2", "--looks", "10000"]

    async def see(what: str) -> None:
        text = ""
        with anyio.fail_after(_TIMEOUT_S):
            while what not in text:
                text += (await shown.receive()).decode(errors="replace")

    async with running_service(service):
        process = await anyio.open_process([sys.executable, "-m", "callsheet.cli.main", *words], stderr=sys.stderr)
        assert process.stdout is not None
        shown = process.stdout
        await see("Waiting longest")
    await see("no answer since ")
    async with running_service(service):
        await see("Waiting longest")
        process.terminate()
        assert await process.wait() == 130
    await process.aclose()


async def test_no_scheduler_is_one_line(free_tcp_port: int) -> None:
    code, shown = await top(f"127.0.0.1:{free_tcp_port}")
    assert (code, shown) == (1, "")
