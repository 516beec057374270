"""Calls of outside APIs under quotas."""

from __future__ import annotations

from typing import cast

from callsheet.benchmarks.simulator.events import EventQueue
from callsheet.benchmarks.simulator.physics.machines import Attempt, EndListener, Machine, Used
from callsheet.benchmarks.simulator.policy import Lane, Task
from callsheet.benchmarks.simulator.quota_books import ROUNDING_S, QuotaBooks
from callsheet.benchmarks.simulator.scenario import Cluster, Quota


class Api:
    """What one API lets through."""

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.running = 0
        self._books = QuotaBooks(quota)

    def accept(self, tokens: int, now: float) -> bool:
        """Whether the API takes a call; counts it if so."""
        if self.running >= self.quota.concurrency or self._books.wait_s(tokens, now) > ROUNDING_S:
            return False
        self._books.take(tokens)
        self.running += 1
        return True


class ApiAttempt(Attempt):
    """A call of an API."""

    __slots__ = ("accepted_at", "api")

    def __init__(self, task: Task, machine: Machine, api: Api) -> None:
        super().__init__(task, machine)
        self.api = api
        self.accepted_at = -1.0


class Apis:
    """All APIs: a `Machine` for calls."""

    def __init__(self, cluster: Cluster, events: EventQueue, ended: EndListener) -> None:
        self._events = events
        self._ended = ended
        self._apis = {quota.name: Api(quota) for quota in cluster.quotas}

    def admit(self, task: Task, node: str, width: int, lane: Lane) -> Attempt:
        """See `Machine`. Node, width and lane mean nothing here."""
        return ApiAttempt(task, self, self._apis[task.work.quota])

    def execute(self, attempt: Attempt) -> None:
        """See `Machine`: the call is accepted, or refused."""
        call = cast(ApiAttempt, attempt)
        now, work = self._events.now, call.task.work
        if call.api.accept(work.tokens, now):
            call.accepted_at = now
            self._events.at(now + min(work.service_s, work.timeout_s), self._answered, call)
        else:
            self._events.at(now + call.api.quota.refusal_s, self._refused, call)

    def release(self, attempt: Attempt) -> Used:
        """See `Machine`. What a call took of a quota does not come back."""
        call = cast(ApiAttempt, attempt)
        if call.accepted_at < 0:
            return Used(0.0, 0.0)
        call.api.running -= 1
        return Used(0.0, self._events.now - call.accepted_at)

    def _answered(self, call: ApiAttempt) -> None:
        if not call.over:
            work = call.task.work
            self._ended(call, timed_out=work.service_s > work.timeout_s)

    def _refused(self, call: ApiAttempt) -> None:
        if not call.over:
            self._ended(call, refused_for_s=call.api.quota.retry_after_s)
