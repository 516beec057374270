"""Observations of kinds, labels, labels in a job, and tasks of such a label.

Nodes are bounded in number. The task and the label seen least recently go first; what they showed stays in their
parents, which learned from every run as well.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.planner.predictors.values import PredictionKey

_NODE_NUMBERS = 13


class Path(NamedTuple):
    """Names a node; None where a level is left open."""

    kind: int
    label: str | None = None
    job: str | None = None
    task: str | None = None


@dataclass(slots=True, eq=False)
class RunningMean:
    """A weighted mean; its count is bounded, so that old values fade."""

    count: float = 0.0
    value: float = 0.0

    def add(self, value: float, weight: float, most: float) -> None:
        """Takes in a value; `weight` is above 0."""
        self.count = min(self.count + weight, most)
        self.value += weight / self.count * (value - self.value)


@dataclass(slots=True, eq=False)
class SeenRuns:
    """Observations of the runs of one node.

    Attributes:
        duration: Log-seconds at the fewest units.
        error: Squares of what log-seconds were predicted wrong by.
        use: CPU cores at the fewest units; longer runs count more.
        memory: Log-megabytes.
        memory_error: Squares of what these were predicted wrong by.
        slope: Of a task: mean of d log(time) / d Amdahl fraction, weighted as `duration`.
        information: Of a label: what its runs at several widths tell of its Amdahl fraction; 0 at first.
        pull: The same times the fraction.
    """

    duration: RunningMean = field(default_factory=RunningMean)
    error: RunningMean = field(default_factory=RunningMean)
    use: RunningMean = field(default_factory=RunningMean)
    memory: RunningMean = field(default_factory=RunningMean)
    memory_error: RunningMean = field(default_factory=RunningMean)
    slope: float = 0.0
    information: float = 0.0
    pull: float = 0.0

    def to_list(self) -> list[float]:
        """As numbers, for `from_list`."""
        means = (self.duration, self.error, self.use, self.memory, self.memory_error)
        numbers = [number for mean in means for number in (mean.count, mean.value)]
        return [*numbers, self.slope, self.information, self.pull]

    @staticmethod
    def from_list(numbers: list[float]) -> SeenRuns:
        """From what `to_list` gave.

        Raises:
            ValueError: It is not as many numbers, or one is not finite.
        """
        if len(numbers) != _NODE_NUMBERS or not all(map(math.isfinite, numbers)):
            raise ValueError(f"must be {_NODE_NUMBERS} finite numbers (got {numbers!r})")
        duration, error, use, memory, memory_error = (RunningMean(*numbers[at : at + 2]) for at in range(0, 10, 2))
        return SeenRuns(duration, error, use, memory, memory_error, *numbers[10:])


_UNSEEN = SeenRuns()


class Branch(NamedTuple):
    """The nodes that a key belongs to, from the root; empty ones for those that are not there."""

    kind: SeenRuns
    label: SeenRuns
    job_label: SeenRuns
    task: SeenRuns


class SavedNode(NamedTuple):
    """A node's name and its numbers."""

    path: Path
    numbers: list[float]


class Changes(NamedTuple):
    """Nodes to be saved, and nodes to be forgotten: a part at a time, so that saving holds up nobody."""

    saved: list[SavedNode]
    removed: list[Path]


class Nodes:
    """All nodes.

    Attributes:
        labels: Those of kinds, labels and labels in jobs, the least recently seen first.
        tasks: Those of tasks, in the same order.
        changed: Nodes that differ from what was last taken for saving.
        removed: Nodes that are gone since.
    """

    def __init__(self, *, max_tasks: int, max_labels: int) -> None:
        """Starts with none; see `Predictors`."""
        self.labels: OrderedDict[Path, SeenRuns] = OrderedDict()
        self.tasks: OrderedDict[Path, SeenRuns] = OrderedDict()
        self.changed: set[Path] = set()
        self.removed: set[Path] = set()
        self._max_tasks = max_tasks
        # A label has a node for all jobs beside that in its own.
        self._max_labels = 2 * max_labels + len(ActionKind)

    def find(self, key: PredictionKey) -> Branch:
        """The nodes of a key. Changes nothing."""
        job, kind, label, task = key
        known = self.labels
        return Branch(
            known.get(Path(kind), _UNSEEN),
            known.get(Path(kind, label), _UNSEEN),
            known.get(Path(kind, label, job), _UNSEEN),
            self.tasks.get(Path(kind, label, job, task), _UNSEEN) if task else _UNSEEN,
        )

    def touch(self, key: PredictionKey) -> Branch:
        """The nodes of a key, made where they are missing, as the most recently seen; one is not kept for no task."""
        job, kind, label, task = key
        in_job = self._touch(self.labels, Path(kind, label, job))
        in_all = self._touch(self.labels, Path(kind, label))
        of_kind = self._touch(self.labels, Path(kind))
        return Branch(
            of_kind, in_all, in_job, self._touch(self.tasks, Path(kind, label, job, task)) if task else SeenRuns()
        )

    def take_changes(self, most: int) -> Changes:
        """Returns the nodes that changed since they were last taken: up to `most`, none once all were taken."""
        removed = [self.removed.pop() for _ in range(min(most, len(self.removed)))]
        taken = [self.changed.pop() for _ in range(min(most - len(removed), len(self.changed)))]
        return Changes([SavedNode(path, self._level(path)[path].to_list()) for path in taken], removed)

    def put(self, path: Path, numbers: list[float]) -> None:
        """Adds a node as it was saved.

        Raises:
            ValueError: It has not the numbers that a node has, or its path is none.
        """
        named = [name is not None for name in path[1:]]
        if named != sorted(named, reverse=True):
            raise ValueError(f"{path}: names no node")
        path = path._replace(kind=ActionKind(path.kind))
        self._add(self._level(path), path, SeenRuns.from_list(numbers))

    def _level(self, path: Path) -> OrderedDict[Path, SeenRuns]:
        return self.labels if path.task is None else self.tasks

    def _touch(self, level: OrderedDict[Path, SeenRuns], path: Path) -> SeenRuns:
        node = level.get(path)
        if node is None:
            node = SeenRuns()
            self._add(level, path, node)
        level.move_to_end(path)
        self.changed.add(path)
        return node

    def _add(self, level: OrderedDict[Path, SeenRuns], path: Path, node: SeenRuns) -> None:
        level[path] = node
        self.removed.discard(path)
        if len(level) > (self._max_labels if level is self.labels else self._max_tasks):
            oldest, _ = level.popitem(last=False)
            self.changed.discard(oldest)
            self.removed.add(oldest)
