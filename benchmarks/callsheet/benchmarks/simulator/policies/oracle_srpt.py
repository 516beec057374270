"""The oracle: shortest remaining processing time first, preemptive at no cost, knowing every duration exactly.

A good rule for the mean, and no bound: on each node the commands with the least CPU still to come run, as wide as they
can be, and the rest stand still. Preemptive SRPT is optimal on one machine (Schrage 1968), but not with several cores,
trajectories bound to nodes, GPUs that do not preempt, or API quotas: there other policies may be better. It pays no
overhead.
"""

from __future__ import annotations

import heapq
from math import inf

from callsheet.benchmarks.simulator.policies.parts.api_calls import Planned
from callsheet.benchmarks.simulator.policies.parts.baseline import Side, baseline
from callsheet.benchmarks.simulator.policies.parts.cpu_commands import StartsAtOnce
from callsheet.benchmarks.simulator.policies.parts.gpu_calls import initialise_all, soonest_node
from callsheet.benchmarks.simulator.policies.parts.places import Places
from callsheet.benchmarks.simulator.policy import EndFacts, Lane, Task, World


class ModelCalls:
    """The calls of one model: the shortest waits in front."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Task]] = []
        self._waiting_s = 0.0
        self._ends_at: dict[Task, float] = {}

    def add(self, task: Task) -> None:
        """A call joins."""
        heapq.heappush(self._waiting, (task.work.service_s, task.sequence, task))
        self._waiting_s += task.work.service_s

    def first(self) -> Task | None:
        """The shortest call that waits."""
        return self._waiting[0][2] if self._waiting else None

    def started(self, ends_at: float) -> None:
        """The first call is served, or waits for its model, until then."""
        service_s, _, task = heapq.heappop(self._waiting)
        self._waiting_s -= service_s
        self._ends_at[task] = ends_at

    def ended(self, task: Task) -> None:
        """A call is over."""
        del self._ends_at[task]

    def drained_in_s(self, now: float) -> float:
        """Seconds until the slots in use have served all who wait; infinite where none is in use."""
        if not self._ends_at:
            return inf
        running_s = sum(ends_at - now for ends_at in self._ends_at.values())
        return (running_s + self._waiting_s) / len(self._ends_at)


class ShortestCallFirst(Side):
    """Of all calls that could be served, always the one that would be over first.

    One more instance of a model is brought in only where those there would take longer to serve all who wait for it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._nodes = tuple(world.scenario.cluster.gpu_nodes())
        self._calls = {model.name: ModelCalls() for model in world.scenario.cluster.models}
        initialise_all(world)

    def ready(self, task: Task) -> None:
        """A call joins the others of its model."""
        self._calls[task.work.service].add(task)
        self._serve()

    def ended(self, task: Task, facts: EndFacts) -> None:
        """A call ended."""
        self._calls[task.work.service].ended(task)
        self._serve()

    def _serve(self) -> None:
        while (choice := self._soonest_over()) is not None:
            task, node, ends_at = choice
            self._calls[task.work.service].started(ends_at)
            self._world.start(task, node=node)

    def _soonest_over(self) -> tuple[Task, str, float] | None:
        best, best_at, now = None, inf, self._world.now
        for model, calls in self._calls.items():
            task = calls.first()
            node = soonest_node(self._world, self._nodes, model) if task is not None else None
            if task is None or node is None:
                continue
            takes_s = (self._world.set_up_s(node, model) or 0.0) + task.work.service_s
            worth_it = takes_s == task.work.service_s or takes_s < calls.drained_in_s(now)
            if worth_it and now + takes_s < best_at:
                best, best_at = (task, node, now + takes_s), now + takes_s
        return best


_Entry = tuple[float, int, Task]  # CPU seconds to come when noted (negative where the largest comes first), tie-break


