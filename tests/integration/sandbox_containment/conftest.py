"""Every kind of sandbox that isolates."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.executor_runs import running_executor
from tests.support.sandboxes import Variant, open_sandbox, settings_for, variants

# Without groups by night: by day an unprivileged user's sandboxes show that the walls stand without them.
_VARIANTS = variants(Isolation.BUBBLEWRAP, Isolation.DOCKER, others_by_night=True)


@pytest.fixture(params=_VARIANTS, ids=str, scope="module")
def settings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SandboxSettings:
    """Settings of a manager with such sandboxes."""
    variant: Variant = request.param
    return settings_for(variant, tmp_path_factory.mktemp("manager"))


@pytest.fixture(scope="module")
async def executor(settings: SandboxSettings) -> AsyncIterator[SandboxExecutor]:
    """One for all attacks of a suite, each of which it must survive unharmed."""
    async with running_executor(settings) as running:
        yield running


@pytest.fixture
async def sandbox(settings: SandboxSettings) -> AsyncIterator[AgentSandbox]:
    """A sandbox of its own for each test."""
    async with open_sandbox(settings) as made:
        yield made
