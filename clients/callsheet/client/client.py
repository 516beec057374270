"""The client: opens jobs on a scheduler.

async with Client("127.0.0.1:7077") as client:
    job = await client.open_job("my-job")
    async with job.trajectory("t-1") as trajectory:
        await trajectory.env_reset()
        outcome = await trajectory.env_step(Command.shell("ls"))
    await job.close()
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from callsheet.client.backend import Backend
from callsheet.client.errors import ClientClosedError, invalid
from callsheet.client.job import Job
from callsheet.client.jobs import JobDescription, PriorityClass
from callsheet.client.per_loop import PerLoop
from callsheet.client.scheduler_backend import SchedulerBackend
from callsheet.client.settings import ClientOptions


class Client:
    """A scheduler's address and how to talk to it.

    Connects when it is first used, once per process and event loop; so it can be made anywhere, used from several loops
    at once, and pickled: a copy connects by itself. A broken connection is made again and resumed without losing or
    repeating an outcome. A process forked after its parent had connected cannot connect (ForkedProcessError).

    Attributes:
        target: The scheduler's address, "host:port".
        options: How to connect, wait and give up.
    """

    def __init__(self, target: str, options: ClientOptions | None = None) -> None:
        if not target:
            raise invalid("target", target, "an address, for instance 127.0.0.1:7077")
        self.target = target
        self.options = options or ClientOptions()
        self._closed = False
        self._backends: PerLoop[SchedulerBackend] = PerLoop()

    async def open_job(
        self,
        job_id: str,
        *,
        weight: float = 1.0,
        priority_class: PriorityClass = PriorityClass.TRAIN,
        max_actions: int | None = None,
        max_staleness: int | None = None,
    ) -> Job:
        """Opens a job; opening it again with the same arguments gives the same job. See `JobDescription`.

        Raises:
            AlreadyExistsError: It is open with other arguments.
            ConnectionLostError: There was no connection for too long.
        """
        await self.backend().open_job(JobDescription(job_id, weight, priority_class, max_actions, max_staleness))
        return Job(self, job_id)

    def job(self, job_id: str) -> Job:
        """Returns a job that is open already, for instance in another process."""
        return Job(self, job_id)

    async def aclose(self) -> None:
        """Closes the connections of all loops. Calls that wait raise ClientClosedError; accepted actions go on."""
        self._closed = True
        running = asyncio.get_running_loop()
        for loop, backend in self._backends.take_all().items():
            if loop is running:
                await backend.aclose()
            elif loop.is_running():
                loop.call_soon_threadsafe(backend.stop)

    async def __aenter__(self) -> Self:
        """Returns the client; it connects when it is first used."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the client."""
        await self.aclose()

    def backend(self) -> Backend:
        """Returns what carries requests out in the running loop.

        Raises:
            ClientClosedError: The client was closed.
            ForkedProcessError: gRPC cannot work in this process.
        """
        backend = self._backends.get()
        if backend is None or backend.is_over:
            if self._closed:
                raise ClientClosedError("the client is closed")
            backend = SchedulerBackend(self.target, self.options)
            self._backends.put(backend)
        return backend

    def __repr__(self) -> str:
        """The address."""
        return f"{type(self).__name__}({self.target!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the address and the options; connections stay here."""
        return {"target": self.target, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a client that has not connected yet."""
        self.__init__(state["target"], state["options"])  # type: ignore[misc]
