"""What trajectories need of the machines, where sandboxes live, and what is free of every CPU node: memory and cores.

A line holds the tasks that wait for it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from callsheet.benchmarks.simulator.policy import LiveRollout, Task
from callsheet.benchmarks.simulator.scenario import Cluster, Rollout, Scenario, Work

IMAGE_BONUS = 0.05
"""How many more trajectories per core a node may have and still be chosen, because it has the sandbox's image.

Like the image score of kube-scheduler: on large nodes it saves pulls, on small ones siblings would slow each other.
"""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a trajectory holds of a node for its life: memory in MB, and cores that its policy reserves for it."""

    memory_mb: int
    cores: int = 0


@dataclass(slots=True)
class NodeBooks:
    """One CPU node.

    Attributes:
        free_mb: What sandboxes and running commands leave.
        room_mb: What is left for more sandboxes.
        room_cores: What is left to reserve.
        live: Trajectories that live here.
        groups: Their number by group.
        images: Of all who ever lived here.
    """

    name: str
    cores: int
    free_mb: int
    room_mb: int
    room_cores: int
    live: int = 0
    groups: Counter[str] = field(default_factory=Counter)
    images: set[str] = field(default_factory=set)

    def has(self, room: Footprint) -> bool:
        """Whether a trajectory of that size fits now."""
        return self.room_mb >= room.memory_mb and self.room_cores >= room.cores

    def crowding(self, rollout: Rollout) -> tuple[float, int]:
        """Smaller is better: trajectories per core, less where the image is, then siblings, who repeat their load."""
        bonus = IMAGE_BONUS if rollout.image in self.images else 0.0
        return self.live / self.cores - bonus, self.groups[rollout.group]

    def change(self, rollout: Rollout, room: Footprint, sign: int) -> None:
        """Books a trajectory in (1) or out (-1)."""
        self.free_mb -= sign * room.memory_mb
        self.room_mb -= sign * room.memory_mb
        self.room_cores -= sign * room.cores
        self.live += sign
        self.groups[rollout.group] += sign
        if not self.groups[rollout.group]:
            del self.groups[rollout.group]


class Places:
    """Gives each trajectory a home: the node with the fewest live ones where it fits, siblings apart.

    Args:
        cluster: The machines.
        headroom_mb: Memory of each node that sandboxes leave to running commands. With the largest peak of any command,
            every command finds its memory sooner or later, as running ones need nothing more to end.
    """

    def __init__(self, cluster: Cluster, headroom_mb: int = 0) -> None:
        self._nodes = {
            name: NodeBooks(name, node.cores, node.memory_mb, node.memory_mb - headroom_mb, node.cores)
            for name, node in cluster.cpu_nodes().items()
        }
        self._largest = Footprint(
            max((node.room_mb for node in self._nodes.values()), default=0),
            max((node.room_cores for node in self._nodes.values()), default=0),
        )
        self._homes: dict[str, tuple[NodeBooks, Footprint]] = {}

    def check(self, rollout: Rollout, room: Footprint) -> None:
        """Makes sure that a trajectory can fit at all.

        Raises:
            ValueError: It needs more than any node has for it.
        """
        if room.memory_mb > self._largest.memory_mb or room.cores > self._largest.cores:
            raise ValueError(f"trajectory {rollout.name}: {room} is more than any CPU node has for it: {self._largest}")

    def take(self, rollout: Rollout, room: Footprint) -> bool:
        """Takes room for a trajectory; false where it fits nowhere now."""
        fitting = (node for node in self._nodes.values() if node.has(room))
        node = min(fitting, key=lambda node: node.crowding(rollout), default=None)
        if node is None:
            return False
        node.change(rollout, room, 1)
        node.images.add(rollout.image)
        self._homes[rollout.name] = node, room
        return True

    def has_cores(self, cores: int) -> bool:
        """Whether some node could reserve that many cores now."""
        return any(node.room_cores >= cores for node in self._nodes.values())

    def leave(self, live: LiveRollout) -> None:
        """Gives a trajectory's room back; nothing happens where it has none."""
        home = self._homes.pop(live.rollout.name, None)
        if home is not None:
            node, room = home
            node.change(live.rollout, room, -1)

    def home(self, task: Task) -> str:
        """The node where a command's trajectory lives."""
        return self._homes[task.rollout.name][0].name

    def welcomes(self, task: Task, node: str) -> bool:
        """Whether there is memory for a command on a node now."""
        return self._nodes[node].free_mb >= task.work.peak_memory_mb

    def enter(self, task: Task, node: str) -> None:
        """Books the memory of a command that starts."""
        self._nodes[node].free_mb -= task.work.peak_memory_mb

    def exit(self, task: Task, node: str) -> None:
        """Gives that memory back."""
        self._nodes[node].free_mb += task.work.peak_memory_mb


class Line:
    """First come, first served; any task may leave it, at constant cost."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[Task, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def first(self) -> Task | None:
        """Who has waited longest."""
        return next(iter(self), None)

    def add(self, task: Task) -> None:
        """Joins at the end."""
        self._tasks[task] = None

    def remove(self, task: Task) -> None:
        """Leaves."""
        del self._tasks[task]


def runs_on_cpu(work: Work) -> bool:
    """Whether it is a command on a CPU node, rather than a call of a service or an API."""
    return not work.service and not work.quota


def needs_cpu(rollout: Rollout) -> bool:
    """Whether anything of the trajectory runs on a CPU node."""
    return any(runs_on_cpu(work) for work in rollout.works())


def scenario_needs_cpu(scenario: Scenario) -> bool:
    """Whether any trajectory runs commands on the scenario's CPU nodes."""
    return bool(scenario.cluster.cpu) and any(needs_cpu(rollout) for rollout in scenario.rollouts)


def largest_peak_mb(scenario: Scenario) -> int:
    """The most memory that any command adds while it runs."""
    return max((work.peak_memory_mb for rollout in scenario.rollouts for work in rollout.works()), default=0)


def pod_memory_mb(rollout: Rollout) -> int:
    """What a pod of its own needs: what the sandbox holds, and the most that its commands add at one time."""
    together = [turn.actions for turn in rollout.turns]
    together.append(rollout.rewards)
    if rollout.reset is not None:
        together.append((rollout.reset,))
    peaks = (sum(work.peak_memory_mb for work in actions) for actions in together)
    return rollout.memory_mb + max(peaks, default=0)
