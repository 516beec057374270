"""Whose turn it is to ask registries: a bounded number at a time, each registry at its own pace."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

import anyio
import structlog
from callsheet.managers.sandbox.images.errors import ImageNotFoundError, RegistryLimitedError
from callsheet.managers.sandbox.images.references import ImageReference
from callsheet.managers.sandbox.images.registry_pace import RegistryPace
from callsheet.managers.sandbox.registry_settings import RegistrySettings

_MOST_REGISTRIES = 256

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
