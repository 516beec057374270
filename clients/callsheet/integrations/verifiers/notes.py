"""Notes of Callsheet in a trace. Nothing here imports verifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from callsheet.client import TrajectoryEnd
from callsheet.environments import EpisodeRecord, FailureRule, TrainerReward

NOTE: Final = "callsheet"
_LOST: Final = frozenset({"SandboxError", "ProviderError", "InterceptionError", "TunnelError"})
"""Errors of verifiers that say nothing of the model."""


class ErrorPart(Protocol):
    """Part of an error in a trace that is used."""

    @property
    def type(self) -> str:
        """The name of its class."""

    @property
    def message(self) -> str:
        """Message of the error."""


class TracePart(Protocol):
    """Part of a trace that is used."""

    info: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Returns whether the trace is a sample."""

    @property
    def last_error(self) -> ErrorPart | None:
        """The error because of which the trace is no sample; None if it is one."""

    def record_metrics(self, values: Mapping[str, float]) -> None:
        """Records figures."""


def note_of(trace: TracePart) -> dict[str, Any]:
    """Returns what is noted in a trace, for more to be noted."""
    note: dict[str, Any] = trace.info.setdefault(NOTE, {})
    return note


def note_episode(trace: TracePart, record: EpisodeRecord, rule: FailureRule) -> TrainerReward:
    """Notes how an episode went; returns what it is to a trainer."""
    reward = record.reward_by(rule)
    note = note_of(trace)
    note |= {"reward": reward.reward, "end": record.end.value, "turns": record.turns}
    if record.failure is not None:
        note["failure"] = record.failure.name
    seconds = record.seconds
    note["seconds"] = {
        "generate": seconds.generate,
        "environment": seconds.environment,
        "reward": seconds.reward,
        "waiting": seconds.waiting,
    }
    trace.record_metrics({"callsheet_cut_replies": float(record.cut_replies)})
    if record.score is not None:
        trace.record_metrics(record.score.components)
    return reward


def note_end(trace: TracePart, trajectory_id: str) -> tuple[TrajectoryEnd, str]:
    """Notes a run's end with both counts of failures; returns how its trajectory ends, and why."""
    note = note_of(trace)
    note["trajectory"] = trajectory_id
    failed = trace.ok and "failure" in note
    trace.record_metrics({"callsheet_excluded": float(not trace.ok), "callsheet_failed": float(failed)})
    if trace.ok:
        # A failed episode is a sample to the trainer; the scheduler counts it as abandoned.
        return (TrajectoryEnd.ABANDONED, note["failure"]) if failed else (TrajectoryEnd.COMPLETED, "")
    error = trace.last_error
    if error is None:
        return TrajectoryEnd.ABANDONED, "its trace is no sample"
    end = TrajectoryEnd.LOST if error.type in _LOST else TrajectoryEnd.ABANDONED
    return end, f"{error.type}: {error.message}"
