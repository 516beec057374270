"""Callsheet's sandboxes for inspect-ai, which finds them by its entry point: `inspect eval ... --sandbox callsheet`."""

from __future__ import annotations

import logging
import secrets
from typing import Any, Final, Literal, overload

import anyio
from callsheet.client import CallsheetError, Command, Failed, FailureKind, NotFoundError, Reason, TrajectoryEnd
from callsheet.integrations.borrowed_sandbox import (
    BorrowedSandbox,
    BorrowedSandboxSettings,
    client_of,
    label_of,
    program_end,
)
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

logger = logging.getLogger(__name__)

_JOB: Final = "inspect"
# Inspect ends what takes too long itself; this ends what it has forgotten.
_LONGEST_S: Final = 86_400.0
_CLOSING_S: Final = 30.0


class CallsheetSandbox(BaseModel, frozen=True, extra="forbid"):
    """Settings of a sandbox: `SandboxEnvironmentSpec("callsheet", CallsheetSandbox(image="python:3.12"))`.

    Attributes:
        image: Its root file system; empty takes the manager's own.
        cpu: Cores of each command, while it runs.
        memory_mib: Its memory, files included; None takes the server's default.
        disk_mib: Disk space for files; None takes the server's default.
        network: Destinations that it may reach, "host:port"; none by default.
        working_directory: Directory from which relative paths begin; empty takes the image's, or the manager's.
        user: User as whom its commands run; empty takes the image's.
        scheduler: The scheduler's address, "host:port"; empty takes CALLSHEET_SCHEDULER.
        job: The job of the sandboxes. `inspect sandbox cleanup callsheet` closes "inspect".
    """

    image: str = ""
    cpu: float = 1.0
    memory_mib: int | None = None
    disk_mib: int | None = None
    network: tuple[str, ...] = ()
    working_directory: str = ""
    user: str = ""
    scheduler: str = ""
    job: str = _JOB


@sandboxenv(name="callsheet")
class CallsheetSandboxEnvironment(SandboxEnvironment):
    """The sandbox of one sample: a trajectory of its own. How many there are at once is the scheduler's to decide."""

    def __init__(self, sandbox: BorrowedSandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Makes the sandbox of a sample.

        Args:
            task_name: A part of its trajectory's id.
            config: A `CallsheetSandbox`, or the path of a JSON file of one, which is all that a text can be in Inspect.
            metadata: Not used.

        Raises:
            NotSucceededError: It cannot be made.
        """
        wanted = config if isinstance(config, CallsheetSandbox) else CallsheetSandbox()
        if isinstance(config, str):
            wanted = CallsheetSandbox.model_validate_json(await anyio.Path(config).read_bytes())
        about = wanted.model_dump(exclude={"scheduler", "job"})
        settings = BorrowedSandboxSettings(**about, command_s=_LONGEST_S)
        job = await client_of(wanted.scheduler).open_job(wanted.job)
        sandbox = BorrowedSandbox(job.trajectory(f"{task_name[:200]}.{secrets.token_hex(4)}"), settings)
        try:
            await sandbox.make()
        except BaseException:
            await _close(sandbox, TrajectoryEnd.ABANDONED)
            raise
        return {"default": cls(sandbox)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Ends the sandboxes of a sample, also where it was interrupted."""
        end = TrajectoryEnd.ABANDONED if interrupted else TrajectoryEnd.COMPLETED
        for each in environments.values():
            await _close(each.as_type(cls).sandbox, end)

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:  # noqa: A002 - Inspect's own name
        """Ends the sandbox of one trajectory of the job "inspect", or closes this job with all that it has."""
        job = client_of("").job(_JOB)
        try:
            await (job.close() if id is None else job.trajectory(id).cancel("inspect sandbox cleanup"))
        except NotFoundError:
            return

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Returns a sandbox's description of what a log has of it."""
        return CallsheetSandbox(**config)

    async def exec(  # noqa: PLR0917 - Inspect's own signature
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002 - Inspect's own name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,  # noqa: ASYNC109 - Inspect's own name
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command once: what has begun is not begun again, whatever `timeout_retry` says.

        Raises:
            SandboxUserUnsupportedError: The sandbox has another user.
            TimeoutError: The command took longer; its processes are gone.
            PermissionError: It may not be executed.
            OutputLimitExceededError: It wrote more than Inspect takes.
            CallsheetError: The service failed, or the sandbox is gone. It fails the sample and is shown to no model.
        """
        if user is not None and user not in await self.sandbox.own_user():
            own = " or ".join(map(repr, await self.sandbox.own_user()))
            raise SandboxUserUnsupportedError(f"user: {user!r}: must be {own}, the sandbox's one user")
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        stdin = input.encode() if isinstance(input, str) else input or b""
        command = Command.argv(*cmd, environment=env, working_directory=cwd or "", stdin=stdin, max_output_bytes=most)
        outcome = await self.sandbox.step(command, timeout, label=label_of(cmd))
        end = program_end(outcome)
        if isinstance(outcome, Failed) and outcome.kind is FailureKind.TIMEOUT:
            raise _timed_out(f"{cmd[0]}: took longer than {timeout} s", end.stdout)
        if isinstance(outcome, Failed) and outcome.reason is Reason.CANNOT_EXECUTE:
            raise PermissionError(outcome.message)
        result = outcome.partial if isinstance(outcome, Failed) else outcome.unwrap()
        if result is not None and (result.stdout_dropped_bytes or result.stderr_dropped_bytes):
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, end.stdout + end.stderr)
        return ExecResult(end.exit_code == 0, end.exit_code, end.stdout, end.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file, and the directories above it; raises the OSError that says why it cannot be written."""
        await self.sandbox.write(file, contents.encode() if isinstance(contents, str) else contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Returns a file.

        Raises:
            OSError: There is none, or it cannot be read, as its class and number tell.
            OutputLimitExceededError: It is larger than Inspect takes.
            UnicodeDecodeError: It is not text.
        """
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        content = await self.sandbox.read(file, most + 1)
        if len(content) > most:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return content.decode() if text else content


async def _close(sandbox: BorrowedSandbox, end: TrajectoryEnd) -> None:
    """Ends a sandbox even if the caller is being cancelled; what is not told in time ends with its job."""
    with anyio.move_on_after(_CLOSING_S, shield=True):
        try:
            await sandbox.close(end)
        except CallsheetError as error:
            logger.warning("left open: trajectory %s: %s", sandbox.trajectory.trajectory_id, error)


def _timed_out(message: str, output: str) -> TimeoutError:
    """Inspect shows a model what a command had printed by an attribute of its error."""
    error = TimeoutError(message)
    if output:
        error.truncated_output = output  # type: ignore[attr-defined]
    return error
