"""Commands that start at once, unless their node has no memory for them: then they wait for some, in order."""

from __future__ import annotations

from abc import ABC, abstractmethod

from callsheet.benchmarks.simulator.policies.parts.baseline import Side
from callsheet.benchmarks.simulator.policies.parts.places import Places
from callsheet.benchmarks.simulator.policies.parts.waiting import Line
from callsheet.benchmarks.simulator.policy import EndFacts, Task, World


class StartsAtOnce(Side, ABC):
    """The part for commands of a policy that starts them as soon as their memory is free.

    Args:
        world: Where commands run.
        places: The books of memory.
    """

    def __init__(self, world: World, places: Places) -> None:
        self._world = world
        self._places = places
        self._cores = {name: node.cores for name, node in world.scenario.cluster.cpu_nodes().items()}
        self._waiting = {name: Line() for name in self._cores}

    def ready(self, task: Task) -> None:
        """A command goes where its sandbox lives, or to the least loaded node, with memory for it if there is one."""
        if task.work.in_sandbox:
            node = self._places.home(task)
        else:
            node = min(self._cores, key=lambda name: (not self._places.welcomes(task, name), self.load(name)))
        self._waiting[node].add(task)
        self._open(node)

    def ended(self, task: Task, facts: EndFacts) -> None:
        """A command ended: others may have its memory. One that was cancelled before it started leaves its line."""
        if task.started_at < 0.0:
            for line in self._waiting.values():
                line.remove(task)
            return
        self.leave(task)
        self._places.exit(task, task.node)
        self._open(task.node)

    @abstractmethod
    def start(self, task: Task, node: str) -> None:
        """Starts a command whose memory is booked."""

    @abstractmethod
    def leave(self, task: Task) -> None:
        """Notes that a command that had started is over."""

    @abstractmethod
    def load(self, node: str) -> float:
        """How loaded a node is, for each of its cores."""

    def _open(self, node: str) -> None:
        line = self._waiting[node]
        while (task := line.first()) is not None and self._places.welcomes(task, node):
            line.remove(task)
            self._places.enter(task, node)
            self.start(task, node)
