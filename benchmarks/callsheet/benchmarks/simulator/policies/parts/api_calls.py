"""Calls of outside APIs under a quota: in line, and either backing off when refused or never asking for too much."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Protocol

from callsheet.benchmarks.simulator.policies.parts.places import Line
from callsheet.benchmarks.simulator.policy import EndFacts, Task, World
from callsheet.benchmarks.simulator.quota_books import ROUNDING_S, QuotaBooks
from callsheet.benchmarks.simulator.scenario import Quota, Work


class Pace(Protocol):
    """How fast the calls of one API are sent."""

    def wait_s(self, work: Work, now: float) -> float:
        """Seconds before a call may be sent."""

    def sent(self, work: Work, now: float) -> None:
        """A call was sent."""

    def refused(self, retry_after_s: float, now: float) -> None:
        """A call was refused (429)."""


class BackOff:
    """Sends what it has; after a refusal all calls wait as long as the API asks for.

    One back-off for all callers together is the best that clients can do who do not count calls per second: with one
    for each call, those refused last starve while new ones use up the quota.
    """

    def __init__(self, quota: Quota) -> None:
        self._closed_until = -inf

    def wait_s(self, work: Work, now: float) -> float:
        """Seconds before a call may be sent."""
        return max(0.0, self._closed_until - now)

    def sent(self, work: Work, now: float) -> None:
        """Nothing is counted."""

    def refused(self, retry_after_s: float, now: float) -> None:
        """All calls wait."""
        self._closed_until = max(self._closed_until, now + retry_after_s)


class Planned:
    """Sends what the quota grants, calls per second and tokens per minute, so that nothing is refused."""

    def __init__(self, quota: Quota) -> None:
        self._books = QuotaBooks(quota)

    def wait_s(self, work: Work, now: float) -> float:
        """Seconds before a call may be sent."""
        return self._books.wait_s(work.tokens, now)

    def sent(self, work: Work, now: float) -> None:
        """Counts a call and its tokens."""
        self._books.take(work.tokens)

    def refused(self, retry_after_s: float, now: float) -> None:
        """Only another user of the quota could cause this; the call is sent again in its turn."""


class ApiLine:
    """The calls of one API, first come, at most as many at once as it allows."""

    def __init__(self, world: World, quota: Quota, pace: Pace) -> None:
        self._world = world
        self._quota = quota
        self._pace = pace
        self._waiting = Line()
        self._running = 0
        self._wakes_at = -inf

    def ready(self, task: Task) -> None:
        """A call joins the line."""
        self._waiting.add(task)
        self.send()

    def ended(self, task: Task, facts: EndFacts) -> None:
        """A call ended, or was refused."""
        self._running -= 1
        if facts.retry_after_s > 0.0:
            self._pace.refused(facts.retry_after_s, self._world.now)
        self.send()

    def send(self) -> None:
        """Sends what can be sent now, and asks to be woken when the next call can be."""
        now = self._world.now
        while self._running < self._quota.concurrency and (task := self._waiting.first()) is not None:
            wait_s = self._pace.wait_s(task.work, now)
            if wait_s > ROUNDING_S:
                self._wake(now + wait_s)
                return
            self._waiting.remove(task)
            self._running += 1
            self._pace.sent(task.work, now)
            self._world.start(task, node="")

    def _wake(self, at: float) -> None:
        if not self._world.now < self._wakes_at <= at:
            self._wakes_at = at
            self._world.wake_at(at)


class ApiCalls:
    """The lines of all APIs of a scenario."""

    def __init__(self, world: World, pace: Callable[[Quota], Pace]) -> None:
        self._lines = {quota.name: ApiLine(world, quota, pace(quota)) for quota in world.scenario.cluster.quotas}

    def ready(self, task: Task) -> None:
        """A call can be sent."""
        self._lines[task.work.quota].ready(task)

    def ended(self, task: Task, facts: EndFacts) -> None:
        """A call ended."""
        self._lines[task.work.quota].ended(task, facts)

    def woken(self) -> None:
        """Some line may go on."""
        for line in self._lines.values():
            line.send()
