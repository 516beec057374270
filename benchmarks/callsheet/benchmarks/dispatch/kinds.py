"""What one action of each kind is."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from callsheet.benchmarks.dispatch.callsheet_load import CallsheetLoad
from callsheet.benchmarks.dispatch.settings import MeasuredKind
from callsheet.benchmarks.measuring.actions import NotMeasurableError, open_trajectories, sandbox_demand, succeeded
from callsheet.client import Command, Job, Outcome, Sampling, Trajectory
from typing_extensions import override

TOKENS = 64
"""Of a prompt and of a reply."""
_PROMPT = tuple(range(1, TOKENS + 1))
_SAMPLING = Sampling(max_new_tokens=TOKENS)
_TRUE = Command.argv("true")
# The gateway bounds them; a new one is opened as often as by an agent with so many turns.
_CHATS_OF_TRAJECTORY = 50
_RESETS_AT_ONCE = 8


@dataclass(slots=True)
class ActionsOfKind(ABC):
    """Actions of a kind.

    Attributes:
        job: An open job.
        prefix: Begins names.
        memory_mib: Of each sandbox.
        gateway: The URL of the gateway, if there is one.
        http: Asks it.
    """

    job: Job
    prefix: str
    memory_mib: int
    gateway: str | None
    http: aiohttp.ClientSession
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def make_lanes(self, lanes: int) -> None:
        """Makes what so many lanes need before their first actions: most need nothing."""
        del lanes

    @abstractmethod
    async def one(self, lane: int) -> float:
        """Does one action in a lane; returns its overhead in seconds, by the scheduler's clock, or 0.

        Raises:
            NotMeasurableError: It did not succeed.
        """


class _Noop(ActionsOfKind):
    _load: CallsheetLoad | None = None

    @override
    async def one(self, lane: int) -> float:
        if self._load is None:
            self._load = CallsheetLoad(self.job, self.prefix)
        return _overhead_s(await self._load.one())


class _EnvStep(ActionsOfKind):
    _trajectories: Sequence[Trajectory] = ()

    @override
    async def make_lanes(self, lanes: int) -> None:
        names = [f"{self.prefix}-{number}" for number in range(len(self._trajectories), lanes)]
        made = await open_trajectories(self.job, names, self.memory_mib, _RESETS_AT_ONCE)
        self._trajectories = (*self._trajectories, *made)

    @override
    async def one(self, lane: int) -> float:
        return _overhead_s(await self._trajectories[lane].env_step(_TRUE))


class _EnvReset(ActionsOfKind):
    @override
    async def one(self, lane: int) -> float:
        async with self.job.trajectory(f"{self.prefix}-{next(self._numbers)}") as trajectory:
            return _overhead_s(await trajectory.env_reset(demand=sandbox_demand(self.memory_mib)))


class _Generate(ActionsOfKind):
    @override
    async def one(self, lane: int) -> float:
        return _overhead_s(await self.job.generate(_PROMPT, _SAMPLING))


class _Chat(ActionsOfKind):
    @override
    async def one(self, lane: int) -> float:
        number = next(self._numbers)
        trajectory = f"{self.prefix}-{lane}-{number // _CHATS_OF_TRAJECTORY}"
        asked = {"role": "user", "content": f"Question {number:020d}, to which the answer is of no importance."}
        async with self.http.post(
            f"{self.gateway}/v1/chat/completions",
            json={"model": "policy", "messages": [asked], "max_tokens": TOKENS},
            headers={"authorization": f"Bearer {self.job.job_id}/{trajectory}"},
        ) as answer:
            told = await answer.read()
        if answer.status != 200:
            raise NotMeasurableError(f"the gateway answered a chat with {answer.status}: {told[:500]!r}")
        return 0.0


ACTIONS: dict[MeasuredKind, type[ActionsOfKind]] = {
    MeasuredKind.NOOP: _Noop,
    MeasuredKind.ENV_STEP: _EnvStep,
    MeasuredKind.ENV_RESET: _EnvReset,
    MeasuredKind.GENERATE: _Generate,
    MeasuredKind.CHAT: _Chat,
}


def _overhead_s(outcome: Outcome[Any]) -> float:
    succeeded(outcome)
    return outcome.timeline.overhead_s
