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
from callsheet.client.words.jobs import FailurePolicy
from callsheet.v1.job_values import JobDescription, JobStatus, Opening, PriorityClass, Staleness

logger = logging.getLogger("callsheet.client")


class Client:
    """A scheduler's address, and the options of the connections to it.

    A client connects at its first use, once per process and event loop. So a client can be made anywhere, used from
    several loops at once, and pickled: a copy connects by itself. The client makes a broken connection again and
    resumes it; no outcome is lost or repeated. A process forked after its parent had connected cannot connect
    (ForkedProcessError).

    Attributes:
        target: The scheduler's address, "host:port".
        options: Timeouts, credentials and the gateway's address.
        steps: Counts of the actions of the client's jobs, for `Job.step_summary`.
    """

    def __init__(self, target: str, options: ClientOptions | None = None) -> None:
        """Notes the address; raises InvalidArgumentError if `target` is no address."""
        self.options = ClientOptions() if options is None else options
        self.target = check_target(target, self.options)
        self.steps = StepTallies()
        self._closed = False
        self._opened: set[str] = set()
        self._backends: PerLoop[SchedulerBackend] = PerLoop()

    @classmethod
    async def connect(cls, target: str, options: ClientOptions | None = None) -> Self:
        """Returns a connected client; the scheduler has accepted its contract number.

        Args:
            target: The scheduler's address, "host:port".
            options: Timeouts, credentials and the gateway's address.

        Raises:
            InvalidArgumentError: `target` is no address.
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
        """Returns a client with the settings of environment variables; the client connects at its first use.

        CALLSHEET_SCHEDULER is the address (127.0.0.1:7077). CALLSHEET_TOKEN or CALLSHEET_TOKEN_FILE is the token.
        CALLSHEET_TLS_CA, CALLSHEET_TLS_CERT and CALLSHEET_TLS_KEY are the files of `Tls`; CALLSHEET_TLS_CA=system
        stands for the authorities that the operating system trusts. CALLSHEET_GATEWAY is the gateway's URL.
        CALLSHEET_USE_PROXY=1 reaches scheduler and gateway through the proxy that the environment names.

        Args:
            environ: The variables; None takes the variables of the process.
            target: An address in place of CALLSHEET_SCHEDULER; None or empty takes the variable.

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
        """Opens a job, or attaches to an open job of the same arguments; `Job.opening` shows which.

        Args:
            job_id: 1 to 256 characters, unique in the scheduler.
            share: Fair share relative to other jobs; above 0.
            priority_class: The job's class.
            max_actions: The most actions that the job may have queued or running at once; None means no limit of its
                own.
            staleness: The rule for trajectories that fall behind the newest policy version; None means no rule.
            grace_s: Seconds for which the job lives on after its last client is gone; None takes the server's default
                (120 s).
            detached: The job lives on without any client, until it is closed.
            idle_timeout_s: The scheduler closes the job after so many seconds without work, even while a client holds
                it. None takes the server's default (7 days); for a detached job None means never.
            dead_sandbox_is_infra: An action whose sandbox dies while a command runs in it fails as INFRA, not as ENV.
            max_buffered: With so many finished trajectories in the job's buffer no new trajectory begins. With twice as
                many `finish` waits. None takes the server's default (4,096).
            failure_policy: The meaning of rollouts' failures for groups of the returned job. None replaces members that
                are lost to INFRA failures. The returned object keeps the policy; the scheduler does not.
            new: Never attach to an open job of this id. A job without a client, for instance after a script's crash, is
                closed first, with everything in it.

        Raises:
            InvalidArgumentError: A value is out of its range, or of another type.
            AlreadyExistsError: The job is open with other arguments; with `new`, a client holds it.
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
        """Returns a job that is open already, for instance one that another process opened."""
        return Job(self, job_id)

    async def jobs(self) -> list[JobStatus]:
        """Returns the open jobs of the scheduler, in the order in which they were opened."""
        return await self.backend().jobs("")

    async def close(self) -> None:
        """Closes the connections of all loops. Waiting calls raise ClientClosedError; accepted actions continue."""
        self._closed = True
        running = asyncio.get_running_loop()
        for loop, backend in self._backends.take_all().items():
            if loop is running:
                await backend.close()
            elif loop.is_running():
                loop.call_soon_threadsafe(backend.stop)

    async def __aenter__(self) -> Self:
        """Returns the client, which connects at its first use."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the client."""
        await self.close()

    def backend(self) -> Backend:
        """Returns the running loop's connection to the scheduler.

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
        """Returns the class and the address."""
        return f"{type(self).__name__}({self.target!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the address and the options, without connections."""
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
    rule = "the job is open, and a client holds it: end that client, or run `callsheet close JOB`"
    return refused(RefusalCode.ALREADY_EXISTS, field="job_id", value=job_id, rule=rule)


async def _tell_of_forerunner(backend: Backend, job_id: str) -> None:
    """Logs that the joined job has no other client: a former script left its ids and its work."""
    with suppress(CallsheetError):
        (found,) = await backend.jobs(job_id)
        if found.sessions <= 1 and not found.spec.detached:
            logger.warning(
                "joined a job that no other client holds job=%s open_trajectories=%d actions=%s: the work is that of a "
                "former client, which may have crashed; open_job(..., new=True) closes such a job first",
                job_id, found.open_trajectories, dict(found.actions),
            )  # fmt: skip
