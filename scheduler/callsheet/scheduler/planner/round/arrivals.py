"""Weight expected at each kind of resource: how fast it has been coming, and how much can come at all.

In a closed loop an action comes after its trajectory's generation, so what can arrive soon is bounded by the
trajectories that are generating now. Rates are exponential averages of what became ready.
"""

from __future__ import annotations

from math import exp

from callsheet.scheduler.core.state import SchedulerState

# Seconds over which rates are averaged, and the least time between two looks.
MEMORY_S = 20.0
LEAST_STEP_S = 0.05


class ArrivalRates:
    """Rates of arrival by kind of resource, learned from the ready queue's counters."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._rate: dict[str, float] = {}
        self._since: float | None = None

    def observe(self, state: SchedulerState, now: float) -> None:
        """Takes a look at the counters; cheap, for every round."""
        if self._since is None:
            self._since, self._seen = now, dict(state.ready.arrived_weight)
            return
        step = now - self._since
        if step < LEAST_STEP_S:
            return
        kept = exp(-step / MEMORY_S)
        for kind, total in state.ready.arrived_weight.items():
            recent = (total - self._seen.get(kind, 0.0)) / step
            self._rate[kind] = kept * self._rate.get(kind, recent) + (1.0 - kept) * recent
            self._seen[kind] = total
        self._since = now

    def rate(self, kind: str) -> float:
        """Weight that becomes ready for a kind of resource each second."""
        return self._rate.get(kind, 0.0)


def thinking_weight(state: SchedulerState, generating: int) -> float:
    """Weight of the live trajectories that have nothing waiting or running but a generation.

    Args:
        state: The core.
        generating: Generations that run as actions of the core; others it cannot see.
    """
    live = sum(job.live_trajectories for job in state.jobs.values())
    return float(max(live - len(state.attempts) - len(state.ready), 0) + generating)
