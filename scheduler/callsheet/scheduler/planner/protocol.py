"""Protocol of planners."""

from __future__ import annotations

from typing import Protocol

from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.planner.round.review import Review


class Planner(Protocol):
    """Decides which ready actions should start now, where, and with how many units."""

    def plan(self, state: SchedulerState, now: float) -> Plan:
        """Proposes assignments. Reads the state and changes nothing.

        Args:
            state: The scheduler's state.
            now: Seconds since the epoch.
        """


class Reviewer(Protocol):
    """Shows what the next round would do, and does nothing."""

    def review(self, state: SchedulerState, now: float) -> Review:
        """The next round, were it now.

        Args:
            state: The scheduler's state.
            now: Seconds since the epoch.
        """


class ReviewingPlanner(Planner, Reviewer, Protocol):
    """A planner that can also be asked what its next round would do."""
