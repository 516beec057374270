"""Calls of models on GPUs for those who know every duration: the call that would be over first goes first."""

from __future__ import annotations

import heapq
from math import inf

from callsheet.benchmarks.simulator.policies.parts.baseline import Side
from callsheet.benchmarks.simulator.policies.parts.gpu_calls import soonest_node
from callsheet.benchmarks.simulator.policies.parts.gpu_split import initialise_all
from callsheet.benchmarks.simulator.policy import EndFacts, Task, World


class ModelCalls:
    """The calls of one model: the shortest waits in front."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Task]] = []
        self._waiting_s = 0.0
        self._ends_at: dict[Task, float] = {}

    def add(self, task: Task) -> None:
        """A call joins."""
        heapq.heappush(self._waiting, (task.work.service_s, task.sequence, task))
        self._waiting_s += task.work.service_s

    def first(self) -> Task | None:
        """The shortest call that waits; cancelled ones are dropped."""
        while self._waiting and self._waiting[0][2].ended_at >= 0.0:
            self._drop_first()
        return self._waiting[0][2] if self._waiting else None

    def started(self, ends_at: float) -> None:
        """The first call is served, or waits for its model, until then."""
        self._ends_at[self._waiting[0][2]] = ends_at
        self._drop_first()

    def ended(self, task: Task) -> None:
        """A call is over."""
        self._ends_at.pop(task, None)

    def drained_in_s(self, now: float) -> float:
        """Seconds until the slots in use have served all who wait; infinite where none is in use."""
        if not self._ends_at:
            return inf
        running_s = sum(ends_at - now for ends_at in self._ends_at.values())
        return (running_s + self._waiting_s) / len(self._ends_at)

    def _drop_first(self) -> None:
        self._waiting_s -= heapq.heappop(self._waiting)[0]


class ShortestCallFirst(Side):
    """Of all calls that could be served, always the one that would be over first.

    One more instance of a model is brought in only where those there would take longer to serve all who wait for it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._nodes = tuple(world.scenario.cluster.gpu_nodes())
        self._calls = {model.name: ModelCalls() for model in world.scenario.cluster.models}
        initialise_all(world)

    def ready(self, task: Task) -> None:
        """A call joins the others of its model."""
        self._calls[task.work.service].add(task)
        self._serve()

    def ended(self, task: Task, facts: EndFacts) -> None:
        """A call ended, or was cancelled with its trajectory."""
        self._calls[task.work.service].ended(task)
        self._serve()

    def _serve(self) -> None:
        while (choice := self._soonest_over()) is not None:
            task, node, ends_at = choice
            self._calls[task.work.service].started(ends_at)
            self._world.start(task, node=node)

    def _soonest_over(self) -> tuple[Task, str, float] | None:
        best, best_at, now = None, inf, self._world.now
        for model, calls in self._calls.items():
            task = calls.first()
            node = soonest_node(self._world, self._nodes, model) if task is not None else None
            if task is None or node is None:
                continue
            takes_s = (self._world.set_up_s(node, model) or 0.0) + task.work.service_s
            worth_it = takes_s == task.work.service_s or takes_s < calls.drained_in_s(now)
            if worth_it and now + takes_s < best_at:
                best, best_at = (task, node, now + takes_s), now + takes_s
        return best
