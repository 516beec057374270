"""The client: opens jobs on a scheduler.

async with await Client.connect("127.0.0.1:7077") as client:
    job = await client.open_job("my-job")
    async with job.trajectory("t-1") as trajectory:
        await trajectory.env_reset()
        outcome = await trajectory.env_step("ls")
    await job.close()
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from callsheet.client.backend import Backend
from callsheet.client.errors import CallsheetError, ClientClosedError, NotFoundError, RefusalCode, RefusedError, refused
from callsheet.client.job import Job
from callsheet.client.per_loop import PerLoop
from callsheet.client.session.scheduler_backend import SchedulerBackend
from callsheet.client.session.target import check_target, from_environment
from callsheet.client.settings import ClientOptions
from callsheet.client.step_summary import StepTallies
from callsheet.client.words.arguments import instance, optional
from callsheet.client.words.jobs import FailurePolicy, JobDescription, Opening, PriorityClass, Staleness
from callsheet.client.words.status import JobStatus

logger = logging.getLogger("callsheet.client")


class Client:
    """A scheduler's address and how to talk to it.

    Connects when it is first used, once per process and event loop; so it can be made anywhere, used from several loops
    at once, and pickled: a copy connects by itself. A broken connection is made again and resumed without losing or
    repeating an outcome. A process forked after its parent had connected cannot connect (ForkedProcessError).

    Attributes:
        target: The scheduler's address, "host:port".
        options: How to connect, wait and give up.
        steps: What was counted of its jobs' actions, for `Job.step_summary`.
    """

    def __init__(self, target: str, options: ClientOptions | None = None) -> None:
        """Notes the address; raises InvalidArgumentError if it is none."""
        self.options = ClientOptions() if options is None else options
        self.target = check_target(target, self.options)
        self.steps = StepTallies()
        self._closed = False
        self._opened: set[str] = set()
        self._backends: PerLoop[SchedulerBackend] = PerLoop()

    @classmethod
    async def connect(cls, target: str, options: ClientOptions | None = None) -> Self:
        """Returns a client that has connected, and that the scheduler serves.

        Args:
            target: The scheduler's address, "host:port".
            options: How to connect, wait and give up.

        Raises:
            InvalidArgumentError: The address is none.
            ConnectionLostError: No scheduler answered within `connect_timeout_s`.
            FailedPreconditionError: The scheduler or this client is too old for the other.
        """
        client = cls(target, options)
        try:
            await client.backend().connect()
        except BaseException:
            await client.close()
            raise
        return client

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, *, target: str | None = None) -> Self:
        """Returns a client as environment variables say; it connects when it is first used.

        CALLSHEET_SCHEDULER is the address (127.0.0.1:7077), CALLSHEET_TOKEN or CALLSHEET_TOKEN_FILE the token,
        CALLSHEET_TLS_CA, CALLSHEET_TLS_CERT and CALLSHEET_TLS_KEY are the files of `Tls`; "system" in place of the
        first stands for the authorities that the operating system trusts. CALLSHEET_GATEWAY is the gateway's URL.
        CALLSHEET_USE_PROXY=1 reaches both through the proxy that the environment names.

        Args:
            environ: The variables; None takes those of the process.
            target: An address in place of the variable's; None or empty takes that.

        Raises:
            InvalidArgumentError: A variable is wrong.
        """
        named, options = from_environment(os.environ if environ is None else environ)
        return cls(target or named, options)

    async def open_job(
        self,
        job_id: str,
        *,
        share: float = 1.0,
        priority_class: PriorityClass = PriorityClass.TRAIN,
        max_actions: int | None = None,
        staleness: Staleness | None = None,
        grace_s: float | None = None,
        detached: bool = False,
        idle_timeout_s: float | None = None,
        dead_sandbox_is_infra: bool = False,
        max_buffered: int | None = None,
        failure_policy: FailurePolicy | None = None,
        new: bool = False,
    ) -> Job:
        """Opens a job; opening it again with the same arguments attaches to it, which `Job.opening` tells.

        Args:
            job_id: 1 to 256 characters, unique in the scheduler.
            share: Fair share relative to other jobs; above 0.
            priority_class: Its class.
            max_actions: The most actions it may have queued or running at once; None means no limit of its own.
            staleness: What becomes of trajectories that fall behind the newest policy version; None: nothing does.
            grace_s: How many seconds the job lives on after its last client is gone; None takes the server's default
                (120 s).
            detached: The job lives on without any client, until it is closed.
            idle_timeout_s: After so many seconds without any work the job is closed, even while a client holds it. None
                takes the server's default (7 days), and means never if detached.
            dead_sandbox_is_infra: An action whose sandbox dies while a command runs in it fails as INFRA, not as ENV.
            max_buffered: From so many finished trajectories in its buffer on no new one begins, and from twice as many
                on `finish` waits; None takes the server's default (4,096).
            failure_policy: What failures of rollouts mean for groups of the returned job; None replaces members that
                are lost to INFRA failures. It is this object's and is not kept by the scheduler.
            new: Take no part in a job that is open under this id. One that no client holds, as that of a script which
                crashed, is closed first, with all that is in it.

        Raises:
            InvalidArgumentError: A value out of its range, or of another type.
            AlreadyExistsError: It is open with other arguments; with `new`, a client holds it.
            ConnectionLostError: There was no connection for too long.
        """
        described = JobDescription(
            job_id,
            share,
            priority_class,
            max_actions,
            staleness,
            grace_s,
            detached,
            idle_timeout_s,
            dead_sandbox_is_infra,
            max_buffered,
        )
        policy = optional("failure_policy", failure_policy, FailurePolicy, "a FailurePolicy")
        opening = await self._open_described(described, new=instance("new", new, bool, "True or False"))
        return Job(self, job_id, opening, policy)

    async def _open_described(self, described: JobDescription, *, new: bool) -> Opening:
        backend, job_id = self.backend(), described.job_id
        if new:
            await _close_abandoned(backend, job_id)
        opening = await backend.open_job(described)
        if opening is Opening.ATTACHED and new:
            raise _held(job_id)
        if opening is Opening.ATTACHED and job_id not in self._opened:
            await _tell_of_forerunner(backend, job_id)
        self._opened.add(job_id)
        return opening

    def job(self, job_id: str) -> Job:
        """Returns a job that is open already, for instance in another process."""
        return Job(self, job_id)

    async def jobs(self) -> list[JobStatus]:
        """Returns the open jobs of the scheduler, in the order in which they were opened."""
        return await self.backend().jobs("")

    async def close(self) -> None:
        """Closes the connections of all loops. Calls that wait raise ClientClosedError; accepted actions go on."""
        self._closed = True
        running = asyncio.get_running_loop()
        for loop, backend in self._backends.take_all().items():
            if loop is running:
                await backend.close()
            elif loop.is_running():
                loop.call_soon_threadsafe(backend.stop)

    async def __aenter__(self) -> Self:
        """Returns the client; it connects when it is first used."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the client."""
        await self.close()

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
            backend = SchedulerBackend(self.target, self.options, self.steps)
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


async def _close_abandoned(backend: Backend, job_id: str) -> None:
    """Closes a job that is open and that no client holds."""
    try:
        (found,) = await backend.jobs(job_id)
    except NotFoundError:
        return
    if found.sessions:
        raise _held(job_id)
    with suppress(NotFoundError):  # another one closed it meanwhile
        await backend.close_job(job_id)


def _held(job_id: str) -> RefusedError:
    rule = "it is open, and a client holds it: end that client, or run `callsheet close JOB`"
    return refused(RefusalCode.ALREADY_EXISTS, field="job_id", value=job_id, rule=rule)


async def _tell_of_forerunner(backend: Backend, job_id: str) -> None:
    """Says in the log that a job was joined which no other client holds: its ids and its work are a former script's."""
    with suppress(CallsheetError):
        (found,) = await backend.jobs(job_id)
        if found.sessions <= 1 and not found.spec.detached:
            logger.warning(
                "joined a job that no other client holds job=%s open_trajectories=%d actions=%s: it is its former "
                "client's, which may have crashed; open_job(..., new=True) closes it first",
                job_id, found.open_trajectories, dict(found.actions),
            )  # fmt: skip
