"""A runtime of verifiers that is a trajectory's sandbox. It is borrowed: `Agent.run(task, runtime=...)`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from callsheet.client import CallsheetError, TrajectoryEnd
from callsheet.environments.failures import NOBODYS_FAULT, failure_of
from callsheet.integrations.borrowed_sandbox import BorrowedSandbox, ProgramEnd
from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes import DockerConfig, ProgramResult, Runtime
from verifiers.v1.runtimes.docker import DockerRuntimeInfo


class CallsheetRuntime(Runtime):
    """One trajectory's sandbox. Its commands are env_steps, one after another; each has resources while it runs.

    Records of verifiers know a closed set of runtimes. There it is a Docker runtime, with the trajectory for its id.

    Args:
        sandbox: The trajectory and what its sandbox is to be.

    Attributes:
        end: How `stop` closes the trajectory.
        reason: Why, where it did not complete.
    """

    def __init__(self, sandbox: BorrowedSandbox) -> None:
        super().__init__(sandbox.trajectory.trajectory_id)
        self.sandbox = sandbox
        self.config = DockerConfig(image=sandbox.settings.image or "callsheet")
        self.info = DockerRuntimeInfo(**self.config.model_dump())
        self.info.id = f"{sandbox.trajectory.job_id}/{sandbox.trajectory.trajectory_id}"
        self.end = TrajectoryEnd.ABANDONED
        self.reason = ""

    async def start(self) -> None:
        """Opens the trajectory. The sandbox is made when it is first used."""
        with told_to_verifiers():
            await self.sandbox.open()

    async def prepare_setup(self) -> None:
        """Opens the trajectory of a runtime that was borrowed, so that a failure is told in the trace."""
        await self.start()
        await super().prepare_setup()

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Runs a program to its end."""
        with told_to_verifiers():
            return _result(await self.sandbox.run(argv, self.process_env(env)))

    async def run_program(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Runs an agent's main program, which may take `program_s`."""
        with told_to_verifiers():
            timeout_s = self.sandbox.settings.program_s
            return _result(await self.sandbox.run(argv, self.process_env(env), timeout_s=timeout_s))

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        """Starts a program that runs until the sandbox ends."""
        with told_to_verifiers():
            await self.sandbox.start_background(argv, self.process_env(env), log)

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        with told_to_verifiers():
            return await self.sandbox.read(path, max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file."""
        with told_to_verifiers():
            await self.sandbox.write(path, data)

    async def expose(self, port: int) -> str:
        """Refuses: ports of sandboxes are not published."""
        raise NotImplementedError(f"port {port}: a Callsheet sandbox publishes no ports; host the server elsewhere")

    async def teardown(self) -> None:
        """Closes the trajectory by how its run ended."""
        with told_to_verifiers():
            await self.sandbox.close(self.end, self.reason)


@contextmanager
def told_to_verifiers() -> Iterator[None]:
    """Raises verifiers' SandboxError for a failure of the service, so that the trace is no sample.

    Raises:
        SandboxError: The service failed, or the trajectory was closed.
        OSError: The task brought it about, for instance by a path that cannot be written.
        RefusedError: The caller's own mistake.
    """
    try:
        yield
    except CallsheetError as error:
        failure = failure_of(error)
        if failure is None:
            raise
        if failure.kind in NOBODYS_FAULT:
            raise SandboxError(str(failure)) from error
        raise OSError(str(failure)) from error


def _result(end: ProgramEnd) -> ProgramResult:
    return ProgramResult(end.exit_code, end.stdout, end.stderr)
