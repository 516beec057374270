"""Explanations of actions, for the admin service: why each one waits, or what became of it."""

from __future__ import annotations

from collections.abc import Callable, Generator

from callsheet.scheduler.core.jobs.leases import open_job
from callsheet.scheduler.core.state.chores import open_actions
from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.state.scheduler_state import CoreSettings, SchedulerState
from callsheet.scheduler.core.words.model import ActionKey
from callsheet.scheduler.core.words.records import ActionSummary
from callsheet.scheduler.core.words.refusals import RefusedError, failed_precondition, not_found
from callsheet.scheduler.history.messages import fill_time, state_named
from callsheet.scheduler.planner.answers.explain import Explanation, explain_in_parts
from callsheet.scheduler.planner.answers.holders import Holder, holders_in_parts
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.predictors.requests import predict
from callsheet.scheduler.planner.protocol import Reviewer
from callsheet.scheduler.planner.round.review import Review
from callsheet.scheduler.service.codec.admin_answers import expected_run
from callsheet.scheduler.service.codec.requests import decode_key
from callsheet.scheduler.service.turns import in_turns
from callsheet.v1 import action_pb2, admin_service_pb2, common_pb2
from callsheet.v1.rules.fields import identifier, within

MAX_LISTED = 1_000
_LISTED = 100
# Job ids in a refusal.
_NAMED = 10


async def explanation_of(
    state: SchedulerState,
    asked: common_pb2.ActionKey,
    now: float,
    predictors: Predictors,
    planner: Reviewer,
    *,
    sees_job: Callable[[str], bool] = lambda _: True,
) -> admin_service_pb2.ExplainResponse:
    """Explains an action of an open job, or of one that was closed not long ago.

    Args:
        state: The core.
        asked: The action; its job may be left out if only one job has such an action.
        now: Seconds since the epoch.
        predictors: They predict what actions take.
        planner: The planner whose next round actions wait for.
        sees_job: Returns whether the caller may see a job; the answer names no others.

    Raises:
        RefusedError: NOT_FOUND if the action is unknown or forgotten; FAILED_PRECONDITION if several jobs have one.
    """
    key = decode_key(asked) if asked.job_id else _key_of(state, identifier("key.action_id", asked.action_id), now)
    response = admin_service_pb2.ExplainResponse()
    response.key.job_id, response.key.action_id = key
    known = state.find_action(key)
    if isinstance(known, Action):
        _fill_live(response, known, predictors)
        explanation = await in_turns(explain_in_parts(state, known, now, planner, sees_job))
        _fill_wait(response, explanation)
        for holder in await in_turns(holders_in_parts(state, known, explanation, now)):
            _fill_holder(response.holders.add(), holder, seen=sees_job(holder.job_id))
        return response
    if known is not None:
        summary = state.summaries.of_open_job(key)
        if summary is not None:
            _fill_summary(response, summary)
        else:
            response.state = state_named(known.state.value)
            response.explanation = f"it has its outcome: {known.state.value}"
        return response
    job = state.jobs.get(key.job_id)
    forgotten = job.forgotten.recall(key.action_id, b"") if job is not None else None
    if forgotten is not None:
        response.state = state_named(forgotten.state.value)
        response.explanation = (
            f"it has its outcome: {forgotten.state.value}; all else is forgotten, as {_kept(state.settings)}"
        )
        return response
    closed = state.summaries.of_closed_job(key, now)
    if closed is None:
        raise _refusal(state, key, now)
    _fill_summary(response, closed.summary)
    why = f" ({closed.reason})" if closed.reason else ""
    response.explanation += f"; its job was closed {_words(now - closed.closed_at)} ago{why}"
    response.job_closed = True
    return response


class _Reviews:
    """A planner's reviews. One review serves many explanations, so that a list is as old as its first line."""

    def __init__(self, planner: Reviewer) -> None:
        self._planner = planner
        self._known: Review | None = None

    def review(self, state: SchedulerState, now: float) -> Review:
        """See `Reviewer.review`."""
        if self._known is None:
            self._known = self._planner.review(state, now)
        return self._known


async def list_actions(
    state: SchedulerState,
    request: admin_service_pb2.ListActionsRequest,
    now: float,
    planner: Reviewer,
    *,
    sees_job: Callable[[str], bool] = lambda _: True,
) -> admin_service_pb2.ListActionsResponse:
    """Explains the oldest open actions of a job; see `explanation_of`.

    Raises:
        RefusedError: NOT_FOUND if the job is not open; INVALID_ARGUMENT naming the field.
    """
    size = int(within("page_size", request.page_size, 0, MAX_LISTED)) or _LISTED
    job, reviews = open_job(state, request.job_id), _Reviews(planner)
    response = admin_service_pb2.ListActionsResponse(open=job.open_actions)

    def parts() -> Generator[None, None, None]:
        # A job has its actions in the order in which they came.
        for action in open_actions(job):
            if len(response.actions) == size:
                return
            if action is not None and not action.state.terminal:
                explanation = yield from explain_in_parts(state, action, now, reviews, sees_job)
                found = response.actions.add()
                found.key.job_id, found.key.action_id = action.key
                _fill_story(found, action.request.kind, action.state.value, action.story[:1])
                found.wait_reason = admin_service_pb2.WaitReason.ValueType(explanation.reason)
                found.explanation = explanation.sentence
            yield

    await in_turns(parts())
    return response


