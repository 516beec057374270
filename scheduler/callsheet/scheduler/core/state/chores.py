"""Work on thousands of things at once, in parts: steps do some of them each, and all else goes on between."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from itertools import chain
from math import inf
from typing import Final, TypeAlias, TypeVar

from callsheet.scheduler.core.state.entities import Action, Job

A = TypeVar("A")

Part: TypeAlias = Callable[[float], None]
"""A part of a chore, which is told the time in seconds since the epoch."""

# Of one chore, before it is another one's turn.
_TURN: Final = 16
# Actions that are passed over one after another, as quickly as one is stopped.
_SKIPPED: Final = 1024


class Chores:
    """Chores that are under way, by key. They take turns, so that a small one is over soon."""

    def __init__(self) -> None:
        self._parts: OrderedDict[Hashable, Iterator[Part | None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._parts

    def add(self, key: Hashable, parts: Iterable[Part | None]) -> None:
        """Adds a chore; one under a key that is under way follows that.

        Args:
            key: What it is about.
            parts: Its parts, which are asked for one by one; None stands for a search that has found nothing yet.
        """
        self._parts[key] = chain(self._parts.get(key, ()), parts)

    def work_off(self, now: float, most: float = inf, is_over: Callable[[], bool] = lambda: False) -> int:
        """Does parts until nothing is left, or as many as may be were done, or the time is over; returns how many."""
        done = 0
        while self._parts and done < most and not is_over():
            key = next(iter(self._parts))
            for _ in range(_TURN):
                part = next(self._parts[key], _OVER)
                if part is _OVER:
                    del self._parts[key]
                    break
                done += 1
                if part is not None:
                    part(now)
                if done >= most:
                    break
            else:
                self._parts.move_to_end(key)
        return done


def open_actions(job: Job, wanted: Callable[[Action], bool] = lambda _: True) -> Iterator[Action | None]:
    """Those actions of a job that have no outcome now; None now and then while they are looked for among the others."""
    known = deque(job.actions.values())

    def found() -> Iterator[Action | None]:
        # Each is let go of as its turn is over: to free them all at once takes long.
        while known:
            each = known.popleft()
            if isinstance(each, Action) and wanted(each):
                yield each
            elif len(known) % _SKIPPED == 0:
                yield None

    return found()


def at_once(parts: Generator[None, None, A]) -> A:
    """Runs a generator to its end without a pause, and returns its result."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            answer: A = end.value
            return answer


def _over(_: float) -> None:
    """Stands for the end of a chore."""


_OVER: Final[Part] = _over
