"""Work that many want at the same time and that is done once, and whose turn it is to have a place for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio
from callsheet.managers.clock import waiting
from callsheet.managers.sandbox.stopping import unless_stopped
from callsheet.timing.waits import Cause

_MOST_SERVED = 4096


class Interest:
    """The jobs that wait for the work of a task. Who comes later to wait for it lends it a turn of its own job."""

    def __init__(self, job: str) -> None:
        """Args: job: The first of them; empty for nobody's."""
        self.jobs = {job}
        self.joined: Callable[[], None] = lambda: None

    def join(self) -> None:
        """Adds the jobs of the task that calls."""
        self.jobs |= interest().jobs
        self.joined()


_INTEREST: ContextVar[Interest] = ContextVar("callsheet_interest")


def work_for(job: str) -> None:
    """Has what this task does, and those that it starts, done for a job."""
    _INTEREST.set(Interest(job))


def interest() -> Interest:
    """For whom this task works."""
    return _INTEREST.get(None) or Interest("")


@dataclass(slots=True, eq=False)
class _Waiting:
    """Waiters for a turn; `job` is the one whose turn it is, once it is given."""

    interest: Interest
    given: anyio.Event = field(default_factory=anyio.Event)
    job: str = ""


class Turns:
    """A bounded number of places, of which one job never has all: its queue holds up nobody else's work."""

    def __init__(self, each: int, places: int) -> None:
        """Args:
        each: The most that one job may have at a time.
        places: The most that all may have, more than that.
        """
        self._each, self._places = each, places
        self._taken: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []
        # By job when it had a turn last, as a number that grows. Who had none for longest comes first.
        self._served: dict[str, int] = {}
        self._given = 0

    @property
    def taken(self) -> int:
        """How many places are taken."""
        return self._taken.total()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a place for the work of this task, and has it until the end of the block."""
        waiting = _Waiting(interest())
        self._waiting.append(waiting)
        waiting.interest.joined = lambda: self._offer([waiting])
        try:
            self._offer([waiting])
            await waiting.given.wait()
            yield
        finally:
            if waiting.given.is_set():
                self._taken -= Counter([waiting.job])
                self._offer(self._waiting)
            else:
                self._waiting.remove(waiting)

    def _offer(self, candidates: Iterable[_Waiting]) -> None:
        """Gives free places to those of the candidates who may have one."""
        while self.taken < self._places:
            able = (
                (self._served.get(job, 0), number, job, waiting)
                for number, waiting in enumerate(candidates)
                for job in waiting.interest.jobs
                if self._taken[job] < self._each and not waiting.given.is_set()
            )
            best = min(able, default=None, key=lambda each: each[:3])
            if best is None:
                return
            _, _, job, waiting = best
            waiting.job = job
            waiting.given.set()
            self._waiting.remove(waiting)
            self._taken[job] += 1
            self._given += 1
            # Those of jobs that are gone are of no use, and nobody says when a job is gone.
            if len(self._served) >= _MOST_SERVED:
                self._served.clear()
            self._served[job] = self._given


@dataclass(slots=True)
class _Running:
    """Work that is under way; `error` is for its waiters."""

    interest: Interest = field(default_factory=interest)
    done: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = None


class SharedWork:
    """Does one thing of a name at a time. Whoever comes meanwhile waits for it and looks again whether all is there.

    That wait is told as one for a set-up, unless it is within one that is told as another.
    """

    def __init__(self, shared: tuple[type[Exception], ...]) -> None:
        """Args: shared: Exceptions of the work that those get as well who wait. After any other, the next one works."""
        self._shared = shared
        self._running: dict[str, _Running] = {}

    async def do(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        stop: anyio.Event,
        shared: tuple[type[Exception], ...] = (),
    ) -> None:
        """Does it, or waits while somebody else does.

        Args:
            name: What is done.
            work: Does it, in the task of the first who comes: cancelling that task cancels it.
            stop: Ends the wait for somebody else.
            shared: Further exceptions that those get as well who wait.

        Raises:
            StoppedError: `stop` was set while it waited.
            Exception: What the work raised.
        """
        running = self._running.get(name)
        if running is not None:
            running.interest.join()
            with waiting(Cause.SET_UP):
                await unless_stopped(stop, running.done.wait)
            if running.error is not None:
                raise running.error
            return
        running = self._running[name] = _Running()
        try:
            await work()
        except Exception as error:
            if isinstance(error, (*self._shared, *shared)):
                running.error = error
            raise
        finally:
            del self._running[name]
            running.done.set()
