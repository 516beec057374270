"""Sandboxes of one manager in this process: what each of its verbs takes while others live, beside the bare tool.

The bare tool is a first process in namespaces of its own, without an agent, limits, accounting or service. Without an
agent there is no way to run a second command in a living sandbox: each is a new one.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TypeVar

import anyio
import anyio.to_thread
import psutil
from callsheet.benchmarks.measuring.actions import NotMeasurableError, several_at_once
from callsheet.benchmarks.measuring.clock import timed
from callsheet.benchmarks.sandbox.settings import SandboxBenchSettings
from callsheet.managers.executor import Attempt, Completed
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandSpec, SandboxSpec
from callsheet.managers.sandbox.build import build_backend, build_sandbox_executor
from callsheet.managers.sandbox.cgroups.layout import find_layout
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.isolation.agent_backend import AgentBackend
from callsheet.managers.sandbox.isolation.bubblewrap import find_bwrap
from callsheet.managers.sandbox.janitor import ManagerDirectory
from callsheet.managers.sandbox.settings import POOL_UID_BASE, Isolation, SandboxSettings
from callsheet.v1 import action_pb2, common_pb2, manager_service_pb2

_WAIT_S = 60.0
_ECHO = b"here\n"
_MIB = 1 << 20
_TOOL = "bwrap"

T = TypeVar("T")
_TRUE = CommandSpec(("true",))
# Something in the background that does nothing, and a command that uses all it gets.
_NAP = CommandSpec(("/bin/sh", "-c", "sleep 86400 >/dev/null 2>&1 &"))
_BUSY = CommandSpec(("/bin/sh", "-c", "while :; do :; done"))
# Ten megabytes, in one file and in a thousand.
_LARGE = CommandSpec(("/bin/sh", "-c", "head -c 10000000 /dev/urandom > large"))
_SPLIT = "rm large; mkdir many; cd many; head -c 10000000 /dev/urandom | split -b 10000 -a 3"
_MANY = CommandSpec(("/bin/sh", "-c", _SPLIT))
_CLEAN = CommandSpec(("rm", "-r", "many"))
_FILLER = "filler"
_MAKER = "maker"


class BareToolError(Exception):
    """The bare tool did not do what was asked."""


@contextmanager
def _started(isolation: Isolation, *program: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a program as the tool alone does: bwrap as one would call it by hand, or a plain process."""
    if isolation is Isolation.NONE:
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
            yield process
        return
    found = find_bwrap()
    if found is None:
        raise BareToolError("there is no bwrap program")
    # By descriptor: another user, which it is where this one is root, might not be allowed into the directories above.
    descriptor = os.open(found, os.O_RDONLY)
    user = POOL_UID_BASE if os.geteuid() == 0 else None
    try:
        with subprocess.Popen(
            ["bwrap", *_options(), *program],
            executable=f"/proc/self/fd/{descriptor}",
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
            pass_fds=[descriptor],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        ) as process:
            yield process
    finally:
        os.close(descriptor)


