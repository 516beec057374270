"""A backend of every kind that works here, which a module's tests share, and a sandbox for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.isolation.agent_backend import AgentBackend
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings, StageDirectory

from tests.support.sandboxes import Variant, open_backend, settings_for, spec_for, variants


@pytest.fixture(params=variants(*Isolation), ids=str, scope="module")
def settings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SandboxSettings:
    variant: Variant = request.param
    directory = tmp_path_factory.mktemp("backend")
    stage = directory / "stage"
    stage.mkdir()
    (stage / "staged_module.py").write_text("ANSWER = 42\n")
    return settings_for(variant, directory / "data", (StageDirectory(stage),))


@pytest.fixture(scope="module")
async def backend(settings: SandboxSettings) -> AsyncIterator[AgentBackend]:
    async with open_backend(settings) as opened:
        yield opened


@pytest.fixture
async def sandbox(backend: AgentBackend, settings: SandboxSettings) -> AsyncIterator[AgentSandbox]:
    made = await backend.create(spec_for(settings), lambda _: None)
    yield made
    await made.destroy()
