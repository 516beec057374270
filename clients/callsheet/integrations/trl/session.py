"""A trainer's hold on its job: it connects when it is first used, in a thread of its own, and pickles as names."""

from __future__ import annotations

import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from callsheet.client import Client, ClientOptions, Job, Staleness
from callsheet.client.sync.loop_thread import LoopThread, loop_thread

T = TypeVar("T")
# Not that of the sync clients: environments run here, and one that blocks would hold those up.
_THREAD = "callsheet trainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """How the job is opened; see `Client.open_job`.

    Attributes:
        share: Fair share relative to other jobs.
        grace_s: How many seconds its work goes on without the trainer; None takes the server's default (120 s).
        staleness: What becomes of trajectories that fall behind the newest policy version; None: nothing does.
        dead_sandbox_is_infra: An action whose sandbox dies fails as INFRA, not as ENV.
    """

    share: float = 1.0
    grace_s: float | None = None
    staleness: Staleness | None = None
    dead_sandbox_is_infra: bool = False


_DEFAULTS = JobSettings()


class TrainerSession:
    """One process's hold on a job.

    Args:
        target: The scheduler's address, "host:port".
        job_id: The job. A trainer that is started again under the same id finds what had run, and repeats nothing.
        settings: How the job is opened.
        options: How to connect; None takes the variables of the environment, as `Client.from_env` does.
    """

    def __init__(
        self,
        target: str,
        job_id: str,
        settings: JobSettings = _DEFAULTS,
        options: ClientOptions | None = None,
    ) -> None:
        self.client = Client(target, options) if options is not None else Client.from_env(target=target)
        self.job_id = job_id
        self.settings = settings
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._job: Job | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the session's thread and returns its result. All uses of the job are there."""
        return self._running().run(coroutine)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine in the session's thread beside the caller."""
        return self._running().start(coroutine)

    async def job(self) -> Job:
        """Returns the job, opened. To be called in the session's thread.

        Raises:
            AlreadyExistsError: It is open with other settings.
            ConnectionLostError: There was no connection for too long.
        """
        if self._job is None:
            of = self.settings
            self._job = await self.client.open_job(
                self.job_id,
                share=of.share,
                grace_s=of.grace_s,
                staleness=of.staleness,
                dead_sandbox_is_infra=of.dead_sandbox_is_infra,
            )
        return self._job

    def close_job(self) -> None:
        """Closes the job, if this process holds it: a run that has ended. What comes later opens it anew."""
        job, self._job = self._job, None
        if job is not None:
            self.run(job.close())

    def _running(self) -> LoopThread:
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._job = os.getpid(), None
        return loop_thread(_THREAD)

    def __getstate__(self) -> dict[str, Any]:
        """Pickles names and settings; connections stay here."""
        return {"client": self.client, "job_id": self.job_id, "settings": self.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a session that has not connected yet."""
        self.__dict__.update(state)
        self._begin()
