"""A trajectory's sandbox as a trainer's own loop of tools uses it. Nothing here imports a trainer."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from callsheet.client import (
    AlreadyExistsError,
    Command,
    CommandDefaults,
    CommandResult,
    Demand,
    Failed,
    FailedPreconditionError,
    FailureKind,
    NotFoundError,
    Outcome,
    Reason,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BorrowedSandboxSettings:
    """What a sandbox is to be, and what its commands take.

    Attributes:
        image: Its root file system; empty takes the manager's own.
        environment: Variables of all its commands.
        cpu: Cores of each command.
        network: Destinations that it may reach, "host:port".
        command_s: The most seconds of a command; None takes the server's default.
        program_s: The most seconds of an agent's main program.
        max_output_bytes: Bytes of stdout and of stderr to keep, each.
    """

    image: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    cpu: float = 1.0
    network: Sequence[str] = ()
    command_s: float | None = None
    program_s: float = 3600.0
    max_output_bytes: int = 4 << 20


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
        return program_end(await self._step(command, timeout_s or self.settings.command_s, label=label_of(argv)))

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
        (await self._step(command, self.settings.command_s, label="background")).unwrap()

    async def write(self, path: str, content: bytes) -> None:
        """Writes a file; raises NotSucceededError if it cannot be written."""
        step = self._step(["true"], self.settings.command_s, files=[SandboxFile(path, content)], label="write")
        (await step).unwrap()

    async def read(self, path: str, most: int | None = None) -> bytes:
        """Returns a file, or its first `most` bytes.

        Raises:
            FileNotFoundError: There is none.
            OSError: It is no file, or too large to be returned whole.
            NotSucceededError: There is no sandbox.
        """
        if most is not None:
            return await self._read_head(path, most)
        (file,) = (
            (await self._step(["true"], self.settings.command_s, download=[path], label="read")).unwrap().downloads
        )
        if file.content is not None:
            return file.content
        if file.refusal == "missing":
            raise FileNotFoundError(path)
        raise OSError(f"{path}: {file.refusal}")

    async def close(self, end: TrajectoryEnd, reason: str = "") -> None:
        """Closes the trajectory, which ends the sandbox; does nothing where it is not open."""
        if not self._opened:
            return
        try:
            await self.trajectory.close(end, reason=reason)
        except (AlreadyExistsError, FailedPreconditionError, NotFoundError) as refusal:
            logger.info("trajectory was closed trajectory=%s: %s", self.trajectory.trajectory_id, refusal)

    async def _read_head(self, path: str, most: int) -> bytes:
        command = Command.argv("head", "-c", str(most), "--", path, max_output_bytes=max(1, most))
        result = (await self._step(command, self.settings.command_s, label="read")).unwrap()
        if result.exit_code != 0:
            raise FileNotFoundError(f"{path}: {result.stderr.decode(errors='replace').strip()[-500:]}")
        return result.stdout

    async def _step(
        self,
        command: Command | list[str],
        timeout_s: float | None,
        *,
        files: Sequence[SandboxFile] = (),
        download: Sequence[str] = (),
        label: str,
    ) -> Outcome[CommandResult]:
        await self._ready()
        return await self.trajectory.env_step(
            command,
            files=files,
            download=download,
            label=label,
            demand=Demand(cpu=self.settings.cpu),
            timeouts=Timeouts(start_to_close_s=timeout_s),
        )

    async def _ready(self) -> None:
        async with self._making:
            if self._made:
                return
            await self.open()
            of = self.settings
            defaults = CommandDefaults(environment=of.environment)
            outcome = await self.trajectory.env_reset(
                image=of.image, network=of.network, defaults=defaults, label="env_reset"
            )
            outcome.unwrap()
            self._made = True


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
