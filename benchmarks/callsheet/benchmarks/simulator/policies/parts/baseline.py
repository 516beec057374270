"""The frame of a baseline: trajectories, commands, calls of GPU models and calls of APIs each go to a part of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from callsheet.benchmarks.simulator.policies.parts.api_calls import ApiCalls, Pace
from callsheet.benchmarks.simulator.policies.parts.places import Footprint, Places, largest_peak_mb, needs_cpu
from callsheet.benchmarks.simulator.policy import EndFacts, LiveRollout, PolicyFactory, Task, World
from callsheet.benchmarks.simulator.scenario import Quota, Rollout, Scenario

LOOK_AHEAD = 256
"""How many waiting trajectories are looked at for a smaller one that fits where the first does not."""


def sandbox_room(rollout: Rollout) -> Footprint:
    """What a trajectory holds under policies that give it cores and more memory only while commands run."""
    return Footprint(rollout.memory_mb)


class FirstComeAdmission:
    """Admits trajectories in the order of their arrival; a smaller one may pass one that does not fit yet.

    Args:
        world: Where trajectories begin.
        places: The books of the nodes.
        room_for: What a trajectory holds for its life.
    """

    def __init__(self, world: World, places: Places, room_for: Callable[[Rollout], Footprint] = sandbox_room) -> None:
        self._world = world
        self._places = places
        self._room_for = room_for
        self._waiting: OrderedDict[LiveRollout, Footprint] = OrderedDict()
        self._refused_mb = float("inf")  # nothing of that size fits until something leaves

    def arrived(self, live: LiveRollout) -> None:
        """Lets a trajectory begin, or wait.

        Raises:
            ValueError: It fits no node, even an empty one.
        """
        if not needs_cpu(live.rollout):
            self._world.begin(live)
            return
        room = self._room_for(live.rollout)
        self._places.check(live.rollout, room)
        if self._fits(live, room):
            self._world.begin(live, reserved_cores=room.cores)
        else:
            self._waiting[live] = room

    def finished(self, live: LiveRollout) -> None:
        """Gives a trajectory's room to those who wait."""
        self._places.leave(live)
        self._refused_mb = float("inf")
        begin = []
        for looked_at, (waiting, room) in enumerate(self._waiting.items()):
            if self._refused_mb == 0 or looked_at >= LOOK_AHEAD:
                break
            if self._fits(waiting, room):
                begin.append((waiting, room))
        for waiting, room in begin:
            del self._waiting[waiting]
            self._world.begin(waiting, reserved_cores=room.cores)

    def _fits(self, live: LiveRollout, room: Footprint) -> bool:
        """Takes room where there is some; remembers what size there is no room for."""
        if room.memory_mb >= self._refused_mb:
            return False
        if self._places.take(live.rollout, room):
            return True
        # Where cores are what is short, a smaller memory does not help.
        self._refused_mb = room.memory_mb if self._places.has_cores(room.cores) else 0
        return False


class Side(Protocol):
    """What decides about one sort of action; a base class for those that ask for no time."""

    def ready(self, task: Task) -> None:
        """An action can start."""

    def ended(self, task: Task, facts: EndFacts) -> None:
        """An attempt ended."""

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

    def _side(self, task: Task) -> Side:
        if task.work.service:
            return self._gpu
        if task.work.quota:
            return self._api
        return self._cpu


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
