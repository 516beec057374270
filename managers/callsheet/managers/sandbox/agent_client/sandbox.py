"""A sandbox, whose first process is the agent."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import structlog
from callsheet.credentials.sandboxes import sandbox_source
from callsheet.managers.sandbox.agent_client.capture import OutputPipe
from callsheet.managers.sandbox.agent_client.client import AgentConnection
from callsheet.managers.sandbox.agent_client.commands import SandboxCommands
from callsheet.managers.sandbox.agent_client.jobs import SandboxJobs
from callsheet.managers.sandbox.agent_client.parts import SandboxParts
from callsheet.managers.sandbox.agent_client.refusals import file_refused, file_unreadable
from callsheet.managers.sandbox.agent_client.sessions import SandboxSessions
from callsheet.managers.sandbox.backend import (
    CommandOutcome,
    CommandSpec,
    FileSpec,
    OutputListener,
    SandboxSpec,
    StepSpec,
)
from callsheet.managers.sandbox.errors import (
    CopyRefusedError,
    FileRefusedError,
    SandboxCreateError,
    SandboxDiedError,
    SandboxLostError,
    SandboxOutOfMemoryError,
)
from callsheet.managers.sandbox.files.changes import ChangesTooLargeError, copy_working_directory
from callsheet.managers.sandbox.files.paths import is_below
from callsheet.managers.sandbox.files.root_filesystem import WORK
from callsheet.managers.sandbox.node_sharing import Lane
from callsheet.managers.sandbox.process_tree import has_children

_LISTENING_BYTES = 64
# What keeps a manager from copying files, and nothing that is in them.
_OWN_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EROFS})
_CLEAR_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class AgentSandbox:
    """One live sandbox. Its actions come one after another; `pause`, `grant` and `destroy` may come at any time.

    Attributes:
        source: From where its connections to the machine's loopback come.
    """

    def __init__(self, spec: SandboxSpec, connection: AgentConnection, parts: SandboxParts) -> None:
        """Args: connection: To an agent that said hello."""
        # Until it is somebody's, of no trajectory's.
        self.source = sandbox_source("", "")
        self._spec = spec
        self._connection = connection
        self._parts = parts
        self._jobs = SandboxJobs(connection, parts, self.destroy)
        self._commands = SandboxCommands(self._jobs, parts)
        self._sessions = SandboxSessions(self._jobs, parts.environment, parts.agent_directory)
        self._destroying = anyio.Lock()
        self._destroyed = False
        self._was_lost = self._ran_out_of_memory = False
        self._last_cpu_s = 0.0
        self._releases = ExitStack()

    @property
    def spec(self) -> SandboxSpec:
        """The specification that it was made with."""
        return self._spec

    @property
    def loss(self) -> str | None:
        """Returns why the sandbox is gone; None while it lives."""
        return self._connection.loss

    @property
    def lane(self) -> Lane:
        """The lane of its commands."""
        return self._jobs.lanes.lane

    @property
    def agent_pid(self) -> int:
        """Its first process as this process sees it."""
        return self._connection.pid

    @property
    def separates_commands(self) -> bool:
        """True if no command can look into the processes of another one."""
        return self._connection.separates_commands

    @property
    def holds_safely(self) -> bool:
        """True if nothing inside can undo `hold`, or look into processes of another command: they are in a group."""
        return self.separates_commands and self._parts.group is not None

    @property
    def entries(self) -> Sequence[Path]:
        """Files into which a process writes "0" to run on its account, and not in it; none if it has no groups."""
        return self._parts.group.entries if self._parts.group is not None else ()

    async def grant(self, cores: frozenset[int]) -> None:
        """Puts all its processes on these cores and no others.

        Raises:
            SandboxLostError: It is gone.
            OSError: The cores do not exist here.
        """
        await self._jobs.put_on_cores(cores)

    async def set_lane(self, lane: Lane) -> None:
        """Puts its commands, and what they leave in the background, into a lane; it stays there.

        Raises:
            SandboxLostError: It is gone.
            OSError: The kernel refuses.
        """
        await self._jobs.set_lane(lane)

    async def follow(self) -> None:
        """Does `grant` and `set_lane` again for what was being forked meanwhile, where that can escape them.

        Call it about once a second while commands run; it does nothing once nothing can have escaped.

        Raises:
            SandboxLostError: It is gone.
            OSError: The kernel refuses.
        """
        await self._jobs.follow()

    async def attained_s(self) -> float:
        """CPU seconds that its commands, and what they left in the background, have had since it was made.

        Raises:
            SandboxLostError: It is gone.
        """
        self._jobs.check()
        return await self._jobs.counted(self._jobs.lanes.attained_s)

    def untold_cpu_s(self) -> float:
        """CPU seconds of what `attained_s` counts since this was last asked; 0 where no group counts them."""
        group = self._parts.group
        last_s, self._last_cpu_s = self._last_cpu_s, 0.0
        return last_s + (group.untold_cpu_s() if group is not None else 0.0)

    async def pause(self) -> int | None:
        """Freezes all its processes; they keep memory and state and get no CPU. Returns what `held_mib` does."""
        return await self._jobs.freeze()

    async def held_mib(self) -> int | None:
        """Returns the MiB that it has and the kernel cannot take back; None if that is not counted, or it may grow."""
        return await self._jobs.held_mib()

    async def resume(self, cores: frozenset[int] | None = None) -> None:
        """Undoes `pause`.

        Args:
            cores: Where given, all its processes are put on these before, as by `grant`.

        Raises:
            SandboxLostError: It is gone.
            OSError: The cores do not exist here.
        """
        await self._jobs.thaw(cores)

    async def write_file(self, file: FileSpec, stop: anyio.Event) -> None:
        """Writes a file, making directories as needed; no symbolic link on the way to it is followed.

        Raises:
            FileRefusedError: The path, the archive or the space does not allow it.
            StoppedError: `stop` was set meanwhile.
            SandboxLostError: It is gone.
        """
        self._check_inside(file.path)
        content = await self._jobs.memory_file(file.content)
        details = {"path": file.path, "unpack": file.unpack, "mode": file.mode & 0o777}
        details |= {"directory": file.directory, "replaces": file.replaces}
        async with self._telling_its_end():
            result = await self._jobs.ask("write", details, content, stop)
        if result.refused is not None:
            raise file_refused(file, *result.refused)
        if result.status != 0:
            raise FileRefusedError("disk_full", f"file {file.path[:200]!r}: its writer was killed")

    async def remove_file(self, path: str, stop: anyio.Event) -> None:
        """Removes what has a path, and links on the way to it; raises what `write_file` raises."""
        self._check_inside(path)
        async with self._telling_its_end():
            result = await self._jobs.ask("remove", {"path": path}, await self._jobs.memory_file(b""), stop)
        if result.refused is not None:
            raise file_refused(FileSpec(path), *result.refused)

    async def remove_directory(self, path: str) -> None:
        """Removes a directory with all that is in it, as far as that is possible in some seconds.

        Raises:
            SandboxLostError: The sandbox is gone.
        """
        self._check_inside(path)
        async with self._telling_its_end():
            with anyio.move_on_after(_CLEAR_SECONDS):
                await self._jobs.ask("clear", {"path": path}, await self._jobs.memory_file(b""), anyio.Event())

    def _check_inside(self, path: str) -> None:
        """Refuses absolute paths that lead out of a sandbox which has no root of its own."""
        confined = self._parts.confined_to
        if confined and path.startswith("/") and not any(is_below(path, place) for place in confined):
            rule = f"without isolation must be in {' or '.join(confined)}"
            raise FileRefusedError("outside_sandbox", f"path {path[:200]!r}: {rule}")

    async def execute(
        self, command: CommandSpec, stop: anyio.Event, on_output: OutputListener | None = None
    ) -> CommandOutcome:
        """Runs a command to its end, or to `stop`, which kills what it started, paused or not.

        Raises:
            CannotExecuteError: It did not start.
            StoppedError: `stop` was set before it started.
            SandboxLostError: The sandbox is gone.
        """
        self._check_inside(command.working_directory)
        async with self._telling_its_end():
            return await self._commands.run(command, stop, on_output)

    async def run_step(
        self, step: StepSpec, stop: anyio.Event, on_output: OutputListener | None = None
    ) -> CommandOutcome:
        """Runs a step in its session, which begins if it is not there, to its end or to `stop`.

        `stop` kills what the step started and makes it return; where that does not work in time, or the sandbox is
        paused, it kills the session. The exit code of a step is that of its last command, or 1 for an exception.

        Raises:
            CannotExecuteError: The session could not begin.
            StoppedError: `stop` was set before it started.
            SandboxLostError: The sandbox is gone.
        """
        self._check_inside(step.directory)
        async with self._telling_its_end():
            return await self._sessions.run(step, stop, on_output)

    def temporary_path(self, name: str) -> str:
        """Returns the path, as commands see it, of a file in the temporary directory."""
        return f"{self._parts.temporary}/{name}"

    async def read_temporary(self, name: str, limit: int) -> bytes | None:
        """Returns a file of the temporary directory; None if it is no regular file, or longer than `limit`.

        Raises:
            SandboxLostError: It is gone.
        """
        try:
            return await self._read("temporary", name, limit, anyio.Event())
        except FileRefusedError:
            return None

    async def read_file(self, path: str, limit: int, stop: anyio.Event) -> bytes:
        """Returns a regular file; no symbolic link is followed.

        Args:
            path: A checked path, see `paths`.
            limit: The most bytes it may have.
            stop: Ends it.

        Raises:
            FileRefusedError: There is no such file, or it is too large.
            StoppedError: `stop` was set meanwhile.
            SandboxLostError: The sandbox is gone.
        """
        self._check_inside(path)
        return await self._read("work", path, limit, stop)

    async def _read(self, area: str, path: str, limit: int, stop: anyio.Event) -> bytes:
        pipe = OutputPipe(max(1, limit))
        pipe.watch()
        try:
            details = {"area": area, "path": path, "limit": limit + 1}
            async with self._telling_its_end():
                result = await self._jobs.ask("read", details, pipe.give_write_end(), stop)
            pipe.finish()
        finally:
            pipe.close()
        if result.refused is not None:
            raise file_unreadable(path, *result.refused)
        if result.status != 0:
            raise FileRefusedError("unreadable", f"file {path[:200]!r}: its reader was killed")
        if pipe.buffer.total > limit:
            raise FileRefusedError("too_large", f"file {path[:200]!r}: has more than {limit} bytes")
        return pipe.buffer.content()

    async def has_processes(self) -> bool:
        """Returns whether anything runs in it, or is frozen, beside its first process."""
        self._jobs.check()
        return await self._jobs.blocking(has_children, self.agent_pid)

    async def save_changes(self, target: Path, limit_bytes: int) -> int:
        """Copies what its files differ in from those it began with into an empty directory; pause it before.

        Returns:
            The bytes that takes, about.

        Raises:
            ChangesTooLargeError: It is more than `limit_bytes`.
            SandboxLostError: It is gone, or was not made to keep its changes.
            OSError: It cannot be written.
        """
        self._jobs.check()
        if self._parts.changes is None:
            raise SandboxLostError("it was not made to keep its changes")
        return await self._jobs.copying(self._parts.changes.save, target, limit_bytes)

    async def copy_files(self, target: Path, limit_bytes: int, stop: anyio.Event) -> int:
        """Copies its files into an empty directory, for `RootFilesystem.copy` of another one; pause it before.

        Those are what it changed of its image or kept set-up, or all of its working directory. Its temporary directory
        and its shared memory are left out, and so are caches of bytecode, which need not be those of the sources.

        Returns:
            The bytes that takes, about.

        Raises:
            CopyRefusedError: It is more than `limit_bytes`, or cannot be copied as it is.
            SandboxCreateError: There is no room for it, or it cannot be looked at from here.
            StoppedError: `stop` was set meanwhile.
            SandboxLostError: It is gone.
        """
        self._jobs.check()
        parts = self._parts
        # Below the root of its first process, which nothing inside can change.
        place = parts.files_at or f"/proc/{self.agent_pid}/root{WORK}"
        try:
            if parts.changes is not None:
                return await self._jobs.copying(parts.changes.copy, target, limit_bytes, stop.is_set)
            return await self._jobs.copying(copy_working_directory, place, target, limit_bytes, stop.is_set)
        except ChangesTooLargeError as error:
            raise CopyRefusedError("copy_too_large", str(error)) from error
        except OSError as error:
            if error.errno in _OWN_FAULTS:
                raise SandboxCreateError(f"the files of a sandbox could not be copied: {error}") from error
            message = f"the files of the sandbox could not be copied: {os.strerror(error.errno or errno.EIO)}"
            reason = "copy_too_large" if error.errno == errno.EFBIG else "not_copied"
            raise CopyRefusedError(reason, message) from error

    async def open_listener(self, port: int) -> socket.socket:
        """Returns a socket that listens on a port of its own loopback, made by the agent: check it.

        Raises:
            SandboxCreateError: The agent could not.
            SandboxLostError: It is gone.
        """
        own, other = socket.socketpair()
        with own:
            result = await self._jobs.ask("listen", {"port": port}, other.detach(), anyio.Event())
            own.setblocking(False)
            try:
                _, descriptors, _, _ = socket.recv_fds(own, _LISTENING_BYTES, 1)
            except BlockingIOError:
                descriptors = []
        if not descriptors:
            raise SandboxCreateError(f"its agent opened no port {port}: {result.refused or result.status}")
        return socket.socket(fileno=descriptors[0])

    def on_destroyed(self, release: Callable[[], None]) -> None:
        """Takes a function to call, on the event loop, once it was destroyed and nothing of it is left."""
        self._releases.callback(release)

    async def hold(self) -> bool:
        """Stops all that its commands left running; what begins afterwards runs, and `pause` and `resume` keep to that.

        Returns:
            Whether all of it stands still; something may wait in the kernel instead, and then end what it was doing.

        Raises:
            SandboxLostError: It is gone.
        """
        async with self._telling_its_end():
            return await self._jobs.hold()

    async def let_go(self) -> None:
        """Undoes `hold`."""
        await self._jobs.let_go()

    async def kill(self) -> None:
        """Kills all its commands and background processes, until none is left; the sandbox and its files stay.

        Raises:
            SandboxLostError: It is gone, or was given up because something does not end.
        """
        async with self._telling_its_end():
            await self._jobs.end_all()

    async def destroy(self) -> None:
        """Ends it and removes everything it left. Safe to call again."""
        with anyio.CancelScope(shield=True):
            async with self._destroying:
                if not self._destroyed:
                    self._destroyed = True
                    await self._end()

    @asynccontextmanager
    async def _telling_its_end(self) -> AsyncIterator[None]:
        """Reports a loss as out of memory if it was one: files fill the memory until the agent is killed too.

        That may be between two commands, so it is told by whether memory ever ran out. Otherwise the sandbox died under
        what runs in it, unless it was destroyed, or all end that were started with it.
        """
        try:
            yield
        except SandboxLostError as error:
            # Only what ended has final counts.
            await self.destroy()
            died_alone = self._was_lost and self._parts.first_process.ends_alone
            if self._ran_out_of_memory and died_alone:
                message = "the sandbox used up its memory, files included, and is gone"
                raise SandboxOutOfMemoryError(message) from error
            if died_alone:
                raise SandboxDiedError(f"the sandbox died while a command ran in it: {error}") from error
            raise

    async def _end(self) -> None:
        parts = self._parts
        self._was_lost = self.loss is not None
        self._connection.close("it was destroyed")
        self._commands.close()
        self._sessions.close()
        if parts.group is not None:
            await self._jobs.in_thread(parts.group.kill)
        self._ran_out_of_memory = self._was_lost and await parts.first_process.ran_out_of_memory()
        await parts.first_process.finish()
        if parts.group is not None:
            self._ran_out_of_memory |= parts.group.ran_out_of_memory()
            self._last_cpu_s += parts.group.untold_cpu_s()
            await self._jobs.remove_groups()
        if parts.changes is not None:
            parts.changes.close()
        await self._jobs.in_thread(parts.clean_up)
        self._releases.close()
