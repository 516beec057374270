"""Reservation per trajectory: every trajectory has a pod of k cores from its reset to its end.

This is how trainers use sandboxes today (veRL, ROLL and others on Kubernetes, and the per-trajectory binding that
ARL-Tangram, arXiv 2603.13019, and RollArt, arXiv 2512.22560, measure): while the model generates, the pod's cores idle,
and a trajectory that finds no free pod waits to start. At its best: pods go to the node with the fewest live
trajectories, smaller ones pass those that do not fit, creating a pod costs nothing beyond the reset itself, and a
command uses as many of the pod's cores as it can.
"""

from __future__ import annotations

from callsheet.benchmarks.simulator.policies.parts.admission import FirstComeAdmission
from callsheet.benchmarks.simulator.policies.parts.api_calls import ApiCalls, BackOff
from callsheet.benchmarks.simulator.policies.parts.baseline import Baseline, Side
from callsheet.benchmarks.simulator.policies.parts.gpu_calls import dedicated_or_shared
from callsheet.benchmarks.simulator.policies.parts.needs import pod_memory_mb, scenario_needs_cpu
from callsheet.benchmarks.simulator.policies.parts.places import Footprint, Places
from callsheet.benchmarks.simulator.policies.parts.waiting import Line
from callsheet.benchmarks.simulator.policy import EndFacts, LiveRollout, PolicyFactory, Task, World
from callsheet.benchmarks.simulator.scenario import Scenario


class Pods(Side):
    """Runs each trajectory's commands on the cores of its pod, in order where there are several at a time."""

    def __init__(self, world: World, places: Places, cores: int) -> None:
        self._world = world
        self._places = places
        self._cores = cores
        self._running: dict[LiveRollout, int] = {}
        self._waiting: dict[LiveRollout, Line] = {}

    def ready(self, task: Task) -> None:
        """A command can start."""
        self._running.setdefault(task.live, 0)
        self._waiting.setdefault(task.live, Line()).add(task)
        self._serve(task.live)

    def ended(self, task: Task, facts: EndFacts) -> None:
        """A command ended."""
        line = self._waiting[task.live]
        if task.started_at < 0.0:
            line.remove(task)
        else:
            self._running[task.live] -= self._width(task)
        self._serve(task.live)

    def _serve(self, live: LiveRollout) -> None:
        line = self._waiting[live]
        running = self._running[live]
        while (task := line.first()) is not None and running + self._width(task) <= self._cores:
            line.remove(task)
            running += self._width(task)
            self._world.start(task, node=self._places.home(task), width=self._width(task))
        self._running[live] = running
        if not running and not line:  # a trajectory is remembered only while it has commands
            del self._running[live], self._waiting[live]

    def _width(self, task: Task) -> int:
        return max(1, min(self._cores, task.work.max_width))


def reservation(cores: int) -> PolicyFactory:
    """The policy that reserves that many cores for every trajectory."""
    name = f"reserve_{cores}"

    def make(world: World) -> Baseline:
        places = Places(world.scenario.cluster)
        return Baseline(
            name,
            admission=FirstComeAdmission(world, places, lambda rollout: Footprint(pod_memory_mb(rollout), cores)),
            cpu=Pods(world, places, cores),
            gpu=dedicated_or_shared(world),
            api=ApiCalls(world, BackOff),
        )

    def applies(scenario: Scenario) -> bool:
        """A pod must fit: as many cores, and the memory of all commands that a trajectory runs at one time."""
        memory_mb = max((nodes.memory_mb for nodes in scenario.cluster.cpu if nodes.cores >= cores), default=-1)
        return scenario_needs_cpu(scenario) and all(pod_memory_mb(each) <= memory_mb for each in scenario.rollouts)

    return PolicyFactory(name, make, applies)
