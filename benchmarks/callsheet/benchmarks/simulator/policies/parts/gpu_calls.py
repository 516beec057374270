"""Calls of models on GPUs: models that share GPUs on demand, or each with GPUs of its own."""

from __future__ import annotations

import heapq
from math import inf

from callsheet.benchmarks.simulator.policies.parts.gpu_split import (
    deploy_instances,
    initialise_all,
    place_instances,
)
from callsheet.benchmarks.simulator.policies.parts.waiting import Line
from callsheet.benchmarks.simulator.policy import EndFacts, Task, World


class SharedGpus:
    """First come: a call goes where its model is ready soonest, brought in if need be in place of an idle one.

    That is evict-on-execution as ARL-Tangram describes it (arXiv 2603.13019): all models wait in host memory, and an
    model that was idle longest gives its place to the call that needs it.

    Args:
        world: Where calls run.
        overhead_s: Added to each call by the machinery.
        passing: Whether calls of other models may pass one that does not fit now.
    """

    def __init__(self, world: World, *, overhead_s: float = 0.0, passing: bool) -> None:
        self._world = world
        self._overhead_s = overhead_s
        self._passing = passing
        self._nodes = tuple(world.scenario.cluster.gpu_nodes())
        initialise_all(world)
        self._waiting = {model.name: Line() for model in world.scenario.cluster.models}

    def ready(self, task: Task) -> None:
        """A call joins the line."""
        self._waiting[task.work.service].add(task)
        self._serve()

    def ended(self, task: Task, facts: EndFacts) -> None:
        """A call ended, or left the line with its trajectory."""
        self._waiting[task.work.service].remove(task)
        self._serve()

    def woken(self) -> None:
        """No time was asked for."""

    def _serve(self) -> None:
        heads = [(head.sequence, head) for line in self._waiting.values() if (head := line.first()) is not None]
        heapq.heapify(heads)
        while heads:
            _, task = heads[0]
            node = soonest_node(self._world, self._nodes, task.work.service)
            if node is not None:
                line = self._waiting[task.work.service]
                line.remove(task)
                self._world.start(task, node=node, delay=self._overhead_s)
                following = line.first()
            elif self._passing:
                following = None
            else:
                return
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following.sequence, following))


def soonest_node(world: World, nodes: tuple[str, ...], model: str) -> str | None:
    """The GPU node where a call of a model would be served soonest; None where nothing is free for it."""
    best, best_s = None, inf
    for node in nodes:
        set_up_s = world.set_up_s(node, model)
        if set_up_s is not None and set_up_s < best_s:
            best, best_s = node, set_up_s
            if set_up_s == 0.0:
                break
    return best


class DedicatedGpus:
    """Every model has instances of its own for good, in proportion to its load; its calls are served first come.

    Raises:
        ValueError: The GPUs do not suffice for one instance of each model.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        placed = place_instances(world.scenario)
        if placed is None:
            raise ValueError("the cluster's GPUs do not suffice for one instance of each model")
        deploy_instances(world, placed)
        self._nodes = {model: tuple(dict.fromkeys(nodes)) for model, nodes in placed.items()}
        self._waiting = {model: Line() for model in placed}

    def ready(self, task: Task) -> None:
        """A call joins its model's line."""
        self._waiting[task.work.service].add(task)
        self._serve(task.work.service)

    def ended(self, task: Task, facts: EndFacts) -> None:
        """A call ended, or left the line with its trajectory."""
        self._waiting[task.work.service].remove(task)
        self._serve(task.work.service)

    def woken(self) -> None:
        """No time was asked for."""

    def _serve(self, model: str) -> None:
        while (task := self._waiting[model].first()) is not None:
            ready = (node for node in self._nodes[model] if self._world.set_up_s(node, model) == 0.0)
            node = next(ready, None)
            if node is None:
                return
            self._waiting[model].remove(task)
            self._world.start(task, node=node)


class ShortestCallFirst:
    """Of all calls that could be served, always the one that would be over first: for those who know every duration."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._nodes = tuple(world.scenario.cluster.gpu_nodes())
        initialise_all(world)
        self._waiting: dict[str, list[tuple[float, int, Task]]] = {
            model.name: [] for model in world.scenario.cluster.models
        }

    def ready(self, task: Task) -> None:
        """A call joins the others of its model, by its duration."""
        heapq.heappush(self._waiting[task.work.service], (task.work.service_s, task.sequence, task))
        self._serve()

    def ended(self, task: Task, facts: EndFacts) -> None:
        """A call ended, or was cancelled with its trajectory; a cancelled one is dropped when its turn comes."""
        self._serve()

    def woken(self) -> None:
        """No time was asked for."""

    def _serve(self) -> None:
        while (next_call := self._soonest_over()) is not None:
            task, node = next_call
            heapq.heappop(self._waiting[task.work.service])
            self._world.start(task, node=node)

    def _soonest_over(self) -> tuple[Task, str] | None:
        best, best_s = None, inf
        for model, calls in self._waiting.items():
            while calls and calls[0][2].ended_at >= 0.0:
                heapq.heappop(calls)
            if not calls:
                continue
            node = soonest_node(self._world, self._nodes, model)
            if node is not None and (over_s := calls[0][0] + (self._world.set_up_s(node, model) or 0.0)) < best_s:
                best, best_s = (calls[0][2], node), over_s
        return best


def dedicated_or_shared(world: World) -> DedicatedGpus | SharedGpus:
    """GPUs of its own for each model where there are enough; else all models share them on demand."""
    if place_instances(world.scenario) is not None:
        return DedicatedGpus(world)
    return SharedGpus(world, passing=True)
