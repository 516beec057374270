"""Small and large actions, jobs and trajectories that come and go, and streams that nobody reads, all at once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Final

import anyio
import grpc
import grpc.aio
from callsheet.client import (
    CallsheetError,
    Client,
    Demand,
    FailedPreconditionError,
    ForgottenError,
    Generate,
    Job,
    RefusedError,
    Succeeded,
    Trajectory,
)
from callsheet.v1 import action_pb2, client_service_pb2, client_service_pb2_grpc, job_pb2

SERVICE: Final = "noop"
_NOTHING: Final = Demand()
_NEWEST: Final = 3
_WORKERS: Final = 16
_LARGE_WORKERS: Final = 2
_LARGE_PAUSE_S: Final = 0.2
_LARGE_TOKENS: Final = 200_000
# Which no database can compress.
_INLINE: Final = random.Random(0).randbytes(60 * 1024)
_STORED: Final = 200 * 1024
_CHURN_PAUSE_S: Final = 0.2
_CHURN_IDS: Final = 3
_TRAJECTORY_WORKERS: Final = 4
_TRAJECTORY_PAUSE_S: Final = 0.05
_SIBLINGS: Final = 4
_UNREAD_SESSIONS: Final = 4
_UNREAD_PAUSE_S: Final = 0.05
_ANSWER_S: Final = 60.0


class MixedLoad:
    """Everything at once, until cancelled. What is refused for lack of room is tried again later.

    Attributes:
        done: What happened so far. Actions that have their outcome are "small" and "large", those of unread streams
            left out. Resubmits of such got the outcome "again" or were "forgotten". "trajectories" and "groups" of the
            long job were opened and closed; some were opened again and found "closed" or "gone". "jobs" are lives of
            jobs that came and went, "unread" streams that were opened and never read.
        failed: What should not be, by what it was told.
    """

    def __init__(self, address: str, job: Job, *, actions_per_s: int, unread_s: float) -> None:
        """Takes where to send it.

        Args:
            address: The scheduler's.
            job: The one that lives throughout.
            actions_per_s: Small actions a second.
            unread_s: Seconds that each stream lasts that is never read.
        """
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._address = address
        self._job = job
        self._pause_s = _WORKERS / actions_per_s
        self._unread_s = unread_s
        self._random = random.Random(0)
        self._small = 0
        self._alone = 0

    async def run(self) -> None:
        """Runs until cancelled."""
        async with anyio.create_task_group() as tasks:
            for _ in range(_WORKERS):
                tasks.start_soon(self._keep_on, self._one_small, self._pause_s)
            for number in range(_LARGE_WORKERS):
                tasks.start_soon(self._keep_on, self._one_large if number else self._one_echo, _LARGE_PAUSE_S)
            tasks.start_soon(self._keep_on, self._one_resubmit, _LARGE_PAUSE_S)
            for number in range(_TRAJECTORY_WORKERS):
                tasks.start_soon(self._keep_on, self._one_group if number else self._one_alone, _TRAJECTORY_PAUSE_S)
            tasks.start_soon(self._keep_on, self._one_return, _LARGE_PAUSE_S)
            for number in range(_CHURN_IDS):
                tasks.start_soon(self._churn, f"churn-{number}")
            for number in range(_UNREAD_SESSIONS):
                tasks.start_soon(self._leave_unread, f"unread-{number}")

    def _fail(self, told: object) -> None:
        self.failed[str(told)[:120]] += 1

    async def _keep_on(self, one: Callable[[], Awaitable[None]], pause_s: float) -> None:
        while True:
            await self._try(one)
            await anyio.sleep(pause_s)

    async def _try(self, one: Callable[[], Awaitable[None]]) -> None:
        try:
            with anyio.fail_after(_ANSWER_S):
                await one()
        except RefusedError as refusal:
            self.done["refused"] += 1
            if refusal.retry_after_s is None:
                self._fail(refusal)
            await anyio.sleep(refusal.retry_after_s or 0.0)
        except (CallsheetError, TimeoutError) as error:
            self._fail(repr(error))

    async def _one_small(self) -> None:
        self._small += 1
        await self._call(f"small-{self._small}", b"")
        self.done["small"] += 1

    async def _one_echo(self) -> None:
        await self._call(f"echo-{self.done['large']}-{self._random.getrandbits(32):08x}", _INLINE)
        self.done["large"] += 1

    async def _call(self, action_id: str, arguments: bytes) -> None:
        outcome = await self._job.tool_call(SERVICE, "nothing", arguments, demand=_NOTHING, action_id=action_id)
        if not isinstance(outcome, Succeeded):
            self._fail(outcome)

    async def _one_large(self) -> None:
        prompt = [self._random.randrange(1 << 20)] * _LARGE_TOKENS
        outcome = await (await self._job.submit(Generate(prompt, model=SERVICE), demand=_NOTHING)).outcome()
        if not isinstance(outcome, Succeeded):
            self._fail(outcome)
        self.done["large"] += 1

    async def _one_resubmit(self) -> None:
        """An action that has its outcome gives it again or is forgotten; it never runs again."""
        if self._small < 2 * _WORKERS:
            return
        last = self._small - _WORKERS
        # Every other one is new enough to be kept: of all there were, soon hardly any is.
        first = self._random.choice((1, max(1, last - _NEWEST)))
        action_id = f"small-{self._random.randint(first, last)}"
        try:
            await self._call(action_id, b"")
        except ForgottenError:
            self.done["forgotten"] += 1
        else:
            self.done["again"] += 1

    async def _one_group(self) -> None:
        """Siblings of a prompt, in the job that lives throughout."""
        self.done["groups"] += 1
        async with self._job.group(f"group-{self.done['groups']}", size=_SIBLINGS) as group:
            group.start(self._roll_out)
            async for member in group:
                if member.error is not None:
                    self._fail(repr(member.error))
                self.done["trajectories"] += 1

    async def _roll_out(self, trajectory: Trajectory) -> None:
        outcome = await trajectory.env_reset(service=SERVICE, demand=_NOTHING)
        if not isinstance(outcome, Succeeded):
            self._fail(outcome)

    async def _one_alone(self) -> None:
        async with self._job.trajectory(f"alone-{self._alone + 1}") as trajectory:
            await self._roll_out(trajectory)
        self._alone += 1
        self.done["trajectories"] += 1

    async def _one_return(self) -> None:
        """A trajectory that was closed stays so, as long as it is kept and when it is forgotten."""
        if not self._alone:
            return
        try:
            async with self._job.trajectory(f"alone-{self._random.randint(1, self._alone)}") as trajectory:
                self._fail(f"{trajectory.trajectory_id} was opened twice")
        except ForgottenError:
            self.done["gone"] += 1
        except FailedPreconditionError:
            self.done["closed"] += 1

    async def _churn(self, job_id: str) -> None:
        """A job that is opened and closed again and again under its id; now and then its client just goes."""
        life = 0
        while True:
            life += 1
            await self._try(lambda: self._live(job_id, life))  # noqa: B023
            await anyio.sleep(_CHURN_PAUSE_S)

    async def _live(self, job_id: str, life: int) -> None:
        async with Client(self._address) as client:
            job = await client.open_job(job_id)
            async with job.trajectory(f"t{life}") as trajectory:
                await trajectory.env_reset(service=SERVICE, demand=_NOTHING, action_id=f"reset-{life}")
                for step in range(3):
                    await trajectory.env_step(["true"], demand=_NOTHING, action_id=f"step-{life}-{step}")
            stored = life.to_bytes(8, "big") * (_STORED // 8)
            await job.tool_call(SERVICE, "nothing", stored, demand=_NOTHING, action_id=f"stored-{life}")
            if life % 3:
                await job.close()
        self.done["jobs"] += 1

    async def _leave_unread(self, job_id: str) -> None:
        """Submits on a stream and never reads it; after a while on another one."""
        for life in count():
            async with grpc.aio.insecure_channel(self._address) as channel:
                # grpc.aio takes what is asynchronous; the generated types do not know it.
                call = client_service_pb2_grpc.ClientServiceStub(channel).ClientSession(
                    _submits(job_id, life)  # type: ignore[arg-type]
                )
                self.done["unread"] += 1
                await anyio.sleep(self._unread_s)
                call.cancel()


async def _submits(job_id: str, life: int) -> AsyncIterator[client_service_pb2.ClientSessionRequest]:
    """Opens a job, and submits large actions to it until the stream is over."""
    opened = client_service_pb2.ClientItem(sequence=1, open_job=job_pb2.JobSpec(job_id=job_id))
    yield client_service_pb2.ClientSessionRequest(items=[opened])
    for number in count():
        action = action_pb2.ActionSpec(job_id=job_id, action_id=f"{life}-{number}", service=SERVICE)
        action.tool_call.method = "nothing"
        action.tool_call.arguments.inline = _INLINE
        item = client_service_pb2.ClientItem(sequence=2 + number, submit=action)
        yield client_service_pb2.ClientSessionRequest(items=[item])
        await anyio.sleep(_UNREAD_PAUSE_S)
