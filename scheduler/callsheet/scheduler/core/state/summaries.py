"""Summaries of actions that are over: bounded in number and in time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from callsheet.scheduler.core.words.model import ActionKey
from callsheet.scheduler.core.words.records import MAX_FINISHED, ActionSummary, ClosedAction, ClosedActionsKept

# Closed jobs whose ids are remembered, so that an action is said to be forgotten and not unknown.
MAX_CLOSED_JOBS = 10_000


class Summaries:
    """Summaries of actions of open jobs, and for a while of closed ones; the oldest are forgotten first."""

    def __init__(self, kept: int, kept_s: float) -> None:
        """Starts empty.

        Args:
            kept: Most actions of closed jobs.
            kept_s: Seconds after the close of its job when an action is forgotten.
        """
        self.kept = kept
        self.kept_s = kept_s
        self._of_open: OrderedDict[ActionKey, ActionSummary] = OrderedDict()
        self._of_closed: OrderedDict[ActionKey, ClosedAction] = OrderedDict()
        self._closed_jobs: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._last_number = 0

    def add(self, summary: ActionSummary) -> None:
        """Keeps the summary of an action that has its outcome now."""
        self._of_open[ActionKey(summary.job_id, summary.action_id)] = summary
        if len(self._of_open) > MAX_FINISHED:
            self._of_open.popitem(last=False)

    def forget(self, key: ActionKey) -> None:
        """An action of an open job is not kept any more."""
        self._of_open.pop(key, None)

    def close_job(self, job_id: str, action_ids: Collection[str], now: float, reason: str = "") -> ClosedActionsKept:
        """Notes that a job is closed; returns what the journal should remember of its actions.

        Args:
            job_id: The job.
            action_ids: Of all its actions.
            now: Seconds since the epoch.
            reason: Why, if its client did not ask for it; else empty.
        """
        summaries = self._take(job_id, action_ids)[-self.kept :] if self.kept else []
        kept = []
        for summary in summaries:
            self._last_number += 1
            kept.append(ClosedAction(self._last_number, now, summary, reason))
        for closed in kept:
            self._keep(closed)
        self._note_closed(job_id, now, reason)
        return ClosedActionsKept(tuple(kept), self._forget(now))

    def restore(self, finished: Iterable[ActionSummary], closed: Iterable[ClosedAction], now: float) -> None:
        """Takes over what the journal remembered."""
        for summary in finished:
            self.add(summary)
        for each in closed:
            self._last_number = each.number
            self._keep(each)
        self._forget(now)

    def of_open_job(self, key: ActionKey) -> ActionSummary | None:
        """The summary of an action of an open job."""
        return self._of_open.get(key)

    def of_closed_job(self, key: ActionKey, now: float) -> ClosedAction | None:
        """The summary of an action of a closed job."""
        found = self._of_closed.get(key)
        return found if found is not None and self._is_kept(found, now) else None

    def closed_jobs_with(self, action_id: str, now: float) -> list[str]:
        """Closed jobs that had an action of this id."""
        return [
            key.job_id
            for key, each in self._of_closed.items()
            if key.action_id == action_id and self._is_kept(each, now)
        ]

    def closed_at(self, job_id: str) -> float | None:
        """When a job was closed; None if it was not, or so long ago that its id is forgotten."""
        known = self._closed_jobs.get(job_id)
        return known[0] if known is not None else None

    def reason_of_close(self, job_id: str) -> str:
        """Returns why a job was closed, if its client did not ask for it and the reason is remembered; else empty."""
        known = self._closed_jobs.get(job_id)
        return known[1] if known is not None else ""

    def _take(self, job_id: str, action_ids: Collection[str]) -> list[ActionSummary]:
        """The summaries of a job's actions, in the order of their outcomes; they are of an open job no more."""
        if len(action_ids) < len(self._of_open):
            of_job = [key for action_id in action_ids if (key := ActionKey(job_id, action_id)) in self._of_open]
        else:
            of_job = [key for key in self._of_open if key.job_id == job_id]
        return sorted((self._of_open.pop(key) for key in of_job), key=lambda summary: summary.ended_at)

    def _keep(self, closed: ClosedAction) -> None:
        key = ActionKey(closed.summary.job_id, closed.summary.action_id)
        # The action of an earlier job of the same name gives way; the order stays that of the numbers.
        self._of_closed.pop(key, None)
        self._of_closed[key] = closed
        self._note_closed(key.job_id, closed.closed_at, closed.reason)

    def _note_closed(self, job_id: str, closed_at: float, reason: str) -> None:
        self._closed_jobs[job_id] = (closed_at, reason)
        self._closed_jobs.move_to_end(job_id)
        while len(self._closed_jobs) > MAX_CLOSED_JOBS:
            self._closed_jobs.popitem(last=False)

    def _is_kept(self, closed: ClosedAction, now: float) -> bool:
        return closed.closed_at + self.kept_s > now

    def _forget(self, now: float) -> int:
        """Forgets what is too old or too much; returns the number up to which nothing is kept."""
        while self._of_closed:
            oldest = next(iter(self._of_closed.values()))
            if len(self._of_closed) <= self.kept and self._is_kept(oldest, now):
                return oldest.number - 1
            self._of_closed.popitem(last=False)
        return self._last_number
