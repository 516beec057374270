"""What is counted for a command: all that it started, and nothing that another one did."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.sandboxes import open_sandbox, run, settings_for, tells, variants

pytestmark = pytest.mark.anyio

_BURNS = "import time\nwhile time.process_time() < 0.3: pass\nopen('burnt', 'w').close()"
_BOMB = "held = []\nwhile True: held.append(bytearray(1 << 24))"


@pytest.fixture(params=variants(Isolation.NONE, Isolation.DOCKER), ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSettings:
    return settings_for(request.param, tmp_path)


@pytest.fixture
async def sandbox(settings: SandboxSettings) -> AsyncIterator[AgentSandbox]:
    async with open_sandbox(settings) as made:
        yield made


async def test_cpu_time_is_that_of_all_that_a_command_started_and_of_nothing_else(
    sandbox: AgentSandbox, settings: SandboxSettings
) -> None:
    # The shell in between ends at once: nobody but the sandbox's first process waits for what it started.
    script = f'(setsid python3 -c "{_BURNS}" &); while [ ! -e burnt ]; do sleep 0.01; done'
    burning = await run(sandbox, "/bin/sh", "-c", script)
    # Without groups only what was waited for is counted.
    assert burning.cpu_s > 0.2 or not settings.use_control_groups
    assert (await run(sandbox, "true")).cpu_s < 0.2


async def test_a_limit_that_was_met_is_told_of_the_command_that_met_it(
    sandbox: AgentSandbox, settings: SandboxSettings
) -> None:
    bomb = await run(sandbox, "/bin/sh", "-c", f'python3 -c "{_BOMB}"; exit 3')
    assert (bomb.exit_code, bomb.out_of_memory) == (3, tells(settings, "memory"))
    after = await run(sandbox, "/bin/sh", "-c", "exit 3")
    assert (after.exit_code, after.out_of_memory) == (3, False)
