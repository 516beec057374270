"""How long finished actions of open jobs are kept, and what takes their outcomes, summaries and stories away.

The oldest of a job go first. When all jobs together keep too much, the job that keeps the most gives way.
"""

from __future__ import annotations

from typing import Final

from callsheet.scheduler.core.entities import FinishedAction, Job
from callsheet.scheduler.core.forgotten import Forgotten, entry
from callsheet.scheduler.core.model import ActionKey, RefusalCode, RefusedError, not_found
from callsheet.scheduler.core.records import ActionsForgotten
from callsheet.scheduler.core.state import SchedulerState

# Actions forgotten in one step, and so in one commit.
MAX_PER_STEP: Final = 512
# What is due soon is forgotten with what is due now: rows in the journal are then few. As a part of the time kept, and
# in seconds at most.
_TOGETHER: Final = 1.0 / 16.0
_TOGETHER_S: Final = 60.0
# Where there is too much, so large a part goes at once.
_PART: Final = 1.0 / 16.0
_TIMER: Final = ("retention", "")


def keep(state: SchedulerState, job: Job, action_id: str, finished: FinishedAction) -> None:
    """Keeps an action that has its outcome; those of a job must come in the order of their outcomes."""
    job.actions[action_id] = finished
    job.finished.append(action_id)
    job.finished_bytes += finished.size
    state.finished_actions += 1
    state.finished_bytes += finished.size
    if _is_too_much(state):
        state.timers.set(_TIMER, finished.finished_at)
    elif state.timers.get(_TIMER) is None:
        state.timers.set(_TIMER, _due(state, finished))


def drop_job(state: SchedulerState, job: Job) -> None:
    """A job is closed: nothing of it is kept here."""
    state.finished_actions -= len(job.finished)
    state.finished_bytes -= job.finished_bytes


def retention_due(state: SchedulerState, now: float) -> None:
    """Forgets what was kept long enough, and what is too much; a bounded number, and the rest in the next step."""
    budget = MAX_PER_STEP
    for job in state.jobs.values():
        due = 0
        while due < min(len(job.finished), budget) and _kept_until(state, _nth(job, due)) <= now:
            due += 1
        budget -= due
        _forget(state, job, due)
    if _is_too_much(state):
        _make_room(state, budget)
    if budget <= 0 or _is_too_much(state):
        state.timers.set(_TIMER, now)
        return
    oldest = [_due(state, _nth(job, 0)) for job in state.jobs.values() if job.finished]
    if oldest:
        state.timers.set(_TIMER, min(oldest))


def check_not_forgotten(job: Job, key: ActionKey, body_hash: bytes) -> None:
    """An action that is forgotten never runs again.

    Raises:
        RefusedError: ALREADY_EXISTS, as forgotten, or because it had another body.
    """
    known = job.forgotten.recall(key.action_id, body_hash)
    if known is None:
        return
    if not known.same_body:
        raise RefusedError(RefusalCode.ALREADY_EXISTS, "action_id", key.action_id, "was submitted with another body")
    rule = f"is forgotten: the action {_ended(known)}, and its outcome is no longer kept; it does not run again"
    raise RefusedError(RefusalCode.ALREADY_EXISTS, "action_id", key.action_id, rule, forgotten=True)


def unknown_action(state: SchedulerState, key: ActionKey) -> RefusedError:
    """The refusal of a key under which there is no action of an open job, or none any more."""
    job = state.jobs.get(key.job_id)
    known = job.forgotten.recall(key.action_id, b"") if job is not None else None
    if known is None:
        return not_found("key", "/".join(key), "names no action of an open job")
    rule = f"is forgotten: the action {_ended(known)}, and its outcome is no longer kept"
    return RefusedError(RefusalCode.NOT_FOUND, "key", "/".join(key), rule, forgotten=True)


def _ended(known: Forgotten) -> str:
    return f"has ended ({known.state.value})"


def _nth(job: Job, index: int) -> FinishedAction:
    found = job.actions[job.finished[index]]
    if not isinstance(found, FinishedAction):
        raise AssertionError(f"{found.key} counts as finished")
    return found


def _kept_until(state: SchedulerState, finished: FinishedAction) -> float:
    return finished.finished_at + state.settings.finished_actions_s


def _due(state: SchedulerState, finished: FinishedAction) -> float:
    return _kept_until(state, finished) + min(state.settings.finished_actions_s * _TOGETHER, _TOGETHER_S)


def _is_too_much(state: SchedulerState) -> bool:
    settings = state.settings
    return state.finished_actions > settings.finished_actions or state.finished_bytes > settings.finished_actions_bytes


def _make_room(state: SchedulerState, budget: int) -> None:
    """Forgets a part of what the job keeps that keeps the most; then of the next one while there is too much."""
    while budget > 0 and _is_too_much(state):
        by_bytes = state.finished_bytes > state.settings.finished_actions_bytes
        job = max(state.jobs.values(), key=lambda each: each.finished_bytes if by_bytes else len(each.finished))
        count = min(budget, max(int(len(job.finished) * _PART), 1))
        budget -= count
        _forget(state, job, count)


def _forget(state: SchedulerState, job: Job, count: int) -> None:
    """Forgets the oldest finished actions of a job."""
    if not count:
        return
    entries = bytearray()
    action_ids = tuple(job.finished.popleft() for _ in range(count))
    for action_id in action_ids:
        finished = job.actions.pop(action_id)
        if not isinstance(finished, FinishedAction):
            raise AssertionError(f"{finished.key} counts as finished")
        entries += entry(action_id, finished.body_hash, finished.state)
        job.finished_bytes -= finished.size
        state.finished_bytes -= finished.size
        state.summaries.forget(ActionKey(job.request.job_id, action_id))
    state.finished_actions -= count
    job.forgotten.add(bytes(entries))
    state.persist(ActionsForgotten(job.request.job_id, action_ids, bytes(entries)))
