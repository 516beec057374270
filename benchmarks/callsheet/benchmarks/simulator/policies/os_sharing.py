"""Plain sharing by the operating system: every command starts at once and the node's scheduler divides the cores.

At its best: a command is as wide as it would make itself (`make -j`, `pytest -n auto`), trajectories live on the node
with the fewest live ones, a command without a sandbox goes where the fewest run, and GPUs are shared on demand.

The policy of static services gives every reward model GPUs of its own for good, as SGLang or vLLM servers would: the
baseline of ARL-Tangram's MOPD experiment (arXiv 2603.13019: nine teachers, four GPUs each) and of RollArt's dedicated
reward GPUs (arXiv 2512.22560). At its best: GPUs are split so that the busiest model is as little busy as can be, from
the load of the whole run known ahead; models are loaded before the run; CPUs are shared by the operating system.
"""

from __future__ import annotations

from callsheet.benchmarks.simulator.policies.parts.api_calls import BackOff
from callsheet.benchmarks.simulator.policies.parts.baseline import baseline
from callsheet.benchmarks.simulator.policies.parts.cpu_commands import StartsAtOnce
from callsheet.benchmarks.simulator.policies.parts.gpu_calls import DedicatedGpus, SharedGpus, place_instances
from callsheet.benchmarks.simulator.policies.parts.places import Places, scenario_needs_cpu
from callsheet.benchmarks.simulator.policy import Task, World
from callsheet.benchmarks.simulator.scenario import Scenario


class OsSharing(StartsAtOnce):
    """Starts every command the moment it is ready and its memory is there."""

    def __init__(self, world: World, places: Places) -> None:
        super().__init__(world, places)
        self._running = dict.fromkeys(self._cores, 0)

    def start(self, task: Task, node: str) -> None:
        """Starts a command as wide as it would make itself."""
        self._running[node] += 1
        self._world.start(task, node=node, width=max(1, min(task.work.max_width, self._cores[node])))

    def leave(self, task: Task) -> None:
        """A command is over."""
        self._running[task.node] -= 1

    def load(self, node: str) -> float:
        """Running commands for each core."""
        return self._running[node] / self._cores[node]


OS_SHARING = baseline("os_sharing", OsSharing, SharedGpus, BackOff, scenario_needs_cpu)


def _applies(scenario: Scenario) -> bool:
    return bool(scenario.cluster.models) and place_instances(scenario) is not None


STATIC_SERVICES = baseline("static_services", OsSharing, DedicatedGpus, BackOff, _applies)
