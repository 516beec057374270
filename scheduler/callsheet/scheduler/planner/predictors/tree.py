"""The tree of what was seen: kinds, labels, labels of a job, tasks of such a label; and what a task does to all labels.

Nodes are bounded in number. The task and the label seen least recently go first; what they showed stays in their
parents, which learned from every run as well.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from callsheet.scheduler.core.model import ActionKind
from callsheet.scheduler.planner.predictors.settings import PredictorSettings
from callsheet.scheduler.planner.predictors.statistics import LabelStatistics
from callsheet.scheduler.planner.predictors.values import PredictionKey

_NODE_NUMBERS = 9


class TreePath(NamedTuple):
    """Names a node; None where a level is left open. Without a label but with a task it names the task's effect."""

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
        count = self.count + weight
        count = min(count, most)
        self.count = count
        self.value += weight / count * (value - self.value)


@dataclass(slots=True, eq=False)
class TreeNode:
    """What the runs of one node showed.

    Attributes:
        duration: Log-seconds at the fewest units, drift left out; for a task's effect, what the label leaves of them.
        use: CPU cores at the fewest units; longer runs count more.
        memory: Log-megabytes.
        slope: Mean of d log(time) / d Amdahl fraction, weighted as `duration`.
        previous: Log-seconds of the last run.
        previous_memory: Log-megabytes of the last run.
    """

    path: TreePath
    duration: RunningMean = field(default_factory=RunningMean)
    use: RunningMean = field(default_factory=RunningMean)
    memory: RunningMean = field(default_factory=RunningMean)
    slope: float = 0.0
    previous: float = 0.0
    previous_memory: float = 0.0

    def to_list(self) -> list[float]:
        """As numbers, for `fill`."""
        means = (self.duration, self.use, self.memory)
        numbers = [number for mean in means for number in (mean.count, mean.value)]
        return [*numbers, self.slope, self.previous, self.previous_memory]

    def fill(self, numbers: list[float]) -> None:
        """Takes what `to_list` gave.

        Raises:
            ValueError: It is not as many numbers, or one is not finite.
        """
        if len(numbers) != _NODE_NUMBERS or not all(map(math.isfinite, numbers)):
            raise ValueError(f"{self.path}: must be {_NODE_NUMBERS} finite numbers (got {numbers!r})")
        self.duration = RunningMean(*numbers[0:2])
        self.use = RunningMean(*numbers[2:4])
        self.memory = RunningMean(*numbers[4:6])
        self.slope, self.previous, self.previous_memory = numbers[6:9]


@dataclass(slots=True, eq=False)
class LabelNode(TreeNode):
    """A label of a job, or of all jobs: then the statistics are those of the job that ran last."""

    statistics: LabelStatistics = field(kw_only=True)

    def to_list(self) -> list[float]:
        """As numbers, for `fill`."""
        # The short form of super() does not find its class in one that was made anew for its slots.
        return TreeNode.to_list(self) + self.statistics.to_list()

    def fill(self, numbers: list[float]) -> None:
        """Takes what `to_list` gave.

        Raises:
            ValueError: As for `TreeNode.fill`.
        """
        TreeNode.fill(self, numbers[:_NODE_NUMBERS])
        self.statistics = LabelStatistics.from_list(numbers[_NODE_NUMBERS:])


class Branch(NamedTuple):
    """The nodes a key belongs to, from the root.

    Attributes:
        statistics: Those of the label in the job, else those of the label.
        task: None if the key names no task, or if nothing of it was seen.
        effect: As `task`.
    """

    kind: TreeNode
    label: TreeNode
    job_label: TreeNode
    statistics: LabelStatistics
    task: TreeNode | None
    effect: TreeNode | None


class SavedNode(NamedTuple):
    """A node's name and its numbers."""

    path: TreePath
    numbers: list[float]


class Changes(NamedTuple):
    """Nodes to be saved, and nodes to be forgotten: a part at a time, so that saving holds up nobody."""

    saved: list[SavedNode]
    removed: list[TreePath]


_AnyNode = TypeVar("_AnyNode", bound=TreeNode)
_Level = OrderedDict[tuple[int, str | None, str | None, str | None], _AnyNode]
"""Nodes by their paths, the least recently used first."""


