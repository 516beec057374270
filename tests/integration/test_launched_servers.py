"""Servers that a manager launches: they are started again, end with it, and serve only what is proved."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from callsheet.client import Client, Sampling, Succeeded
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import EngineWeights, ServiceStatus, WeightsStanding
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.inference.driver import EngineFailedError
from callsheet.managers.inference.launching.command import LaunchNeeds
from callsheet.managers.inference.launching.engine import launch_order
from callsheet.managers.inference.launching.server import LaunchedServer
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.sglang_engine.driver import SGLangDriver, attach_sglang
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings
from callsheet.managers.supervision.standing import ProcessPhase, RestartRule

from tests.support.contract_model import save_contract_weights
from tests.support.expected import expect
from tests.support.launched_engine import has_ended, launch_command, parent_of, read_pid
from tests.support.waiting import until, until_so

pytestmark = pytest.mark.anyio
_WAIT_S = 100.0
_NEEDS = LaunchNeeds(arguments=("--host", "{host}", "--port", "{port}"))
_QUICK = RestartRule(initial_s=0.05, longest_s=0.1, first_failures=1)


def _log_of(server: LaunchedServer) -> Path:
    return Path(server.log_path)


def _launch(place: Path, start_timeout_s: float = 900.0) -> LaunchedServer:
    weights = save_contract_weights(place / "weights", 0)
    settings = InferenceSettings(
        engine="sglang", launches=(launch_command(weights, place),), launch_logs=place / "logs", launch_name="m#0"
    )
    return LaunchedServer(replace(launch_order(settings, _NEEDS, start_timeout_s), rule=_QUICK, stop_grace_s=0.3))


@asynccontextmanager
async def _driver(server: LaunchedServer) -> AsyncIterator[SGLangDriver]:
    settings = SGLangSettings(attach_timeout=_WAIT_S)
    driver = await anyio.to_thread.run_sync(attach_sglang, settings, lambda: server.url)
    driver.own_server(server)
    try:
        yield driver
    finally:
        await driver.close()


async def test_a_killed_server_is_started_again_elsewhere_and_ends_with_its_driver(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    server = _launch(tmp_path)
    async with _driver(server) as driver:
        await driver.look()
        await until(lambda: server.standing.phase is ProcessPhase.SERVING)
        assert server.standing.starts == 2  # The first port was taken.
        assert "address already in use" in _log_of(server).read_text()
        first, incarnation = server.url, driver.incarnation
        orphan = read_pid(tmp_path, "child")
        os.kill(read_pid(tmp_path, "server"), signal.SIGKILL)
        await until(lambda: server.standing.starts == 3)
        assert has_ended(orphan)
        assert "after it ended" in server.problem
        assert str(tmp_path) in server.problem
        while server.standing.phase is not ProcessPhase.SERVING:
            await driver.look()
        assert server.url != first
        assert driver.incarnation != incarnation
        assert driver.health.alive
        last = [read_pid(tmp_path, name) for name in ("server", "child")]
        (tmp_path / "crash").touch()
    assert all(map(has_ended, last))
    assert _log_of(server).stat().st_mode & 0o777 == 0o600


async def test_a_server_that_is_deaf_to_signals_is_killed(tmp_path: Path) -> None:
    (tmp_path / "deaf").touch()
    server = _launch(tmp_path)
    async with _driver(server):
        pids = [read_pid(tmp_path, name) for name in ("server", "child")]
    # On a loaded machine a killed process takes a moment to end.
    await until(lambda: all(map(has_ended, pids)))


@pytest.mark.parametrize(
    ("fault", "why", "start_timeout_s"),
    [("crash", "exit code 3", 90.0), ("silent", "it was not ready within 3 s", 3.0)],
)
async def test_a_server_that_never_serves_is_given_up_and_says_where_its_log_is(
    tmp_path: Path, fault: str, why: str, start_timeout_s: float
) -> None:
    (tmp_path / fault).touch()
    server = _launch(tmp_path, start_timeout_s)
    try:
        with pytest.raises(EngineFailedError) as caught:
            await anyio.to_thread.run_sync(attach_sglang, SGLangSettings(attach_timeout=_WAIT_S), lambda: server.url)
    finally:
        await server.stop()
    assert str(caught.value) == f"its server ended 2 times and never served: {why}; its log is {server.log_path}"
    assert has_ended(read_pid(tmp_path, "child"))


async def test_a_guard_that_is_killed_takes_the_server_with_it(tmp_path: Path) -> None:
    server = _launch(tmp_path)
    async with _driver(server) as driver:
        await driver.look()
        pid = read_pid(tmp_path, "server")
        os.kill(parent_of(pid), signal.SIGKILL)
        await until(lambda: has_ended(pid))
        await until(lambda: server.standing.starts == 2)
        assert server.standing.why == "signal SIGKILL"


async def test_a_manager_that_still_waits_for_its_server_ends_at_once_when_asked_to(tmp_path: Path) -> None:
    (tmp_path / "silent").touch()
    launch = launch_command(save_contract_weights(tmp_path / "weights", 0), tmp_path)
    command = [sys.executable, "-m", "callsheet.cli.main", "manager", "inference", "--engine", "sglang"]
    command += ["--launch", launch, "--launch-logs", str(tmp_path / "logs")]
    with anyio.fail_after(_WAIT_S):
        async with await anyio.open_process(command, stdout=None, stderr=None) as process:
            await until((tmp_path / "server.pid").exists)
            process.terminate()
            await process.wait()
    assert all(has_ended(read_pid(tmp_path, name)) for name in ("server", "child"))


async def _service(admin: AdminClient) -> ServiceStatus:
    (manager,) = (await admin.status()).managers
    return manager.services[0]


async def _until_told(admin: AdminClient) -> None:
    """Waits until the scheduler is told which server keeps anything from beginning."""
    await until_so(lambda: _service(admin), lambda it: "engine-" in (it.problem or ""), every_s=0.05)


async def _crash(admin: AdminClient, place: Path) -> None:
    """Kills the server, of which the next start is silent until somebody was told why."""
    (place / "silent").touch()
    os.kill(read_pid(place, "server"), signal.SIGKILL)
    await _until_told(admin)
    (place / "silent").unlink()


async def test_what_comes_back_serves_what_is_proved_and_nothing_outlives_a_killed_manager(tmp_path: Path) -> None:
    weights = save_contract_weights(tmp_path / "weights", 0)
    newer = save_contract_weights(tmp_path / "newer", 1)
    launches = (launch_command(weights, tmp_path),)
    settings = StackSettings(
        tmp_path / "data", managers=("inference",), given={"engine": "sglang", "launch": launches}, cpus=1
    )
    with anyio.fail_after(_WAIT_S):
        async with local_stack(settings) as stack, Client(stack.address) as client, AdminClient(stack.address) as admin:
            async with await client.open_job("j") as job:
                await job.publish(1, newer)
                assert (await job.rollout(1, wait_s=_WAIT_S)).done
                await _crash(admin, tmp_path)
                outcome = expect(Succeeded, await job.generate([1, 2, 3], Sampling(max_new_tokens=4, seed=1)))
                assert [span.version for span in outcome.value.policy_versions] == [1]
                assert (await _service(admin)).weights == EngineWeights(WeightsStanding.PROVED, 1)
            pids = [read_pid(tmp_path, name) for name in ("server", "child")]
            os.kill(stack.pid("inference"), signal.SIGKILL)
            await until(lambda: all(map(has_ended, pids)))
