"""The parts of a sandbox, as a backend hands them to the client of its agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio
from callsheet.managers.sandbox.cgroups import SandboxGroup
from callsheet.managers.sandbox.files.changes import ChangedFiles


class FirstProcess(Protocol):
    """The first process of a sandbox, which a backend started. It ends once no process is left in the sandbox.

    The agent inside ends with its socket.
    """

    @property
    def ends_alone(self) -> bool:
        """Returns whether this process ended by itself while its starter still ran.

        Otherwise the starter's end ended this process and many others, and no process inside is at fault.
        """

    async def ran_out_of_memory(self) -> bool:
        """Returns whether this process ended because the memory was used up, as far as its starter knows.

        Call it at most once, before `finish`. Control groups of the sandbox that outlive the process report the same.
        """

    async def finish(self) -> None:
        """Waits for the end of this process, and kills a process that takes too long."""


@dataclass(frozen=True, slots=True)
class SandboxParts:
    """Parts of a sandbox that a backend built.

    Attributes:
        first_process: The process that the backend started.
        pin: Keeps everything below a process, the agent, on some cores if no group of the sandbox does. Called in a
            worker thread.
        by_process: Whether cores and lanes are changed process by process if no group of the sandbox does it; else
            `pin` changes all at once, and there are no lanes.
        group: Its control groups, if there are any.
        temporary: Its temporary directory as commands see it.
        agent_directory: The agent's program as commands see it.
        environment: The default environment of commands.
        packages: The directories of Python packages that every command finds, as commands see them.
        limits: Soft and hard resource limits of each command by their names in `resource`.
        clean_up: Called last, in a worker thread; removes what the backend made.
        threads: Bounds the worker threads of all sandboxes of a backend.
        copying: Bounds the worker threads that copy files: a tree that a policy made can take them for long.
        changes: Its changes in its overlays, if it has any.
        confined_to: The directories that absolute paths of files must be in; empty if its root is its own.
        files_at: Its working directory, as the manager sees it, if its root is not its own.
    """

    first_process: FirstProcess
    pin: Callable[[int, frozenset[int]], None]
    by_process: bool
    group: SandboxGroup | None
    temporary: str
    agent_directory: str
    environment: Mapping[str, str]
    packages: Sequence[str]
    limits: Mapping[str, tuple[int, int]]
    clean_up: Callable[[], None]
    threads: anyio.CapacityLimiter
    copying: anyio.CapacityLimiter
    changes: ChangedFiles | None = None
    confined_to: tuple[str, ...] = ()
    files_at: str = ""
