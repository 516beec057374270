"""The states of an action, and the only changes between them.

Only `Action.change` changes a state. It raises `ImpossibleChangeError` for a change that this table does not have, and
that ends the scheduler's process. Nothing of that step was sent or journalled, so the next start goes on from books
that agree. Failing the action instead would journal an outcome from books that do not agree, perhaps a second one. The
picture in docs/concepts/architecture.md is drawn from this table by `scripts/action_states.py`.

A queued action waits for its trajectory's admission, for its turn in the sandbox, for a backoff or for the planner. A
dispatched or running action that is to stop stays in its state until its attempt has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from callsheet.scheduler.core.words.model import ActionState

_WITH_ATTEMPT: Final = frozenset({ActionState.DISPATCHED, ActionState.RUNNING})
_QUEUED: Final = frozenset({ActionState.QUEUED})
_OPEN: Final = _QUEUED | _WITH_ATTEMPT


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A change of an action's state.

    Attributes:
        name: The event, in one word.
        sources: States from which it may come; none for the beginning.
        target: The state that it leads to.
    """

    name: str
    sources: frozenset[ActionState]
    target: ActionState


class ImpossibleChangeError(AssertionError):
    """A change that the table does not have: an error of this program."""


# The submit was accepted, by this scheduler or, as the journal has it, by one before.
SUBMITTED: Final = Change("submitted", frozenset(), ActionState.QUEUED)
# The core granted what a plan proposed.
DISPATCHED: Final = Change("dispatched", _QUEUED, ActionState.DISPATCHED)
# A manager has an attempt at it that an earlier scheduler dispatched.
ADOPTED: Final = Change("adopted", _QUEUED, ActionState.DISPATCHED)
# The journal has an attempt at it, whose manager has not registered yet.
RECOVERED: Final = Change("recovered", _QUEUED, ActionState.DISPATCHED)
STARTED: Final = Change("started", frozenset({ActionState.DISPATCHED}), ActionState.RUNNING)
# Its attempt failed or was lost, and its kind and policy allow another one.
REQUEUED: Final = Change("requeued", _WITH_ATTEMPT, ActionState.QUEUED)
# A short attempt may end before its start was reported.
SUCCEEDED: Final = Change("succeeded", _WITH_ATTEMPT, ActionState.SUCCEEDED)
FAILED: Final = Change("failed", _OPEN, ActionState.FAILED)
CANCELLED: Final = Change("cancelled", _OPEN, ActionState.CANCELLED)
EXPIRED: Final = Change("expired", _OPEN, ActionState.EXPIRED)

CHANGES: Final = (
    *(SUBMITTED, DISPATCHED, ADOPTED, RECOVERED, STARTED, REQUEUED),
    *(SUCCEEDED, FAILED, CANCELLED, EXPIRED),
)
