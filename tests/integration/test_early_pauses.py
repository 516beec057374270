"""A pause counts from when it comes, also where the attempt's sandbox is still being made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from callsheet.managers.executor import AttemptResult, Completed
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.executor import SandboxExecutor
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import action_pb2

from tests.support.sandbox_attempts import attempt_of, reset, suite
from tests.support.sandboxes import ANSWER_SECONDS, settings_for, variants

pytestmark = pytest.mark.anyio


@pytest.fixture(params=variants(*Isolation), ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSettings:
    return settings_for(request.param, tmp_path)


@pytest.fixture
async def executor(settings: SandboxSettings) -> AsyncIterator[SandboxExecutor]:
    built = build_sandbox_executor(settings)
    yield built
    await built.close()


def _resets(number: int) -> action_pb2.ActionSpec:
    """An env_reset with a set-up of its own."""
    return reset(set_up=f"echo {number}", trajectory=f"trajectory-{number}")


def _rewards(number: int) -> action_pb2.ActionSpec:
    return suite(f"echo {number}")


@pytest.mark.parametrize("action_of", [_resets, _rewards])
async def test_an_attempt_that_is_paused_while_its_sandbox_is_made_waits_until_it_is_resumed(
    executor: SandboxExecutor, settings: SandboxSettings, action_of: Callable[[int], action_pb2.ActionSpec]
) -> None:
    attempt, results = attempt_of(action_of(0)), list[AttemptResult]()

    async def run() -> None:
        results.append(await executor.run(attempt))

    with anyio.fail_after(ANSWER_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await anyio.lowlevel.checkpoint()
            await executor.pause(attempt)
            # It would end before these, which begin later.
            for number in (1, 2):
                assert isinstance(await executor.run(attempt_of(action_of(number))), Completed)
            # Without groups a command is stopped once it has begun, and a short one may be over before.
            assert results == [] or not settings.use_control_groups
            await executor.resume(attempt)
    assert isinstance(results[0], Completed), results
