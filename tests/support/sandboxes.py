"""Real sandboxes for tests."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import psutil
import pytest
from callsheet.managers.sandbox.agent_client.program import AGENT_START
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, SandboxSpec
from callsheet.managers.sandbox.build import build_backend
from callsheet.managers.sandbox.cgroups import probe_layout
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.isolation.agent_backend import AgentBackend
from callsheet.managers.sandbox.isolation.docker_engine.container import AGENT_INSIDE, MANAGER_INSIDE, SOCKET_NAME
from callsheet.managers.sandbox.janitor import ManagerDirectory
from callsheet.managers.sandbox.probe import ProbeResult, probe_bubblewrap
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings, StageDirectory

from tests.support.waiting import until

# More in an emulated machine.
ANSWER_SECONDS = float(os.environ.get("CALLSHEET_TEST_ANSWER_S", "60"))
_STILL_SECONDS = 0.3
DOCKER_IMAGE = os.environ.get("CALLSHEET_TEST_DOCKER_IMAGE", "")


@dataclass(frozen=True)
class Variant:
    """A kind of sandbox: its isolation, and whether it uses control groups."""

    isolation: Isolation
    groups: bool

    @property
    def by_day(self) -> bool:
        """Whether its tests run in full in `make test`."""
        return self.groups == (self.isolation is not Isolation.NONE)

    def __str__(self) -> str:
        return f"{self.isolation.value}-{'groups' if self.groups else 'affinity'}"


def variants(*isolations: Isolation, others_by_night: bool = False) -> list[object]:
    """Returns the variants of some isolations on this machine; groups only where they can be made.

    By day isolated ones have groups and plain ones have none. The others run a sample of each test, as
    tests/support/samples.py has it, or nothing before the night where that is asked for.
    """
    groups = [True, False] if probe_layout() is not None else [False]

    def marks_of(variant: Variant) -> list[pytest.MarkDecorator]:
        by_night = others_by_night and len(groups) > 1 and not variant.by_day
        return [pytest.mark.docker] * (variant.isolation is Isolation.DOCKER) + [pytest.mark.nightly] * by_night

    found = [Variant(isolation, used) for isolation in isolations for used in groups]
    return [pytest.param(variant, marks=marks) if (marks := marks_of(variant)) else variant for variant in found]


@functools.cache
def _probe() -> ProbeResult:
    return probe_bubblewrap()


def require_bubblewrap() -> None:
    """Skips the test, saying why, where bubblewrap does not work."""
    result = _probe()
    if not result.works:
        pytest.skip(f"bubblewrap does not work here: {result.reason}")


@functools.cache
def _docker_problem() -> str:
    """Returns why sandboxes cannot be made in containers here; empty if they can."""
    try:
        from callsheet.managers.sandbox.isolation.docker_engine.engine import DockerEngine
    except ModuleNotFoundError as error:
        return f"{error}; pip install '.[docker]'"
    try:
        engine = DockerEngine()
    except SandboxCreateError as error:
        return str(error)
    try:
        if not DOCKER_IMAGE:
            return "CALLSHEET_TEST_DOCKER_IMAGE is not set: it must name an image on the engine that has a python3"
        engine.image_environment(DOCKER_IMAGE)
    except SandboxCreateError as error:
        return str(error)
    finally:
        engine.close()
    return ""


def require_docker() -> None:
    """Skips the test, saying why, where there is no Docker engine or no image."""
    if _docker_problem():
        pytest.skip(f"sandboxes in containers cannot be made here: {_docker_problem()}")


def settings_for(variant: Variant, directory: Path, stages: tuple[StageDirectory, ...] = ()) -> SandboxSettings:
    """Returns settings; skips where the variant's isolation does not work."""
    if variant.isolation is Isolation.BUBBLEWRAP:
        require_bubblewrap()
    if variant.isolation is Isolation.DOCKER:
        require_docker()
    return SandboxSettings(
        manager_id="test-manager",
        data_directory=directory,
        isolation=variant.isolation,
        stages=stages,
        use_control_groups=variant.groups,
        docker_image=DOCKER_IMAGE,
    )


@asynccontextmanager
async def open_backend(settings: SandboxSettings) -> AsyncIterator[AgentBackend]:
    """Runs a backend."""
    directory = ManagerDirectory(settings.data_directory, settings.manager_id)
    backend = build_backend(settings, directory)
    try:
        yield backend
    finally:
        await backend.close()
        directory.release()


def tells(settings: SandboxSettings, controller: str) -> bool:
    """Returns whether a group limits memory or processes ("memory", "pids"), and so tells when the limit is met."""
    layout = probe_layout() if settings.use_control_groups else None
    return layout is not None and controller in layout.controllers


