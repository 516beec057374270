"""The first planner behind a gate: only so many trajectories of a job live at once."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import islice

from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.round.review import Review


@dataclass(slots=True)
class GatedPlanner:
    """Admits, in order, while fewer than `most` trajectories of a job live."""

    most: int

    def plan(self, state: SchedulerState, now: float) -> Plan:
        """See `Planner.plan`. The first planner is shown only those who may begin."""
        return FirstComePlanner().plan(self._seen(state), now)

    def review(self, state: SchedulerState, now: float) -> Review:
        """See `Reviewer.review`."""
        return FirstComePlanner().review(self._seen(state), now)

    def _seen(self, state: SchedulerState) -> SchedulerState:
        seen = copy.copy(state)
        seen.waiting_trajectories = {
            job_id: dict(islice(waiting.items(), max(self.most - state.jobs[job_id].live_trajectories, 0)))
            for job_id, waiting in state.waiting_trajectories.items()
        }
        return seen
