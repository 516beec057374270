"""Plain sharing by the operating system: every command starts at once and the node's scheduler divides the cores.

At its best: a command is as wide as it would make itself (`make -j`, `pytest -n auto`). A trajectory lives on the node
with the fewest live ones, and a command without a sandbox goes to the node on which the fewest run. GPUs are shared on
demand, and callers of an API back off together.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from callsheet.benchmarks.simulator.policy import EndFacts, LiveRollout, PolicyFactory, Task, World
from callsheet.benchmarks.simulator.quota_books import ROUNDING_S
from callsheet.benchmarks.simulator.scenario import CpuNodes, Quota, Rollout

# How many more trajectories per core a node may have and still be chosen, because it has the sandbox's image. Like the
# image score of kube-scheduler: on large nodes it saves pulls, on small ones siblings would slow each other.
IMAGE_BONUS = 0.05
# How many waiting trajectories are looked at for a smaller one that fits if the first does not.
LOOK_AHEAD = 256


@dataclass(slots=True)
class NodeBooks:
    """One CPU node.

    Attributes:
        free_mb: Memory that sandboxes and running commands leave.
        room_mb: Memory that is left for more sandboxes.
        running: Commands that run here.
        live: Trajectories that live here.
        groups: Their number by group.
        images: Images of all trajectories that ever lived here.
        waiting: Commands that wait for memory.
    """

    name: str
    cores: int
    free_mb: int
    room_mb: int
    running: int = 0
    live: int = 0
    groups: Counter[str] = field(default_factory=Counter)
    images: set[str] = field(default_factory=set)
    waiting: deque[Task] = field(default_factory=deque)

    def crowding(self, rollout: Rollout) -> tuple[float, int]:
        """Smaller is better: trajectories per core, less if the image is here, then siblings, who repeat their load."""
        bonus = IMAGE_BONUS if rollout.image in self.images else 0.0
        return self.live / self.cores - bonus, self.groups[rollout.group]

    def change(self, rollout: Rollout, sign: int) -> None:
        """Books a trajectory in (1) or out (-1)."""
        self.free_mb -= sign * rollout.memory_mb
        self.room_mb -= sign * rollout.memory_mb
        self.live += sign
        self.groups[rollout.group] += sign

    def load(self, task: Task) -> tuple[bool, float]:
        """Smaller is better: memory for a command first, then running commands for each core."""
        return task.work.peak_memory_mb > self.free_mb, self.running / self.cores


class Homes:
    """Trajectories in the order of their arrival; a smaller one may pass one that does not fit yet.

    Sandboxes leave the largest peak of any command free on each node. So every command finds its memory sooner or
    later, as running ones need nothing more to end.
    """

    def __init__(self, world: World, nodes: dict[str, NodeBooks]) -> None:
        self._world = world
        self._nodes = nodes
        self._largest_mb = max((node.room_mb for node in nodes.values()), default=0)
        self._homes: dict[LiveRollout, NodeBooks] = {}
        self._waiting: OrderedDict[LiveRollout, None] = OrderedDict()
        self._refused_mb = inf  # nothing of that size fits until something leaves

    def arrived(self, live: LiveRollout) -> None:
        """Lets a trajectory begin, or wait.

        Raises:
            ValueError: It fits no node, even an empty one.
        """
        rollout = live.rollout
        if rollout.memory_mb > self._largest_mb:
            raise ValueError(
                f"trajectory {rollout.name}: {rollout.memory_mb} MB is more than any CPU node has for it: "
                f"{self._largest_mb} MB"
            )
        if rollout.reset is None or self._fits(live):
            self._world.begin(live)
        else:
            self._waiting[live] = None

    def finished(self, live: LiveRollout) -> None:
        """Gives a trajectory's memory to those that wait."""
        node = self._homes.pop(live, None)
        if node is None:
            return
        node.change(live.rollout, -1)
        self._refused_mb = inf
        for waiting in [each for each, _ in zip(self._waiting, range(LOOK_AHEAD), strict=False) if self._fits(each)]:
            del self._waiting[waiting]
            self._world.begin(waiting)

    def node(self, task: Task) -> NodeBooks:
        """Returns the node of a command's trajectory."""
        return self._homes[task.live]

    def _fits(self, live: LiveRollout) -> bool:
        """Takes memory if there is some; remembers the size for which there is none."""
        rollout = live.rollout
        if rollout.memory_mb >= self._refused_mb:
            return False
        fitting = (node for node in self._nodes.values() if node.room_mb >= rollout.memory_mb)
        node = min(fitting, key=lambda node: node.crowding(rollout), default=None)
        if node is None:
            self._refused_mb = rollout.memory_mb
            return False
        node.change(rollout, 1)
        node.images.add(rollout.image)
        self._homes[live] = node
        return True


