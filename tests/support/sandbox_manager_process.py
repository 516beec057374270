"""A process that holds sandboxes, for tests that kill it; arguments: directory, isolation, groups, seconds to nap."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.executor_runs import completed
from tests.support.sandbox_attempts import reset
from tests.support.sandboxes import DOCKER_IMAGE

SANDBOXES = 3


def held_settings(directory: Path, isolation: Isolation, groups: bool) -> SandboxSettings:
    """Returns the settings of that manager."""
    return SandboxSettings(
        "killed-manager", directory, isolation=isolation, use_control_groups=groups, docker_image=DOCKER_IMAGE
    )


async def hold(executor: SandboxExecutor, nap: str) -> None:
    """Makes sandboxes with something in the background, says so and waits for ever."""
    for number in range(SANDBOXES):
        # The set-up ends, and the sandbox freezes, only once the sleep runs.
        napping = f"setsid sleep {nap} >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do :; done"
        action = reset(set_up=napping, trajectory=f"trajectory-{number}")
        await completed(executor, action, resources={"memory": 64})
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await anyio.sleep_forever()


def main() -> None:
    """Runs it."""
    directory, isolation, groups, nap = sys.argv[1:]
    settings = held_settings(Path(directory), Isolation(isolation), groups == "True")
    anyio.run(hold, build_sandbox_executor(settings), nap)


if __name__ == "__main__":
    main()
