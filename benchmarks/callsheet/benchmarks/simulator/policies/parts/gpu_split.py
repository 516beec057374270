"""How to split GPUs among models that each have their own."""

from __future__ import annotations

import heapq

from callsheet.benchmarks.simulator.policy import World
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
