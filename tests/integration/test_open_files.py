"""Schedulers and sandbox managers may open as many files as the system allows; commands get what is usual there."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.open_files import MOST_OPEN_FILES
from callsheet.managers.sandbox.settings import Isolation

from tests.support.sandboxes import DOCKER_IMAGE, require_bubblewrap, require_docker

_USUAL = 300
_DEADLINE_S = 100.0
_LIMITS = "ulimit -Sn; ulimit -Hn"
_PROGRAM = """
import resource
import sys
from pathlib import Path

import anyio
from callsheet.managers.sandbox.backend import CommandSpec, SandboxSpec
from callsheet.managers.sandbox.build import build_backend
from callsheet.managers.sandbox.janitor import ManagerDirectory
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings


async def main() -> None:
    directory, isolation = Path(sys.argv[1]), Isolation(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    settings = SandboxSettings("m", directory, isolation=isolation, docker_image=sys.argv[4])
    backend = build_backend(settings, ManagerDirectory(directory, "m"))
    try:
        # The second launcher is started by a process that has raised its limit already.
        for name in ("s-1", "s-2"):
            sandbox = await backend.create(SandboxSpec(name, 256, 16, 16, settings.cores), lambda _: None)
            outcome = await sandbox.execute(CommandSpec(("/bin/sh", "-c", sys.argv[5])), anyio.Event())
            print(*outcome.stdout.decode().split())
            await sandbox.destroy()
            await backend.close()
    finally:
        await backend.close()
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


anyio.run(main)
"""

# More trajectories at once than this process may have files open; each has a command, and then it is over.
_MANY_RESETS = """
import resource
import sys
from collections import Counter
from pathlib import Path

import anyio
from callsheet.managers.executor import Broken, Completed
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from tests.support.sandbox_attempts import attempt_of, reset, step

ends = Counter()


async def live(executor, name: str) -> None:
    result = await executor.run(attempt_of(reset(trajectory=name), resources={"memory": 64}))
    if isinstance(result, Completed):
        made = next(each for each in executor.sandboxes() if each.trajectory_id == name)
        result = await executor.run(attempt_of(step("sleep 0.1", trajectory=name), sandbox_id=made.sandbox_id))
        await executor.release_sandbox(made)
    ends[result.failed.reason if isinstance(result, Broken) else type(result).__name__] += 1


async def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
    executor = build_sandbox_executor(SandboxSettings("m", Path(sys.argv[1]), isolation=Isolation.BUBBLEWRAP))
    try:
        async with anyio.create_task_group() as tasks:
            for number in range(int(sys.argv[3])):
                tasks.start_soon(live, executor, str(number))
    finally:
        await executor.close()
    print(dict(ends))


anyio.run(main)
"""


def most() -> int:
    """What a process that asks for many gets here."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)


def soft_limit(pid: int) -> int:
    """How many files a process may have open now."""
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]


@contextmanager
def started_with(limit: int) -> Iterator[None]:
    """Processes that start meanwhile have this limit to begin with."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def assert_limits(directory: Path, isolation: Isolation, of_a_command: str) -> None:
    """Starts a process with the usual limit that makes two sandboxes."""
    arguments = [str(directory), isolation.value, str(_USUAL), DOCKER_IMAGE, _LIMITS]
    command = [sys.executable, "-c", _PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    expected = [of_a_command, of_a_command, str(most())]
    assert (done.returncode, done.stdout.splitlines()[-3:]) == (0, expected), done.stdout + done.stderr


@pytest.mark.parametrize("isolation", [Isolation.BUBBLEWRAP, Isolation.NONE], ids=lambda isolation: isolation.value)
def test_commands_have_the_usual_limit_and_their_manager_the_most(isolation: Isolation, tmp_path: Path) -> None:
    if isolation is Isolation.BUBBLEWRAP:
        require_bubblewrap()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert_limits(tmp_path, isolation, f"{_USUAL} {'unlimited' if hard == resource.RLIM_INFINITY else hard}")


@pytest.mark.docker
def test_commands_in_containers_have_the_engines_limit_and_their_manager_the_most(tmp_path: Path) -> None:
    require_docker()
    import docker

    with closing(docker.from_env()) as client:
        said = client.containers.run(DOCKER_IMAGE, ["/bin/sh", "-c", _LIMITS], remove=True)
    assert_limits(tmp_path, Isolation.DOCKER, " ".join(said.decode().split()))


@pytest.mark.anyio
async def test_a_scheduler_takes_as_many_connections_as_the_system_allows(tmp_path: Path) -> None:
    with anyio.fail_after(_DEADLINE_S), started_with(_USUAL):
        async with local_stack(StackSettings(tmp_path, managers=(Role.NOOP,))) as stack:
            assert soft_limit(stack.pid(Role.SCHEDULER)) == most()


def test_resets_that_lack_open_files_wait_for_them(tmp_path: Path) -> None:
    require_bubblewrap()
    command = [sys.executable, "-c", _MANY_RESETS, str(tmp_path), "128", "90"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False, cwd=root)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["{'Completed': 90}"]), done.stdout + done.stderr
