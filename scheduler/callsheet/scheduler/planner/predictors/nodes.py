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


class Path(NamedTuple):
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
class Node:
    """What the runs of one node showed.

    Attributes:
        duration: Log-seconds at the fewest units, drift left out; for a task's effect, what the label leaves of them.
        use: CPU cores at the fewest units; longer runs count more.
        memory: Log-megabytes.
        slope: Mean of d log(time) / d Amdahl fraction, weighted as `duration`.
        previous: Log-seconds of the last run.
        previous_memory: Log-megabytes of the last run.
    """

    path: Path
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
class LabelNode(Node):
    """A label of a job, or of all jobs: then the statistics are those of the job that ran last."""

    statistics: LabelStatistics = field(kw_only=True)

    def to_list(self) -> list[float]:
        """As numbers, for `fill`."""
        # The short form of super() does not find its class in one that was made anew for its slots.
        return Node.to_list(self) + self.statistics.to_list()

    def fill(self, numbers: list[float]) -> None:
        """Takes what `to_list` gave.

        Raises:
            ValueError: As for `Node.fill`.
        """
        Node.fill(self, numbers[:_NODE_NUMBERS])
        self.statistics = LabelStatistics.from_list(numbers[_NODE_NUMBERS:])


class Branch(NamedTuple):
    """The nodes a key belongs to, from the root; None where there is none yet."""

    kind: Node | None
    label: LabelNode | None
    job_label: LabelNode | None
    task: Node | None
    effect: Node | None


class GrownBranch(NamedTuple):
    """A branch whose upper nodes are there; the lower two are if the key names a task."""

    kind: Node
    label: LabelNode
    job_label: LabelNode
    task: Node | None
    effect: Node | None


_Key = TypeVar("_Key")
_AnyNode = TypeVar("_AnyNode", bound=Node)


class Nodes:
    """All nodes, by level.

    Attributes:
        changed: Nodes that differ from what was last taken for saving.
        removed: Nodes that are gone since.
    """

    def __init__(self, settings: PredictorSettings) -> None:
        self._settings = settings
        self.kinds: dict[ActionKind, Node] = {}
        self.labels: OrderedDict[tuple[ActionKind, str], LabelNode] = OrderedDict()
        self.job_labels: OrderedDict[tuple[ActionKind, str, str], LabelNode] = OrderedDict()
        self.tasks: OrderedDict[PredictionKey, Node] = OrderedDict()
        self.effects: OrderedDict[tuple[ActionKind, str, str], Node] = OrderedDict()
        self.changed: set[Path] = set()
        self.removed: set[Path] = set()

    def find(self, key: PredictionKey) -> Branch:
        """The nodes that are there. Changes nothing."""
        job, kind, label, task = key
        return Branch(
            self.kinds.get(kind),
            self.labels.get((kind, label)),
            self.job_labels.get((kind, label, job)),
            self.tasks.get(key) if task else None,
            self.effects.get((kind, job, task)) if task else None,
        )

    def touch(self, key: PredictionKey) -> GrownBranch:
        """The nodes, made where they are missing, as the most recently used; without a task there is none for it."""
        job, kind, label, task = key
        kind_node = self.kinds.get(kind) or self._new_kind(kind)
        label_node = self.labels.get((kind, label)) or self._new_label(kind, label)
        job_node = self.job_labels.get((kind, label, job)) or self._new_job_label(label_node, kind, label, job)
        self.labels.move_to_end((kind, label))
        self.job_labels.move_to_end((kind, label, job))
        label_node.statistics = job_node.statistics
        self.changed.update((kind_node.path, label_node.path, job_node.path))
        if not task:
            return GrownBranch(kind_node, label_node, job_node, None, None)
        task_node = self.tasks.get(key) or self._new_task(key)
        effect = self.effects.get((kind, job, task)) or self._new_effect(kind, job, task)
        self.tasks.move_to_end(key)
        self.effects.move_to_end((kind, job, task))
        self.changed.update((task_node.path, effect.path))
        return GrownBranch(kind_node, label_node, job_node, task_node, effect)

    def all(self) -> list[Node]:
        """Every node; within a level the least recently used first."""
        levels = (self.kinds, self.labels, self.job_labels, self.effects, self.tasks)
        return [node for level in levels for node in level.values()]

    def at(self, path: Path) -> Node | None:
        """The node of a path, if it is there."""
        kind, label, job, task = ActionKind(path.kind), path.label, path.job, path.task
        if label is None:
            return self.kinds.get(kind) if job is None or task is None else self.effects.get((kind, job, task))
        if job is None:
            return self.labels.get((kind, label))
        if task is None:
            return self.job_labels.get((kind, label, job))
        return self.tasks.get(PredictionKey(job, kind, label, task))

    def put(self, path: Path, numbers: list[float]) -> None:
        """Adds a node as it was saved.

        Raises:
            ValueError: It has not the numbers such a node has, or its kind is none.
        """
        kind, label, job, task = ActionKind(path.kind), path.label, path.job, path.task
        if label is not None and task is None:
            label_node = LabelNode(path, statistics=LabelStatistics.assumed(self._settings))
            label_node.fill(numbers)
            if job is None:
                self._add(self.labels, (kind, label), label_node, self._settings.max_labels)
            else:
                self._add(self.job_labels, (kind, label, job), label_node, self._settings.max_labels)
            return
        node = Node(path)
        node.fill(numbers)
        if job is None or task is None:
            self.kinds[kind] = node
        elif label is None:
            self._add(self.effects, (kind, job, task), node, self._settings.max_tasks)
        else:
            self._add(self.tasks, PredictionKey(job, kind, label, task), node, self._settings.max_tasks)

    def _new_kind(self, kind: ActionKind) -> Node:
        node = self.kinds[kind] = Node(Path(kind))
        return node

    def _new_label(self, kind: ActionKind, label: str) -> LabelNode:
        node = LabelNode(Path(kind, label), statistics=LabelStatistics.assumed(self._settings))
        self._add(self.labels, (kind, label), node, self._settings.max_labels)
        return node

    def _new_job_label(self, parent: LabelNode, kind: ActionKind, label: str, job: str) -> LabelNode:
        node = LabelNode(Path(kind, label, job), statistics=parent.statistics.for_new_job())
        self._add(self.job_labels, (kind, label, job), node, self._settings.max_labels)
        return node

    def _new_task(self, key: PredictionKey) -> Node:
        node = Node(Path(key.kind, key.label, key.job, key.task))
        self._add(self.tasks, key, node, self._settings.max_tasks)
        return node

    def _new_effect(self, kind: ActionKind, job: str, task: str) -> Node:
        node = Node(Path(kind, None, job, task))
        self._add(self.effects, (kind, job, task), node, self._settings.max_tasks)
        return node

    def _add(self, level: OrderedDict[_Key, _AnyNode], key: _Key, node: _AnyNode, most: int) -> None:
        level[key] = node
        self.removed.discard(node.path)
        if len(level) > most:
            _, oldest = level.popitem(last=False)
            self.changed.discard(oldest.path)
            self.removed.add(oldest.path)
