"""A runtime for verifiers: its programs run in a trajectory's sandbox.

The methods have the names and arguments of `verifiers.v1` runtimes. A subclass of theirs hands its calls on to this.
"""

from __future__ import annotations

from dataclasses import dataclass

from callsheet.client import (
    Command,
    CommandDefaults,
    Demand,
    InfraError,
    Job,
    SandboxFile,
    Staleness,
    TrajectoryEnd,
    Where,
)


class SandboxLostError(Exception):
    """Raised in place of verifiers' SandboxError: its trace is then no sample."""


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended."""

    exit_code: int
    stdout: str
    stderr: str


class CallsheetRuntime:
    """One trajectory's sandbox."""

    staleness = Staleness(max_versions=4)

    def __init__(self, job: Job, name: str, env: dict[str, str]) -> None:
        self.trajectory = job.trajectory(name, deadline_s=3600)
        self.env = env

    async def start(self) -> None:
        """Makes the sandbox."""
        await self.trajectory.open()
        defaults = CommandDefaults(environment=self.env, start_to_close_s=120)
        (await self.trajectory.env_reset(defaults=defaults)).unwrap()

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Runs a program to its end."""
        try:
            outcome = await self.trajectory.env_step(
                Command.argv(*argv, environment=env), demand=Demand(cpu=0.5), label=argv[0]
            )
            result = outcome.unwrap()
        except InfraError as error:
            raise SandboxLostError(str(error)) from error
        exit_code = -result.signal if result.signal else result.exit_code
        return ProgramResult(exit_code, result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace"))

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file."""
        (await self.trajectory.env_step(["true"], files=[SandboxFile(path, data)])).unwrap()

    async def read(self, path: str) -> bytes:
        """Reads a file; FileNotFoundError if there is none."""
        (file,) = (await self.trajectory.env_step(["true"], download=[path])).unwrap().downloads
        if file.content is None:
            raise FileNotFoundError(path)
        return file.content

    async def score(self, script: str) -> dict[str, float]:
        """Runs a script that writes named rewards as JSON."""
        outcome = await self.trajectory.reward_script(script, where=Where.IN_SANDBOX)
        return dict(outcome.unwrap().components)

    async def teardown(self) -> None:
        """Gives the sandbox back."""
        await self.trajectory.close(TrajectoryEnd.COMPLETED)
