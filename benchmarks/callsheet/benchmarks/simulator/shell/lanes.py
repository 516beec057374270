"""Node sharing of every CPU node under virtual time, as the sandbox managers run it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from callsheet.benchmarks.simulator.policy import Lane, Task, World
from callsheet.managers.sandbox.node_sharing import KnownCommand, LaneChange, NodeSharing, NodeSharingSettings
from callsheet.managers.sandbox.node_sharing import Lane as SharingLane

_LANES = {SharingLane.FOREGROUND: Lane.FOREGROUND, SharingLane.BACKGROUND: Lane.BACKGROUND}


class _SharedNode:
    """One node: its sharing, and what runs there by task sequence."""

    __slots__ = ("review_at", "running", "sharing")

    def __init__(self, cores: int, settings: NodeSharingSettings) -> None:
        self.sharing = NodeSharing(float(cores), settings)
        self.running: dict[object, Task] = {}
        self.review_at = -1.0


class SharedNodes:
    """Lets each node rank its commands and moves them between the world's lanes.

    Attributes:
        switches: Lane changes of running commands so far.
    """

    def __init__(self, world: World, settings: NodeSharingSettings) -> None:
        self.switches = 0
        self._world = world
        cpu_nodes = world.scenario.cluster.cpu_nodes()
        self._nodes = {name: _SharedNode(nodes.cores, settings) for name, nodes in cpu_nodes.items()}
        self._reviews: list[tuple[float, str]] = []

    def start(self, task: Task, node: str, command: KnownCommand) -> Lane:
        """Lets a command in, known by its task's sequence, and returns its lane; others may change theirs."""
        shared = self._nodes[node]
        changes = shared.sharing.start(command, self._world.now)
        # The world does not run it yet, so its own change is not for it to carry out.
        self._carry_out(shared, changes)
        shared.running[command.command_id] = task
        self._arm(node, shared)
        return _LANES[shared.sharing.lane(command.command_id)]

    def end(self, task: Task) -> None:
        """Notes that a command ended, if it ran here; others may move up."""
        shared = self._nodes.get(task.node)
        if shared is not None and shared.running.pop(task.sequence, None) is not None:
            self._carry_out(shared, shared.sharing.end(task.sequence, self._world.now))
            self._arm(task.node, shared)

    def woken(self) -> None:
        """Measures the commands whose review has come."""
        now = self._world.now
        while self._reviews and self._reviews[0][0] <= now:
            at, node = heapq.heappop(self._reviews)
            shared = self._nodes[node]
            if shared.review_at == at:
                shared.review_at = -1.0
                self._review(shared)
                self._arm(node, shared)

    def _review(self, shared: _SharedNode) -> None:
        now = self._world.now
        attained = {each: self._world.cpu_attained(shared.running[each]) for each in shared.sharing.due(now)}
        self._carry_out(shared, shared.sharing.measured(attained, now))

    def _carry_out(self, shared: _SharedNode, changes: Iterable[LaneChange]) -> None:
        for change in changes:
            task = shared.running.get(change.command_id)
            if task is not None:
                self._world.set_lane(task, _LANES[change.lane])
                self.switches += 1

    def _arm(self, node: str, shared: _SharedNode) -> None:
        """Asks to be woken for the next review; one that comes too early looks again."""
        review = shared.sharing.next_review(self._world.now)
        if review is not None and (shared.review_at < 0.0 or review < shared.review_at):
            shared.review_at = review
            heapq.heappush(self._reviews, (review, node))
            self._world.wake_at(review)
