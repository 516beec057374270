"""Finite work on three nodes, drawn at random, and played to its end with a planner."""

from __future__ import annotations

from dataclasses import dataclass

from callsheet.scheduler.core.words import commands
from callsheet.scheduler.core.words.model import ActionKind, Demand, PriorityClass, ResourceDemand, SpeedUp
from callsheet.scheduler.planner.protocol import ReviewingPlanner
from hypothesis import strategies as st

from tests.support.core_requests import LONG, action_request, job_request
from tests.support.core_world import CoreWorld, FakeManager, service

CURVES = st.one_of(
    st.floats(0.0, 1.0).map(SpeedUp),
    st.lists(
        st.tuples(st.integers(2, 16), st.floats(0.1, 20.0)), min_size=1, max_size=4, unique_by=lambda each: each[0]
    )
    .map(sorted)
    .map(lambda points: SpeedUp(points=tuple(points))),
)


@st.composite
def entries(draw: st.DrawFn, resource: str, most: int) -> ResourceDemand:
    """A demand of one resource that some node could serve."""
    least = draw(st.integers(0, most))
    return ResourceDemand(resource, least, draw(st.integers(least, 2 * most)), draw(CURVES))


@st.composite
def demands(draw: st.DrawFn, cores: int, memory: int) -> Demand:
    """Cores, memory, both or nothing."""
    parts = []
    if draw(st.booleans()):
        parts.append(draw(entries("cpu", cores)))
    if draw(st.booleans()):
        parts.append(draw(entries("memory", memory)))
    return Demand(tuple(parts))


@dataclass(frozen=True)
class Job:
    """An action of the closed system: when it comes, what it needs, how long it runs (in rounds)."""

    arrives: int
    demand: Demand
    runs: int
    kind: ActionKind
    priority: PriorityClass


NODES = [(2, 10), (4, 5), (1, 40)]
LARGEST = NODES[1]
JOBS = st.lists(
    st.builds(
        Job,
        st.integers(0, 12),
        demands(*LARGEST),
        st.integers(1, 5),
        st.sampled_from([ActionKind.GENERATE, ActionKind.TOOL_CALL]),
        st.sampled_from(list(PriorityClass)),
    ),
    min_size=1,
    max_size=25,
)


class ClosedSystem:
    """Finite work on three nodes; one round a second. Grants are checked against what each node has."""

    def __init__(self, jobs: list[Job], planner: ReviewingPlanner) -> None:
        self.world = CoreWorld(planner=planner)
        slots = {"0": 2, "1": 0, "2": 0}
        self.managers = [
            self.world.manager(str(index), service(slots=slots[str(index)]), cores=cores, memory=memory)
            for index, (cores, memory) in enumerate(NODES)
        ]
        for priority in PriorityClass:
            self.world.job(job_request(priority.name, priority=priority))
        self.jobs = jobs
        self.running: list[tuple[int, FakeManager, commands.Dispatch]] = []
        self.round = 0

    def play(self) -> int:
        """Plays until all is done; returns the rounds it took."""
        limit = 12 + sum(job.runs + 1 for job in self.jobs) + 15
        while self.round <= limit:
            self._submit()
            for manager in self.managers:
                manager.heartbeat()
            again = True
            while again:
                plan = self.world.plan()
                taken = [command for manager in self.managers for command in self._new_grants(manager)]
                assert len(taken) == len(plan.assignments), "a proposal of the planner was refused"
                again = plan.truncated
            self._end_what_is_over()
            if self.round > 12 and not self.world.state.open_actions:
                return self.round
            self.world.now += 1.0
            self.round += 1
        raise AssertionError(f"after {self.round} rounds {self.world.state.open_actions} actions have not ended")

    def _submit(self) -> None:
        for index, job in enumerate(self.jobs):
            if job.arrives == self.round:
                name = f"a{index}"
                self.world.submit(
                    action_request(name, job.kind, job_id=job.priority.name, demand=job.demand, timeouts=LONG)
                )

    def _new_grants(self, manager: FakeManager) -> list[commands.Dispatch]:
        grants = manager.stream.all(commands.Dispatch)
        for grant in grants:
            job = self.jobs[int(grant.request.key.action_id[1:])]
            self.running.append((self.round + job.runs, manager, grant))
        manager.stream.sent.clear()
        assert all(units >= 0 for units in manager.free.values())
        return grants

    def _end_what_is_over(self) -> None:
        for until, manager, grant in list(self.running):
            if until <= self.round:
                self.running.remove((until, manager, grant))
                manager.end(grant)
