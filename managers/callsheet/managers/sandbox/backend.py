"""The seam between what an action asks for and what isolates it: backends make sandboxes, sandboxes run commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

import anyio
from callsheet.managers.sandbox.images.source import ImageSource
from callsheet.managers.sandbox.network.destinations import Destination
from callsheet.managers.sandbox.node_sharing import Lane
from callsheet.managers.sandbox.root_filesystem import RootFilesystem


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a new sandbox is to be.

    Attributes:
        sandbox_id: Unique among the sandboxes of a manager; letters, digits, "-" and "_".
        memory_mib: Memory of all its processes and files together, in MiB.
        disk_mib: Size of its working directory, and again of its temporary directory, in MiB.
        max_processes: The most processes and threads of its commands together.
        cores: The cores it starts on.
        root: The files it begins with. Of an image everything can be written, within `disk_mib` together.
        network: What it can reach, through a proxy; nothing by default.
    """

    sandbox_id: str
    memory_mib: int
    disk_mib: int
    max_processes: int
    cores: frozenset[int]
    root: RootFilesystem = field(default_factory=RootFilesystem)
    network: tuple[Destination, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command to run.

    Attributes:
        arguments: The program and its arguments.
        environment: Variables added to the sandbox's own; PYTHONPATH is put before the sandbox's.
        working_directory: A checked path, see `paths`; empty for the sandbox's working directory.
        stdin: Its standard input.
        max_output_bytes: Bytes of stdout and of stderr to keep, each.
        home: Where set, it judges what ran before, so that nothing that was left may begin with it: this is its home,
            and of the sandbox's own variables those are left out that name what programs run at their start.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: str = ""
    stdin: bytes = b""
    max_output_bytes: int = 1 << 20
    home: str = ""


class SessionLanguage(Enum):
    """What runs in a session."""

    SHELL = "shell"
    PYTHON = "python"


@dataclass(frozen=True, slots=True)
class StepSpec:
    """Text to run in a persistent session.

    Attributes:
        session: Name of the session; each language has its own of a name.
        language: Of the text.
        text: Without NUL.
        max_output_bytes: Bytes of stdout and of stderr to keep, each.
        environment: Variables that are set in the session before the step, and stay.
        session_environment: Variables that the session begins with, if it begins with this step.
        directory: A checked path where the session begins, if it begins with this step.
    """

    session: str
    language: SessionLanguage
    text: str
    max_output_bytes: int = 1 << 20
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    session_environment: Mapping[str, str] = field(default_factory=dict)


class OutputName(Enum):
    """The outputs of a command, in the order of their descriptors."""

    STDOUT = "stdout"
    STDERR = "stderr"


OutputListener = Callable[[OutputName, bytes], None]
"""Gets what a command prints as it is read, on the event loop; must not block."""


@dataclass(frozen=True, slots=True)
class FileSpec:
    """A file to write.

    Attributes:
        path: A checked path, see `paths`.
        content: The bytes.
        unpack: They are an archive to unpack at the path.
        mode: Permission bits.
        directory: Nothing but a directory is made at the path, with those above it.
        replaces: Whatever is in its way is removed: what has its path, and links and files on the way to it.
    """

    path: str
    content: bytes = b""
    unpack: bool = False
    mode: int = 0o644
    directory: bool = False
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class SessionUse:
    """What a step was in its session: the first, the last, both or neither."""

    started: bool
    ended: bool


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """A finished command.

    Attributes:
        exit_code: Meaningless if `signal` is set.
        signal: What ended it; 0 if it exited by itself.
        stdout: Head and tail.
        stderr: Head and tail.
        stdout_dropped: Bytes left out of the middle.
        stderr_dropped: Bytes left out of the middle.
        wall_s: Seconds by the manager's clock.
        cpu_s: CPU seconds of the command and, as far as the backend can tell, everything it started.
        peak_memory_bytes: Largest memory use; of the whole sandbox where groups are used, else of one process.
        out_of_memory: A process was killed for the sandbox's memory limit meanwhile.
        process_limit: A fork was refused for the sandbox's limit of processes meanwhile.
        stopped: It was stopped on request.
        session: Set where it was a step of a session.
    """

    exit_code: int
    signal: int
    stdout: bytes
    stderr: bytes
    stdout_dropped: int
    stderr_dropped: int
    wall_s: float
    cpu_s: float
    peak_memory_bytes: int
    out_of_memory: bool = False
    process_limit: bool = False
    stopped: bool = False
    session: SessionUse | None = None

    @property
    def failed(self) -> bool:
        """Whether it ended by a signal or with a non-zero exit code."""
        return bool(self.signal or self.exit_code)

    @property
    def end(self) -> str:
        """How it ended, in words."""
        return f"signal {self.signal}" if self.signal else f"exit code {self.exit_code}"


class Sandbox(Protocol):
    """One live sandbox. Its actions come one after another; `pause`, `grant` and `destroy` may come at any time."""

    @property
    def spec(self) -> SandboxSpec:
        """What it was made as."""

    @property
    def loss(self) -> str | None:
        """Why it is gone; None while it lives."""

    @property
    def lane(self) -> Lane:
        """The lane of its commands."""

    @property
    def holds_safely(self) -> bool:
        """Whether nothing inside can undo `hold`, or look into processes of another command."""

    async def grant(self, cores: frozenset[int]) -> None:
        """Puts all its processes on these cores and no others.

        Raises:
            SandboxLostError: It is gone.
            OSError: The cores do not exist here.
        """

    async def set_lane(self, lane: Lane) -> None:
        """Puts its commands, and what they leave in the background, into a lane; it stays there.

        Raises:
            SandboxLostError: It is gone.
            OSError: The kernel refuses.
        """

    async def follow(self) -> None:
        """Does `grant` and `set_lane` again for what was being forked meanwhile, where that can escape them.

        Call it about once a second while commands run; it does nothing once nothing can have escaped.

        Raises:
            SandboxLostError: It is gone.
            OSError: The kernel refuses.
        """

    async def attained_s(self) -> float:
        """CPU seconds that its commands, and what they left in the background, have had since it was made.

        Raises:
            SandboxLostError: It is gone.
        """

    async def pause(self) -> None:
        """Freezes all its processes; they keep memory and state and get no CPU."""

    async def resume(self, cores: frozenset[int] | None = None) -> None:
        """Undoes `pause`.

        Args:
            cores: Where given, all its processes are put on these before, as by `grant`.

        Raises:
            SandboxLostError: It is gone.
            OSError: The cores do not exist here.
        """

    async def write_file(self, file: FileSpec, stop: anyio.Event) -> None:
        """Writes a file, making directories as needed; no symbolic link on the way to it is followed.

        Raises:
            FileRefusedError: The path, the archive or the space does not allow it.
            StoppedError: `stop` was set meanwhile.
            SandboxLostError: It is gone.
        """

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

    async def remove_directory(self, path: str) -> None:
        """Removes a directory with all that is in it, as far as that is possible in some seconds.

        Raises:
            SandboxLostError: The sandbox is gone.
        """

    async def remove_file(self, path: str, stop: anyio.Event) -> None:
        """Removes what has a path, and links on the way to it; raises what `write_file` raises."""

    async def execute(
        self, command: CommandSpec, stop: anyio.Event, on_output: OutputListener | None = None
    ) -> CommandOutcome:
        """Runs a command to its end, or to `stop`, which kills what it started, paused or not.

        Raises:
            CannotExecuteError: It did not start.
            StoppedError: `stop` was set before it started.
            SandboxLostError: The sandbox is gone.
        """

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

    def temporary_path(self, name: str) -> str:
        """Returns the path, as commands see it, of a file in the temporary directory."""

    async def read_temporary(self, name: str, limit: int) -> bytes | None:
        """Returns a file of the temporary directory, at most `limit` bytes of it; None if it is no regular file.

        Raises:
            SandboxLostError: It is gone.
        """

    async def has_processes(self) -> bool:
        """Whether anything runs in it, or is frozen, beside its first process."""

    async def save_changes(self, target: Path, limit_bytes: int) -> int:
        """Copies what its files differ in from those it began with into an empty directory; pause it before.

        Returns:
            The bytes that takes, about.

        Raises:
            ChangesTooLargeError: It is more than `limit_bytes`.
            SandboxLostError: It is gone, or was not made to keep its changes.
            OSError: It cannot be written.
        """

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

    async def hold(self) -> bool:
        """Stops all that its commands left running; what begins afterwards runs, and `pause` and `resume` keep to that.

        Returns:
            Whether all of it stands still; something may wait in the kernel instead, and then end what it was doing.

        Raises:
            SandboxLostError: It is gone.
        """

    async def let_go(self) -> None:
        """Undoes `hold`."""

    async def kill(self) -> None:
        """Kills all its commands and background processes, until none is left; the sandbox and its files stay.

        Raises:
            SandboxLostError: It is gone, or was given up because something does not end.
        """

    async def destroy(self) -> None:
        """Ends it and removes everything it left. Safe to call again."""

    def on_destroyed(self, release: Callable[[], None]) -> None:
        """Takes a function to call, on the event loop, once it was destroyed and nothing of it is left."""


class SandboxBackend(Protocol):
    """Makes sandboxes of one kind."""

    def capabilities(self) -> Mapping[str, str]:
        """What it isolates and limits, and what it does not, in words."""

    @property
    def overlays(self) -> bool:
        """Whether it can make sandboxes with images and snapshots (`RootFilesystem`) from directories."""

    @property
    def begins_with_copies(self) -> bool:
        """Whether it can make sandboxes with a `RootFilesystem.copy`; else their files are unpacked inside."""

    @property
    def images(self) -> ImageSource | None:
        """Images that it finds by their names, such as an engine's; None if it has none of its own."""

    async def create(self, spec: SandboxSpec, on_lost: Callable[[str], None]) -> Sandbox:
        """Makes a sandbox. `on_lost` is called once if it ends by anything but `destroy`.

        Raises:
            SandboxCreateError: It could not be made.
        """

    async def serve(self) -> None:
        """Does what its sandboxes need beside their actions, until it is cancelled; without it, they reach nothing."""

    async def close(self) -> None:
        """Releases what is shared by its sandboxes, which are destroyed before."""
