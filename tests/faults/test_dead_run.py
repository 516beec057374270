"""A whole stack that was killed under load: its data directory tells what the scheduler told just before."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from callsheet.client import Client, ClientOptions, Job
from callsheet.client import errors as client_errors
from callsheet.client.session.channel import open_channel
from callsheet.deploy.dead_run import DeadRun, opened
from callsheet.scheduler.store.journal_errors import DataDirectoryUnusableError
from callsheet.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    client_service_pb2,
    client_service_pb2_grpc,
    common_pb2,
)

from tests.support.command_line import invoke
from tests.support.dashboards import browser, running_dashboard
from tests.support.waiting import until_so

pytestmark = pytest.mark.anyio
_DEADLINE_S = 180.0
_CALL_S = 20.0
_POLL_S = 0.05
_UP = ("-m", "callsheet.cli.main", "up", "--json", "--listen", "127.0.0.1:0", "--managers", "sandbox")
STATE = admin_service_pb2.ActionState
ListActions = admin_service_pb2.ListActionHistoryRequest
ListTrajectories = admin_service_pb2.ListTrajectoryHistoryRequest


@contextmanager
def stack(data_dir: Path) -> Iterator[tuple[str, list[psutil.Process]]]:
    """Runs `callsheet up`; yields its address, and its processes once they are asked for."""
    words = [sys.executable, *_UP, "--isolation", "none", "--data-dir", str(data_dir)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        found: list[psutil.Process] = []
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["address"]
            found += [psutil.Process(process.pid)]
            found += psutil.Process(process.pid).children(recursive=True)
            yield address, found
        finally:
            if process.poll() is None:
                kill(found or [psutil.Process(process.pid)])


def kill(processes: list[psutil.Process]) -> None:
    """Sends SIGKILL to what is there still, with their children, and waits."""
    there = [each for each in processes if each.is_running()]
    there += [child for each in there for child in each.children(recursive=True)]
    for each in there:
        if each.is_running():
            each.send_signal(signal.SIGKILL)
    psutil.wait_procs(there, timeout=_CALL_S)


class Live:
    """The questions of a dead run, to a scheduler."""

    def __init__(self, channel: Any) -> None:
        self._admin: Any = admin_service_pb2_grpc.AdminServiceStub(channel)
        self._client: Any = client_service_pb2_grpc.ClientServiceStub(channel)

    async def list_jobs(self, request: Any) -> Any:
        return await self._client.ListJobs(request, timeout=_CALL_S)

    async def list_trajectory_history(self, request: Any) -> Any:
        return await self._admin.ListTrajectoryHistory(request, timeout=_CALL_S)

    async def list_action_history(self, request: Any) -> Any:
        return await self._admin.ListActionHistory(request, timeout=_CALL_S)

    async def list_closed_jobs(self, request: Any) -> Any:
        return await self._admin.ListClosedJobs(request, timeout=_CALL_S)

    async def explain(self, request: Any) -> Any:
        return await self._admin.Explain(request, timeout=_CALL_S)


async def work(job: Job, number: int) -> None:
    """A trajectory that has run a command, runs another, and has a third in line."""
    await (trajectory := job.trajectory(f"t{number}")).open()
    (await trajectory.env_reset()).unwrap()
    (await trajectory.env_step(f"echo {number}", action_id=f"done{number}")).unwrap()
    await trajectory.env_step("sleep 600", action_id=f"runs{number}")


async def running(live: Live) -> int:
    """How many of the long commands of the open job run."""
    page = await live.list_action_history(ListActions(job_id="open"))
    commands = [each for each in page.actions if each.key.action_id.startswith("runs")]
    return sum(each.state == STATE.ACTION_STATE_RUNNING for each in commands)


@asynccontextmanager
async def under_load(address: str) -> AsyncIterator[Live]:
    options = ClientOptions()
    async with Client(address, options) as client, anyio.create_task_group() as tasks:
        closed = await client.open_job("closed")
        await (trajectory := closed.trajectory("c")).open()
        (await trajectory.env_reset(action_id="reset")).unwrap()
        await closed.close()
        job = await client.open_job("open")
        for number in range(4):
            tasks.start_soon(work, job, number)
        live = Live(open_channel(address, options))

        await until_so(lambda: running(live), lambda it: it >= 4, every_s=_POLL_S)
        yield live
        tasks.cancel_scope.cancel()


def content(data_dir: Path) -> dict[str, str]:
    """All files of a directory, and what is in them."""
    files = [each for each in data_dir.rglob("*") if each.is_file()]
    return {str(each): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


async def told(source: Any) -> dict[str, Any]:
    """Counts and histories, without what passes with time."""
    (job,) = (await source.list_jobs(client_service_pb2.ListJobsRequest())).jobs
    ended = {name: job.actions[name] for name in ("succeeded", "failed", "cancelled", "expired")}
    found: dict[str, Any] = {"open": sum(job.actions.values()) - sum(ended.values()), **ended}
    for name in ("open", "closed"):
        page = await source.list_action_history(ListActions(job_id=name, contents=True))
        for each in page.actions:
            if not each.timeline.HasField("ended"):
                each.state = STATE.ACTION_STATE_DISPATCHED
                each.ClearField("timeline")
                # The fleet is in memory, too.
                each.ClearField("node_id")
            # Those of an open job are in its scheduler's memory.
            if name == "open":
                each.ClearField("story")
        trajectories = await source.list_trajectory_history(ListTrajectories(job_id=name))
        for each in trajectories.trajectories:
            each.ClearField("node_id")
            if not each.HasField("closed"):
                each.ClearField("cost")
        found[f"{name} actions"], found[f"{name} trajectories"] = page, trajectories
    found["closed jobs"] = await source.list_closed_jobs(admin_service_pb2.ListClosedJobsRequest())
    request = admin_service_pb2.ExplainRequest(key=common_pb2.ActionKey(job_id="closed", action_id="reset"))
    found["story"] = (await source.explain(request)).story
    return found


async def test_the_directory_of_a_killed_run_tells_what_its_scheduler_told(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with anyio.fail_after(_DEADLINE_S):
        with stack(data_dir) as (address, processes):
            async with under_load(address) as live:
                with pytest.raises(ValueError, match=r"in use by the scheduler .* show what runs by --scheduler"):
                    opened(data_dir).__enter__()
                before = await told(live)
                kill(processes)
        files = content(data_dir)
        assert f"{data_dir}/journal.sqlite3-wal" in files
        with opened(data_dir, prices=["cpu=1", "calls=7"]) as dead:
            assert await told(dead) == before
            assert len(before["open actions"].actions) == 12
            assert [each.event for each in before["story"]][-1] == "outcome: succeeded"
            known = await dead.get_server_info()
            assert (known.contract > 0, dict(known.prices)) == (True, {"cpu": 1.0, "calls": 7.0})
            ((lost),) = (await dead.get_status(admin_service_pb2.GetStatusRequest())).lost
            assert (lost.attempts, lost.sandboxes) == (4, 4)
            assert (await dead.list_actions(admin_service_pb2.ListActionsRequest(job_id="open"))).open == 4
            key = common_pb2.ActionKey(job_id="open", action_id="runs0")
            explained = await dead.explain(admin_service_pb2.ExplainRequest(key=key))
            assert f"it was with manager {lost.manager_id}, attempt 1" in explained.story[-1].event
            key.action_id = "done0"
            explained = await dead.explain(admin_service_pb2.ExplainRequest(key=key))
            assert [each.event.partition(" to ")[0] for each in explained.story] == [
                "submitted",
                "attempt 1 dispatched",
                "attempt 1 started",
                "outcome: succeeded",
            ]
            (of_closed,) = before["closed jobs"].jobs
            assert of_closed.cost.held["memory"] > 0.0
            with pytest.raises(client_errors.FailedPreconditionError, match="the run is over"):
                await dead.what_if(admin_service_pb2.WhatIfRequest(pool="cpu", nodes=1))
            with pytest.raises(client_errors.NotFoundError):
                await dead.list_action_history(ListActions(job_id="unknown"))
            async with running_dashboard("127.0.0.1:1", run=dead) as url, browser(url) as pages:
                for name in ("stuck", "now", "engines", "trajectories", "closed"):
                    assert (await pages.get(f"/{name}", job="open")).status == 200, name
                assert "runs0" in (await pages.get("/stuck")).text
                shown = await pages.get("/trajectory", job="open", trajectory="t0", contents="1")
                assert (shown.status, "echo 0" in shown.text) == (200, True)
                # What it cost in all, which only prices tell.
                assert '<th scope="row">all' in shown.text
        assert content(data_dir) == files


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--data-dir", "{}"), 1, "it has no journal.sqlite3"),
        (("--data-dir", "{}/missing"), 1, "it has no journal.sqlite3"),
        (("--data-dir", "{}", "--price", "cpu=1", "--price", "cpu=2"), 2, "price: 'cpu': must be given once"),
        (("--data-dir", "{}", "--price", "cows=1"), 2, "'cows=1': must be cpu"),
        (("--data-dir", "{}", "--database-url-file", "{}/missing"), 1, "No such file"),
        (("--database-url-file", "{}/missing"), 2, "database_url_file: goes with data_dir"),
    ],
)
def test_the_command_says_what_it_cannot_open(tmp_path: Path, options: tuple[str, ...], code: int, said: str) -> None:
    result = invoke("dashboard", *[each.format(tmp_path) for each in options])
    assert (result.exit_code, said in result.stderr) == (code, True), result.stderr


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_directory_without_a_journal_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataDirectoryUnusableError, match=r"it has no journal\.sqlite3"):
        DeadRun(tmp_path / name)
