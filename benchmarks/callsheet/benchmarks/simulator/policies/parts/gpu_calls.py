"""Calls of models on GPUs: models that share GPUs on demand, or each with GPUs of its own."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from callsheet.benchmarks.simulator.policies.parts.baseline import Side
from callsheet.benchmarks.simulator.policies.parts.gpu_split import (
    deploy_instances,
    initialise_all,
    place_instances,
)
from callsheet.benchmarks.simulator.policies.parts.waiting import Line
from callsheet.benchmarks.simulator.policy import EndFacts, Task, World


class SharedGpus(Side):
    """A call goes where its model is ready soonest, brought in if need be in place of an idle one.

    That is evict-on-execution as ARL-Tangram describes it (arXiv 2603.13019): all models wait in host memory, and the
    model that was idle longest gives its place to the call that needs it. A call that fits nowhere now is passed by
    calls of other models.

    Args:
        world: Where calls run.
        overhead_s: Added to each call by the machinery.
        resident_first: Whether calls whose model is there and has a slot pass those for which it must come. That saves
            restores under load, and is not first come any more.
    """

    def __init__(self, world: World, *, overhead_s: float = 0.0, resident_first: bool = True) -> None:
        self._world = world
        self._overhead_s = overhead_s
        self._resident_first = resident_first
        self._nodes = tuple(world.scenario.cluster.gpu_nodes())
        self._waiting = {model.name: Line() for model in world.scenario.cluster.models}
        initialise_all(world)

    def ready(self, task: Task) -> None:
        """A call joins the line. If others of its model wait already, there is nothing free for it."""
        line = self._waiting[task.work.service]
        alone = line.first() is None
        line.add(task)
        if alone:
            self._serve((task.work.service,), self._nodes)

    def ended(self, task: Task, facts: EndFacts) -> None:
        """A call ended, or left the line with its trajectory. Only where it ran can something be free now."""
        if task.started_at < 0.0:
            self._waiting[task.work.service].remove(task)
        else:
            self._serve(tuple(self._waiting), (task.node,))

    def _serve(self, models: tuple[str, ...], nodes: tuple[str, ...]) -> None:
        while (found := min(self._servable(models, nodes), default=None)) is not None:
            *_, node, task = found
            self._waiting[task.work.service].remove(task)
            self._world.start(task, node=node, delay=self._overhead_s)

    def _servable(self, models: tuple[str, ...], nodes: tuple[str, ...]) -> Iterator[tuple[bool, int, str, Task]]:
        """The oldest call of each model that can be served on these nodes now; the least goes first."""
        for model in models:
            task = self._waiting[model].first()
            node = soonest_node(self._world, nodes, model) if task is not None else None
            if task is not None and node is not None:
                must_come = self._resident_first and self._world.set_up_s(node, model) != 0.0
                yield must_come, task.sequence, node, task


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


class DedicatedGpus(Side):
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

    def _serve(self, model: str) -> None:
        while (task := self._waiting[model].first()) is not None:
            ready = (node for node in self._nodes[model] if self._world.set_up_s(node, model) == 0.0)
            node = next(ready, None)
            if node is None:
                return
            self._waiting[model].remove(task)
            self._world.start(task, node=node)


def dedicated_or_shared(world: World) -> DedicatedGpus | SharedGpus:
    """GPUs of its own for each model where there are enough; else all models share them on demand."""
    if place_instances(world.scenario) is not None:
        return DedicatedGpus(world)
    return SharedGpus(world)
