"""A backend of every kind that works here, and one sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from callsheet.managers.sandbox.agent_sandbox import AgentBackend
from callsheet.managers.sandbox.backend import Sandbox
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings, StageDirectory

from tests.support.sandboxes import Variant, open_backend, settings_for, spec_for, variants


@pytest.fixture(params=variants(*Isolation), ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSettings:
    variant: Variant = request.param
    stage = tmp_path / "stage"
    stage.mkdir()
    (stage / "staged_module.py").write_text("ANSWER = 42\n")
    return settings_for(variant, tmp_path / "data", (StageDirectory(stage),))


@pytest.fixture
async def backend(settings: SandboxSettings) -> AsyncIterator[AgentBackend]:
    async with open_backend(settings) as opened:
        yield opened


@pytest.fixture
async def sandbox(backend: AgentBackend, settings: SandboxSettings) -> AsyncIterator[Sandbox]:
    made = await backend.create(spec_for(settings), lambda _: None)
    yield made
    await made.destroy()
