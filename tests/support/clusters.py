"""A scheduler and no-op managers as real processes that tests kill and start again as they like."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
from callsheet.managers.supervision.processes import ChildProcess, ProcessSpec, describe_exit, run_process

from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
_GRACE_S = 20.0


class Part:
    """One process of a cluster.

    Attributes:
        name: For messages.
        starts: How often it was started.
    """

    def __init__(self, spec: ProcessSpec) -> None:
        self.name = spec.name
        self.starts = 0
        self._spec = spec
        self._process: ChildProcess | None = None
        self._exits = AsyncExitStack()

    @property
    def process(self) -> ChildProcess:
        """The process that runs now.

        Raises:
            LookupError: None does.
        """
        if self._process is None:
            raise LookupError(f"{self.name} does not run")
        return self._process

    async def start(self) -> None:
        """Starts it, and returns once it serves."""
        self._process = await self._exits.enter_async_context(run_process(self._spec, _GRACE_S))
        self.starts += 1

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal; no error if it has ended."""
        if self.process.returncode is None:
            os.kill(self.process.pid, number)

    async def wait(self) -> int:
        """Waits until it ends by itself; returns its exit code."""
        return await self.process.wait()

    async def kill(self) -> None:
        """Sends SIGKILL, and returns once it is gone."""
        self.process.kill()
        await self.process.wait()
        await self.stop()

    async def stop(self) -> str:
        """Sends SIGTERM unless it has ended, waits for the end, and says how it ended."""
        process, self._process = self._process, None
        exits, self._exits = self._exits, AsyncExitStack()
        await exits.aclose()
        return "never started" if process is None else describe_exit(process)


class Cluster:
    """A scheduler and managers, and where their files are.

    Attributes:
        directory: For data and logs.
        address: Where the scheduler listens, whether it runs or not.
        scheduler: The scheduler.
        managers: Each on a node of its own with one core.
    """

    def __init__(self, directory: Path, *, managers: int, lease_s: float, options: Sequence[str] = ()) -> None:
        """Starts nothing yet.

        Args:
            directory: For data and logs.
            managers: How many.
            lease_s: How long a manager may be silent.
            options: More of the scheduler's.
        """
        self.directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        self._parts: list[Part] = []
        times = ("--manager-lease", f"{lease_s:g}", "--heartbeat-interval", f"{lease_s / 10:g}")
        place = ("--listen", self.address, "--data-dir", str(directory / "data"), "--log-format", "json")
        self.scheduler = self.add("scheduler", "callsheet.cli.main", "scheduler", *place, *times, *options)
        self.managers = [self._add_manager(number) for number in range(managers)]

    def start_logs(self) -> list[Path]:
        """The files that list every start of an attempt, one for each manager that ever started one."""
        return sorted(self.directory.glob("starts-*.jsonl"))

    def start_log(self, manager: int) -> Path:
        """The file that lists what one manager started; none before it runs."""
        return self.directory / f"starts-m-{manager}.jsonl"

    def add(self, name: str, module: str, *arguments: str) -> Part:
        """Adds a process that is stopped with the cluster; it is not started yet."""
        spec = ProcessSpec(
            name=name,
            module=module,
            arguments=arguments,
            environment={"PYTHONPATH": str(ROOT)},
            log_path=self.directory / f"{name}.log",
        )
        self._parts.append(Part(spec))
        return self._parts[-1]

    async def start(self) -> None:
        """Starts the scheduler, then the managers."""
        await self.scheduler.start()
        async with anyio.create_task_group() as starts:
            for manager in self.managers:
                starts.start_soon(manager.start)

    async def stop(self) -> None:
        """Stops whatever runs, what was added last first."""
        for part in reversed(self._parts):
            await part.stop()

    def _add_manager(self, number: int) -> Part:
        name, start_log = f"m-{number}", str(self.start_log(number))
        return self.add(name, "tests.support.logging_manager", self.address, name, start_log)


@asynccontextmanager
async def open_cluster(
    directory: Path, *, managers: int, lease_s: float, options: Sequence[str] = ()
) -> AsyncIterator[Cluster]:
    """Runs a cluster for the length of the block; `options` are more of the scheduler's."""
    cluster = Cluster(directory, managers=managers, lease_s=lease_s, options=options)
    try:
        await cluster.start()
        yield cluster
    finally:
        with anyio.CancelScope(shield=True):
            await cluster.stop()
