"""A command that fills its sandbox's disk, which counts as memory, fails for that and not as the infrastructure."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from callsheet.managers.executor import AttemptResult, Broken, Completed
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import outcome_pb2

from tests.support.executor_runs import completed
from tests.support.expected import expect
from tests.support.sandbox_attempts import attempt_of, reset, step
from tests.support.sandboxes import Variant, settings_for, tells, variants

pytestmark = pytest.mark.anyio

MEMORY_MIB = 64
# More than the few kB that may be left.
NEEDS_MEMORY = "text=$(head -c 4000000 /dev/zero | tr '\\0' a)"
FILL = "head -c 200000000 /dev/zero > fill"


@pytest.fixture(params=variants(Isolation.BUBBLEWRAP, Isolation.DOCKER, others_by_night=True), ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSettings:
    variant: Variant = request.param
    return settings_for(variant, tmp_path)


async def run(executor: SandboxExecutor, script: str, *, disk_mib: int = 0, session: str = "") -> AttemptResult:
    """Runs an env_reset that must succeed, and a step in its sandbox."""
    action, filling = reset(), step(script)
    action.env_reset.disk_mib, filling.env_step.session = disk_mib, session
    made = await completed(executor, action, resources={"memory": MEMORY_MIB})
    return await executor.run(attempt_of(filling, sandbox_id=made.env_reset.sandbox_id))


def assert_out_of_memory(result: AttemptResult) -> None:
    assert isinstance(result, Broken), result
    assert (result.failed.kind, result.failed.reason) == (outcome_pb2.FAILURE_KIND_RESOURCE_LIMIT, "out_of_memory")


def assert_killed_for_memory(result: AttemptResult, *, told: bool) -> None:
    """It must be out of memory; where that need not be told, a killed command will do."""
    if told or not isinstance(result, Completed):
        assert_out_of_memory(result)
        return
    step_result = result.succeeded.env_step
    # Or its shell tells of the program that was killed.
    assert step_result.signal == signal.SIGKILL or step_result.exit_code == 128 + signal.SIGKILL


async def test_the_disk_is_full_before_the_memory_is(executor: SandboxExecutor) -> None:
    result = expect(Completed, await run(executor, f"{FILL}; echo ended with $?; rm fill; echo alive"))
    assert result.succeeded.env_step.stdout.inline == b"ended with 1\nalive\n"
    assert b"No space left" in result.succeeded.env_step.stderr.inline


@pytest.mark.parametrize("session", ["", "main"])
async def test_files_that_take_all_memory_are_the_models_own_limit(
    executor: SandboxExecutor, settings: SandboxSettings, session: str
) -> None:
    result = await run(executor, FILL, disk_mib=2 * MEMORY_MIB, session=session)
    in_container = settings.isolation is Isolation.DOCKER
    if tells(settings, "memory") or in_container:
        # Of a container whose groups cannot be read it is known only once the agent dies as well.
        assert_killed_for_memory(result, told=tells(settings, "memory"))
        # Commands die before the agent does. As long as it lives, each further one is killed.
        for sandbox in executor.sandboxes():
            further = step(NEEDS_MEMORY)
            further.env_step.session = session
            # The kernel does not count each process that it kills so.
            assert_killed_for_memory(await executor.run(attempt_of(further, sandbox_id=sandbox.sandbox_id)), told=False)
    else:
        # Only processes are limited there, and files by the size of the disk.
        assert isinstance(result, Completed), result
        assert b"No space left" in result.succeeded.env_step.stderr.inline
