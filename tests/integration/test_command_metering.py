"""What is counted for a command: all that it started, and nothing that another one did."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from callsheet.managers.sandbox.backend import Sandbox
from callsheet.managers.sandbox.cgroups import probe_layout
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.sandboxes import Variant, open_sandbox, run, settings_for, tells

pytestmark = pytest.mark.anyio

_BURNS = "import time\nwhile time.process_time() < 0.3: pass\nopen('burnt', 'w').close()"
_BOMB = "held = []\nwhile True: held.append(bytearray(1 << 24))"


@pytest.fixture
def settings(tmp_path: Path) -> SandboxSettings:
    if probe_layout() is None:
        pytest.skip("control groups cannot be made here")
    return settings_for(Variant(Isolation.NONE, groups=True), tmp_path)


@pytest.fixture
async def sandbox(settings: SandboxSettings) -> AsyncIterator[Sandbox]:
    async with open_sandbox(settings) as made:
        yield made


async def test_cpu_time_is_that_of_all_that_a_command_started_and_of_nothing_else(sandbox: Sandbox) -> None:
    # The shell in between ends at once: nobody but the sandbox's first process waits for what it started.
    script = f'(setsid python3 -c "{_BURNS}" &); while [ ! -e burnt ]; do sleep 0.01; done'
    assert (await run(sandbox, "/bin/sh", "-c", script)).cpu_s > 0.2
    assert (await run(sandbox, "true")).cpu_s < 0.2


async def test_a_limit_that_was_met_is_told_of_the_command_that_met_it(
    sandbox: Sandbox, settings: SandboxSettings
) -> None:
    if not tells(settings, "memory"):
        pytest.skip("no control group limits memory here")
    bomb = await run(sandbox, "/bin/sh", "-c", f'python3 -c "{_BOMB}"; exit 3')
    assert (bomb.exit_code, bomb.out_of_memory) == (3, True)
    after = await run(sandbox, "/bin/sh", "-c", "exit 3")
    assert (after.exit_code, after.out_of_memory) == (3, False)
