"""Servers, managers and executors that several suites begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from callsheet.client import Client, Job
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.settings import SandboxSettings

from tests.support.executor_runs import running_executor
from tests.support.faulty_client_service import FAST, FaultyClientService
from tests.support.faulty_servicers import serving
from tests.support.guarded_service import Guarded, guarded_scheduler
from tests.support.running_manager import RunningManager, running_manager
from tests.support.scripted_executor import ScriptedExecutor
from tests.support.scripted_scheduler import ScriptedSession


@pytest.fixture
def scripted() -> ScriptedExecutor:
    """The executor of `manager`."""
    return ScriptedExecutor()


@pytest.fixture
async def manager(scripted: ScriptedExecutor) -> AsyncIterator[RunningManager]:
    """A manager at a scripted scheduler."""
    async with running_manager(scripted) as running:
        yield running


@pytest.fixture
async def session(manager: RunningManager) -> ScriptedSession:
    """The first session of `manager`."""
    return await manager.scheduler.next_session()


@pytest.fixture
def service() -> FaultyClientService:
    """A scheduler of the client's that breaks streams as it is asked to."""
    return FaultyClientService()


@pytest.fixture
async def target(service: FaultyClientService) -> AsyncIterator[str]:
    """The address of `service`."""
    async with serving(service) as target:
        yield target


@pytest.fixture
async def client(target: str) -> AsyncIterator[Client]:
    """A client of `service`."""
    async with Client(target, FAST) as client:
        yield client


@pytest.fixture
async def job(client: Client) -> Job:
    """An open job of `client`."""
    return await client.open_job("j")


@pytest.fixture
async def executor(settings: SandboxSettings) -> AsyncIterator[SandboxExecutor]:
    """An executor of sandboxes as a suite's own `settings` have them."""
    async with running_executor(settings) as running:
        yield running


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    """A scheduler that asks for tokens."""
    async with guarded_scheduler(tmp_path) as running:
        yield running
