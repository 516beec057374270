"""Pods, of a trajectory or of a command.

Reservation per trajectory: every trajectory has a pod of k cores from its reset to its end.

This is how trainers use sandboxes today (veRL, ROLL and others on Kubernetes, and the per-trajectory binding that
ARL-Tangram, arXiv 2603.13019, and RollArt, arXiv 2512.22560, measure): while the model generates, the pod's cores idle,
and a trajectory that finds no free pod waits to start. At its best: pods go to the node with the fewest live
trajectories, smaller ones pass those that do not fit, creating a pod costs nothing beyond the reset itself, and a
command uses as many of the pod's cores as it can.

First come with a fixed size: every command gets k cores of its own, as a pod of Kubernetes would. These are the
baselines of ARL-Tangram (fixed degrees of parallelism 4 and 16) and of platforms that run each action as a pod. At its
best: a class of commands that cannot use k cores asks for what it can use; the scheduler passes pods that do not fit
yet, as kube-scheduler does; sandboxes live on the node with the fewest live ones, and a command without a sandbox goes
where most cores are free.
"""

from __future__ import annotations

from itertools import islice

from callsheet.benchmarks.simulator.policies.parts.api_calls import ApiCalls, BackOff
from callsheet.benchmarks.simulator.policies.parts.baseline import Baseline, FirstComeAdmission, Side, baseline
from callsheet.benchmarks.simulator.policies.parts.cpu_commands import ExclusiveCores
from callsheet.benchmarks.simulator.policies.parts.gpu_calls import dedicated_or_shared
from callsheet.benchmarks.simulator.policies.parts.places import (
    Footprint,
    Line,
    Places,
    pod_memory_mb,
    scenario_needs_cpu,
)
from callsheet.benchmarks.simulator.policy import EndFacts, LiveRollout, PolicyFactory, Task, World
from callsheet.benchmarks.simulator.scenario import Scenario

POD_LATENCY_S = 1.0
"""Seconds that a pod takes from being bound to a node until its command runs: a parameter to fit by calibration.

The default is in favour of the baseline: an image that is there already. Kubernetes' own objective is 5 s at the 99th
percentile.
"""
LOOK_AHEAD = 64
"""How many waiting pods are looked at for one that fits where the first does not."""


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


class FixedSize(Side):
    """Starts commands in order, each on its own cores, as soon as these are free."""

    def __init__(self, world: World, places: Places, cores: int, pod_latency_s: float) -> None:
        self._lines = ExclusiveCores(world, places)
        self._cores = cores
        self._pod_latency_s = pod_latency_s

    def ready(self, task: Task) -> None:
        """A command can start."""
        self._serve(self._lines.wait(task))

    def ended(self, task: Task, facts: EndFacts) -> None:
        """A command ended."""
        self._serve(self._lines.ended(task))

    def _serve(self, node: str) -> None:
        if not self._lines.free[node] or not self._lines.anyone_waits(node):
            return
        free = self._lines.free[node]
        fitting: list[tuple[Task, int]] = []
        for task in islice(self._lines.waiting(node), LOOK_AHEAD):
            width = max(1, min(self._cores, task.work.max_width, self._lines.cores[node]))
            if width <= free:
                free -= width
                fitting.append((task, width))
                if not free:
                    break
        for task, width in fitting:
            self._lines.start(task, node, width, self._pod_latency_s)


def fixed_size(cores: int, pod_latency_s: float = POD_LATENCY_S) -> PolicyFactory:
    """The policy that gives every command that many cores, or as many as it can use if those are fewer.

    Without a latency its name ends in `_warm`: pods are there and wait for commands.
    """
    return baseline(
        f"fixed_{cores}" if pod_latency_s else f"fixed_{cores}_warm",
        lambda world, places: FixedSize(world, places, cores, pod_latency_s),
        dedicated_or_shared,
        BackOff,
        scenario_needs_cpu,
    )
