"""First come with a fixed size: every command gets k cores of its own, as a pod of Kubernetes would.

The baselines of ARL-Tangram (arXiv 2603.13019: fixed degrees of parallelism 4 and 16) and of platforms that run each
action as a pod. At its best: a class of commands that cannot use k cores asks for what it can use; the scheduler passes
pods that do not fit yet, as kube-scheduler does; sandboxes live on the node with the fewest live ones, and a command
without a sandbox goes where most cores are free.
"""

from __future__ import annotations

from itertools import islice

from callsheet.benchmarks.simulator.policies.parts.api_calls import BackOff
from callsheet.benchmarks.simulator.policies.parts.baseline import Side, baseline
from callsheet.benchmarks.simulator.policies.parts.exclusive_cores import ExclusiveCores
from callsheet.benchmarks.simulator.policies.parts.gpu_calls import dedicated_or_shared
from callsheet.benchmarks.simulator.policies.parts.needs import scenario_needs_cpu
from callsheet.benchmarks.simulator.policies.parts.places import Places
from callsheet.benchmarks.simulator.policy import EndFacts, PolicyFactory, Task, World

POD_LATENCY_S = 1.0
"""Seconds that a pod takes from being bound to a node until its command runs: a parameter to fit by calibration.

The default is in favour of the baseline: an image that is there already. Kubernetes' own objective is 5 s at the 99th
percentile.
"""

LOOK_AHEAD = 64
"""How many waiting pods are looked at for one that fits where the first does not."""


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