def _options() -> Iterator[str]:
    yield from ("--unshare-all", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr")
    for name in ("bin", "lib", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    yield from ("--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/work", "--chdir", "/work", "--")


def create_s(isolation: Isolation) -> float:
    """Seconds from the start of a program that stays until it answers."""
    began = time.perf_counter()
    with _started(isolation, "cat") as process:
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        process.stdin.write(_ECHO)
        answer = process.stdout.read(len(_ECHO))
        took = time.perf_counter() - began
        process.stdin.close()
        status = process.wait(_WAIT_S)
    if answer != _ECHO or status != 0:
        raise BareToolError(f"cat answered {answer!r} and ended with {status}")
    return took


def exec_s(isolation: Isolation) -> float:
    """Seconds from the start of `true` to its end."""
    began = time.perf_counter()
    with _started(isolation, "true") as process:
        status = process.wait(_WAIT_S)
        took = time.perf_counter() - began
    if status != 0:
        raise BareToolError(f"true ended with {status}")
    return took


@dataclass(frozen=True, slots=True)
class IdleMemory:
    """Means over sandboxes, in MiB.

    Attributes:
        processes_mib: Private memory and the share of what is shared (PSS) of its first process and of the tool that
            holds it; None where that cannot be read.
        group_mib: What its group is charged with: kernel memory and files in memory too, but shared pages only where
            it touched them first; None without a memory group of its own.
    """

    processes_mib: float | None
    group_mib: float | None

    @property
    def mib(self) -> float | None:
        """The larger of both."""
        return max((each for each in (self.processes_mib, self.group_mib) if each is not None), default=None)


def idle_memory(first_processes: Sequence[int]) -> IdleMemory:
    """Measures sandboxes by the ids of their first processes."""
    return IdleMemory(
        _mean([_processes_mib(pid) for pid in first_processes]), _mean([_group_mib(pid) for pid in first_processes])
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _processes_mib(pid: int) -> float | None:
    try:
        first = psutil.Process(pid)
        around = [parent for parent in first.parents() if parent.name() == _TOOL]
        return float(sum(each.memory_full_info().pss for each in (first, *around))) / _MIB
    except psutil.Error:
        # The agent closes itself to its own user.
        return None


def _group_mib(pid: int) -> float | None:
    with suppress(OSError):
        charged = _charge_of_group(str(pid))
        # Without a group of its own it is in this process's, which is charged with everything.
        if charged is not None and charged != _charge_of_group("self"):
            return int(charged.read_text()) / _MIB
    return None


def _charge_of_group(process: str) -> Path | None:
    """Returns the file that says how much memory a sandbox's group is charged with, given its first process."""
    layout = find_layout(Path("/proc/self/mountinfo").read_text(), Path(f"/proc/{process}/cgroup").read_text())
    if layout is None:
        return None
    if "memory" in layout.controllers:
        return layout.controllers["memory"] / "memory.usage_in_bytes"
    # In version 2 the first process is in a leaf of its own, and the limit is on the group above.
    return layout.core.parent / "memory.current"


@dataclass(slots=True)
class Samples:
    """Seconds that each verb took, and the bare tool's; one entry a sample."""

    create: list[float] = field(default_factory=list)
    reset: list[float] = field(default_factory=list)
    first_exec: list[float] = field(default_factory=list)
    exec: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    switch: list[float] = field(default_factory=list)
    freeze: list[float] = field(default_factory=list)
    destroy: list[float] = field(default_factory=list)
    score: list[float] = field(default_factory=list)
    score_large: list[float] = field(default_factory=list)
    score_many: list[float] = field(default_factory=list)
    bare_create: list[float] = field(default_factory=list)
    bare_exec: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SandboxMeasurements:
    """Measurements with one number of sandboxes.

    Attributes:
        fill_s: Seconds to make all of them, several at once.
    """

    samples: Samples
    idle: IdleMemory
    fill_s: float
    capabilities: Mapping[str, str]


async def measure(settings: SandboxBenchSettings, sandboxes: int, directory: Path) -> SandboxMeasurements:
    """Measures with so many sandboxes live.

    Raises:
        SandboxCreateError: They cannot be made here.
        NotMeasurableError: An action or a command did not end well.
        BareToolError: The bare tool does not work here.
    """
    executor = build_sandbox_executor(manager_settings(settings, directory, _FILLER))
    try:
        own = manager_settings(settings, directory, _MAKER)
        home = ManagerDirectory(own.data_directory, own.manager_id)
        backend = build_backend(own, home)
        try:
            return await _Round(settings, sandboxes, executor, backend, own).measure()
        finally:
            await backend.close()
            home.release()
    finally:
        await executor.close()


def manager_settings(settings: SandboxBenchSettings, directory: Path, manager_id: str) -> SandboxSettings:
    """Returns the settings of a manager of the benchmark."""
    return SandboxSettings(manager_id, directory.resolve(), isolation=settings.isolation)


def spec_for(settings: SandboxBenchSettings, own: SandboxSettings) -> SandboxSpec:
    """Returns a new sandbox's specification."""
    return SandboxSpec(
        uuid.uuid4().hex, settings.memory_mib, own.default_disk_mib, own.default_max_processes, own.cores
    )


class _Round:
    """One number of sandboxes."""

    def __init__(
        self,
        settings: SandboxBenchSettings,
        sandboxes: int,
        executor: SandboxExecutor,
        backend: AgentBackend,
        own: SandboxSettings,
    ) -> None:
        self._settings = settings
        self._sandboxes = sandboxes
        self._executor = executor
        self._backend = backend
        self._own = own
        self._tokens = itertools.count(1)
        self._samples = Samples()

    async def measure(self) -> SandboxMeasurements:
        fill: list[float] = []
        with timed(fill):
            await self._fill()
        idle = idle_memory([sandbox.agent_pid for sandbox in self._living()])
        await self._make_and_unmake()
        await self._use()
        await self._reset_again()
        await self._score()
        await self._steer()
        await anyio.to_thread.run_sync(self._use_bare_tool)
        return SandboxMeasurements(self._samples, idle, fill[0], self._backend.capabilities())

    def _living(self) -> list[AgentSandbox]:
        return [found for state in self._executor.sandboxes() if (found := self._executor.find_sandbox(state))]

    async def _fill(self) -> None:
        await several_at_once(self._settings.concurrent, self._reset, range(self._sandboxes))

    async def _reset(self, trajectory: int) -> None:
        await self._act(action_pb2.ActionSpec(trajectory_id=str(trajectory), env_reset=action_pb2.EnvResetInput()))

    async def _act(self, action: action_pb2.ActionSpec, sandbox_id: str = "") -> None:
        number = next(self._tokens)
        action.job_id, action.action_id = "bench", str(number)
        grant = manager_service_pb2.Grant(
            token=manager_service_pb2.FencingToken(epoch=1, sequence=number),
            attempt=1,
            resources={"cpu": 1, "memory": self._settings.memory_mib},
            sandbox_id=sandbox_id,
        )
        result = await self._executor.run(Attempt(grant, action, _Inline()))
        if not isinstance(result, Completed):
            raise NotMeasurableError(f"{action.WhichOneof('payload')} ended with {result}")

    async def _make_and_unmake(self) -> None:
        """One more sandbox, several times."""
        for _ in range(self._settings.samples):
            with timed(self._samples.create):
                sandbox = await self._backend.create(spec_for(self._settings, self._own), lambda _: None)
            try:
                with timed(self._samples.first_exec):
                    await _run(sandbox, _TRUE)
            finally:
                with timed(self._samples.destroy):
                    await sandbox.destroy()

    async def _use(self) -> None:
        """Commands in sandboxes that wait, frozen, in turn: alone, and with all that an action does around them."""
        own = self._own.cores
        for sandbox in itertools.islice(itertools.cycle(self._living()), self._settings.samples):
            with timed(self._samples.step):
                await sandbox.grant(own)
                await sandbox.resume()
                with timed(self._samples.exec):
                    await _run(sandbox, _TRUE)
                await sandbox.pause()

    async def _reset_again(self) -> None:
        """A new sandbox for a trajectory that has one."""
        for number in range(self._settings.samples):
            with timed(self._samples.reset):
                await self._reset(number % self._sandboxes)

    async def _score(self) -> None:
        """A reward in an empty sandbox, and in turn with it in copies of one that holds ten megabytes."""
        state = self._executor.sandboxes()[0]
        tests = action_pb2.TestSuiteInput(command=action_pb2.Command(argv=action_pb2.Argv(arguments=_TRUE.arguments)))
        tests.files.add(path="test", content=common_pb2.Blob(inline=b"pristine"))
        reward = action_pb2.ActionSpec(
            trajectory_id=state.trajectory_id, reward=action_pb2.RewardInput(test_suite=tests)
        )
        sandbox = self._living()[0]
        for prepare, samples in ((_LARGE, self._samples.score_large), (_MANY, self._samples.score_many)):
            await sandbox.resume()
            await _run(sandbox, prepare)
            await sandbox.pause()
            for _ in range(self._settings.samples):
                with timed(self._samples.score):
                    await self._act(reward)
                with timed(samples):
                    await self._act(reward, state.sandbox_id)
        await sandbox.resume()
        await _run(sandbox, _CLEAN)
        await sandbox.pause()

    async def _steer(self) -> None:
        """Freezes a sandbox with something in the background, and moves a busy one between sets of cores."""
        sandbox = self._living()[0]
        await sandbox.resume()
        await _run(sandbox, _NAP)
        for _ in range(self._settings.samples):
            with timed(self._samples.freeze):
                await sandbox.pause()
            await sandbox.resume()
        every = sorted(self._own.cores)
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.execute, _BUSY, stop)
            for number in range(self._settings.samples):
                cores = frozenset(every[:1] if number % 2 == 0 else every)
                with timed(self._samples.switch):
                    await sandbox.grant(cores)
            stop.set()
        await sandbox.pause()

    def _use_bare_tool(self) -> None:
        for _ in range(self._settings.samples):
            self._samples.bare_create.append(create_s(self._settings.isolation))
            self._samples.bare_exec.append(exec_s(self._settings.isolation))


async def _run(sandbox: AgentSandbox, command: CommandSpec) -> None:
    outcome = await sandbox.execute(command, anyio.Event())
    if outcome.failed:
        words: Sequence[str] = command.arguments
        raise NotMeasurableError(f"{words} ended with {outcome.exit_code} or signal {outcome.signal}")


class _Inline:
    """Payloads that are all inline."""

    async def read(self, blob: common_pb2.Blob) -> bytes:
        return blob.inline

    async def write(self, content: bytes) -> common_pb2.Blob:
        return common_pb2.Blob(inline=content)
