"""Jobs of a sandbox's agent: their start, their end, and how they are made to end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.sandbox.agent_client.client import AgentConnection, AgentJob, AgentJobResult
from callsheet.managers.sandbox.agent_client.packets import memory_file
from callsheet.managers.sandbox.agent_client.parts import SandboxParts
from callsheet.managers.sandbox.cgroups import CommandLeaf, SandboxGroup
from callsheet.managers.sandbox.cgroups.files import is_gone
from callsheet.managers.sandbox.errors import SandboxDiedError, SandboxLostError, StoppedError
from callsheet.managers.sandbox.node_sharing import Lane
from callsheet.managers.sandbox.node_sharing.lanes import SandboxLanes

# A fork that had begun before its parent was changed is listed by then, however busy the cores are.
_FORK_S = 0.5

_SHORT_SECONDS = 0.01
_KILL_SECONDS = 3.0
# How long what was killed may take to end, on a machine that has no time for it.
_END_SECONDS = 10.0
_LOSS_SECONDS = 1.0
_KILL_AGAIN_SECONDS = 0.05
_LARGE_CONTENT = 1 << 16


class ForkWindow:
    """The time after a change in which the kernel may still come to list a process that it missed."""

    def __init__(self) -> None:
        """Nothing has been changed yet."""
        self._changed_at: float | None = None

    @property
    def open(self) -> bool:
        """True if a look is due."""
        return self._changed_at is not None

    def changed(self, now: float) -> None:
        """Notes the end of a change, complete or not; monotonic seconds."""
        self._changed_at = now

    def looked(self, begun_at: float) -> None:
        """Notes that all processes were changed again; closes the window unless that began too early."""
        if self._changed_at is not None and begun_at >= self._changed_at + _FORK_S:
            self._changed_at = None


_Result = TypeVar("_Result")
_Args = TypeVarTuple("_Args")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Process:
    """A process to start.

    Attributes:
        arguments: The program and its arguments.
        environment: All of its environment.
        working_directory: A checked path, see `paths`; empty for the sandbox's working directory.
        descriptors: What it gets, by the number that it gets it under; without 0 its standard input is empty.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    working_directory: str
    descriptors: Mapping[int, int]


