"""Proposals of a planner."""

from __future__ import annotations

from dataclasses import dataclass, field

from callsheet.scheduler.core.words.model import ActionKey, TrajectoryKey


@dataclass(frozen=True, slots=True)
class GrantPrediction:
    """Expectation of a planner for an attempt at the width of its grant, for the manager that shares a node.

    Attributes:
        execution_s: Seconds on its execution clock; 0 if unknown.
        use: Cores it uses when it has what it can use; 0 if unknown.
    """

    execution_s: float
    use: float


@dataclass(slots=True)
class Assignment:
    """Run an action on a manager with these units (by resource, zeros left out).

    Attributes:
        kv_tokens: What it is expected to come to hold of an engine's KV cache.
        why: The reason for this place, for the action's story: the rule, its price there, and the place that came next.
    """

    key: ActionKey
    manager_id: str
    units: dict[str, int]
    prediction: GrantPrediction | None = None
    kv_tokens: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class CoreChange:
    """From now on a running attempt has so many cores, within its action's demand."""

    key: ActionKey
    cores: int


@dataclass(slots=True)
class Plan:
    """Proposals of a planning round. The core checks each assignment against its present state.

    Attributes:
        assignments: In the order in which they should be dispatched.
        admitted: Waiting trajectories that may begin; before the assignments, which may be of their first actions.
        core_changes: What running attempts lose or get back; after the assignments.
        truncated: The round stopped at its cap; another one should follow at once.
        again_at: When another one should follow in any case, in seconds since the epoch; None for no such time.
    """

    assignments: tuple[Assignment, ...] = field(default_factory=tuple)
    truncated: bool = False
    admitted: tuple[TrajectoryKey, ...] = ()
    core_changes: tuple[CoreChange, ...] = ()
    again_at: float | None = None

    @property
    def empty(self) -> bool:
        """True if it changes nothing."""
        return not (self.assignments or self.admitted or self.core_changes or self.again_at is not None)
