"""Plain sharing by the operating system: every command starts at once and the node's scheduler divides the cores.

At its best: a command is as wide as it would make itself (`make -j`, `pytest -n auto`), trajectories live on the node
with the fewest live ones, a command without a sandbox goes where the fewest run, and GPUs are shared on demand.
"""

from __future__ import annotations

from callsheet.benchmarks.simulator.policies.factory import PolicyFactory
from callsheet.benchmarks.simulator.policies.parts.admission import Admission
from callsheet.benchmarks.simulator.policies.parts.api_calls import ApiCalls, BackOff
from callsheet.benchmarks.simulator.policies.parts.baseline import Baseline
from callsheet.benchmarks.simulator.policies.parts.gpu_calls import SharedGpus
from callsheet.benchmarks.simulator.policies.parts.memory_gate import MemoryGate
from callsheet.benchmarks.simulator.policies.parts.needs import largest_peak_mb, scenario_needs_cpu
from callsheet.benchmarks.simulator.policies.parts.places import Places
from callsheet.benchmarks.simulator.policy import EndFacts, Task, World

NAME = "os_sharing"


class OsSharing:
    """Starts every command the moment it is ready and its memory is there."""

    def __init__(self, world: World, places: Places) -> None:
        self._world = world
        self._cores = {name: node.cores for name, node in world.scenario.cluster.cpu_nodes().items()}
        self._running = dict.fromkeys(self._cores, 0)
        self._gate = MemoryGate(places, tuple(self._cores), self._start)

    def ready(self, task: Task) -> None:
        """A command can start."""
        self._gate.enter(task, self._gate.choose(task, self._load))

    def ended(self, task: Task, facts: EndFacts) -> None:
        """A command ended."""
        if task.started_at < 0.0:
            self._gate.abandon(task)
            return
        self._running[task.node] -= 1
        self._gate.exit(task)

    def woken(self) -> None:
        """No time was asked for."""

    def _start(self, task: Task, node: str) -> None:
        self._running[node] += 1
        self._world.start(task, node=node, width=max(1, min(task.work.max_width, self._cores[node])))

    def _load(self, node: str) -> float:
        return self._running[node] / self._cores[node]


def _make(world: World) -> Baseline:
    places = Places(world.scenario.cluster, largest_peak_mb(world.scenario))
    return Baseline(
        NAME,
        admission=Admission(world, places),
        cpu=OsSharing(world, places),
        gpu=SharedGpus(world, resident_first=True),
        api=ApiCalls(world, BackOff),
    )


OS_SHARING = PolicyFactory(NAME, _make, scenario_needs_cpu)
