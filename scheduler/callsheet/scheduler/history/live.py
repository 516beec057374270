"""Completes a page of the journal from the core: states that are not journalled, stories, and nodes. Pure."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ActionKey
from callsheet.scheduler.core.words.records import ActionSummary
from callsheet.scheduler.history.messages import cost_message, fill_ended, fill_time, state_named
from callsheet.v1 import action_pb2, admin_service_pb2

_EVENTS: Final = 32
_STORY_BYTES: Final = 512 * 1024
"""Most bytes of all stories of a page together; further actions have none."""


def complete_trajectories(
    state: SchedulerState, job_id: str, page: admin_service_pb2.ListTrajectoryHistoryResponse, now: float
) -> Generator[None, None, None]:
    """Completes a page, in parts: one for each trajectory."""
    for each in page.trajectories:
        each.node_id = _node_of(state, each.manager_id)
        trajectory = state.find_trajectory(job_id, each.trajectory_id) if not page.job_closed else None
        if trajectory is not None:
            each.admitted = trajectory.admitted_at is not None
            each.cost.CopyFrom(cost_message(trajectory.account.until(now)))
        yield


def complete_actions(
    state: SchedulerState, page: admin_service_pb2.ListActionHistoryResponse, now: float, *, brief: bool
) -> Generator[None, None, None]:
    """Completes a page, in parts: one for each action; a brief one has no stories."""
    room = 0 if brief else _STORY_BYTES
    for each in page.actions:
        key = ActionKey(each.key.job_id, each.key.action_id)
        known = state.find_action(key) if not page.job_closed else None
        if isinstance(known, Action):
            _fill_open(each, known, now)
            story = known.story
        else:
            summary = _summary_of(state, key, now, closed=page.job_closed)
            if summary is not None and not each.timeline.HasField("ended"):
                # It ended since the journal was read.
                each.state = state_named(summary.state)
                fill_ended(each, summary)
            story = summary.story if summary is not None else []
        for time, event in story[-_EVENTS:] if room > 0 else ():
            fill_time(each.story.add(event=event).time, time)
            room -= len(event) + 32
        each.node_id = each.node_id or _node_of(state, each.manager_id)
        yield


def _summary_of(state: SchedulerState, key: ActionKey, now: float, *, closed: bool) -> ActionSummary | None:
    if not closed:
        return state.summaries.of_open_job(key)
    found = state.summaries.of_closed_job(key, now)
    return found.summary if found is not None else None


def _fill_open(message: admin_service_pb2.ActionHistory, action: Action, now: float) -> None:
    """An action as it is now. It may have ended in the journal's page if it was submitted again since."""
    request, attempt, timeline = action.request, action.attempt, message.timeline
    message.kind = action_pb2.ActionKind.ValueType(request.kind)
    message.state, message.attempts = state_named(action.state.value), action.attempts
    message.label, message.task, message.service = request.label, request.task, request.service
    message.manager_id = attempt.manager_id if attempt is not None else message.manager_id
    timeline.queue_s = action.queue_s + (max(now - action.queued_since, 0.0) if attempt is None else 0.0)
    timeline.start_wait_s = action.start_wait_s
    if action.first_dispatched_at:
        fill_time(timeline.first_dispatched, action.first_dispatched_at)
    if attempt is not None:
        fill_time(timeline.dispatched, attempt.dispatched_at)
        if attempt.started_at:
            fill_time(timeline.started, attempt.started_at)
            timeline.execution_s = max(now - attempt.started_at, 0.0)


def _node_of(state: SchedulerState, manager_id: str) -> str:
    manager, lost = state.managers.get(manager_id), state.lost_managers.get(manager_id)
    if manager is not None:
        return manager.node.node_id
    return lost.node_id if lost is not None else ""
