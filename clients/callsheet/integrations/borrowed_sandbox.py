"""A trajectory's sandbox as other programs' own loops use it. Nothing here imports such a program."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal

import anyio
from callsheet.client import (
    AlreadyExistsError,
    Client,
    Command,
    CommandDefaults,
    CommandResult,
    Demand,
    Failed,
    FailedPreconditionError,
    FailureKind,
    Hold,
    ImageBuild,
    NotFoundError,
    Outcome,
    Reason,
    Resource,
    SandboxFile,
    Succeeded,
    Timeouts,
    Trajectory,
    TrajectoryEnd,
)
from callsheet.environments.failures import NOBODYS_FAULT, EpisodeFailure, failure_of_outcome

logger = logging.getLogger(__name__)

_EXIT_CODES: Final = {
    Reason.NO_SUCH_PROGRAM.value: 127,
    Reason.CANNOT_EXECUTE.value: 126,
}
_TIMED_OUT, _KILLED, _FAILED = 124, 137, 125
_SIGNALLED: Final = 128
_IN_BACKGROUND: Final = 'log=$1; shift; "$@" >"$log" 2>&1 </dev/null &'
# Files are read and written by programs of the sandbox, as its user: any path of it will do. These programs end with an
# errno, or their last words tell it. Pipes are refused, as a step that waits for one keeps all others from the sandbox.
_READ: Final = f"""\
[ -e "$1" ] || exit {errno.ENOENT}
[ -d "$1" ] && exit {errno.EISDIR}
[ -f "$1" ] || exit {errno.EINVAL}
[ -r "$1" ] || exit {errno.EACCES}
[ "$2" -gt 1 ] || exec head -c "$3" <"$1"
command -v tail >/dev/null || {{ echo "no tail to read a large file with" >&2; exit {errno.EIO}; }}
tail -c "+$2" <"$1" | head -c "$3"
"""
_WRITE: Final = f"""\
[ -d "$1" ] && exit {errno.EISDIR}
[ -p "$1" ] && exit {errno.EINVAL}
case $1 in */*) mkdir -p -- "${{1%/*}}/" || exit {errno.EIO} ;; esac
cat >"$1" || exit {errno.EIO}
"""
_EXITS: Final = (errno.ENOENT, errno.EISDIR, errno.EINVAL, errno.EACCES)
_WORDS: Final = (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR)
PART_BYTES: Final = 8 << 20
"""Bytes of a file that one step reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BorrowedSandboxSettings:
    """Settings of a sandbox and of its commands.

    Attributes:
        image: Its root file system; empty takes the manager's own.
        environment: Variables of all its commands.
        cpu: Cores of each command.
        network: Destinations that it may reach, "host:port".
        command_s: The most seconds of a command; None takes the server's default.
        program_s: The most seconds of an agent's main program.
        max_output_bytes: Bytes of stdout and of stderr to keep, each.
        build: A Dockerfile from which the image is built, instead of `image`.
        making_s: The most seconds to make the sandbox; None takes the server's default.
        memory_mib: Memory of the sandbox, files included; None takes the server's default.
        memory: "guaranteed" keeps all of it for the sandbox as long as it lives.
        disk_mib: Disk space for files; None takes the server's default.
        working_directory: Directory from which relative paths begin; empty takes the sandbox's own.
        user: User as whom its commands run; empty takes the sandbox's own.
    """

    image: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    cpu: float = 1.0
    network: Sequence[str] = ()
    command_s: float | None = None
    program_s: float = 3600.0
    max_output_bytes: int = 4 << 20
    build: ImageBuild | None = None
    making_s: float | None = None
    memory_mib: int | None = None
    memory: Literal["guaranteed"] | None = None
    disk_mib: int | None = None
    working_directory: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended.

    Attributes:
        exit_code: As a shell tells it: above 128 for a signal, 124 for a time-out, 137 for a bound of its resources.
        stdout: What it wrote, as text.
        stderr: Likewise; where there was no program to write it, why.
    """

    exit_code: int
    stdout: str = ""
    stderr: str = ""


class BorrowedSandbox:
    """The sandbox of one trajectory. It is made when it is first used, unless an environment makes its own.

    Args:
        trajectory: Of its own; opened and closed here.
        settings: What the sandbox is to be.
    """

    def __init__(self, trajectory: Trajectory, settings: BorrowedSandboxSettings) -> None:
        self.trajectory = trajectory
        self.settings = settings
        self._making = anyio.Lock()
        self._made = False
        self._opened = False
        self._user: tuple[str, ...] | None = None

    async def open(self) -> None:
        """Opens the trajectory; once it is open, does nothing."""
        if not self._opened:
            await self.trajectory.open()
            self._opened = True

    def made_by_environment(self) -> None:
        """Notes that an environment resets the trajectory itself."""
        self._made = True

    async def run(
        self, argv: Sequence[str], environment: Mapping[str, str] | None = None, *, timeout_s: float | None = None
    ) -> ProgramEnd:
        """Runs a program to its end. What the program, or its task, brought about is an exit code.

        Args:
            argv: The program and its arguments.
            environment: Variables on top of the sandbox's own.
            timeout_s: The most seconds; None takes the settings'.

        Raises:
            NotSucceededError: The service failed, or the trajectory was closed.
        """
        most = self.settings.max_output_bytes
        command = Command.argv(*argv, environment=environment, max_output_bytes=most)
        return program_end(await self.step(command, timeout_s, label=label_of(argv)))

    async def start_background(self, argv: Sequence[str], environment: Mapping[str, str], log: str) -> None:
        """Starts a program that runs until the sandbox ends.

        Args:
            argv: The program and its arguments.
            environment: Variables on top of the sandbox's own.
            log: The file that its output goes to.

        Raises:
            NotSucceededError: There is no sandbox, or no shell in it.
        """
        command = Command.argv("sh", "-c", _IN_BACKGROUND, "sh", log, *argv, environment=environment)
        (await self.step(command, label="background")).unwrap()

    async def write(self, path: str, content: bytes) -> None:
        """Writes a file, and the directories above it.

        Raises:
            OSError: It cannot be written, as its class and number tell.
            NotSucceededError: There is no sandbox, or no shell in it.
        """
        await self._file(path, Command.argv("sh", "-c", _WRITE, "sh", path, stdin=content), "write")

    async def read(self, path: str, most: int | None = None) -> bytes:
        """Returns a file, or its first `most` bytes.

        Raises:
            OSError: There is none, or it cannot be read, as its class and number tell.
            NotSucceededError: There is no sandbox, or no shell in it.
        """
        content = bytearray()
        while True:
            wanted = PART_BYTES if most is None else min(PART_BYTES, most - len(content))
            words = ("sh", "-c", _READ, "sh", path, str(len(content) + 1), str(wanted))
            part = await self._file(path, Command.argv(*words, max_output_bytes=PART_BYTES), "read")
            content += part
            if len(part) < PART_BYTES or len(content) == most:
                return bytes(content)

    async def own_user(self) -> tuple[str, ...]:
        """Returns number and name of whom its commands run as; the number alone where it has no name."""
        if self._user is None:
            self._user = tuple((await self.run(["sh", "-c", "id -u; id -un 2>/dev/null"])).stdout.split())
        return self._user

    async def close(self, end: TrajectoryEnd, reason: str = "") -> None:
        """Closes the trajectory, which ends the sandbox; does nothing where it is not open."""
        if not self._opened:
            return
        try:
            await self.trajectory.close(end, reason=reason)
        except (AlreadyExistsError, FailedPreconditionError, NotFoundError) as refusal:
            logger.info("trajectory was closed trajectory=%s: %s", self.trajectory.trajectory_id, refusal)

    async def make(self) -> None:
        """Makes the sandbox, unless it is made.

        Raises:
            NotSucceededError: It cannot be made.
        """
        async with self._making:
            if self._made:
                return
            await self.open()
            of = self.settings
            memory = [Resource("memory", of.memory_mib, hold=Hold.TRAJECTORY)] if of.memory_mib else []
            outcome = await self.trajectory.env_reset(
                image=of.image,
                build=of.build,
                network=of.network,
                disk_mib=of.disk_mib,
                memory=of.memory,
                defaults=CommandDefaults(of.environment, of.working_directory, of.user),
                demand=Demand(*memory, cpu=1) if memory else None,
                timeouts=Timeouts(start_to_close_s=of.making_s),
                label="env_reset",
            )
            outcome.unwrap()
            self._made = True

    async def step(
        self,
        command: Command,
        timeout_s: float | None = None,
        *,
        files: Sequence[SandboxFile] = (),
        label: str,
    ) -> Outcome[CommandResult]:
        """Runs a command in the sandbox, which is made first.

        Args:
            command: What to run.
            timeout_s: The most seconds; None takes the settings'.
            files: Written before the command.
            label: Class of work.
        """
        await self.make()
        return await self.trajectory.env_step(
            command,
            files=files,
            label=label,
            demand=Demand(cpu=self.settings.cpu),
            timeouts=Timeouts(start_to_close_s=timeout_s or self.settings.command_s),
        )

    async def _file(self, path: str, command: Command, label: str) -> bytes:
        result = (await self.step(command, label=label)).unwrap()
        if result.exit_code == 0:
            return result.stdout
        told = result.stderr.decode(errors="replace").strip()[-500:] or "a signal ended its program"
        named = [each for each in _EXITS if each == result.exit_code]
        named += [each for each in _WORDS if os.strerror(each) in told]
        raise OSError(named[0], os.strerror(named[0]), path) if named else OSError(errno.EIO, told, path)


@lru_cache(maxsize=8)
def client_of(scheduler: str) -> Client:
    """Returns this process's client, as the environment's variables say; an empty address takes theirs, too."""
    return Client.from_env(target=scheduler)


def program_end(outcome: Outcome[Any]) -> ProgramEnd:
    """Returns how a program ended.

    Raises:
        NotSucceededError: That is the service's fault, or nobody's.
    """
    failure = failure_of_outcome(outcome)
    if failure is not None and failure.kind in NOBODYS_FAULT:
        outcome.unwrap()
    if isinstance(outcome, Succeeded):
        return _end_of(outcome.value)
    assert failure is not None
    partial = outcome.partial if isinstance(outcome, Failed) else None
    end = _end_of(partial) if partial is not None else ProgramEnd(0)
    return ProgramEnd(_exit_code(failure), end.stdout, f"{end.stderr}{failure}\n")


def label_of(argv: Sequence[str]) -> str:
    """Returns the class of work that a program is: its name without a path."""
    return argv[0].rsplit("/", 1)[-1][:64] if argv else ""


def _end_of(result: CommandResult) -> ProgramEnd:
    exit_code = _SIGNALLED + result.signal if result.signal else result.exit_code
    return ProgramEnd(exit_code, result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace"))


def _exit_code(failure: EpisodeFailure) -> int:
    if failure.kind is FailureKind.TIMEOUT:
        return _TIMED_OUT
    if failure.kind is FailureKind.RESOURCE_LIMIT:
        return _KILLED
    return _EXIT_CODES.get(failure.reason, _FAILED)
