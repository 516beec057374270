"""Trees so deep that no path and no recursion reaches their ends: of set-ups, rewards and plain commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from callsheet.managers.sandbox.files.directories import remove_directory
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.executor_runs import completed, printed, running_executor
from tests.support.sandbox_attempts import reset, suite
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


async def test_a_set_up_may_leave_a_deep_tree(settings: SandboxSettings) -> None:
    async with running_executor(settings) as executor:
        for _ in range(2):
            done = (await completed(executor, reset(set_up=_DIG), resources={"memory": 256})).env_reset
            assert await printed(executor, done.sandbox_id, _COUNT) == f"{_DEPTH} ['end', 'second'] 2 0o40500\n"
        assert done.set_up_reused == executor._backend.overlays
    # What is kept of it would be too deep for whatever else removes directories.
    remove_directory(settings.data_directory)


async def test_a_reward_may_leave_a_deep_tree_at_its_home(settings: SandboxSettings) -> None:
    async with running_executor(settings) as executor:
        sandbox_id = (await completed(executor, reset(), resources={"memory": 256})).env_reset.sandbox_id
        scored = await completed(executor, suite(f"cd; {_DIG}", in_sandbox=True), sandbox_id=sandbox_id)
        assert scored.reward.score == 1.0
        assert await printed(executor, sandbox_id, "ls -A /tmp") == ""


async def test_a_plain_command_may_leave_a_deep_tree(tmp_path: Path) -> None:
    settings = settings_for(Variant(Isolation.NONE, groups=False), tmp_path)
    async with running_executor(settings) as executor:
        made = await completed(executor, reset(set_up=_DIG), resources={"memory": 256})
        assert (await printed(executor, made.env_reset.sandbox_id, _COUNT)).startswith(f"{_DEPTH} ")
    left = tmp_path.rglob("a-directory-with-a-name")  # noqa: ASYNC240 - nothing else runs
    assert not list(left)