def _kept(settings: CoreSettings) -> str:
    return (
        f"finished actions of open jobs are kept for {_words(settings.finished_actions_s)}, and the newest "
        f"{settings.finished_actions} or {settings.finished_actions_bytes} bytes of outcomes at most"
    )


def _key_of(state: SchedulerState, action_id: str, now: float) -> ActionKey:
    """Returns the action of this id: among open jobs, else among closed ones."""
    jobs = [id_ for id_, job in state.jobs.items() if action_id in job.actions or action_id in job.forgotten]
    jobs = jobs or state.summaries.closed_jobs_with(action_id, now)
    if len(jobs) > 1:
        rule = f"is in several jobs ({', '.join(sorted(jobs)[:_NAMED])}); name one"
        raise failed_precondition("key.job_id", "", rule)
    return ActionKey(jobs[0] if jobs else "", action_id)


def _refusal(state: SchedulerState, key: ActionKey, now: float) -> RefusedError:
    kept, kept_s = state.summaries.kept, _words(state.summaries.kept_s)
    closed_at = state.summaries.closed_at(key.job_id)
    if closed_at is None or key.job_id in state.jobs:
        rule = f"names no action of an open job, nor one of the newest {kept} of jobs closed within {kept_s}"
    elif now - closed_at >= state.summaries.kept_s:
        rule = f"is forgotten: its job was closed more than {kept_s} ago"
    else:
        rule = f"is forgotten, or never was: its job is closed, and more than {kept} actions of closed jobs came after"
    return not_found("key", "/".join(filter(None, key)), rule)


def _fill_live(response: admin_service_pb2.ExplainResponse, action: Action, predictors: Predictors) -> None:
    request = action.request
    response.trajectory_id = action.trajectory.request.trajectory_id if action.trajectory is not None else ""
    _fill_story(response, request.kind, action.state.value, action.story)
    response.expected.CopyFrom(expected_run(predict(predictors, request), request.timeouts.start_to_close))


def _fill_wait(response: admin_service_pb2.ExplainResponse, explanation: Explanation) -> None:
    response.wait_reason = admin_service_pb2.WaitReason.ValueType(explanation.reason)
    response.explanation = explanation.sentence
    for short in explanation.shortages:
        response.shortages.add(
            resource=short.resource,
            needed=short.needed,
            free=short.free,
            capacity=short.capacity,
            node_id=short.node_id,
        )


def _fill_holder(message: admin_service_pb2.Holder, holder: Holder, *, seen: bool) -> None:
    message.node_id = holder.node_id
    message.units.update(holder.units)
    message.held_s = max(holder.held_s, 0.0)
    if not seen:
        return
    message.job_id, message.action_id, message.trajectory_id = holder.job_id, holder.action_id, holder.trajectory_id
    message.sessions = holder.liveness.sessions
    if holder.liveness.expires_in is not None:
        message.expires_in_s = holder.liveness.expires_in


def _fill_summary(response: admin_service_pb2.ExplainResponse, summary: ActionSummary) -> None:
    _fill_story(response, summary.kind, summary.state, summary.story)
    why = " ".join(filter(None, (summary.failure, summary.reason)))
    parts = [
        f"it has its outcome: {summary.state}{f' ({why})' if why else ''}",
        f"{summary.ended_at - summary.submitted_at:.3f} s in all, queue {summary.queue_s:.3f} s, "
        f"execution {summary.execution_s:.3f} s",
        f"{summary.attempts} attempt{'' if summary.attempts == 1 else 's'}"
        + (f", the last on {summary.manager_id}" if summary.manager_id else ""),
    ]
    if summary.label:
        parts.append(f"label {summary.label!r}")
    response.explanation = "; ".join(parts)


def _fill_story(
    response: admin_service_pb2.ExplainResponse, kind: int, state: str, story: list[tuple[float, str]]
) -> None:
    response.kind = action_pb2.ActionKind.ValueType(kind)
    response.state = state_named(state)
    for time, event in story:
        fill_time(response.story.add(event=event).time, time)


def _words(seconds: float) -> str:
    """Returns a time for a reader."""
    for unit, name in ((3600.0, "h"), (60.0, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"
