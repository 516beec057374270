"""A sandbox whose first process is the agent: what both backends have in common."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.sandbox.affinity import pin_tree
from callsheet.managers.sandbox.agent_client import AgentConnection, Job, JobResult
from callsheet.managers.sandbox.backend import (
    CommandOutcome,
    CommandSpec,
    FileRefusedError,
    FileSpec,
    SandboxLostError,
    SandboxSpec,
    StoppedError,
)
from callsheet.managers.sandbox.capture import OutputPipe
from callsheet.managers.sandbox.cgroups import CommandLeaf, SandboxGroup
from callsheet.managers.sandbox.lanes import SandboxLanes
from callsheet.managers.sandbox.launcher_client import Child, LauncherClient
from callsheet.managers.sandbox.metering import CommandMeter
from callsheet.managers.sandbox.node_sharing import Lane
from callsheet.managers.sandbox.packets import memory_file
from callsheet.managers.sandbox.refusals import cannot_execute, file_refused

_KILL_SECONDS = 3.0
_KILL_AGAIN_SECONDS = 0.05
_END_SECONDS = 5.0
_LARGE_CONTENT = 1 << 16
# Pipes that background processes still hold; beyond these the oldest is closed.
_MOST_HELD_PIPES = 32

_Result = TypeVar("_Result")
_Args = TypeVarTuple("_Args")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SandboxParts:
    """What a backend built.

    Attributes:
        child: The process that the launcher started; ends when nothing of the sandbox is left.
        group: Its control groups, where there are any.
        temporary: Its temporary directory as commands see it.
        agent_directory: The agent's program as commands see it.
        environment: The default environment of commands.
        limits: Resource limits of each command by their names in `resource`.
        clean_up: Called last, in a worker thread; removes what the backend made.
        threads: Bounds the worker threads of all sandboxes of a backend.
    """

    launcher: LauncherClient
    child: Child
    group: SandboxGroup | None
    temporary: str
    agent_directory: str
    environment: Mapping[str, str]
    limits: Mapping[str, int]
    clean_up: Callable[[], None]
    threads: anyio.CapacityLimiter


class AgentSandbox:
    """Implements `backend.Sandbox`."""

    def __init__(self, spec: SandboxSpec, connection: AgentConnection, parts: SandboxParts) -> None:
        """Args: connection: To an agent that said hello."""
        self._spec = spec
        self._connection = connection
        self._parts = parts
        self._held: list[OutputPipe] = []
        self._destroying = anyio.Lock()
        self._destroyed = False
        self._frozen = False
        self._lanes = SandboxLanes(parts.group, lambda: connection.pid)

    @property
    def spec(self) -> SandboxSpec:
        """What it was made as."""
        return self._spec

    @property
    def loss(self) -> str | None:
        """Why it is gone."""
        return self._connection.loss

    @property
    def lane(self) -> Lane:
        """The lane of its commands."""
        return self._lanes.lane

    @property
    def lane(self) -> Lane:
        """The lane of its commands."""
        return self._lanes.lane

    @property
    def agent_pid(self) -> int:
        """Its first process as this process sees it."""
        return self._connection.pid

    async def grant(self, cores: frozenset[int]) -> None:
        """Puts all its processes on these cores."""
        self._check()
        group = self._parts.group
        try:
            if group is not None and group.pins_cores:
                await self._blocking(group.set_cores, cores)
            else:
                await self._blocking(pin_tree, self.agent_pid, cores)
        except ProcessLookupError as error:
            raise SandboxLostError(self.loss or "its first process is gone") from error

    async def set_lane(self, lane: Lane) -> None:
        """Puts its commands into a lane; where that is done by process, again for what began meanwhile."""
        self._check()
        if lane is not self._lanes.lane or self._lanes.must_follow:
            await self._blocking(self._lanes.put, lane)

    async def attained_s(self) -> float:
        """CPU seconds of its commands so far."""
        self._check()
        return await self._blocking(self._lanes.attained_s)

    async def pause(self) -> None:
        """Freezes all its processes."""
        await self._set_frozen(True)

    async def resume(self) -> None:
        """Thaws them."""
        await self._set_frozen(False)

    async def write_file(self, file: FileSpec, stop: anyio.Event) -> None:
        """Writes a file or unpacks an archive, inside, by the agent."""
        content = await self._memory_file(file.content)
        try:
            details = {"path": file.path, "unpack": file.unpack, "mode": file.mode & 0o777}
            job = await self._connection.start("write", details, [content])
        finally:
            os.close(content)
        result, stopped = await self._finish(job, stop, None)
        if stopped:
            raise StoppedError
        if result.refused is not None:
            raise file_refused(file, *result.refused)
        if result.status != 0:
            raise FileRefusedError("disk_full", f"file {file.path[:200]!r}: its writer was killed")

    async def execute(self, command: CommandSpec, stop: anyio.Event) -> CommandOutcome:
        """Runs a command."""
        self._check()
        if stop.is_set():
            raise StoppedError
        meter = await self._blocking(CommandMeter.begin, self._parts.group)
        started = time.monotonic()
        pipes: tuple[OutputPipe, ...] = ()
        try:
            pipes = (OutputPipe(command.max_output_bytes), OutputPipe(command.max_output_bytes))
            job = await self._start_command(command, pipes, meter.leaf)
            if self._lanes.must_follow:
                # It began as its parent, the agent, in the foreground.
                await job.started.wait()
                await self.set_lane(self._lanes.lane)
            if self._frozen and self._parts.group is None:
                # Without a group only what ran at the time of the pause was stopped.
                await self._connection.signal(signal.SIGSTOP)
            result, stopped = await self._finish(job, stop, meter.leaf)
            wall_s = time.monotonic() - started
            for pipe in pipes:
                pipe.finish()
            if result.refused is not None:
                raise cannot_execute(command, *result.refused)
            outcome = await self._blocking(meter.outcome, result, pipes, wall_s)
            self._hold(pipes)
            return replace(outcome, stopped=stopped)
        except BaseException:
            for pipe in pipes:
                pipe.close()
            raise
        finally:
            if meter.leaf is not None:
                with anyio.CancelScope(shield=True):
                    await self._in_thread(meter.leaf.release)

    def temporary_path(self, name: str) -> str:
        """Returns the path of a temporary file as commands see it."""
        return f"{self._parts.temporary}/{name}"

    async def read_temporary(self, name: str, limit: int) -> bytes | None:
        """Returns a temporary file; None also for one that is longer than `limit`."""
        pipe = OutputPipe(limit)
        try:
            job = await self._connection.start(
                "read", {"area": "temporary", "path": name, "limit": limit + 1}, [pipe.write_end]
            )
            pipe.close_write_end()
            result, _ = await self._finish(job, anyio.Event(), None)
            pipe.finish()
            if result.refused is not None or result.status != 0 or pipe.buffer.dropped:
                return None
            return pipe.buffer.content()
        finally:
            pipe.close()

    async def kill(self) -> None:
        """Kills all commands and background processes."""
        self._check()
        await self._kill(None)

    async def destroy(self) -> None:
        """Ends it and removes everything."""
        with anyio.CancelScope(shield=True):
            async with self._destroying:
                if not self._destroyed:
                    self._destroyed = True
                    await self._end()

    async def _end(self) -> None:
        parts = self._parts
        self._connection.close("it was destroyed")
        for pipe in self._held:
            pipe.close()
        self._held.clear()
        if parts.group is not None:
            await self._in_thread(parts.group.kill)
        # The agent ends with its socket; whatever started it ends once nothing is left inside.
        with anyio.move_on_after(_END_SECONDS):
            await parts.child.ended.wait()
        if not parts.child.ended.is_set():
            _log.warning("sandbox_killed", sandbox_id=self._spec.sandbox_id)
            await parts.launcher.kill(parts.child)
            with anyio.move_on_after(_END_SECONDS):
                await parts.child.ended.wait()
        if parts.group is not None:
            await self._in_thread(parts.group.remove)
        await self._in_thread(parts.clean_up)

    def _check(self) -> None:
        if self._connection.loss is not None:
            raise SandboxLostError(self._connection.loss)

    async def _blocking(self, function: Callable[[Unpack[_Args]], _Result], *args: *_Args) -> _Result:
        """Runs it in a worker thread; what fails because the sandbox ended meanwhile is told as its loss."""
        try:
            return await self._in_thread(function, *args)
        except OSError as error:
            if self.loss is not None:
                raise SandboxLostError(self.loss) from error
            raise

    async def _in_thread(self, function: Callable[[Unpack[_Args]], _Result], *args: *_Args) -> _Result:
        return await anyio.to_thread.run_sync(function, *args, limiter=self._parts.threads)

    async def _memory_file(self, content: bytes) -> int:
        if len(content) <= _LARGE_CONTENT:
            return memory_file("callsheet-content", content)
        return await self._blocking(memory_file, "callsheet-content", content)

    async def _set_frozen(self, frozen: bool) -> None:
        self._check()
        self._frozen = frozen
        if self._parts.group is None:
            await self._connection.signal(signal.SIGSTOP if frozen else signal.SIGCONT)
            return
        await self._blocking(self._parts.group.freeze, frozen)

    async def _start_command(self, command: CommandSpec, pipes: Sequence[OutputPipe], leaf: CommandLeaf | None) -> Job:
        descriptors = [pipe.write_end for pipe in pipes]
        targets = [1, 2]
        stdin = await self._memory_file(command.stdin) if command.stdin else -1
        if stdin >= 0:
            descriptors.append(stdin)
            targets.append(0)
        if leaf is not None:
            descriptors += leaf.entries
        details = {
            "argv": list(command.arguments),
            "env": command_environment(self._parts.environment, command.environment),
            "cwd": command.working_directory,
            "targets": targets,
            "limits": dict(self._parts.limits),
        }
        try:
            return await self._connection.start("run", details, descriptors)
        finally:
            if stdin >= 0:
                os.close(stdin)
            for pipe in pipes:
                pipe.close_write_end()

    async def _finish(self, job: Job, stop: anyio.Event, leaf: CommandLeaf | None) -> tuple[JobResult, bool]:
        """Waits for the end of a job, or makes it end when `stop` is set; returns the result and whether it was."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_on_request, job, stop, leaf)
                await job.finished.wait()
                tasks.cancel_scope.cancel()
        except BaseException:
            if self.loss is None and not job.finished.is_set():
                with anyio.move_on_after(_KILL_SECONDS, shield=True):
                    await self._kill(leaf)
            raise
        if job.result is None:
            raise SandboxLostError(self.loss or "its first process is gone")
        return job.result, stop.is_set()

    async def _stop_on_request(self, job: Job, stop: anyio.Event, leaf: CommandLeaf | None) -> None:
        await stop.wait()
        try:
            with anyio.move_on_after(_KILL_SECONDS):
                while not job.finished.is_set():
                    await self._kill(leaf)
                    # Again, until it is over: a child that was just forked may not have been in its group yet.
                    with anyio.move_on_after(_KILL_AGAIN_SECONDS):
                        await job.finished.wait()
        except SandboxLostError:
            return
        if not job.finished.is_set():
            _log.warning("sandbox_did_not_stop", sandbox_id=self._spec.sandbox_id)
            await self.destroy()

    async def _kill(self, leaf: CommandLeaf | None) -> None:
        """Kills one command and what it started; without a leaf everything that the agent did not start itself."""
        group = self._parts.group
        if leaf is not None:
            await self._blocking(leaf.kill)
        elif group is not None:
            await self._blocking(group.kill_commands)
        else:
            await self._connection.signal(signal.SIGKILL)

    def _hold(self, pipes: Sequence[OutputPipe]) -> None:
        """Keeps reading pipes that background processes hold."""
        self._held = [pipe for pipe in (*self._held, *pipes) if pipe.is_open]
        while len(self._held) > _MOST_HELD_PIPES:
            self._held.pop(0).close()


def command_environment(default: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Returns a command's environment. An added PYTHONPATH comes before the sandbox's own instead of replacing it."""
    environment = {**default, **added}
    paths = [value for value in (added.get("PYTHONPATH"), default.get("PYTHONPATH")) if value]
    if paths:
        environment["PYTHONPATH"] = ":".join(paths)
    return environment
