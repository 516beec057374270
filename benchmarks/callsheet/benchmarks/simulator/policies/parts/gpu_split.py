"""How to split GPUs among models that each have their own."""

from __future__ import annotations

import heapq

from callsheet.benchmarks.simulator.policies.parts.needs import works
from callsheet.benchmarks.simulator.scenario import Model, Scenario


def expected_load(scenario: Scenario) -> dict[str, float]:
    """GPU seconds that the whole scenario asks of each model, by name; known to whoever splits GPUs at best."""
    models = {model.name: model for model in scenario.cluster.models}
    load = dict.fromkeys(models, 0.0)
    for rollout in scenario.rollouts:
        for work in works(rollout):
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
    """The nodes of every instance of each model; None where the GPUs do not suffice for one each.

    Large ones first: chunks are powers of two, so those that fit in total leave no gaps.
    """
    sizes = [nodes.gpus for nodes in scenario.cluster.gpu_nodes().values()]
    models = scenario.cluster.models
    counts = split_gpus(models, expected_load(scenario), sum(sizes))
    while counts is not None:
        placed = _pack(scenario, counts)
        if placed is not None:
            return placed
        counts = _one_less(models, counts)
    return None


def _pack(scenario: Scenario, counts: dict[str, int]) -> dict[str, list[str]] | None:
    free = {name: nodes.gpus for name, nodes in scenario.cluster.gpu_nodes().items()}
    placed: dict[str, list[str]] = {}
    for model in sorted(scenario.cluster.models, key=lambda model: -model.gpus):
        placed[model.name] = []
        for _ in range(counts[model.name]):
            # Fullest first keeps whole nodes for large instances; spreading would gain nothing, calls do not interfere.
            node = min((name for name in free if free[name] >= model.gpus), key=free.__getitem__, default=None)
            if node is None:
                return None
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
