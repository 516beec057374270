"""What a planner is."""

from __future__ import annotations

from typing import Protocol

from callsheet.scheduler.core.plan import Plan
from callsheet.scheduler.core.state import SchedulerState


class Planner(Protocol):
    """Decides which ready actions should start now, where, and with how many units."""

    def plan(self, state: SchedulerState, now: float) -> Plan:
        """Proposes assignments. Reads the state and changes nothing.

        Args:
            state: The scheduler's state.
            now: Seconds since the epoch.
        """
