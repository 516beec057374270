"""A line of waiting tasks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from callsheet.benchmarks.simulator.policy import Task


class Line:
    """First come, first served; any task may leave it, at constant cost.

    Tasks that were cancelled are passed over: when a trajectory is, its tasks have all ended before a policy hears of
    the first.
    """

    def __init__(self) -> None:
        self._tasks: OrderedDict[Task, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return (task for task in self._tasks if task.ended_at < 0.0)

    def first(self) -> Task | None:
        """Who has waited longest."""
        return next(iter(self), None)

    def add(self, task: Task) -> None:
        """Joins at the end."""
        self._tasks[task] = None

    def remove(self, task: Task) -> None:
        """Leaves; nothing happens where it does not wait here."""
        self._tasks.pop(task, None)
