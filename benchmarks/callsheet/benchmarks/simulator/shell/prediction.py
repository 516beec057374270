"""What callsheet knows of an action ahead of its run: next to nothing, what it learned, or the truth."""

from __future__ import annotations

import math
from collections.abc import Sequence

from callsheet.benchmarks.simulator.scenario import Rollout, Work
from callsheet.benchmarks.simulator.shell.settings import PredictionChoice
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.events import AttemptEnded
from callsheet.scheduler.core.words.model import ActionRequest, SpeedUp
from callsheet.scheduler.planner.predictors import Prediction, PredictionKey, Predictors
from callsheet.scheduler.planner.predictors.predictors import key_of, observation_of, with_attempts

# Cores; a command that needs no CPU at all still has to be ranked.
LEAST_USE = 0.01
_CERTAIN = 0.05


class Knowledge:
    """The predictors, and what they are asked and told. By itself it learns nothing: kinds have their priors."""

    def __init__(self, predictors: Predictors | None = None) -> None:
        self.predictors = predictors or Predictors()

    @property
    def told_to_planner(self) -> Predictors | None:
        """The predictors that the planner asks; None where it is to know nothing."""
        return None

    def task_of(self, work: Work, rollout: Rollout) -> str:
        """What predictors know an action's prompt by."""
        return rollout.task

    def use(self, request: ActionRequest, width: int) -> float:
        """Cores that an action is expected to use on that many cores."""
        prediction = self.predictors.predict(key_of(request), request.expected_duration)
        gain = SpeedUp(prediction.amdahl_fraction).at(width, 1) if width > 1 else 1.0
        return max(prediction.use * gain, LEAST_USE)

    def attempts_ended(self, state: SchedulerState, ends: Sequence[AttemptEnded]) -> None:
        """Looks at ends of attempts before the core handles them."""


class LearnedKnowledge(Knowledge):
    """Learns from every attempt that ended."""

    @property
    def told_to_planner(self) -> Predictors | None:
        """See `Knowledge`."""
        return self.predictors

    def attempts_ended(self, state: SchedulerState, ends: Sequence[AttemptEnded]) -> None:
        """Learns what the attempts took, as far as that says what their actions need."""
        for attempt, event in with_attempts(state, ends):
            observation = observation_of(attempt, event)
            if observation is not None:
                self.predictors.observe(observation)


class Oracle(LearnedKnowledge):
    """Knows the truth of each action; of classes of them it learns, as nobody can know more."""

    def __init__(self) -> None:
        self._truth = Truth()
        super().__init__(self._truth)

    def task_of(self, work: Work, rollout: Rollout) -> str:
        """What predictors know an action by: each is a task of its own."""
        return self._truth.add(work)


class Truth(Predictors):
    """Predictors that were told every action beforehand."""

    def __init__(self) -> None:
        super().__init__()
        self._works: dict[str, Work] = {}

    def add(self, work: Work) -> str:
        """Notes an action and returns the task to ask for it by."""
        task = str(len(self._works))
        self._works[task] = work
        return task

    def predict(
        self, key: PredictionKey, hint_s: float = 0.0, *, amdahl_hint: float = 1.0, timeout_s: float = math.inf
    ) -> Prediction:
        """What an action will take."""
        work = self._works.get(key.task)
        if work is None:
            return super().predict(key, hint_s, amdahl_hint=amdahl_hint, timeout_s=timeout_s)
        seconds = max(min(work.alone_s(), work.timeout_s, timeout_s), 1e-3)
        use = work.use if work.cpu_s else 0.0
        return Prediction(
            seconds, math.log(seconds), _CERTAIN, use, float(work.peak_memory_mb), work.parallel_fraction, 1.0
        )


def make_knowledge(choice: PredictionChoice) -> Knowledge:
    """What a simulation with that setting knows."""
    match choice:
        case PredictionChoice.OFF:
            return Knowledge()
        case PredictionChoice.LEARNED:
            return LearnedKnowledge()
        case PredictionChoice.ORACLE:
            return Oracle()