class ModelCalls:
    """A call goes to the node on which its model is ready soonest, and an idle model gives way to it if need be.

    Calls whose model is there and has a slot pass those for which it must come: that saves restores under load.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._nodes = tuple(world.scenario.cluster.gpu_nodes())
        self._waiting: dict[str, deque[Task]] = {model.name: deque() for model in world.scenario.cluster.models}

    def ready(self, task: Task) -> None:
        """Takes a call. If others of its model wait already, there is nothing free for it."""
        line = self._waiting[task.work.service]
        line.append(task)
        if len(line) == 1:
            self._serve((task.work.service,), self._nodes)

    def ended(self, node: str) -> None:
        """Serves others with what a call has left free."""
        self._serve(tuple(self._waiting), (node,))

    def _serve(self, models: tuple[str, ...], nodes: tuple[str, ...]) -> None:
        while (found := min(self._servable(models, nodes), default=None)) is not None:
            *_, node, model = found
            self._world.start(self._waiting[model].popleft(), node=node)

    def _servable(self, models: tuple[str, ...], nodes: tuple[str, ...]) -> Iterator[tuple[bool, int, str, str]]:
        """Yields the oldest call of each model that can be served on these nodes now; the least goes first."""
        for model in models:
            if not self._waiting[model]:
                continue
            times = {node: self._world.set_up_s(node, model) for node in nodes}
            found = min(((seconds, node) for node, seconds in times.items() if seconds is not None), default=None)
            if found is not None:
                yield found[0] > 0.0, self._waiting[model][0].sequence, found[1], model


class ApiLine:
    """The calls of one API, first come, at most as many at once as it allows.

    After a refusal all calls wait as long as the API asks for. One back-off for all callers together is the best that
    clients can do that do not count calls per second: with one for each call, those refused last starve.
    """

    def __init__(self, world: World, quota: Quota) -> None:
        self._world = world
        self._quota = quota
        self._waiting: deque[Task] = deque()
        self._running = 0
        self._closed_until = -inf

    def ready(self, task: Task) -> None:
        """Takes a call."""
        self._waiting.append(task)
        self.send()

    def ended(self, facts: EndFacts) -> None:
        """Notes that a call ended, or was refused."""
        self._running -= 1
        if facts.retry_after_s > 0.0:
            self._closed_until = max(self._closed_until, self._world.now + facts.retry_after_s)
            self._world.wake_at(self._closed_until)
        self.send()

    def send(self) -> None:
        """Sends the calls that can be sent now."""
        while self._waiting and self._running < self._quota.concurrency and self._is_open():
            self._running += 1
            self._world.start(self._waiting.popleft(), node="")

    def _is_open(self) -> bool:
        return self._closed_until - self._world.now <= ROUNDING_S


class OsSharing:
    """The policy; see the module's docstring."""

    name = "os_sharing"

    def __init__(self, world: World) -> None:
        cluster = world.scenario.cluster
        works = (work for rollout in world.scenario.rollouts for work in rollout.works())
        peak_mb = max((work.peak_memory_mb for work in works), default=0)
        self._world = world
        self._nodes = {name: _books(name, node, peak_mb) for name, node in cluster.cpu_nodes().items()}
        self._homes = Homes(world, self._nodes)
        self._models = ModelCalls(world)
        self._apis = {quota.name: ApiLine(world, quota) for quota in cluster.quotas}

    def arrived(self, live: LiveRollout) -> None:
        """Lets a trajectory begin once it has memory."""
        self._homes.arrived(live)

    def ready(self, task: Task) -> None:
        """Starts an action at once if its memory, its model or its API lets it."""
        if task.work.service:
            self._models.ready(task)
        elif task.work.quota:
            self._apis[task.work.quota].ready(task)
        else:
            node = self._homes.node(task) if task.work.in_sandbox else self._least_loaded(task)
            node.waiting.append(task)
            self._start(node)

    def ended(self, task: Task, facts: EndFacts) -> None:
        """Gives others what an attempt has left free."""
        if task.work.service:
            self._models.ended(task.node)
        elif task.work.quota:
            self._apis[task.work.quota].ended(facts)
        else:
            node = self._nodes[task.node]
            node.running -= 1
            node.free_mb += task.work.peak_memory_mb
            self._start(node)

    def finished(self, live: LiveRollout) -> None:
        """Gives others a trajectory's memory."""
        self._homes.finished(live)

    def woken(self) -> None:
        """Sends the calls of APIs that are open again."""
        for line in self._apis.values():
            line.send()

    def _least_loaded(self, task: Task) -> NodeBooks:
        return min(self._nodes.values(), key=lambda node: node.load(task))

    def _start(self, node: NodeBooks) -> None:
        """Starts commands in their order as wide as each would make itself, as long as there is memory for them."""
        while node.waiting and node.waiting[0].work.peak_memory_mb <= node.free_mb:
            task = node.waiting.popleft()
            node.free_mb -= task.work.peak_memory_mb
            node.running += 1
            self._world.start(task, node=node.name, width=max(1, min(task.work.max_width, node.cores)))


def _books(name: str, node: CpuNodes, peak_mb: int) -> NodeBooks:
    return NodeBooks(name, node.cores, node.memory_mb, node.memory_mb - peak_mb)


OS_SHARING = PolicyFactory(OsSharing.name, OsSharing)
