"""Answers that several viewers share, so that a scheduler is asked each question at most once in a while."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import anyio
import anyio.abc
from callsheet.client.errors import ConnectionLostError, RefusalCode, refused

T = TypeVar("T")
MOST_ANSWERS: Final = 512
"""Different questions, over all viewers, that are asked or whose answers are kept at once."""


@dataclass(slots=True)
class _Kept:
    until: float
    told: anyio.Event = field(default_factory=anyio.Event)
    answer: Any = None
    # Of a question that is given up, as all of them are when the dashboard ends.
    error: Exception | None = field(default_factory=lambda: ConnectionLostError("the dashboard ends"))

    async def ask(self, ask: Callable[[], Awaitable[Any]]) -> None:
        try:
            self.answer, self.error = await ask(), None
        except Exception as error:
            self.error = error  # It is for those who asked.
        finally:
            self.told.set()


class SharedAnswers:
    """Answers, refusals included, by question. One that is being asked is waited for, not asked again."""

    def __init__(self, tasks: anyio.abc.TaskGroup, clock: Callable[[], float], most: int = MOST_ANSWERS) -> None:
        """Args:
        tasks: Where questions are asked. A viewer that leaves takes nothing from the others.
        clock: Seconds that only grow.
        most: The most questions at once.
        """
        self._tasks, self._clock, self._most = tasks, clock, most
        self._kept: dict[Hashable, _Kept] = {}

    async def of(self, question: Hashable, keep_s: float, ask: Callable[[], Awaitable[T]]) -> T:
        """Returns the answer to a question, which is at most `keep_s` old.

        Raises:
            RefusedError: RESOURCE_EXHAUSTED: too many different questions in too short a time.
            Exception: What asking raised.
        """
        kept = self._kept.get(question)
        now = self._clock()
        if kept is None or (kept.until <= now and kept.told.is_set()):
            self._make_room(now)
            kept = self._kept[question] = _Kept(now + keep_s)
            self._tasks.start_soon(kept.ask, ask)
        await kept.told.wait()
        if kept.error is not None:
            raise kept.error
        answer: T = kept.answer
        return answer

    def forget(self) -> None:
        """Drops what is known, since something was changed."""
        self._kept = {question: kept for question, kept in self._kept.items() if not kept.told.is_set()}

    def _make_room(self, now: float) -> None:
        # At each question, as a page of outputs has megabytes.
        self._kept = {
            question: kept for question, kept in self._kept.items() if kept.until > now or not kept.told.is_set()
        }
        if len(self._kept) >= self._most:
            rule = f"asks the scheduler at most {self._most} different questions a second: try again"
            raise refused(RefusalCode.RESOURCE_EXHAUSTED, field="dashboard", value="", rule=rule, retry_after_s=1.0)
