"""A run whose scheduler is gone, as its journal has it: the answers that the scheduler would give, and no acts.

The time is when the scheduler was last known to live. The journal has no managers: those that attempts or sandboxes
were with are told as lost. Nor has it stories of open jobs: of an action is told what its row or its outcome tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Final

import anyio.to_thread
from callsheet.client import errors
from callsheet.scheduler.core.recovery import restore
from callsheet.scheduler.core.state.announced_managers import LostManager
from callsheet.scheduler.core.state.chores import open_actions
from callsheet.scheduler.core.state.scheduler_state import CoreSettings, SchedulerState
from callsheet.scheduler.core.words.costs import read_prices
from callsheet.scheduler.core.words.recovered import Recovered
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.history.live import complete_actions, complete_trajectories
from callsheet.scheduler.history.reader import HistoryReader
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.service.codec.admin_explain import explanation_of, list_actions
from callsheet.scheduler.service.codec.listing import list_groups, list_jobs
from callsheet.scheduler.service.codec.outcomes import encode_outcome
from callsheet.scheduler.service.learning import load_learned
from callsheet.scheduler.service.rpc.admin_servicer import status_of
from callsheet.scheduler.service.server import JOURNALLED
from callsheet.scheduler.service.turns import in_turns
from callsheet.scheduler.store.journal_errors import DatabaseLockedError, DataDirectoryLockedError, JournalError
from callsheet.scheduler.store.read_only import DeadJournal
from callsheet.v1 import admin_service_pb2, client_service_pb2, payload_service_pb2
from callsheet.v1.contract import CONTRACT, OLDEST_CONTRACT
from sqlalchemy.exc import SQLAlchemyError

_CHUNK: Final = 1024 * 1024
_SHA256: Final = re.compile("[0-9a-f]{64}")
_OVER: Final = "is of a run that is over: nothing can be changed"


class DeadRun:
    """Answers by messages of the contract; see the module. All answers may raise RefusedError of the client.

    Attributes:
        last_alive: When its scheduler was last known to live, in seconds since the epoch.
    """

    last_alive: float | None

    def __init__(
        self, data_dir: Path, database_url: str | None = None, *, prices: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """Reads the journal, which takes seconds where it is large.

        Args:
            data_dir: The data directory of the run, where stored payloads are, too.
            database_url: Where its journal is, if not there.
            prices: Money for one unit, by resource; the journal has none.

        Raises:
            JournalError: It cannot be read, or a scheduler still runs on it.
            ValueError: `database_url` is not of PostgreSQL.
            sqlalchemy.exc.SQLAlchemyError: The database cannot be reached.
        """
        self._prices = prices
        self._payloads = data_dir / "payloads" / "objects"
        self._journal = DeadJournal(data_dir, database_url)
        recovered = self._journal.recovered
        self._now = self.last_alive = _last_sign_of_life(recovered)
        self._state = SchedulerState(self._journal.epoch, encode_outcome, CoreSettings(closed_actions_s=inf))
        restore(self._state, recovered, JOURNALLED, self._now)
        _tell_of_the_end(self._state, self._now)
        self._history = HistoryReader(self._journal.engine)
        self._predictors = load_learned(self._journal, self._state.held_memory)
        self._planner = FirstComePlanner()

    def close(self) -> None:
        """Lets go of the journal; a second call does nothing."""
        self._journal.close()

    async def get_server_info(self) -> client_service_pb2.GetServerInfoResponse:
        """The contract, and prices. There are no callers with tokens: who may read the journal may read it all."""
        return client_service_pb2.GetServerInfoResponse(
            contract=CONTRACT, oldest_contract=OLDEST_CONTRACT, prices=self._prices
        )

    async def get_status(self, request: admin_service_pb2.GetStatusRequest) -> admin_service_pb2.GetStatusResponse:
        """Jobs, and managers as lost ones."""
        return await status_of(self._state, self._now, self._now)

    async def list_jobs(self, request: client_service_pb2.ListJobsRequest) -> client_service_pb2.ListJobsResponse:
        """Jobs that were open."""
        with _refusing():
            return await list_jobs(self._state, request, self._now, lambda _: True)

    async def list_groups(self, request: client_service_pb2.ListGroupsRequest) -> client_service_pb2.ListGroupsResponse:
        """Groups of a job that was open."""
        with _refusing():
            return await list_groups(self._state, request, self._now)

    async def list_actions(
        self, request: admin_service_pb2.ListActionsRequest
    ) -> admin_service_pb2.ListActionsResponse:
        """Actions that were open, the oldest first."""
        with _refusing():
            return await list_actions(self._state, request, self._now, self._planner)

    async def explain(self, request: admin_service_pb2.ExplainRequest) -> admin_service_pb2.ExplainResponse:
        """Returns the last state of an action, as far as the journal has it."""
        with _refusing():
            told = await explanation_of(self._state, request.key, self._now, self._predictors, self._planner)
            await anyio.to_thread.run_sync(self._history.complete_ended, told)
            return told

    async def list_closed_jobs(
        self, request: admin_service_pb2.ListClosedJobsRequest
    ) -> admin_service_pb2.ListClosedJobsResponse:
        """Lists the ends of jobs that were closed."""
        with _refusing():
            return await anyio.to_thread.run_sync(self._history.closed_jobs, request)

    async def list_trajectory_history(
        self, request: admin_service_pb2.ListTrajectoryHistoryRequest
    ) -> admin_service_pb2.ListTrajectoryHistoryResponse:
        """Lists the history of trajectories."""
        with _refusing():
            page = await anyio.to_thread.run_sync(self._history.trajectories, request, self._now)
            await in_turns(complete_trajectories(self._state, request.job_id, page, self._now))
            return page

    async def list_action_history(
        self, request: admin_service_pb2.ListActionHistoryRequest
    ) -> admin_service_pb2.ListActionHistoryResponse:
        """Lists the history of actions."""
        with _refusing():
            page = await anyio.to_thread.run_sync(self._history.actions, request)
            await in_turns(complete_actions(self._state, page, self._now, brief=request.brief))
            return page

    async def get_payload(
        self, request: payload_service_pb2.GetPayloadRequest
    ) -> payload_service_pb2.GetPayloadResponse:
        """The beginning of stored bytes, if they are among the files of the data directory."""
        sha256 = request.reference.sha256
        file = self._payloads / sha256
        if not (_SHA256.fullmatch(sha256) and file.is_file()):
            raise errors.not_found("reference.sha256", sha256, "is not among the files of this run")
        with file.open("rb") as stream:
            return payload_service_pb2.GetPayloadResponse(chunk=stream.read(_CHUNK))

    async def what_if(self, request: admin_service_pb2.WhatIfRequest) -> admin_service_pb2.WhatIfResponse:
        """Refused."""
        raise errors.unfit("pool", request.pool, "cannot be asked about: the run is over, and its nodes are not known")

    async def cancel_action(
        self, request: client_service_pb2.CancelActionRequest
    ) -> client_service_pb2.CancelActionResponse:
        """Refused."""
        raise errors.unfit("key", request.key.action_id, _OVER)

    async def close_job(self, request: client_service_pb2.CloseJobRequest) -> client_service_pb2.CloseJobResponse:
        """Refused."""
        raise errors.unfit("job_id", request.job_id, _OVER)

    async def drain_manager(
        self, request: admin_service_pb2.DrainManagerRequest
    ) -> admin_service_pb2.DrainManagerResponse:
        """Refused."""
        raise errors.unfit("manager_id", request.manager_id, _OVER)


@contextmanager
def opened(data_dir: Path, database_url: str | None = None, *, prices: Iterable[str] = ()) -> Iterator[DeadRun]:
    """A run that is over, for the length of the block; see `DeadRun`.

    Raises:
        ValueError: It cannot be opened; says why.
    """
    try:
        run = DeadRun(data_dir, database_url, prices=read_prices(prices))
    except (JournalError, SQLAlchemyError) as error:
        runs = isinstance(error, DataDirectoryLockedError | DatabaseLockedError)
        raise ValueError(f"{error}{'; show what runs by --scheduler' if runs else ''}") from error
    with closing(run):
        yield run


@contextmanager
def _refusing() -> Iterator[None]:
    """The client's exceptions in place of the core's."""
    try:
        yield
    except RefusedError as refusal:
        code = errors.RefusalCode(refusal.code.name)
        raise errors.refused(code, field=refusal.field, value=refusal.value, rule=refusal.rule) from refusal


def _last_sign_of_life(recovered: Recovered) -> float:
    """The newest time in a journal. A scheduler notes every few seconds that it runs, and else only what happens."""
    times = [recovered.alive_at or 0.0]
    times += [row.submitted_at if row.finished_at is None else row.finished_at for row in recovered.actions]
    times += [row.opened_at if row.closed_at is None else row.closed_at for row in recovered.trajectories]
    times += [closed.closed_at for closed in recovered.closed]
    return max(times)


def _tell_of_the_end(state: SchedulerState, now: float) -> None:
    """Puts what is known in place of what `restore` says to a scheduler that goes on."""
    for manager_id, awaited in state.awaited.items():
        attempts = sum(map(len, awaited.attempts.values()))
        state.lost_managers[manager_id] = LostManager(manager_id, "", now, attempts, len(awaited.trajectories))
    for job in state.jobs.values():
        for action in open_actions(job):
            if action is not None:
                attempt = action.attempt
                where = f"with manager {attempt.manager_id}, attempt {attempt.number}" if attempt else "queued"
                ended = f"the run ended, as far as its journal tells; it was {where}"
                action.story[:] = [(action.submitted_at, "submitted"), (now, ended)]
