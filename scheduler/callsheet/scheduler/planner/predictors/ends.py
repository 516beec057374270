"""From the ends of attempts to what predictors learn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from callsheet.scheduler.core.entities import Attempt
from callsheet.scheduler.core.events import AttemptEnded, AttemptFailed, AttemptSucceeded
from callsheet.scheduler.core.model import FailureKind, TimeoutKind
from callsheet.scheduler.core.state import SchedulerState
from callsheet.scheduler.planner.predictors.requests import amdahl_hint, key_of, relative_units
from callsheet.scheduler.planner.predictors.values import ObservedRun

BYTES_PER_MB = 1 << 20


def with_attempts(state: SchedulerState, ends: Sequence[AttemptEnded]) -> Iterator[tuple[Attempt, AttemptEnded]]:
    """Ends that the core has not handled yet, with their attempts; those that it does not know are left out."""
    for event in ends:
        manager = state.managers.get(event.manager_id)
        attempt = manager.attempts.get(event.token) if manager is not None else None
        if attempt is not None:
            yield attempt, event


def observation_of(attempt: Attempt, event: AttemptEnded) -> ObservedRun | None:
    """What the end of an attempt says; None if it says nothing of what the action needs.

    Whatever its manager measured: its execution clock ended with its timeout.
    """
    if not event.started or event.execution_s <= 0.0:
        return None
    request = attempt.action.request
    usage = event.usage
    timed_out = _timed_out(event)
    return ObservedRun(
        key_of(request),
        min(event.execution_s, request.timeouts.start_to_close),
        relative_units(request.demand, attempt.granted),
        cpu_s=_amount(usage.cpu_s) if usage is not None else 0.0,
        peak_memory_mb=_amount(usage.peak_memory_bytes / BYTES_PER_MB) if usage is not None else 0.0,
        failed=not timed_out and not _ran_to_its_end(event),
        timed_out=timed_out,
        hint_s=request.expected_duration,
        amdahl_hint=amdahl_hint(request.demand),
    )


def _timed_out(event: AttemptEnded) -> bool:
    result = event.result
    return isinstance(result, AttemptFailed) and result.timeout is TimeoutKind.START_TO_CLOSE


def _ran_to_its_end(event: AttemptEnded) -> bool:
    """Whether its time is its own: it succeeded, or the policy's own code failed."""
    result = event.result
    if isinstance(result, AttemptFailed):
        return result.kind is FailureKind.POLICY
    return isinstance(result, AttemptSucceeded)


def _amount(value: float) -> float:
    """What a manager measured; what is no amount counts as not measured."""
    return value if math.isfinite(value) and value > 0.0 else 0.0
