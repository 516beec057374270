"""The frame of a baseline: trajectories, commands, calls of GPU models and calls of APIs each go to a part of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from callsheet.benchmarks.simulator.policies.parts.admission import FirstComeAdmission
from callsheet.benchmarks.simulator.policies.parts.api_calls import ApiCalls, Pace
from callsheet.benchmarks.simulator.policies.parts.needs import largest_peak_mb
from callsheet.benchmarks.simulator.policies.parts.places import Places
from callsheet.benchmarks.simulator.policy import EndFacts, EngineStatus, LiveRollout, PolicyFactory, Task, World
from callsheet.benchmarks.simulator.scenario import Generation, Quota, Scenario


class Side(Protocol):
    """What decides about one sort of action; a base class for those that ask for no time."""

    def ready(self, task: Task) -> None:
        """An action can start."""

    def ended(self, task: Task, facts: EndFacts) -> None:
        """An attempt ended, or was cancelled with its trajectory before it started."""

    def woken(self) -> None:
        """A time asked for by some side has come."""
        return


class Baseline:
    """A policy made of parts.

    Args:
        name: Under which results are reported.
        admission: When trajectories begin.
        cpu: Commands on CPU nodes.
        gpu: Calls of models on GPUs.
        api: Calls of outside APIs.
    """

    def __init__(self, name: str, *, admission: FirstComeAdmission, cpu: Side, gpu: Side, api: Side) -> None:
        self.name = name
        self._admission = admission
        self._cpu = cpu
        self._gpu = gpu
        self._api = api

    def arrived(self, live: LiveRollout) -> None:
        """A trajectory wants to begin."""
        self._admission.arrived(live)

    def ready(self, task: Task) -> None:
        """An action can start."""
        self._side(task).ready(task)

    def ended(self, task: Task, facts: EndFacts) -> None:
        """An attempt ended."""
        self._side(task).ended(task, facts)

    def finished(self, live: LiveRollout) -> None:
        """A trajectory ended."""
        self._admission.finished(live)

    def woken(self) -> None:
        """A time asked for has come."""
        self._cpu.woken()
        self._gpu.woken()
        self._api.woken()

    def route(self, live: LiveRollout, generation: Generation, engines: Sequence[EngineStatus]) -> int:
        """The engine with the context cached, unless it is much fuller than the emptiest: what routers of today do."""
        loads = [engine_load(engine) for engine in engines]
        emptiest = min(range(len(engines)), key=loads.__getitem__)
        cached = max(range(len(engines)), key=lambda index: engines[index].cached_tokens)
        if engines[cached].cached_tokens > 0 and loads[cached] <= loads[emptiest] + STICKINESS:
            return cached
        return emptiest

    def _side(self, task: Task) -> Side:
        if task.work.service:
            return self._gpu
        if task.work.quota:
            return self._api
        return self._cpu


STICKINESS = 0.25
"""How much fuller, as a share of its batch, the engine with the context cached may be than the emptiest."""


def engine_load(load: EngineStatus) -> float:
    """Sequences on an engine, as a share of its largest batch."""
    return (load.running + load.waiting) / load.engine.max_batch


def baseline(
    name: str,
    cpu: Callable[[World, Places], Side],
    gpu: Callable[[World], Side],
    pace: Callable[[Quota], Pace],
    applies: Callable[[Scenario], bool],
) -> PolicyFactory:
    """A policy of parts whose trajectories keep memory for their life, and cores only while their commands run.

    Args:
        name: Under which results are reported.
        cpu: Makes the part for commands.
        gpu: Makes the part for calls of models.
        pace: How fast calls of an API are sent.
        applies: Whether the policy means anything for a scenario.
    """

    def make(world: World) -> Baseline:
        places = Places(world.scenario.cluster, largest_peak_mb(world.scenario))
        return Baseline(
            name,
            admission=FirstComeAdmission(world, places),
            cpu=cpu(world, places),
            gpu=gpu(world),
            api=ApiCalls(world, pace),
        )

    return PolicyFactory(name, make, applies)
