"""Cores that no two commands share: who waits for them at each node, and what is free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from operator import attrgetter

from callsheet.benchmarks.simulator.policies.parts.places import Places
from callsheet.benchmarks.simulator.policies.parts.waiting import Line
from callsheet.benchmarks.simulator.policy import Task, World


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
        """Gives a command's cores back and says where; one that held none only leaves its line, at its home."""
        held = self._held.pop(task, None)
        if held is None:
            home = self._places.home(task)
            line = self._pinned[home] if task.work.in_sandbox else self._anywhere
            line.remove(task)
            return home
        node, width = held
        self.free[node] += width
        self._places.exit(task, node)
        return node
