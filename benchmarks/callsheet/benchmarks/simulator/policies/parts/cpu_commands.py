"""How commands get their cores: whole ones that no two share, or at once as soon as their memory is free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from heapq import merge
from operator import attrgetter

from callsheet.benchmarks.simulator.policies.parts.baseline import Side
from callsheet.benchmarks.simulator.policies.parts.places import Line, Places
from callsheet.benchmarks.simulator.policy import EndFacts, Task, World


class ExclusiveCores:
    """Lines of commands for whole cores: one for each node, and one for commands that may go anywhere.

    Args:
        world: Where commands run.
        places: Where sandboxes live.
    """

    def __init__(self, world: World, places: Places) -> None:
        self._world = world
        self._places = places
        self.cores = {name: node.cores for name, node in world.scenario.cluster.cpu_nodes().items()}
        self.free = dict(self.cores)
        self._pinned = {name: Line() for name in self.cores}
        self._anywhere = Line()
        self._held: dict[Task, tuple[str, int]] = {}

    def wait(self, task: Task) -> str:
        """Puts a command in line, and says at which node to look for cores."""
        if task.work.in_sandbox:
            node = self._places.home(task)
            self._pinned[node].add(task)
            return node
        self._anywhere.add(task)
        return max(self.free, key=lambda node: (self._places.welcomes(task, node), self.free[node]))

    def anyone_waits(self, node: str) -> bool:
        """Whether a command may want cores of that node."""
        return len(self._pinned[node]) + len(self._anywhere) > 0

    def waiting(self, node: str) -> Iterator[Task]:
        """Commands with memory there, in the order they became ready; nothing may change while it is read."""
        pinned, anywhere = self._pinned[node], self._anywhere
        line: Iterable[Task] = merge(pinned, anywhere, key=attrgetter("sequence")) if anywhere else pinned
        return (task for task in line if self._places.welcomes(task, node))

    def start(self, task: Task, node: str, width: int, delay_s: float) -> bool:
        """Starts a waiting command on cores of its own; false where others of this instant have taken its memory."""
        if not self._places.welcomes(task, node):
            return False
        line = self._pinned[node] if task.work.in_sandbox else self._anywhere
        line.remove(task)
        self.free[node] -= width
        self._held[task] = node, width
        self._places.enter(task, node)
        self._world.start(task, node=node, width=width, delay=delay_s)
        return True

    def ended(self, task: Task) -> str:
        """Gives a command's cores back and says where."""
        node, width = self._held.pop(task)
        self.free[node] += width
        self._places.exit(task, node)
        return node


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
        """A command ended: others may have its memory."""
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
