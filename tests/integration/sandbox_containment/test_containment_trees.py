"""Trees so deep that no path and no recursion reaches their ends: of set-ups, rewards and plain commands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from callsheet.managers.executor import Completed
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.files.directories import remove_directory
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.sandbox_attempts import attempt_of, reset, step, suite
from tests.support.sandboxes import Variant, settings_for

pytestmark = pytest.mark.anyio

_DEPTH = 2500
_DIG = f"""python3 -c '
import os
for _ in range({_DEPTH}):
    os.mkdir("a-directory-with-a-name"); os.chdir("a-directory-with-a-name")
open("end", "w").close(); os.link("end", "second"); os.chmod(".", 0o500)
'"""
_COUNT = """python3 -c '
import os
depth = 0
while os.path.isdir("a-directory-with-a-name"):
    os.chdir("a-directory-with-a-name"); depth += 1
print(depth, sorted(os.listdir(".")), os.stat("end").st_nlink, oct(os.stat(".").st_mode))
'"""


@asynccontextmanager
async def _running(settings: SandboxSettings) -> AsyncIterator[SandboxExecutor]:
    executor = build_sandbox_executor(settings)
    try:
        yield executor
    finally:
        await executor.close()


async def _told(executor: SandboxExecutor, sandbox_id: str, script: str) -> str:
    result = await executor.run(attempt_of(step(script), sandbox_id=sandbox_id))
    assert isinstance(result, Completed), result
    return result.succeeded.env_step.stdout.inline.decode()


async def test_a_set_up_may_leave_a_deep_tree(settings: SandboxSettings) -> None:
    async with _running(settings) as executor:
        for _ in range(2):
            result = await executor.run(attempt_of(reset(set_up=_DIG), resources={"memory": 256}))
            assert isinstance(result, Completed), result
            done = result.succeeded.env_reset
            assert await _told(executor, done.sandbox_id, _COUNT) == f"{_DEPTH} ['end', 'second'] 2 0o40500\n"
        assert done.set_up_reused == executor._backend.overlays
    # What is kept of it would be too deep for whatever else removes directories.
    remove_directory(settings.data_directory)


async def test_a_reward_may_leave_a_deep_tree_at_its_home(settings: SandboxSettings) -> None:
    async with _running(settings) as executor:
        made = await executor.run(attempt_of(reset(), resources={"memory": 256}))
        assert isinstance(made, Completed), made
        sandbox_id = made.succeeded.env_reset.sandbox_id
        scored = await executor.run(attempt_of(suite(f"cd; {_DIG}", in_sandbox=True), sandbox_id=sandbox_id))
        assert isinstance(scored, Completed), scored
        assert scored.succeeded.reward.score == 1.0
        assert await _told(executor, sandbox_id, "ls -A /tmp") == ""


async def test_a_plain_command_may_leave_a_deep_tree(tmp_path: Path) -> None:
    settings = settings_for(Variant(Isolation.NONE, groups=False), tmp_path)
    async with _running(settings) as executor:
        made = await executor.run(attempt_of(reset(set_up=_DIG), resources={"memory": 256}))
        assert isinstance(made, Completed), made
        assert (await _told(executor, made.succeeded.env_reset.sandbox_id, _COUNT)).startswith(f"{_DEPTH} ")
    left = tmp_path.rglob("a-directory-with-a-name")  # noqa: ASYNC240 - nothing else runs
    assert not list(left)