class ShortestRemainingNode:
    """One node: its commands by CPU still to come; those that fill it are in the foreground.

    The first that does not fit whole has what is left (in the background), all others are paused.
    """

    def __init__(self, world: World, name: str, cores: int) -> None:
        self._world = world
        self._name = name
        self._cores = cores
        self._needs: dict[Task, float] = {}  # cores that a command uses while in the foreground
        self._foreground: list[_Entry] = []  # largest first; these shrink unnoticed, so it notes what they had at most
        self._waiting: list[_Entry] = []  # smallest first; exact, as paused commands stay as they are
        self._partly: Task | None = None
        self._used = 0.0
        self.expected_cpu_s = 0.0

    def join(self, task: Task) -> None:
        """Starts a command; it runs if it is among the shortest."""
        width = max(1, min(task.work.max_width, self._cores))
        self._needs[task] = min(float(self._cores), task.work.use * task.work.speed_up(width))
        self.expected_cpu_s += task.work.cpu_s
        self._world.start(task, node=self._name, width=width, lane=Lane.PAUSED)
        self._wait(task)
        self._settle()

    def leave(self, task: Task) -> None:
        """A command ended."""
        if task is self._partly:
            self._partly = None
        need = self._needs.pop(task)
        if task.lane is Lane.FOREGROUND:
            self._used = self._used - need if self._needs else 0.0
        self.expected_cpu_s -= task.work.cpu_s
        self._settle()

    def _settle(self) -> None:
        """Lets the shortest run."""
        before, self._partly = self._partly, None
        if before is not None and not self._runs(before):
            before = None
        if before is not None:
            self._wait(before)
        while (task := self._shortest_waiting()) is not None:
            if self._used + self._needs[task] <= self._cores * (1 + 1e-9):
                heapq.heappop(self._waiting)
                self._promote(task)
                continue
            largest = self._largest_running()
            if largest is None or self._to_come(largest) <= self._waiting[0][0]:
                heapq.heappop(self._waiting)
                self._partly = task
                break
            self._demote(largest)
        if before is not None and before is not self._partly and before.lane is Lane.BACKGROUND:
            self._world.set_lane(before, Lane.PAUSED)
        if self._partly is not None and self._partly.lane is not Lane.BACKGROUND:
            self._world.set_lane(self._partly, Lane.BACKGROUND)

    def _promote(self, task: Task) -> None:
        self._world.set_lane(task, Lane.FOREGROUND)
        self._used += self._needs[task]
        heapq.heappush(self._foreground, (-self._to_come(task), task.sequence, task))

    def _demote(self, largest: Task) -> None:
        """Takes the foreground's first, which has most to come, back to those that wait."""
        heapq.heappop(self._foreground)
        self._used -= self._needs[largest]
        self._world.set_lane(largest, Lane.PAUSED)
        self._wait(largest)

    def _wait(self, task: Task) -> None:
        heapq.heappush(self._waiting, (self._to_come(task), task.sequence, task))

    def _shortest_waiting(self) -> Task | None:
        while self._waiting and not self._runs(self._waiting[0][2]):
            heapq.heappop(self._waiting)
        return self._waiting[0][2] if self._waiting else None

    def _largest_running(self) -> Task | None:
        while self._foreground:
            noted, sequence, task = self._foreground[0]
            if not self._runs(task) or task.lane is not Lane.FOREGROUND:
                heapq.heappop(self._foreground)
                continue
            to_come = self._to_come(task)
            if to_come >= -noted:
                return task
            heapq.heapreplace(self._foreground, (-to_come, sequence, task))
        return None

    def _runs(self, task: Task) -> bool:
        return task in self._needs and task.ended_at < 0.0

    def _to_come(self, task: Task) -> float:
        return task.work.cpu_s - self._world.cpu_attained(task)


class ShortestRemaining(StartsAtOnce):
    """All nodes; a command without a sandbox goes where least CPU is still expected for each core."""

    def __init__(self, world: World, places: Places) -> None:
        super().__init__(world, places)
        self._nodes = {name: ShortestRemainingNode(world, name, cores) for name, cores in self._cores.items()}

    def start(self, task: Task, node: str) -> None:
        """Lets a command run if it is among the shortest."""
        self._nodes[node].join(task)

    def leave(self, task: Task) -> None:
        """A command is over."""
        self._nodes[task.node].leave(task)

    def load(self, node: str) -> float:
        """CPU seconds expected for each core."""
        return self._nodes[node].expected_cpu_s / self._cores[node]


ORACLE_SRPT = baseline("oracle_srpt", ShortestRemaining, ShortestCallFirst, Planned, lambda scenario: True)
