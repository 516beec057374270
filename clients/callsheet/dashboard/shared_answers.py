"""Answers that several viewers share, so that a scheduler is asked each question at most once in a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from callsheet.client.errors import RefusalCode, refused

T = TypeVar("T")
MOST_ANSWERS: Final = 512
"""Different questions, over all viewers, that are asked or whose answers are kept at once."""


@dataclass(slots=True)
class _Kept:
    asked: asyncio.Task[Any]
    until: float


class SharedAnswers:
    """Answers, refusals included, by question. One that is being asked is waited for, not asked again."""

    def __init__(self, clock: Callable[[], float], most: int = MOST_ANSWERS) -> None:
        """Args:
        clock: Seconds that only grow.
        most: The most questions at once.
        """
        self._clock = clock
        self._most = most
        self._kept: dict[Hashable, _Kept] = {}

    async def of(self, question: Hashable, keep_s: float, ask: Callable[[], Awaitable[T]]) -> T:
        """Returns the answer to a question, which is at most `keep_s` old.

        Raises:
            RefusedError: RESOURCE_EXHAUSTED: too many different questions in too short a time.
            Exception: What asking raised.
        """
        kept = self._kept.get(question)
        now = self._clock()
        if kept is None or (kept.until <= now and kept.asked.done()):
            self._make_room(now)
            kept = self._kept[question] = _Kept(asyncio.ensure_future(_asked(ask)), now + keep_s)
        # One viewer that leaves takes nothing from the others.
        answer: T
        answer, error = await asyncio.shield(kept.asked)
        if error is not None:
            raise error
        return answer

    def forget(self) -> None:
        """Drops what is known, since something was changed."""
        self._kept = {question: kept for question, kept in self._kept.items() if not kept.asked.done()}

    def _make_room(self, now: float) -> None:
        # At each question, as a page of outputs has megabytes.
        self._kept = {
            question: kept for question, kept in self._kept.items() if kept.until > now or not kept.asked.done()
        }
        if len(self._kept) >= self._most:
            rule = f"asks the scheduler at most {self._most} different questions a second: try again"
            raise refused(RefusalCode.RESOURCE_EXHAUSTED, field="dashboard", value="", rule=rule, retry_after_s=1.0)


async def _asked(ask: Callable[[], Awaitable[Any]]) -> tuple[Any, Exception | None]:
    """An answer or an error as a value, so that an answer for which nobody waits any more leaves no warning."""
    try:
        return await ask(), None
    except Exception as error:
        return None, error
