"""CPU nodes: the cores that commands share in two lanes, memory, images, and the sandboxes that live there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import cast

from callsheet.benchmarks.simulator.events import EventQueue, Level
from callsheet.benchmarks.simulator.physics.fair_share import FairShare, Runnable
from callsheet.benchmarks.simulator.physics.machines import Attempt, EndListener, Machine, Used
from callsheet.benchmarks.simulator.policy import Lane, LiveRollout, Task
from callsheet.benchmarks.simulator.scenario import Cluster, Work
from callsheet.scheduler.core.words.model import ActionKind

_Copy = tuple[str, str]  # node, image

PERIOD_S = 0.1
"""Seconds at the CPU after which a command waits for I/O for the first time and then again.

Means hardly depend on it, as in other closed networks of shared processors and delays. Source: Baskett, Chandy, Muntz
and Palacios, "Open, closed, and mixed networks of queues with different classes of customers", 1975.
"""
_RESOLUTION_S = 1e-9


class Registry:
    """Pulls an image once per node; serves a few pulls at once, others wait in line.

    Args:
        pull_s: Seconds of a pull; at 0 every node has every image.
        pulls_at_once: Over all nodes.
        events: Virtual time.
    """

    def __init__(self, pull_s: float, pulls_at_once: int, events: EventQueue) -> None:
        self._pull_s = pull_s
        self._free = pulls_at_once
        self._events = events
        self._there: set[_Copy] = set()
        self._wanted: dict[_Copy, list[Callable[[], None]]] = {}
        self._line: deque[_Copy] = deque()

    def fetch(self, node: str, image: str, then: Callable[[], None]) -> None:
        """Calls `then` when the image is on the node, at once if it is there already."""
        copy = (node, image)
        if not image or self._pull_s <= 0 or copy in self._there:
            then()
        elif copy in self._wanted:
            self._wanted[copy].append(then)
        else:
            self._wanted[copy] = [then]
            self._line.append(copy)
            self._pull()

    def _pull(self) -> None:
        while self._free and self._line:
            self._free -= 1
            self._events.at(self._events.now + self._pull_s, self._pulled, self._line.popleft())

    def _pulled(self, copy: _Copy) -> None:
        self._free += 1
        self._there.add(copy)
        for then in self._wanted.pop(copy):
            then()
        self._pull()


class CpuNode:
    """Foreground commands share all cores, and background ones what these leave.

    Args:
        name: For errors.
        cores: Of the node.
        memory_mb: Of the node.
        events: Virtual time.
        used: Where the cores in use are added up, over all nodes.
        held: Where the cores held are added up: no node holds more than it has.
    """

    def __init__(self, name: str, cores: int, memory_mb: int, *, events: EventQueue, used: Level, held: Level) -> None:
        self.name = name
        self.cores = cores
        self.free_memory_mb = memory_mb
        self._foreground = FairShare(float(cores), events)
        self._background = FairShare(float(cores), events)
        self._shares = {Lane.FOREGROUND: self._foreground, Lane.BACKGROUND: self._background}
        self._used_now = 0.0
        self._used = used
        self._held_widths = 0
        self._held = held

    def start(self, command: Runnable, lane: Lane) -> None:
        """Lets a command run in a lane."""
        self._shares[lane].join(command)
        self._settle()

    def stop(self, command: Runnable, lane: Lane) -> None:
        """Takes a command out of its lane; its `attained` is up to date then."""
        self._shares[lane].leave(command)
        self._settle()

    def move(self, command: Runnable, lane: Lane, to: Lane) -> None:
        """Moves a command between lanes."""
        self._shares[lane].leave(command)
        self._shares[to].join(command)
        self._settle()

    def attained(self, command: Runnable, lane: Lane) -> float:
        """CPU seconds that a command in this lane has had up to now."""
        return self._shares[lane].attained(command)

    def hold(self, cores: int) -> None:
        """Counts cores as held from now on (or no longer, if negative)."""
        before = min(self._held_widths, self.cores)
        self._held_widths += cores
        self._held.add(min(self._held_widths, self.cores) - before)

    def take_memory(self, memory_mb: int, reason: str) -> None:
        """Takes memory.

        Raises:
            ValueError: There is not so much.
        """
        if memory_mb > self.free_memory_mb:
            raise ValueError(f"{reason}: needs {memory_mb} MB of memory; {self.name} has {self.free_memory_mb} MB free")
        self.free_memory_mb -= memory_mb

    def _settle(self) -> None:
        used = self._foreground.used
        if self._background.anyone:
            self._background.resize(max(0.0, self.cores - used))
            used += self._background.used
        if used != self._used_now:
            self._used.add(used - self._used_now)
            self._used_now = used


class CommandAttempt(Attempt):
    """A command on a node: it computes and waits for I/O in turn. Lack of CPU does not make its waits shorter.

    Its execution clock runs while it waits for I/O, and else at the share it gets of the CPU it could use: load never
    makes a timeout.
    """

    __slots__ = (
        "clock_from",
        "clock_s",
        "command",
        "computes",
        "held",
        "lane",
        "late",
        "node",
        "starting_width",
        "wait_s",
    )

    def __init__(self, task: Task, machine: Machine, node: CpuNode, width: int, lane: Lane) -> None:
        super().__init__(task, machine)
        self.node = node
        self.lane = lane
        self.starting_width = width
        self.held = 0
        self.command: Runnable | None = None  # from its first use of CPU on
        self.computes = False
        self.wait_s = 0.0  # of the wait under way, or owed for what it has computed since the last one
        self.late = False  # that wait ends when the clock has run out
        self.clock_s = 0.0  # up to when its CPU seconds were `clock_from`
        self.clock_from = 0.0

    def note_clock(self, command: Runnable) -> None:
        """Brings the execution clock up to the CPU seconds that are attained."""
        passed_s = (command.attained - self.clock_from) / command.cap
        self.clock_s += passed_s
        self.wait_s += passed_s * (1.0 / self.task.work.use - 1.0)
        self.clock_from = command.attained


class CpuMachine:
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
        """See `Machine`: first the image for a new sandbox, then waiting that needs no CPU, then CPU and I/O."""
        work = attempt.task.work
        if work.kind is ActionKind.ENV_RESET:
            image = attempt.task.live.rollout.image
            self._registry.fetch(attempt.task.node, image, partial(self._begin, cast(CommandAttempt, attempt)))
        else:
            self._begin(cast(CommandAttempt, attempt))

    def release(self, attempt: Attempt) -> Used:
        """See `Machine`."""
        attempt = cast(CommandAttempt, attempt)
        command, attempt.command = attempt.command, None  # apart, or only the garbage collector would find them
        if command is not None and attempt.computes:
            self._leave(attempt, command)
        self._hold(attempt, 0)
        attempt.node.free_memory_mb += attempt.task.work.peak_memory_mb
        return Used(command.attained if command is not None else 0.0, attempt.clock_s)

    def remove_sandbox(self, live: LiveRollout) -> None:
        """Gives back what a trajectory's sandbox holds."""
        node = self._sandboxes.pop(live, None)
        if node is not None:
            node.free_memory_mb += live.rollout.memory_mb

    def attained(self, attempt: CommandAttempt) -> float:
        """CPU seconds up to now."""
        command = attempt.command
        if command is None:
            return 0.0
        return attempt.node.attained(command, attempt.lane) if attempt.computes else command.attained

    def set_lane(self, attempt: CommandAttempt, lane: Lane) -> None:
        """Moves a command to another lane."""
        if attempt.lane is not lane:
            if attempt.command is not None and attempt.computes:
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
        computes = attempt.computes
        if computes:
            self._leave(attempt, command)
        _size(command, work, usable)
        if computes:
            self._compute(attempt, command)

    def _place_sandbox(self, live: LiveRollout, node: CpuNode, peak_memory_mb: int) -> None:
        try:
            node.take_memory(live.rollout.memory_mb, live.rollout.name)
        except ValueError:
            node.free_memory_mb += peak_memory_mb
            raise
        live.node = node.name
        self._sandboxes[live] = node

    def _hold(self, attempt: CommandAttempt, width: int) -> None:
        """Counts a command's cores as held."""
        attempt.node.hold(width - attempt.held)
        attempt.held = width

    def _begin(self, attempt: CommandAttempt) -> None:
        work = attempt.task.work
        if work.service_s > 0 or work.cpu_s <= 0:
            self._wait(attempt, work.service_s)
        else:
            self._go_on(attempt)

    def _wait(self, attempt: CommandAttempt, seconds: float) -> None:
        """Lets a command wait without CPU, for no longer than its clock has left."""
        left_s = max(0.0, attempt.task.work.timeout_s - attempt.clock_s)
        attempt.late = seconds > left_s + _RESOLUTION_S
        attempt.wait_s = min(seconds, left_s)
        self._events.at(self._events.now + attempt.wait_s, self._waited, attempt)

    def _waited(self, attempt: CommandAttempt) -> None:
        attempt.clock_s += attempt.wait_s
        attempt.wait_s = 0.0
        self._go_on(attempt)

    def _go_on(self, attempt: CommandAttempt) -> None:
        """Ends a command whose work is done or whose clock has run out; any other computes."""
        command, work = attempt.command, attempt.task.work
        if command is None and work.cpu_s > 0:
            command = attempt.command = Runnable(inf, 1.0, 1.0, partial(self._computed, attempt))
            _size(command, work, attempt.starting_width)
        if command is None or command.attained >= work.cpu_s:
            self._ended(attempt, timed_out=attempt.late)
        elif work.timeout_s - attempt.clock_s <= _RESOLUTION_S:
            self._ended(attempt, timed_out=True)
        else:
            self._compute(attempt, command)

    def _compute(self, attempt: CommandAttempt, command: Runnable) -> None:
        """Lets a command compute until it waits for I/O, or its work or its clock is over."""
        work = attempt.task.work
        most_s = min(PERIOD_S if work.use < 1.0 else inf, work.timeout_s - attempt.clock_s)
        command.limit = min(work.cpu_s, command.attained + most_s * command.cap)
        attempt.computes = True
        attempt.node.start(command, attempt.lane)

    def _computed(self, attempt: CommandAttempt) -> None:
        command = attempt.command
        if command is None:
            return
        self._leave(attempt, command)
        command.attained = command.limit
        attempt.note_clock(command)
        if attempt.wait_s > 0.0:
            self._wait(attempt, attempt.wait_s)
        else:
            self._go_on(attempt)

    def _leave(self, attempt: CommandAttempt, command: Runnable) -> None:
        attempt.computes = False
        attempt.node.stop(command, attempt.lane)
        attempt.note_clock(command)


def _size(command: Runnable, work: Work, width: int) -> None:
    """Sets what a command can use on that many cores."""
    command.weight = float(max(1, min(width, work.max_width)))
    command.cap = work.speed_up(width)