class Tree:
    """All nodes, by level.

    Attributes:
        changed: Nodes that differ from what was last taken for saving.
        removed: Nodes that are gone since.
    """

    def __init__(self, settings: PredictorSettings) -> None:
        self._settings = settings
        self.kinds: _Level[TreeNode] = OrderedDict()
        self.labels: _Level[LabelNode] = OrderedDict()
        self.job_labels: _Level[LabelNode] = OrderedDict()
        self.tasks: _Level[TreeNode] = OrderedDict()
        self.effects: _Level[TreeNode] = OrderedDict()
        self._unseen = self._unlearned(TreePath(0))
        self.changed: set[TreePath] = set()
        self.removed: set[TreePath] = set()

    def find(self, key: PredictionKey) -> Branch:
        """The nodes; an empty one stands for each upper one that is not there. Changes nothing."""
        job, kind, label, task = key
        label_node = self.labels.get((kind, label, None, None), self._unseen)
        job_node = self.job_labels.get((kind, label, job, None))
        return Branch(
            self.kinds.get((kind, None, None, None), self._unseen),
            label_node,
            job_node or self._unseen,
            (job_node or label_node).statistics,
            self.tasks.get((kind, label, job, task)) if task else None,
            self.effects.get((kind, None, job, task)) if task else None,
        )

    def touch(self, key: PredictionKey) -> Branch:
        """The nodes, made where they are missing, as the most recently used; without a task there is none for it."""
        job, kind, label, task = key
        at_kind, at_label, at_job = TreePath(kind), TreePath(kind, label), TreePath(kind, label, job)
        kind_node = self.kinds.get(at_kind) or self._add(self.kinds, TreeNode(at_kind))
        label_node = self.labels.get(at_label) or self._add(self.labels, self._unlearned(at_label))
        job_node = self.job_labels.get(at_job)
        if job_node is None:
            inherited = label_node.statistics.for_new_job()
            job_node = self._add(self.job_labels, LabelNode(at_job, statistics=inherited))
        self.labels.move_to_end(at_label)
        self.job_labels.move_to_end(at_job)
        label_node.statistics = job_node.statistics
        self.changed.update((at_kind, at_label, at_job))
        if not task:
            return Branch(kind_node, label_node, job_node, job_node.statistics, None, None)
        at_task, at_effect = TreePath(kind, label, job, task), TreePath(kind, None, job, task)
        task_node = self.tasks.get(at_task) or self._add(self.tasks, TreeNode(at_task))
        effect = self.effects.get(at_effect) or self._add(self.effects, TreeNode(at_effect))
        self.tasks.move_to_end(at_task)
        self.effects.move_to_end(at_effect)
        self.changed.update((at_task, at_effect))
        return Branch(kind_node, label_node, job_node, job_node.statistics, task_node, effect)

    def take_changes(self, most: int) -> Changes:
        """What differs from what was taken before: up to `most` nodes, none once all were taken."""
        removed = [self.removed.pop() for _ in range(min(most, len(self.removed)))]
        taken = [self.changed.pop() for _ in range(min(most - len(removed), len(self.changed)))]
        levels = (self.kinds, self.labels, self.job_labels, self.effects, self.tasks)
        found = [(path, level[path]) for path in taken for level in levels if path in level]
        return Changes([SavedNode(path, node.to_list()) for path, node in found], removed)

    def put(self, path: TreePath, numbers: list[float]) -> None:
        """Adds a node as it was saved.

        Raises:
            ValueError: It has not the numbers such a node has, or its path is none.
        """
        path = path._replace(kind=ActionKind(path.kind))
        named = tuple(name is not None for name in path[1:])
        labels = {(True, False, False): self.labels, (True, True, False): self.job_labels}
        others = {(False, False, False): self.kinds, (False, True, True): self.effects, (True, True, True): self.tasks}
        if named in labels:
            label_node = self._unlearned(path)
            label_node.fill(numbers)
            self._add(labels[named], label_node)
        elif named in others:
            node = TreeNode(path)
            node.fill(numbers)
            self._add(others[named], node)
        else:
            raise ValueError(f"{path}: names no node")

    def _unlearned(self, path: TreePath) -> LabelNode:
        return LabelNode(path, statistics=LabelStatistics.assumed(self._settings))

    def _add(self, level: _Level[_AnyNode], node: _AnyNode) -> _AnyNode:
        level[node.path] = node
        self.removed.discard(node.path)
        most = self._settings.max_labels if node.path.task is None else self._settings.max_tasks
        if len(level) > most and level is not self.kinds:
            _, oldest = level.popitem(last=False)
            self.changed.discard(oldest.path)
            self.removed.add(oldest.path)
        return node
