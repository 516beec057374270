"""Calls of models on GPUs: models that share GPUs on demand, or each with GPUs of its own, and how these are split."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import inf

from callsheet.benchmarks.simulator.policies.parts.baseline import Side
from callsheet.benchmarks.simulator.policies.parts.places import Line
from callsheet.benchmarks.simulator.policy import EndFacts, Task, World
from callsheet.benchmarks.simulator.scenario import Model, Scenario


def expected_load(scenario: Scenario) -> dict[str, float]:
    """GPU seconds that the whole scenario asks of each model, by name; known to whoever splits GPUs at best."""
    models = {model.name: model for model in scenario.cluster.models}
    load = dict.fromkeys(models, 0.0)
    for rollout in scenario.rollouts:
        for work in rollout.works():
            if work.service:
                load[work.service] += work.service_s * models[work.service].gpus / models[work.service].slots
    return load


def split_gpus(models: tuple[Model, ...], load: dict[str, float], gpus: int) -> dict[str, int] | None:
    """Instances of each model, such that the busiest is as little busy as can be; None where one each is too much.

    Adding an instance to the busiest model as long as there are GPUs for it is optimal for that aim.
    """
    counts = {model.name: 1 for model in models}
    left = gpus - sum(model.gpus for model in models)
    if left < 0:
        return None
    busiest = [(-load[model.name] / model.gpus, model.name, model.gpus) for model in models if load[model.name] > 0.0]
    heapq.heapify(busiest)
    while busiest and busiest[0][2] <= left:
        _, name, size = busiest[0]
        counts[name] += 1
        left -= size
        heapq.heapreplace(busiest, (-load[name] / size / counts[name], name, size))
    return counts


def place_instances(scenario: Scenario) -> dict[str, list[str]] | None:
    """The nodes of every instance of each model; None where the GPUs do not suffice for one each."""
    counts = split_gpus(scenario.cluster.models, expected_load(scenario), _gpus(scenario))
    while counts is not None:
        placed = _pack(scenario, counts)
        if all(len(placed[name]) == count for name, count in counts.items()):
            return placed
        counts = _one_less(scenario.cluster.models, counts)
    return None


def deploy_instances(world: World, placed: dict[str, list[str]]) -> None:
    """Puts instances on their nodes, before a run."""
    for model, nodes in placed.items():
        for node in nodes:
            world.deploy(node, model)


def initialise_all(world: World) -> None:
    """Starts with every model in every node's host memory, and with as many of them on GPUs as there is space for."""
    scenario = world.scenario
    once = {model.name: 1 for model in scenario.cluster.models}
    deploy_instances(world, place_instances(scenario) or _pack(scenario, once))
    for node in scenario.cluster.gpu_nodes():
        for model in scenario.cluster.models:
            world.keep_in_host_memory(node, model.name)


def _gpus(scenario: Scenario) -> int:
    return sum(nodes.gpus for nodes in scenario.cluster.gpu_nodes().values())


def _pack(scenario: Scenario, counts: dict[str, int]) -> dict[str, list[str]]:
    """Nodes for that many instances of each model, as far as they fit.

    Large ones first: chunks are powers of two, so those that fit in total leave no gaps. Fullest nodes first: that
    keeps whole nodes for large instances, and calls do not slow each other down.
    """
    free = {name: nodes.gpus for name, nodes in scenario.cluster.gpu_nodes().items()}
    placed: dict[str, list[str]] = {}
    for model in sorted(scenario.cluster.models, key=lambda model: -model.gpus):
        placed[model.name] = []
        for _ in range(counts[model.name]):
            node = min((name for name in free if free[name] >= model.gpus), key=free.__getitem__, default=None)
            if node is not None:
                free[node] -= model.gpus
                placed[model.name].append(node)
    return placed


def _one_less(models: tuple[Model, ...], counts: dict[str, int]) -> dict[str, int] | None:
    """One instance less of the largest model that has several; None where each has one."""
    several = [model for model in models if counts[model.name] > 1]
    if not several:
        return None
    largest = max(several, key=lambda model: (model.gpus, counts[model.name]))
    return {**counts, largest.name: counts[largest.name] - 1}


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
        """A call ended. Only where it ran can something be free now."""
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
        """A call ended."""
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
