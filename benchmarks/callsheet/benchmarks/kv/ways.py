"""The ways from a trajectory to its engine: straight, or through Callsheet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from itertools import count
from typing import NamedTuple

import anyio
from callsheet.benchmarks.kv.settings import ALL_AT_ONCE
from callsheet.benchmarks.kv.tools import LABEL, METHOD, SERVICE
from callsheet.client import Failed, GenerateResult, Job, Sampling, Succeeded, Trajectory
from callsheet.managers.inference.driver import EngineDriver, FinishReason, GenerateRequest
from callsheet.managers.inference.driver import Sampling as EngineSampling
from typing_extensions import override


class ActionFailedError(Exception):
    """A generation or a tool call did not succeed; the message says why."""


class EngineAnswer(NamedTuple):
    """What came of a generation.

    Attributes:
        token_ids: New tokens.
        cached_tokens: Tokens of the prompt that the engine did not compute anew.
    """

    token_ids: tuple[int, ...]
    cached_tokens: int


class OpenRollout(ABC):
    """A trajectory that runs."""

    @abstractmethod
    async def generate(self, prompt: tuple[int, ...], tokens: int) -> EngineAnswer:
        """Generates as many tokens as asked for; ActionFailedError if it does not."""

    @abstractmethod
    async def act(self, tool_s: float) -> None:
        """Makes a tool call of so many seconds; ActionFailedError if it fails."""


class Way(ABC):
    """How trajectories get to their engine."""

    @abstractmethod
    def rollout(self, name: str) -> AbstractAsyncContextManager[OpenRollout]:
        """Runs a trajectory for the length of a `with` block."""


class StraightWay(Way, OpenRollout):
    """Everything is sent to the engine, up to a bound of requests at once; others wait first come."""

    def __init__(self, driver: EngineDriver, bound: int) -> None:
        """Takes an engine, which stays its caller's.

        Args:
            driver: The engine.
            bound: Requests at once; `ALL_AT_ONCE` for no bound.
        """
        self._driver = driver
        self._room = nullcontext() if bound == ALL_AT_ONCE else anyio.CapacityLimiter(bound)
        self._numbers = count()

    @override
    @asynccontextmanager
    async def rollout(self, name: str) -> AsyncIterator[OpenRollout]:
        """See `Way`."""
        yield self

    @override
    async def generate(self, prompt: tuple[int, ...], tokens: int) -> EngineAnswer:
        """See `OpenRollout`."""
        sampling = EngineSampling(max_new_tokens=tokens, temperature=0.0, ignore_eos=True)
        async with self._room:
            answer = await self._driver.generate(GenerateRequest(f"{next(self._numbers):032x}", prompt, sampling))
        if answer.finish_reason is not FinishReason.LENGTH:
            raise ActionFailedError(f"a generation ended with {answer.finish_reason.value}")
        return EngineAnswer(answer.token_ids, answer.cached_tokens)

    @override
    async def act(self, tool_s: float) -> None:
        """See `OpenRollout`."""
        await anyio.sleep(tool_s)


class CallsheetWay(Way):
    """Every generation and every tool call is an action."""

    def __init__(self, job: Job) -> None:
        """Takes the job whose actions they are."""
        self._job = job

    @override
    @asynccontextmanager
    async def rollout(self, name: str) -> AsyncIterator[OpenRollout]:
        """See `Way`."""
        async with self._job.trajectory(name) as trajectory:
            yield _CallsheetRollout(trajectory)


class _CallsheetRollout(OpenRollout):
    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory

    @override
    async def generate(self, prompt: tuple[int, ...], tokens: int) -> EngineAnswer:
        sampling = Sampling(tokens, temperature=0.0, ignore_eos=True)
        result = _value(await self._trajectory.generate(prompt, sampling))
        assert isinstance(result, GenerateResult)
        return EngineAnswer(tuple(result.token_ids), result.cached_tokens)

    @override
    async def act(self, tool_s: float) -> None:
        _value(await self._trajectory.tool_call(SERVICE, METHOD, f"{tool_s:.6f}".encode(), label=LABEL))


def _value(outcome: object) -> object:
    if not isinstance(outcome, Succeeded):
        raise ActionFailedError(outcome.reason if isinstance(outcome, Failed) else type(outcome).__name__)
    return outcome.value
