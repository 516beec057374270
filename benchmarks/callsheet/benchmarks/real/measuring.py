"""What is written down of a real run, and the figures drawn from it: the same as a simulation's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import numpy as np
from callsheet.benchmarks.simulator.comparison.figures import Figures
from callsheet.benchmarks.simulator.measurements import act_figures


class Span(NamedTuple):
    """Cores that an action, or a trajectory, has from one time to another; in seconds of one clock."""

    start: float
    end: float
    cores: int


def held_core_s(spans: Iterable[Span], cores: int) -> float:
    """Core-seconds held: at every time the widths of what runs, and never more than the cores there are.

    The simulator counts a node's cores in the same way.
    """
    changes = sorted(change for start, end, width in spans if end > start for change in ((start, width), (end, -width)))
    total, running, since = 0.0, 0, 0.0
    for at, change in changes:
        total += min(running, cores) * (at - since)
        running += change
        since = at
    return total


@dataclass(frozen=True, slots=True)
class TimedAction:
    """An external action that ended. Times in seconds.

    Attributes:
        act_s: From submit to outcome, by the client's clock; a wait to start is left out.
        alone_s: What it takes by itself.
        cpu_s: CPU seconds that it used.
    """

    act_s: float
    alone_s: float
    cpu_s: float


@dataclass(slots=True)
class RealRun:
    """A whole run.

    Attributes:
        actions: In the order of their ends.
        start_waits_s: One a trajectory.
        held: The cores that actions were granted, or that were reserved for trajectories.
        step_s: End of the last trajectory.
    """

    actions: list[TimedAction] = field(default_factory=list)
    start_waits_s: list[float] = field(default_factory=list)
    held: list[Span] = field(default_factory=list)
    step_s: float = 0.0

    def figures(self, cores: int) -> Figures:
        """The figures of a one-shot step on that many cores.

        Raises:
            ValueError: No action ended.
        """
        if not self.actions:
            raise ValueError("no action ended, so there is nothing to report")
        acts = np.array([action.act_s for action in self.actions])
        waits = acts - np.array([action.alone_s for action in self.actions])
        capacity = cores * self.step_s
        return Figures(
            **asdict(act_figures(acts)),
            wait_max_s=float(waits.max()),
            start_wait_mean_s=float(np.mean(self.start_waits_s)) if self.start_waits_s else 0.0,
            act_with_start_mean_s=float(acts.mean()) + sum(self.start_waits_s) / len(acts),
            step_s=self.step_s,
            trajectories_per_hour=None,
            held=held_core_s(self.held, cores) / capacity,
            used=sum(action.cpu_s for action in self.actions) / capacity,
            gpu_held=None,
            gpu_used=None,
            actions=len(self.actions),
        )
