"""Shared cores of the simulator: the fast way gives what the plain way gives, and no core is lost or counted twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import pytest
from callsheet.benchmarks.simulator.events import EventQueue, Level
from callsheet.benchmarks.simulator.physics.cpu_nodes import CpuNode
from callsheet.benchmarks.simulator.physics.fair_share import Runnable
from callsheet.benchmarks.simulator.policy import Lane
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.samples import examples


@dataclass(slots=True)
class Job:
    """A command, with what happens to it at which time."""

    arrives: float
    cpu_s: float
    width: float
    cap: float
    lanes: list[tuple[float, Lane]]  # from when on it is in which lane, the first from its arrival
    attained: float = 0.0
    ended: float = inf

    def lane(self, now: float) -> Lane:
        """Its lane at that time."""
        return [lane for since, lane in self.lanes if since <= now][-1]


def ends(jobs: list[Job], cores: float) -> list[float]:
    """When each job ends on a node with so many cores."""
    now = 0.0
    changes = sorted({job.arrives for job in jobs} | {since for job in jobs for since, _ in job.lanes})
    while any(job.ended == inf for job in jobs):
        live = [job for job in jobs if job.arrives <= now and job.ended == inf]
        rates = _rates(live, cores, now)
        next_change = min((at for at in changes if at > now), default=inf)
        until = min([next_change, *(_end(job, rate, now) for job, rate in zip(live, rates, strict=True))])
        for job, rate in zip(live, rates, strict=True):
            job.attained += rate * (until - now)
            if job.cpu_s - job.attained <= 1e-12 * max(1.0, job.cpu_s):
                job.ended = until
        now = until
    return [job.ended for job in jobs]


def water_filling(jobs: list[Job], cores: float) -> list[float]:
    """Everybody gets its cap, or a level times its width where that is less; the level hands out all cores."""
    left, rates = cores, {}
    todo = sorted(jobs, key=lambda job: job.cap / job.width)
    while todo:
        job = todo.pop(0)
        share = left * job.width / (job.width + sum(other.width for other in todo))
        rates[id(job)] = min(job.cap, share)
        left -= rates[id(job)]
    return [rates[id(job)] for job in jobs]


def _rates(live: list[Job], cores: float, now: float) -> list[float]:
    foreground = [job for job in live if job.lane(now) is Lane.FOREGROUND]
    background = [job for job in live if job.lane(now) is Lane.BACKGROUND]
    fast = water_filling(foreground, cores)
    slow = water_filling(background, max(0.0, cores - sum(fast)))
    rate = dict(zip(map(id, foreground + background), fast + slow, strict=True))
    return [rate.get(id(job), 0.0) for job in live]


def _end(job: Job, rate: float, now: float) -> float:
    return now + (job.cpu_s - job.attained) / rate if rate > 0 else inf


LANES = st.sampled_from([Lane.FOREGROUND, Lane.FOREGROUND, Lane.BACKGROUND])
TIMES = st.floats(0.0, 20.0).map(lambda value: round(value, 3))


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """A command that may change its lane twice; paused for a while at most, so that it ends."""
    arrives = draw(TIMES)
    width = draw(st.sampled_from([1.0, 1.0, 2.0, 4.0]))
    cap = width * draw(st.floats(0.1, 1.0))
    lanes = [(arrives, draw(LANES))]
    if draw(st.booleans()):
        lanes.append((arrives + draw(TIMES), draw(st.sampled_from(list(Lane)))))
        lanes.append((lanes[-1][0] + draw(TIMES), draw(LANES)))
    return Job(arrives, draw(st.floats(0.01, 8.0)), width, cap, lanes)


@dataclass
class Node:
    """A node under test, which carries out what the jobs say."""

    cores: int
    events: EventQueue = field(default_factory=EventQueue)
    ended: dict[int, float] = field(default_factory=dict)
    lanes: dict[int, Lane] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.used = Level(self.events)
        self.node = CpuNode("cpu-0", self.cores, 0, events=self.events, used=self.used, held=Level(self.events))
        self.commands: dict[int, Runnable] = {}

    def run(self, given_jobs: list[Job]) -> list[float]:
        """When each job ends."""
        for index, job in enumerate(given_jobs):
            self.events.at(job.arrives, self._arrive, (index, job))
            for since, lane in job.lanes[1:]:
                self.events.at(since, self._move, (index, lane))
        self.events.run(float("inf"))
        return [self.ended[index] for index in range(len(given_jobs))]

    def _arrive(self, arrival: tuple[int, Job]) -> None:
        index, job = arrival
        command = Runnable(job.cpu_s, job.width, job.cap, lambda: self._end(index))
        self.commands[index] = command
        self.lanes[index] = job.lanes[0][1]
        self.node.start(command, self.lanes[index])
        self._check()

    def _move(self, change: tuple[int, Lane]) -> None:
        index, lane = change
        if index not in self.ended:
            self.node.move(self.commands[index], self.lanes[index], lane)
            self.lanes[index] = lane
            self._check()

    def _end(self, index: int) -> None:
        self.node.stop(self.commands[index], self.lanes[index])
        self.ended[index] = self.events.now
        assert self.commands[index].attained == pytest.approx(self.commands[index].limit)
        self._check()

    def _check(self) -> None:
        """All cores are in use, or else every command has all it can use."""
        running = [self.commands[index].cap for index in self.lanes if index not in self.ended]
        assert self.used.now == pytest.approx(min(self.cores, sum(running)))


@settings(max_examples=examples(150))
@given(st.lists(jobs(), min_size=1, max_size=12), st.integers(1, 5))
def test_commands_end_when_the_plain_water_filling_says(given_jobs: list[Job], cores: int) -> None:
    assert Node(cores).run(given_jobs) == pytest.approx(ends(given_jobs, cores), rel=1e-6, abs=1e-6)


# By rounding, the third is limited for a moment when the fourth comes, and must not be taken for ended.
TIED = [
    Job(0.0, 1.0, 1.0, 1.0, [(0.0, Lane.FOREGROUND)]),
    Job(0.0, 0.25, 1.0, 1.0, [(0.0, Lane.FOREGROUND)]),
    Job(1.0, 1.0, 1.0, 0.5, [(1.0, Lane.FOREGROUND)]),
    Job(2.0, 1.0, 1.0, 0.85, [(2.0, Lane.FOREGROUND)]),
]


@settings(max_examples=examples(50))
@given(st.lists(jobs(), min_size=1, max_size=12), st.integers(1, 5))
@example(TIED, 1)
def test_the_cores_used_are_the_work_done(given_jobs: list[Job], cores: int) -> None:
    node = Node(cores)
    node.run(given_jobs)
    assert node.used.integral() == pytest.approx(sum(job.cpu_s for job in given_jobs), rel=1e-6)
