"""Synthetic commands with the structure of coding agents' commands: classes, tasks that differ, noise around both."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.planner.predictors import ObservedRun, PredictionKey, Predictors
from callsheet.scheduler.planner.predictors.nodes import SavedNode

# Share of calls, mean and standard deviation of log-seconds; fitted to public traces.
CLASSES = {
    "file": (0.33, -3.6, 1.16),
    "shell file": (0.14, -2.26, 1.15),
    "git": (0.13, -2.27, 1.07),
    "python": (0.17, -0.52, 1.03),
    "test": (0.18, 0.66, 1.07),
    "install": (0.05, 0.89, 1.0),
}
# Of a class's variance: between tasks for all classes alike, between tasks for the class alone; the rest is noise.
TASK_SHARE, CLASS_TASK_SHARE = 0.12, 0.4


@dataclass(frozen=True, slots=True)
class SyntheticCommands:
    """A stream of runs of many tasks side by side.

    Attributes:
        tasks: How many.
        runs_per_task: Commands of each.
        seed: Of everything drawn.
        slowdown_after: From this run on ...
        slowdown: ... everything takes so many times as long.
    """

    tasks: int = 30
    runs_per_task: int = 50
    seed: int = 1
    slowdown_after: int = 1 << 60
    slowdown: float = 1.0
    job: str = "job"

    def runs(self) -> Iterator[ObservedRun]:
        """The runs in order of their ends."""
        draw = random.Random(self.seed)
        names = list(CLASSES)
        effects = {
            (task, name): math.sqrt(CLASS_TASK_SHARE) * draw.gauss(0, 1) for task in range(self.tasks) for name in names
        }
        shared = [math.sqrt(TASK_SHARE) * draw.gauss(0, 1) for _ in range(self.tasks)]
        noise = math.sqrt(1.0 - TASK_SHARE - CLASS_TASK_SHARE)
        for index in range(self.tasks * self.runs_per_task):
            task = draw.randrange(self.tasks)
            name = draw.choices(names, [CLASSES[each][0] for each in names])[0]
            _, mean, deviation = CLASSES[name]
            log_seconds = mean + deviation * (shared[task] + effects[task, name] + noise * draw.gauss(0, 1))
            slower = self.slowdown if index >= self.slowdown_after else 1.0
            seconds = math.exp(log_seconds) * slower
            key = PredictionKey(self.job, ActionKind.ENV_STEP, name, f"task-{task}")
            yield ObservedRun(key, seconds, cpu_s=0.64 * seconds, peak_memory_mb=math.exp(draw.gauss(5.6, 0.2)))


def saved_nodes(predictors: Predictors) -> list[SavedNode]:
    """All that was learned, as it would be saved."""
    levels = (predictors.nodes.labels, predictors.nodes.tasks)
    return [SavedNode(path, node.to_list()) for level in levels for path, node in level.items()]
