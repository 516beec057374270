"""What callsheet knows of an action ahead of its run: what it learned from those that ended."""

from __future__ import annotations

from collections.abc import Sequence

from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.events import AttemptEnded
from callsheet.scheduler.core.words.model import ActionRequest, SpeedUp
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.predictors.requests import key_of, observation_of, with_attempts

# Cores; a command that needs no CPU at all still has to be ranked.
LEAST_USE = 0.01


class Knowledge:
    """The predictors, and what they are asked and told."""

    def __init__(self) -> None:
        self.predictors = Predictors()

    def use(self, request: ActionRequest, width: int) -> float:
        """Cores that an action is expected to use on that many cores."""
        prediction = self.predictors.predict(key_of(request), request.expected_duration)
        gain = SpeedUp(prediction.amdahl_fraction).at(width, 1) if width > 1 else 1.0
        return max(prediction.use * gain, LEAST_USE)

    def attempts_ended(self, state: SchedulerState, ends: Sequence[AttemptEnded]) -> None:
        """Learns what attempts took, as far as that says what actions need, before the core handles their ends."""
        for attempt, event in with_attempts(state, ends):
            observation = observation_of(attempt, event)
            if observation is not None:
                self.predictors.observe(observation)
