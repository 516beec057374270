"""CPU nodes under virtual time, as the sandbox managers run them: their memory, by need, and their node sharing."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from callsheet.benchmarks.peers import manager_of
from callsheet.benchmarks.simulator.policy import EndFacts, Lane, LiveRollout, Task, World
from callsheet.benchmarks.simulator.scenario import Cluster
from callsheet.benchmarks.simulator.shell.requests import rounded_up
from callsheet.managers.sandbox.memory_ledger import MemoryLedger, MemoryTerms, Stay
from callsheet.managers.sandbox.node_sharing import KnownCommand, LaneChange, NodeSharing, NodeSharingSettings
from callsheet.managers.sandbox.node_sharing import Lane as SharingLane
from callsheet.scheduler.core.words.commands import Dispatch
from callsheet.scheduler.core.words.model import MEMORY, ActionKind

LOOK_S = 1.0
_LANES = {SharingLane.FOREGROUND: Lane.FOREGROUND, SharingLane.BACKGROUND: Lane.BACKGROUND}


class GatedMemory:
    """The ledger of each node's manager, and the commands that wait for memory there.

    Args:
        cluster: The machines.
        start: Starts a command whose sandbox has its whole demand.
        refuse: Gives a command back that would wait for ever.
        now: Returns the time.
        wake_at: Has `woken` called at a time.
    """

    def __init__(
        self,
        cluster: Cluster,
        start: Callable[[Task, Dispatch], None],
        refuse: Callable[[Task, Dispatch], None],
        *,
        now: Callable[[], float],
        wake_at: Callable[[float], None],
    ) -> None:
        nodes = cluster.cpu_nodes().items()
        self._now = now
        self._wake_at = wake_at
        self._ledgers = {name: MemoryLedger(node.memory_mb, by_need=True) for name, node in nodes}
        self._start = start
        self._refuse = refuse
        self._inside: dict[Task, MemoryLedger] = {}
        self._line: dict[str, tuple[Task, Dispatch]] = {}
        self._look_at = -1.0

    def enter(self, task: Task, dispatch: Dispatch) -> None:
        """Starts a command, at once or when its sandbox can have its whole demand."""
        ledger = self._inside[task] = self._ledgers[manager_of(dispatch)]
        sandbox, work = _sandbox_of(task), task.work
        expected_s = dispatch.prediction.execution_s if dispatch.prediction is not None else 0.0
        if work.in_sandbox and work.kind is not ActionKind.ENV_RESET:
            if not ledger.thaw(sandbox, expected_s):
                self._start(task, dispatch)
                return
        elif work.in_sandbox:
            ledger.ask(sandbox, dispatch.resources.get(MEMORY, 0), MemoryTerms(expected_s=expected_s))
        else:
            terms = MemoryTerms(Stay.ATTEMPT, beside=task.rollout.name, expected_s=expected_s)
            ledger.ask(sandbox, rounded_up(work.peak_memory_mb), terms)
        self._line[sandbox] = task, dispatch
        self._advance(ledger)

    def leave(self, task: Task, facts: EndFacts) -> int:
        """Notes the end of a command; returns what its sandbox holds now, 0 without one."""
        ledger, sandbox = self._inside.pop(task, None), _sandbox_of(task)
        if ledger is None:
            return 0
        if task.work.in_sandbox and not (task.work.kind is ActionKind.ENV_RESET and facts.failed):
            ledger.rest(sandbox, task.rollout.memory_mb)
        else:
            ledger.give_back(sandbox)
        held_mib = ledger.held_mib(sandbox)
        self._advance(ledger)
        return held_mib

    def gone(self, live: LiveRollout) -> None:
        """Takes back what a trajectory's sandbox had, if it had one."""
        ledger = self._ledgers.get(live.node)
        if ledger is not None:
            ledger.give_back(live.rollout.name)
            self._advance(ledger)

    def woken(self) -> None:
        """Looks at what time changes, once a second while somebody waits, as managers do."""
        if self._line and self._look_at <= self._now():
            for ledger in self._ledgers.values():
                self._advance(ledger)

    def _advance(self, ledger: MemoryLedger) -> None:
        for sandbox in ledger.advance(self._now()):
            self._start(*self._line.pop(sandbox))
        while (stuck := ledger.stuck()) is not None:
            ledger.give_back(stuck)
            self._inside.pop(self._line[stuck][0])
            self._refuse(*self._line.pop(stuck))
        if self._line and self._look_at <= self._now():
            self._look_at = self._now() + LOOK_S
            self._wake_at(self._look_at)


def _sandbox_of(task: Task) -> str:
    """What a command runs in: its trajectory's sandbox, or one for itself."""
    return task.rollout.name if task.work.in_sandbox else f"{task.rollout.name}/{task.sequence}"


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
