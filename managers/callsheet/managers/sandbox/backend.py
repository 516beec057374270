"""The seam between what an action asks for and what isolates it: backends make sandboxes, sandboxes run commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import ge
from typing import TypeAlias

from callsheet.managers.sandbox.files.root_filesystem import RootFilesystem
from callsheet.managers.sandbox.memory_ledger import MemoryTerms
from callsheet.managers.sandbox.network.destinations import Destination

Sizes: TypeAlias = tuple[int, ...]
"""Sizes of one sandbox, see `SandboxSpec.sizes`, or of several in a row."""

# What programs print when a limit or a signal ended something in them. No kernel counts a disk that was full.
_WORDS_OF_LIMITS = (
    *(b"No space left on device", b"Disk quota exceeded", b"Cannot allocate memory", b"MemoryError", b"std::bad_alloc"),
    *(b"Resource temporarily unavailable", b"can't start new thread", b"Killed", b"Segmentation fault", b"Bus error"),
)


def suffices(had: Sizes, asked: Sizes) -> bool:
    """Returns whether a result made within some sizes holds for a request with others: none of these is larger."""
    return all(map(ge, had, asked))


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Specification of a new sandbox.

    Attributes:
        sandbox_id: Id, unique among the sandboxes of a manager; letters, digits, "-" and "_".
        memory_mib: Memory of all its processes and files together, in MiB.
        disk_mib: Size of its working directory, and again of its temporary directory, in MiB.
        max_processes: The most processes and threads of its commands together.
        cores: The cores it starts on.
        root: The files it begins with. Of an image everything can be written, within `disk_mib` together.
        network: Destinations that it can reach, through a proxy; none by default.
        terms: Terms on which it has its memory.
    """

    sandbox_id: str
    memory_mib: int
    disk_mib: int
    max_processes: int
    cores: frozenset[int]
    root: RootFilesystem = field(default_factory=RootFilesystem)
    network: tuple[Destination, ...] = ()
    terms: MemoryTerms = field(default_factory=MemoryTerms)

    @property
    def sizes(self) -> Sizes:
        """The limits that its commands can meet; a result of the commands may depend on them."""
        return self.memory_mib, self.disk_mib, self.max_processes


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
    """Language of a session."""

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
    """Use of a session by a step: the first, the last, both or neither."""

    started: bool
    ended: bool


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """A finished command.

    Attributes:
        exit_code: Minus the number of the signal that ended it, if one did.
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
        """Returns whether the command ended by a signal or with a non-zero exit code."""
        return self.exit_code != 0

    @property
    def met_limit(self) -> bool:
        """True if it or a process in it met a limit, a stop or a signal, as far as that is counted or printed.

        What it left, or reported, may be a part of what it leaves elsewhere.
        """
        counted = self.stopped or self.out_of_memory or self.process_limit or self.signal != 0
        return counted or any(word in output for output in (self.stdout, self.stderr) for word in _WORDS_OF_LIMITS)

    @property
    def end(self) -> str:
        """How it ended, in words."""
        return f"signal {self.signal}" if self.signal else f"exit code {self.exit_code}"