def spec_for(
    settings: SandboxSettings,
    sandbox_id: str = "one",
    *,
    memory_mib: int = 256,
    disk_mib: int = 32,
    max_processes: int = 64,
) -> SandboxSpec:
    """Returns a small sandbox's specification."""
    return SandboxSpec(sandbox_id, memory_mib, disk_mib, max_processes, settings.cores)


@asynccontextmanager
async def open_sandbox(settings: SandboxSettings, spec: SandboxSpec | None = None) -> AsyncIterator[AgentSandbox]:
    """Runs a backend with one sandbox."""
    async with open_backend(settings) as backend:
        sandbox = await backend.create(spec or spec_for(settings), lambda _: None)
        try:
            yield sandbox
        finally:
            await sandbox.destroy()


@asynccontextmanager
async def open_sandboxes(settings: SandboxSettings, *names: str, **bounds: int) -> AsyncIterator[list[AgentSandbox]]:
    """Runs a backend with a sandbox of each name; `bounds` are those of `spec_for`."""
    async with open_backend(settings) as backend, AsyncExitStack() as made:
        sandboxes = []
        for name in names:
            sandboxes.append(await backend.create(spec_for(settings, name, **bounds), lambda _: None))
            made.push_async_callback(sandboxes[-1].destroy)
        yield sandboxes


async def run(
    sandbox: AgentSandbox, *arguments: str, environment: Mapping[str, str] | None = None, stdin: bytes = b""
) -> CommandOutcome:
    """Runs a command to its end."""
    command = CommandSpec(arguments, environment=environment or {}, stdin=stdin)
    with anyio.fail_after(ANSWER_SECONDS):
        return await sandbox.execute(command, anyio.Event())


async def shell(sandbox: AgentSandbox, script: str) -> str:
    """Runs a shell script that must succeed; returns its output."""
    outcome = await run(sandbox, "/bin/sh", "-c", script)
    assert not outcome.failed, (outcome.exit_code, outcome.signal, outcome.stderr)
    return outcome.stdout.decode()


async def python(sandbox: AgentSandbox, code: str) -> str:
    """Runs Python code that must succeed; returns its output."""
    outcome = await run(sandbox, "python3", "-I", "-c", code)
    assert not outcome.failed, (outcome.exit_code, outcome.signal, outcome.stderr)
    return outcome.stdout.decode()


async def until_file(sandbox: AgentSandbox, name: str) -> None:
    """Waits, inside, until a file is in the working directory."""
    await shell(sandbox, f"while [ ! -e {name} ]; do sleep 0.01; done")


def running_commands() -> list[tuple[psutil.Process, list[str]]]:
    """Returns all processes below this one and in containers, however deep in sandboxes, with their command lines."""
    agents = _agents_in_containers()
    found = []
    for process in (*agents, *(below for root in (psutil.Process(), *agents) for below in _below(root))):
        with suppress(psutil.NoSuchProcess):
            line = process.cmdline()
            if line and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process, line))
    return found


def _below(root: psutil.Process) -> list[psutil.Process]:
    while root.is_running():
        with suppress(psutil.NoSuchProcess):
            return root.children(recursive=True)
    return []


def _agents_in_containers() -> list[psutil.Process]:
    """They are children of the engine."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if {f"{AGENT_INSIDE}/{AGENT_START}", f"{MANAGER_INSIDE}/{SOCKET_NAME}"} <= set(process.info["cmdline"] or ())
    ]


async def until_still(cpu_s: Callable[[], float]) -> None:
    """Waits until some processes use no CPU time any more.

    What is stopped or frozen stands still only once the kernel has run it for the last time, and that for a while
    counts in ticks. A process that goes on is seen in every look.

    Raises:
        TimeoutError: They go on.
    """
    with anyio.fail_after(ANSWER_SECONDS):
        while True:
            before = cpu_s()
            await anyio.sleep(_STILL_SECONDS)
            if cpu_s() == before:
                return


def _sleepers() -> list[list[str]]:
    return [line for _, line in running_commands() if line[0].endswith("sleep")]


async def until_sleepers_are(expected: list[list[str]]) -> None:
    """Waits until exactly these sleep commands run below this process; a killed process takes a moment to end."""
    await until(lambda: _sleepers() == expected, every_s=0.01)


def wake_sleepers() -> None:
    """Ends all sleep commands below this process from outside: what waits for them goes on, whatever else is frozen."""
    for process, line in running_commands():
        if line[0].endswith("sleep"):
            process.terminate()