class SandboxJobs:
    """Starts and ends jobs in one sandbox."""

    def __init__(
        self, connection: AgentConnection, parts: SandboxParts, give_up: Callable[[], Awaitable[None]]
    ) -> None:
        """Args:
        connection: To the sandbox's agent.
        parts: What its backend built.
        give_up: Destroys the sandbox; called when a job cannot be made to end.
        """
        self.connection = connection
        self.group = group = parts.group
        self.lanes = SandboxLanes(group, lambda: connection.pid, by_process=parts.by_process)
        self.frozen = False
        self._limits = dict(parts.limits)
        self._threads, self._copying = parts.threads, parts.copying
        self._pin = None if group is not None and group.pins_cores else parts.pin
        self._pins_each_process = self._pin is not None and parts.by_process
        self._cores: frozenset[int] | None = None
        self._pinned: frozenset[int] | None = None
        self._pins_begun = self._pins_ended = 0
        # Held while cores and freezing, or the lane, are changed: whoever comes last finds the newest.
        self._pinning, self._moving = anyio.Lock(), anyio.Lock()
        self._after_pin, self._after_move = ForkWindow(), ForkWindow()
        self._ending = 0
        self._give_up = give_up

    def check(self) -> None:
        """Raises SandboxLostError once the sandbox is gone."""
        if self.connection.loss is not None:
            raise SandboxLostError(self.connection.loss)

    async def blocking(self, function: Callable[[Unpack[_Args]], _Result], *args: *_Args) -> _Result:
        """Runs it in a worker thread; what fails because the sandbox ended meanwhile is told as its loss."""
        try:
            return await self.in_thread(function, *args)
        except OSError as error:
            await self.raise_loss(error)
            raise

    async def at_once(self, function: Callable[[Unpack[_Args]], _Result], *args: *_Args) -> _Result:
        """Does as `blocking` on this thread, for what the kernel answers at once."""
        try:
            return function(*args)
        except OSError as error:
            await self.raise_loss(error)
            raise

    async def counted(self, function: Callable[[Unpack[_Args]], _Result], *args: *_Args) -> _Result:
        """Does as `at_once` with groups; without them all processes are looked at, which takes a worker thread."""
        return await (self.blocking if self.group is None else self.at_once)(function, *args)

    async def copying(self, function: Callable[[Unpack[_Args]], _Result], *args: *_Args) -> _Result:
        """Does as `blocking` for what copies files, and keeps no other work from its threads."""
        try:
            return await anyio.to_thread.run_sync(function, *args, limiter=self._copying)
        except OSError as error:
            await self.raise_loss(error)
            raise

    async def raise_loss(self, error: OSError) -> None:
        """Raises SandboxLostError if something failed because the sandbox ended meanwhile."""
        if is_gone(error):
            # An engine removes the groups of a container that ended; its socket tells so at about the same time.
            with anyio.move_on_after(_LOSS_SECONDS):
                await self.connection.until_lost()
        if self.connection.loss is not None:
            raise SandboxLostError(self.connection.loss) from error

    async def in_thread(self, function: Callable[[Unpack[_Args]], _Result], *args: *_Args) -> _Result:
        """Runs it in a worker thread."""
        return await anyio.to_thread.run_sync(function, *args, limiter=self._threads)

    async def memory_file(self, content: bytes) -> int:
        """Returns a descriptor of a sealed memory file; the caller closes it."""
        if len(content) <= _LARGE_CONTENT:
            return memory_file("callsheet-content", content)
        return await self.blocking(memory_file, "callsheet-content", content)

    async def put_on_cores(self, cores: frozenset[int], *, thaw: bool = False) -> None:
        """Puts all that runs, and what is being started, on these cores; `thaw` thaws it as well, where groups do."""
        self._cores = cores
        self._pins_begun += 1
        try:
            await self._put_on_last_cores(thaw=thaw)
        finally:
            self._pins_ended += 1
            if self._pins_each_process:
                self._after_pin.changed(time.monotonic())

    async def freeze(self) -> int | None:
        """Freezes all that runs, and what is being started; returns what `held_mib` does."""
        self.check()
        self.frozen = True
        if self.group is None:
            await self.connection.signal(signal.SIGSTOP)
            return None
        empty = not self.connection.runs_commands and await self.at_once(self.group.is_empty)
        if not empty:
            await self._carry_out_freeze(self.group)
        return await self.at_once(partial(self.group.held_mib, empty=empty))

    async def held_mib(self) -> int | None:
        """Returns the MiB that the sandbox has and the kernel cannot take back; None if not known, or not frozen."""
        self.check()
        return await self.at_once(self.group.held_mib) if self.group is not None else None

    async def _carry_out_freeze(self, group: SandboxGroup) -> None:
        """Freezes the group, or thaws it if that came to be wanted meanwhile."""
        async with self._pinning:
            await self.blocking(lambda: group.freeze(self.frozen))

    async def thaw(self, cores: frozenset[int] | None = None) -> None:
        """Undoes `freeze`, and puts all on these cores before, if any are given."""
        self.check()
        self.frozen = False
        on_cores = self._pin is None or cores in (None, self._pinned)
        if self.group is not None and on_cores and not self._pinning.locked() and self.group.is_ready(cores):
            return
        if cores is not None:
            await self.put_on_cores(cores, thaw=True)
        elif self.group is not None:
            async with self._pinning:
                await self.blocking(self._put, None, not self.frozen)
        if self.group is None and not self.frozen:
            await self.connection.signal(signal.SIGCONT)

    async def end_all(self) -> None:
        """Kills everything but the agent, and returns when nothing of it is left.

        What was killed may still end a system call that it is in, such as a rename.

        Raises:
            SandboxDiedError: Something does not end; the sandbox is given up.
            SandboxLostError: It is gone.
        """
        self.check()
        with anyio.move_on_after(_END_SECONDS):
            await self.connection.end()
            return
        _log.warning("sandbox_did_not_stop", agent=self.connection.pid)
        await self._give_up()
        raise SandboxDiedError("what earlier commands left in it was killed and does not end")

    async def hold(self) -> bool:
        """Stops what commands left running, but nothing that begins later; returns whether all of it stands still."""
        self.check()
        if self.group is not None:
            return await self.blocking(self.group.hold)
        await self.connection.hold()
        return True

    async def let_go(self) -> None:
        """Undoes `hold`."""
        self.check()
        if self.group is not None:
            await self.blocking(self.group.let_go)
        else:
            await self.connection.let_go()

    async def remove_groups(self) -> None:
        """Removes the groups of a sandbox that ended, after a thaw that is on its way: it may make a leaf."""
        if self.group is not None:
            async with self._pinning:
                self.group.close()
                await self.in_thread(self.group.remove)

    async def take_leaf(self) -> CommandLeaf | None:
        """Returns a leaf for a command, the one that was prepared if it is not taken; None without groups."""
        if self.group is None:
            return None
        return self.group.take_leaf() or await self.blocking(self.group.new_leaf)

    async def give_back(self, leaf: CommandLeaf) -> None:
        """Keeps the leaf of a command that ended for the next one, or removes it unless background processes stay."""
        if self.group is None or not await self.at_once(self.group.give_back, leaf):
            await self.blocking(leaf.release)

    async def set_lane(self, lane: Lane) -> None:
        """Puts all that runs, and what is being started, into a lane; while something is to end, the foreground."""
        async with self._moving:
            self.check()
            if self._ending:
                lane = Lane.FOREGROUND
            if lane is self.lanes.lane:
                return
            try:
                await self.blocking(self.lanes.put, lane)
            finally:
                if self.lanes.by_process:
                    self._after_move.changed(time.monotonic())

    async def follow(self) -> None:
        """Changes processes again where they are changed one by one: a fork that had begun can escape that.

        In the background this is always done, as a session that begins there has a weight of its own.
        """
        self.check()
        now = time.monotonic()
        if self.lanes.must_follow or self._after_move.open:
            await self._put_into_last_lane()
            self._after_move.looked(now)
        if self._after_pin.open:
            await self._put_on_last_cores()
            self._after_pin.looked(now)

    async def _put_into_last_lane(self) -> None:
        async with self._moving:
            self.check()
            await self.blocking(self.lanes.put, self.lanes.lane)

    async def _put_on_last_cores(self, *, thaw: bool = False) -> None:
        async with self._pinning:
            self.check()
            try:
                await self.blocking(self._put, self._cores, thaw and not self.frozen)
            except ProcessLookupError as error:
                raise SandboxLostError("its first process is gone") from error

    def _put(self, cores: frozenset[int] | None, thaw: bool) -> None:
        """Blocks: puts everything on cores, and lets it go on there with the leaf of its next command made.

        All at once: to go to another thread and back takes longer than most of it, and every action begins with it.
        """
        if self.group is not None and cores is not None:
            self.group.set_cores(cores)
        if self._pin is not None and cores is not None:
            self._pinned = None
            self._pin(self.connection.pid, cores)
            self._pinned = cores
        if self.group is not None and thaw:
            self.group.prepare_leaf()
            self.group.freeze(False)

    async def start(self, process: Process, leaf: CommandLeaf | None) -> AgentJob:
        """Starts a process, in the lane and as frozen as the sandbox is. The descriptors stay the caller's."""
        details = {
            "argv": list(process.arguments),
            "env": dict(process.environment),
            "cwd": process.working_directory,
            "targets": list(process.descriptors),
            "limits": self._limits,
        }
        entries = leaf.entries if leaf is not None else []
        if self.frozen and self.group is not None:
            # An empty one was left as it is.
            await self._carry_out_freeze(self.group)
        ended = self._pins_ended
        follows = self.lanes.must_follow or self._pins_each_process
        descriptors = [*process.descriptors.values(), *entries]
        job = await self.connection.start("run", details, descriptors, tell_start=follows)
        if follows:
            # It began as its parent, the agent, was at the fork: in the foreground, and on the cores of that moment.
            await job.started.wait()
        if self.lanes.must_follow:
            await self._put_into_last_lane()
        if self._pins_each_process and self._pins_begun != ended:
            await self._put_on_last_cores()
        if self.frozen and self.group is None:
            # Without a group only what ran at the time of the pause was stopped.
            await self.connection.signal(signal.SIGSTOP)
        return job

    async def ask(
        self,
        operation: Literal["write", "read", "remove", "clear", "listen"],
        details: Mapping[str, object],
        descriptor: int,
        stop: anyio.Event,
    ) -> AgentJobResult:
        """Has the agent write or read a file or open a listening socket; the descriptor is closed.

        Raises:
            StoppedError: `stop` was set meanwhile.
            SandboxLostError: The sandbox is gone.
        """
        try:
            job = await self.connection.start(operation, details, [descriptor])
        finally:
            os.close(descriptor)
        result, stopped = await self._result(job, stop, lambda: self.connection.kill(job))
        if stopped:
            raise StoppedError
        return result

    async def finish(
        self, job: AgentJob, stop: anyio.Event, leaf: CommandLeaf | None, on_long: Callable[[], None]
    ) -> tuple[AgentJobResult, bool]:
        """Waits for the end of a process, or kills it once `stop` is set; returns the result and whether it was.

        `on_long` is called once the process has run for `_SHORT_SECONDS`.
        """
        return await self._result(job, stop, lambda: self.kill(leaf), on_long)

    async def _result(
        self,
        job: AgentJob,
        stop: anyio.Event,
        end: Callable[[], Awaitable[None]],
        on_long: Callable[[], None] = lambda: None,
    ) -> tuple[AgentJobResult, bool]:
        await self.until(job.finished, stop, end, on_long)
        if job.result is None:
            raise SandboxLostError(self.connection.loss or "its first process is gone")
        return job.result, stop.is_set()

    async def until(
        self,
        finished: anyio.Event,
        stop: anyio.Event,
        end: Callable[[], Awaitable[None]],
        on_long: Callable[[], None] = lambda: None,
    ) -> None:
        """Waits for `finished`; once `stop` is set, or when it is cancelled, `end` is to bring that about."""
        try:
            if not stop.is_set():
                # Most commands are short: the task that waits for `stop` would cost more than the wait.
                with anyio.move_on_after(_SHORT_SECONDS):
                    await finished.wait()
                    return
            on_long()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._end_on_request, finished, stop, end)
                await finished.wait()
                tasks.cancel_scope.cancel()
        except BaseException:
            if self.connection.loss is None and not finished.is_set():
                with anyio.move_on_after(_KILL_SECONDS, shield=True), contextlib.suppress(SandboxLostError):
                    await self._end_repeatedly(finished, end)
            raise

    async def kill(self, leaf: CommandLeaf | None) -> None:
        """Kills one command and what it started; without groups everything but the agent."""
        if leaf is not None:
            await self.blocking(leaf.kill)
        else:
            await self.connection.signal(signal.SIGKILL)

    async def _end_on_request(
        self, finished: anyio.Event, stop: anyio.Event, end: Callable[[], Awaitable[None]]
    ) -> None:
        await stop.wait()
        try:
            with anyio.move_on_after(_KILL_SECONDS):
                await self._end_repeatedly(finished, end)
        except SandboxLostError:
            return
        if not finished.is_set():
            _log.warning("sandbox_did_not_stop", agent=self.connection.pid)
            await self._give_up()

    async def _end_repeatedly(self, finished: anyio.Event, end: Callable[[], Awaitable[None]]) -> None:
        self._ending += 1
        try:
            while not finished.is_set():
                await end()
                await self._let_end()
                # Again, until it is over: a child that was just forked may not have been in its group yet.
                with anyio.move_on_after(_KILL_AGAIN_SECONDS):
                    await finished.wait()
        finally:
            self._ending -= 1

    async def _let_end(self) -> None:
        """Takes what was killed out of the background: to end takes CPU time, and there it may get none for seconds."""
        try:
            await self.set_lane(Lane.FOREGROUND)
        except OSError as error:
            _log.warning("lane_not_changed", agent=self.connection.pid, reason=str(error))
