"""Commands on CPU nodes, and the sandboxes that live there."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import cast

from callsheet.benchmarks.simulator.events import EventQueue
from callsheet.benchmarks.simulator.level import Level
from callsheet.benchmarks.simulator.physics.cpu_node import CpuNode
from callsheet.benchmarks.simulator.physics.fair_share import Command
from callsheet.benchmarks.simulator.physics.images import Registry
from callsheet.benchmarks.simulator.physics.machines import Attempt, EndListener, Machine, Used
from callsheet.benchmarks.simulator.policy import Lane, LiveRollout, Task
from callsheet.benchmarks.simulator.scenario import Cluster
from callsheet.scheduler.core.model import ActionKind


class CommandAttempt(Attempt):
    """A command on a node.

    Its execution clock runs at the share it gets of the CPU it could use: load never makes a timeout.
    """

    __slots__ = ("clock_from", "clock_s", "command", "held", "lane", "node", "starting_width")

    def __init__(self, task: Task, machine: Machine, node: CpuNode, width: int, lane: Lane) -> None:
        super().__init__(task, machine)
        self.node = node
        self.lane = lane
        self.starting_width = width
        self.held = 0
        self.command: Command | None = None  # while it uses CPU
        self.clock_s = 0.0  # up to when its CPU seconds were `clock_from`
        self.clock_from = 0.0

    def clock(self, attained: float) -> float:
        """The execution clock when so many CPU seconds are attained."""
        if self.command is None:
            return self.clock_s
        return self.clock_s + (attained - self.clock_from) / self.command.cap


class CpuNodes:
    """All CPU nodes: a `Machine` for commands, and the place of sandboxes."""

    def __init__(self, cluster: Cluster, events: EventQueue, *, used: Level, held: Level, ended: EndListener) -> None:
        self._events = events
        self._ended = ended
        self._registry = Registry(cluster.pull_s, cluster.pulls_at_once, events)
        self._nodes = {
            name: CpuNode(name, nodes.cores, nodes.memory_mb, events=events, used=used, held=held)
            for name, nodes in cluster.cpu_nodes().items()
        }
        self._sandboxes: dict[LiveRollout, CpuNode] = {}

    def node(self, name: str) -> CpuNode:
        """A node by name.

        Raises:
            ValueError: There is none.
        """
        node = self._nodes.get(name)
        if node is None:
            raise ValueError(f"node: {name!r} is no CPU node of this cluster")
        return node

    def admit(self, task: Task, node: str, width: int, lane: Lane) -> Attempt:
        """See `Machine`."""
        if width < 1:
            raise ValueError(f"width: must be at least 1, not {width}")
        work, live, place = task.work, task.live, self.node(node)
        if work.in_sandbox and live.node != node and work.kind is not ActionKind.ENV_RESET:
            raise ValueError(f"node: {live.rollout.name} has its sandbox on {live.node!r}, not on {node!r}")
        if work.peak_memory_mb:
            place.take_memory(work.peak_memory_mb, live.rollout.name)
        if work.kind is ActionKind.ENV_RESET:
            self._place_sandbox(live, place, work.peak_memory_mb)
        attempt = CommandAttempt(task, self, place, width, lane)
        self._hold(attempt, width)
        return attempt

    def execute(self, attempt: Attempt) -> None:
        """See `Machine`: first the image for a new sandbox, then waiting that needs no CPU, then the CPU's part."""
        work = attempt.task.work
        if work.kind is ActionKind.ENV_RESET:
            image = attempt.task.live.rollout.image
            self._registry.fetch(attempt.task.node, image, partial(self._wait, cast(CommandAttempt, attempt)))
        else:
            self._wait(cast(CommandAttempt, attempt))

    def release(self, attempt: Attempt) -> Used:
        """See `Machine`."""
        attempt = cast(CommandAttempt, attempt)
        attained = 0.0
        clock = attempt.clock_s
        if attempt.command is not None:
            attempt.node.stop(attempt.command, attempt.lane)
            attained = attempt.command.attained
            clock = attempt.clock(attained)
            attempt.command = None  # they know each other: without this only the garbage collector would find them
        self._hold(attempt, 0)
        attempt.node.free_memory_mb += attempt.task.work.peak_memory_mb
        return Used(attained, clock)

    def remove_sandbox(self, live: LiveRollout) -> None:
        """Gives back what a trajectory's sandbox holds."""
        node = self._sandboxes.pop(live, None)
        if node is not None:
            node.free_memory_mb += live.rollout.memory_mb
            node.hold(-live.reserved_cores)

    def attained(self, attempt: CommandAttempt) -> float:
        """CPU seconds up to now."""
        return attempt.node.attained(attempt.command, attempt.lane) if attempt.command is not None else 0.0

    def set_lane(self, attempt: CommandAttempt, lane: Lane) -> None:
        """Moves a command to another lane."""
        if attempt.lane is not lane:
            if attempt.command is not None:
                attempt.node.move(attempt.command, attempt.lane, lane)
            attempt.lane = lane

    def set_width(self, attempt: CommandAttempt, width: int) -> None:
        """Gives a command other cores.

        Raises:
            ValueError: The width is below 1.
        """
        if width < 1:
            raise ValueError(f"width: must be at least 1, not {width}")
        self._hold(attempt, width)
        command, work = attempt.command, attempt.task.work
        attempt.task.width = width
        usable = width if work.adaptive else min(width, attempt.starting_width)
        if command is None:
            attempt.starting_width = usable
            return
        attempt.node.stop(command, attempt.lane)
        attempt.clock_s = attempt.clock(command.attained)
        attempt.clock_from = command.attained
        self._size(attempt, command, usable)
        attempt.node.start(command, attempt.lane)

    def _place_sandbox(self, live: LiveRollout, node: CpuNode, peak_memory_mb: int) -> None:
        try:
            node.take_memory(live.rollout.memory_mb, live.rollout.name)
        except ValueError:
            node.free_memory_mb += peak_memory_mb
            raise
        live.node = node.name
        self._sandboxes[live] = node
        node.hold(live.reserved_cores)

    def _hold(self, attempt: CommandAttempt, width: int) -> None:
        """Counts a command's cores as held, unless its trajectory's reservation holds them."""
        if attempt.task.live.reserved_cores and attempt.task.work.in_sandbox:
            return
        attempt.node.hold(width - attempt.held)
        attempt.held = width

    def _wait(self, attempt: CommandAttempt) -> None:
        work = attempt.task.work
        if attempt.over:
            return
        if work.service_s >= work.timeout_s:
            self._events.at(self._events.now + work.timeout_s, self._timed_out_waiting, attempt)
        elif work.service_s > 0 or work.cpu_s <= 0:
            self._events.at(self._events.now + work.service_s, self._waited, attempt)
        else:
            self._compute(attempt)

    def _waited(self, attempt: CommandAttempt) -> None:
        if attempt.over:
            return
        attempt.clock_s = attempt.task.work.service_s
        if attempt.task.work.cpu_s > 0:
            self._compute(attempt)
        else:
            self._ended(attempt)

    def _timed_out_waiting(self, attempt: CommandAttempt) -> None:
        if not attempt.over:
            attempt.clock_s = attempt.task.work.timeout_s
            self._ended(attempt, timed_out=True)

    def _compute(self, attempt: CommandAttempt) -> None:
        command = Command(inf, 1.0, 1.0, partial(self._computed, attempt))
        self._size(attempt, command, attempt.starting_width)
        attempt.command = command
        attempt.node.start(command, attempt.lane)

    def _size(self, attempt: CommandAttempt, command: Command, width: int) -> None:
        """Sets what a command can use on that many cores, and where its work or its clock will end it."""
        work = attempt.task.work
        command.weight = float(max(1, min(width, work.max_width)))
        command.cap = work.use * work.speed_up(width)
        command.limit = min(work.cpu_s, command.attained + (work.timeout_s - attempt.clock_s) * command.cap)

    def _computed(self, attempt: CommandAttempt) -> None:
        command = attempt.command
        self._ended(attempt, timed_out=command is not None and command.limit < attempt.task.work.cpu_s)
