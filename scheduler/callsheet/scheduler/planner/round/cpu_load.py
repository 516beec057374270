"""The load of live trajectories on their cores, by the rate of their commands."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from callsheet.scheduler.core.state.scheduler_state import SchedulerState

# Seconds over which the rate is averaged, and the least time between two looks.
MEMORY_S = 20.0
LEAST_STEP_S = 0.05


@dataclass(frozen=True, slots=True)
class CpuLoad:
    """How busy the trajectories that live keep their cores.

    Attributes:
        live: How many live, of jobs whose trajectories have sandboxes.
        cores: Cores of the nodes that have sandboxes.
        idle_cores: Those of them that nothing uses now.
        work_s: Core-seconds of a command.
        alone_s: Seconds of a command that has the cores it can use.
        think_s: Seconds from the end of a command to the next one of its trajectory.
    """

    live: int
    cores: float
    idle_cores: float
    work_s: float
    alone_s: float
    think_s: float

    def most_live(self, load: float) -> float:
        """Trajectories at which commands would use so many times the cores, were none to wait for any other.

        An estimate errs while trajectories have hardly begun; that cores idle is a fact, and makes room for as many.
        """
        estimated = load * self.cores * (self.alone_s + self.think_s) / max(self.work_s, 1e-9)
        return max(estimated, self.live + self.idle_cores)


class CommandRate:
    """Weight that becomes ready for cores each second, as an exponential average.

    Attributes:
        rate: The average; 0 until something came.
    """

    def __init__(self) -> None:
        self.rate = 0.0
        self._seen = 0.0
        self._since: float | None = None

    def observe(self, state: SchedulerState, now: float) -> None:
        """Takes a look at the ready queue's counter; cheap, for every round."""
        total = state.ready.arrived_for_cores
        if self._since is None:
            self._since, self._seen = now, total
            return
        step = now - self._since
        if step < LEAST_STEP_S:
            return
        recent = (total - self._seen) / step
        kept = exp(-step / MEMORY_S) if self.rate else 0.0
        self.rate = kept * self.rate + (1.0 - kept) * recent
        self._since, self._seen = now, total


def thinking(state: SchedulerState, generating: int) -> float:
    """Live trajectories that have nothing waiting or running but a generation.

    Args:
        state: The core.
        generating: Generations that run as actions of the core; others it cannot see.
    """
    live = sum(job.live_trajectories for job in state.jobs.values())
    return float(max(live - len(state.attempts) - len(state.ready), 0) + generating)
