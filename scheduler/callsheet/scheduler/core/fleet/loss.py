"""Handles the loss of a manager in parts: its attempts end, and its sandboxes are forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from callsheet.scheduler.core.state.announced_managers import Awaited, LostManager
from callsheet.scheduler.core.state.chores import Part
from callsheet.scheduler.core.state.entities import Attempt, LastAttempt, Trajectory
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import FailureKind
from callsheet.scheduler.core.work.adoption import take_orphan
from callsheet.scheduler.core.work.costs import charge_untold
from callsheet.scheduler.core.work.lifecycle import STATE_LOST, drop_attempt, drop_sandbox, end_unsuccessfully

MOST_LOST = 256
"""Lost managers of which the newest are told."""
MANAGER_LOST = events.AttemptFailed(FailureKind.INFRA, "manager_lost", "the manager that ran the attempt is gone")


def lost_key(manager_id: str) -> tuple[str, str]:
    """The chore that gives up a manager."""
    return "lost", manager_id


def lose_awaited(state: SchedulerState, manager_id: str, now: float) -> None:
    """Gives up a manager that was there before a restart and has not come back."""
    awaited = state.awaited.pop(manager_id, Awaited())
    if awaited.drain is not None:
        state.persist(replace(awaited.drain, leaves_by=None))
    lose_work(state, manager_id, "", awaited.take_attempts(), awaited.with_sandboxes(manager_id), now=now)


def lose_work(
    state: SchedulerState,
    manager_id: str,
    node_id: str,
    attempts: Sequence[Attempt],
    sandboxes: Sequence[Trajectory],
    *,
    now: float,
) -> None:
    """Takes note of a manager that is lost; the chore under its key ends its attempts and forgets its sandboxes."""
    attempts = [attempt for attempt in attempts if attempt.token in state.attempts]
    state.lost_managers.pop(manager_id, None)
    state.lost_managers[manager_id] = LostManager(manager_id, node_id, now, len(attempts), len(sandboxes))
    if len(state.lost_managers) > MOST_LOST:
        del state.lost_managers[next(iter(state.lost_managers))]
    state.chores.add(lost_key(manager_id), _parts(state, manager_id, attempts, sandboxes))


def _parts(
    state: SchedulerState, manager_id: str, attempts: Sequence[Attempt], sandboxes: Sequence[Trajectory]
) -> Iterator[Part]:
    def end(attempt: Attempt, now: float) -> None:
        if state.attempts.get(attempt.token) is attempt:
            failed = STATE_LOST if attempt.action.request.needs_sandbox else MANAGER_LOST
            end_attempt(state, attempt, failed, now, started=True)

    def drop(trajectory: Trajectory, now: float) -> None:
        if trajectory.manager_id == manager_id:
            drop_sandbox(state, trajectory, now, lost=True)

    yield from (partial(end, each) for each in attempts)
    yield from (partial(drop, each) for each in sandboxes)
    for key in [key for key, orphan in state.orphans.items() if orphan.manager_id == manager_id]:
        take_orphan(state, key)


def end_attempt(
    state: SchedulerState, attempt: Attempt, failed: events.AttemptFailed, now: float, *, started: bool
) -> None:
    """Ends an attempt that its manager will not end."""
    action = attempt.action
    if started:
        charge_untold(state, attempt, now)
    if action.attempt is attempt:
        action.attempt = None
        end_unsuccessfully(state, action, failed, now, LastAttempt(attempt, started))
    drop_attempt(state, attempt, now)
