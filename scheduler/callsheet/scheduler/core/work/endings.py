"""How an action ended, in words: its summary, and the reason of its end. Pure."""

from __future__ import annotations

from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.words.commands import Cancellation, Expiry, OutcomeFacts, OutcomeResult
from callsheet.scheduler.core.words.events import AttemptFailed
from callsheet.scheduler.core.words.records import ActionSummary


def summary_of(action: Action, facts: OutcomeFacts, failure: str, reason: str) -> ActionSummary:
    """Returns what stays of an action that has its outcome."""
    request = action.request
    return ActionSummary(
        *request.key,
        request.kind,
        facts.state.value,
        request.label,
        failure,
        reason,
        facts.attempts,
        facts.manager_id,
        facts.node_id,
        facts.submitted,
        facts.ended,
        facts.queue_s,
        facts.execution_s,
        request.traceparent,
        request.task,
        request.service,
        facts.cost.held,
        facts.cost.used,
        action.story,
    )


def reason_of(result: OutcomeResult) -> tuple[str, str]:
    """Returns the kind of failure, and the reason of it or of another end; empty where there is none."""
    match result:
        case AttemptFailed(kind=kind, reason=reason):
            return kind.name, reason
        case Cancellation(reason=reason):
            return "", reason
        case Expiry(timeout=timeout):
            return "", timeout.name.lower()
        case _:
            return "", ""


def in_brackets(*words: str) -> str:
    """Returns words to put behind others; empty where there are none."""
    said = " ".join(filter(None, words))
    return f" ({said})" if said else ""
