"""Gives turns to ask registries: a bounded number at a time, each registry at its own pace."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

import anyio
import structlog
from callsheet.managers.sandbox.files.images.errors import ImageNotFoundError, RegistryLimitedError
from callsheet.managers.sandbox.files.images.references import ImageReference
from callsheet.managers.sandbox.registry_settings import RegistrySettings
from callsheet.timing.backoff import backoff_s

_MOST_REGISTRIES = 256


class RegistryPace:
    """Spreads the questions to one registry, and leaves it alone after it said that it was asked too often."""

    def __init__(self, every_s: float, first_pause_s: float, longest_pause_s: float) -> None:
        """Args:
        every_s: Between the beginnings of two questions.
        first_pause_s: After the first refusal, unless the registry tells how long; doubled with each further one.
        longest_pause_s: Up to this.
        """
        self._every_s = every_s
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._open_at = 0.0
        self._closed_until = 0.0
        self._refusals = 0

    def pause_s(self, now: float) -> float:
        """Seconds for which the registry wants to be left alone."""
        return max(0.0, self._closed_until - now)

    def turn_s(self, now: float) -> float:
        """Seconds until it would be the turn of one more question."""
        return max(0.0, self._open_at - now, self._closed_until - now)

    def take_turn(self, now: float) -> float:
        """Takes the next place in the line; returns the seconds until it is that question's turn."""
        seconds = self.turn_s(now)
        self._open_at = now + seconds + self._every_s
        return seconds

    def refused(self, now: float, random: float, retry_after_s: float | None = None) -> None:
        """Notes that the registry was asked too often; `random` in [0, 1) spreads the nodes that were told so together.

        Args:
            now: The time.
            random: From 0 to 1.
            retry_after_s: What the registry told; None if it told nothing.
        """
        if now < self._closed_until:
            # Of questions that were asked together each is refused, and it counts once.
            return
        self._refusals += 1
        pause = backoff_s(self._refusals, self._first_pause_s, self._longest_pause_s, random=random)
        self._closed_until = now + max(pause, retry_after_s or 0.0)

    def answered(self) -> None:
        """Notes an answer of another kind."""
        self._refusals = 0


_Answer = TypeVar("_Answer")

_log = structlog.get_logger(__name__)


class RegistryLine:
    """Lets questions to registries through."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._paces: OrderedDict[str, RegistryPace] = OrderedDict()

    async def ask(self, reference: ImageReference, question: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Asks a question when it is its turn; returns the answer.

        Raises:
            RegistryLimitedError: The registry wants to be left alone, or others have all turns for a while.
            Exception: What the question raised.
        """
        pace = self._pace(reference.registry)
        # Whoever cannot wait takes nobody's turn.
        self._check_turn(reference, pace, pace.turn_s(monotonic()))
        await anyio.sleep(pace.take_turn(monotonic()))
        # Somebody before may have been refused meanwhile.
        self._check_turn(reference, pace, pace.pause_s(monotonic()))
        try:
            answer = await question()
        except RegistryLimitedError as error:
            pace.refused(monotonic(), random.random(), error.retry_after_s)
            pause_s = round(pace.pause_s(monotonic()), 1)
            _log.warning("registry_limited", registry=reference.registry, pause_s=pause_s)
            raise
        except ImageNotFoundError:
            pace.answered()
            raise
        pace.answered()
        return answer

    def _check_turn(self, reference: ImageReference, pace: RegistryPace, seconds: float) -> None:
        if seconds <= self._settings.longest_turn_s:
            return
        why = (
            "said that this node asked too often" if pace.pause_s(monotonic()) else "has many questions before this one"
        )
        raise RegistryLimitedError(
            f"image {str(reference)!r}: {reference.registry} {why}: try again in {seconds:.0f} s"
        )

    def _pace(self, registry: str) -> RegistryPace:
        pace = self._paces.get(registry)
        if pace is None:
            settings = self._settings
            pace = RegistryPace(settings.question_every_s, settings.pull_pause_s, settings.longest_pull_pause_s)
            self._paces[registry] = pace
        self._paces.move_to_end(registry)
        while len(self._paces) > _MOST_REGISTRIES:
            self._paces.popitem(last=False)
        return pace
