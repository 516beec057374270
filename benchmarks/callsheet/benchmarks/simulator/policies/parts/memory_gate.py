"""Commands that start at once, unless their node has no memory for them: then they wait for some, in order."""

from __future__ import annotations

from collections.abc import Callable

from callsheet.benchmarks.simulator.policies.parts.places import Places
from callsheet.benchmarks.simulator.policies.parts.waiting import Line
from callsheet.benchmarks.simulator.policy import Task


class MemoryGate:
    """Lets commands start on their nodes.

    Args:
        places: The books of memory.
        nodes: Of the cluster, by name.
        start: Starts a command whose memory is booked.
    """

    def __init__(self, places: Places, nodes: tuple[str, ...], start: Callable[[Task, str], None]) -> None:
        self._places = places
        self._start = start
        self._waiting = {name: Line() for name in nodes}

    def choose(self, task: Task, load: Callable[[str], float]) -> str:
        """The node for a command: where its sandbox lives, or the least loaded, with memory for it if there is one."""
        if task.work.in_sandbox:
            return self._places.home(task)
        return min(self._waiting, key=lambda node: (not self._places.welcomes(task, node), load(node)))

    def enter(self, task: Task, node: str) -> None:
        """Starts a command on a node, or lets it wait there for its memory."""
        self._waiting[node].add(task)
        self._open(node)

    def exit(self, task: Task) -> None:
        """Gives the memory of a command that ended to those who wait for some."""
        self._places.exit(task, task.node)
        self._open(task.node)

    def abandon(self, task: Task) -> None:
        """Takes a command that was cancelled before it started out of its line."""
        for line in self._waiting.values():
            line.remove(task)

    def _open(self, node: str) -> None:
        line = self._waiting[node]
        while (task := line.first()) is not None and self._places.welcomes(task, node):
            line.remove(task)
            self._places.enter(task, node)
            self._start(task, node)
