"""No-op actions through a running Callsheet, as a trainer would submit them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from callsheet.benchmarks.measuring.actions import succeeded
from callsheet.benchmarks.measuring.clock import latencies_s
from callsheet.client import Demand, Job, Outcome, RefusedError
from callsheet.client.session.ledger import Ledger

SERVICE = "noop"
_DEADLINE_S = 120.0
_NOTHING = Demand()


@dataclass(slots=True)
class SentBatches:
    """What the client's stream carried.

    Attributes:
        messages: Messages written.
        size_bytes: Their bytes, all together.
    """

    messages: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class Burst:
    """What became of actions that were submitted at once.

    Attributes:
        refused: Those that were refused.
        wall_s: Seconds from the first submit to the last outcome.
    """

    refused: int
    wall_s: float


@contextmanager
def counted_batches() -> Iterator[SentBatches]:
    """Counts the messages that clients of this process write, so that raw streams can have the same sizes."""
    sent = SentBatches()
    take = Ledger.next_batch

    def take_and_count(ledger: Ledger[Any]) -> bytes:
        batch = take(ledger)
        if batch:
            sent.messages += 1
            sent.size_bytes += len(batch)
        return batch

    Ledger.next_batch = take_and_count  # type: ignore[method-assign, assignment]
    try:
        yield sent
    finally:
        Ledger.next_batch = take  # type: ignore[method-assign]


@dataclass(slots=True)
class CallsheetLoad:
    """Submits no-op actions to one job.

    Attributes:
        job: An open job.
        id_prefix: Begins every action id; no two loads of a job may share it.
    """

    job: Job
    id_prefix: str
    _submitted: int = field(default=0, init=False)

    async def one(self) -> Outcome[Any]:
        """Submits one action and returns its outcome.

        Raises:
            NotMeasurableError: It did not succeed.
        """
        self._submitted += 1
        action_id = f"{self.id_prefix}-{self._submitted:08d}"
        outcome = await self.job.tool_call(SERVICE, "nothing", demand=_NOTHING, action_id=action_id)
        succeeded(outcome)
        return outcome

    async def actions_per_s(self, actions: int, in_flight: int) -> float:
        """Outcomes per second of `actions` actions, of which `in_flight` are under way at any time."""
        left = iter(range(actions))

        async def keep_submitting() -> None:
            for _ in left:
                await self.one()

        began = time.perf_counter()
        with anyio.fail_after(_DEADLINE_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(in_flight):
                    tasks.start_soon(keep_submitting)
        return actions / (time.perf_counter() - began)

    async def idle_latencies(self, samples: int, warm_up: int) -> list[float]:
        """Seconds from submit to outcome, one action at a time."""
        return await latencies_s(self.one, samples, warm_up)

    async def burst(self, actions: int) -> Burst:
        """Submits that many actions at once and waits for all of them."""
        refused = 0

        async def submit() -> None:
            nonlocal refused
            try:
                await self.one()
            except RefusedError:
                refused += 1

        began = time.perf_counter()
        with anyio.fail_after(_DEADLINE_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(actions):
                    tasks.start_soon(submit)
        return Burst(refused, time.perf_counter() - began)
