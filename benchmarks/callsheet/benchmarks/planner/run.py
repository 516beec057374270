"""Rounds of the elastic planner against a real core whose queue is kept at its length.

Fleet and actions are drawn from a seed: nodes for sandboxes and CPU rewards, nodes with GPUs for reward models, nodes
with inference engines, and APIs. They are small for their number, so that a few thousand running actions fill them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.measuring.statistics import percentile, rounded
from callsheet.benchmarks.peers import TO_CLIENT, joining, manager_of
from callsheet.benchmarks.planner.settings import PlannerBenchSettings
from callsheet.benchmarks.runner import Bar, BenchmarkReport, Column, figures_table
from callsheet.scheduler.core.machine import handle
from callsheet.scheduler.core.state.ready import ClassKey
from callsheet.scheduler.core.state.scheduler_state import CoreSettings, SchedulerState
from callsheet.scheduler.core.words.commands import Dispatch, OutcomeFacts
from callsheet.scheduler.core.words.events import (
    AttemptEnded,
    AttemptSucceeded,
    Event,
    JobOpenRequested,
    PlanReady,
    SubmitRequested,
)
from callsheet.scheduler.core.words.model import (
    CPU,
    MEMORY,
    ActionKey,
    ActionKind,
    ActionRequest,
    Demand,
    JobRequest,
    PriorityClass,
    ResourceDemand,
    RetryPolicy,
    SpeedUp,
    Timeouts,
)
from callsheet.scheduler.core.words.registration import NodeDescription, ServiceDescription
from callsheet.scheduler.planner.elastic import ElasticPlan, ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.solvers.cp_sat import Budget
from callsheet.scheduler.service.garbage_collection import short_pauses
from rich.table import Table

GPU = "gpu"
JOBS = ("job-0", "job-1", "job-2")
_FOREVER = Timeouts(1e9, 1e9, 1e9)
_RETRY = RetryPolicy()
# The longest queue's median round by that of 10,000, and any queue's 99th percentile by its median; in CPU time.
MOST_GROWTH = 1.1
MOST_TAIL = 2.0
_COMPARED = 10_000
_COLUMNS: tuple[Column, ...] = (
    ("nodes", "nodes", ",d"),
    ("pools", "pools", "d"),
    ("classes", "classes", "d"),
    ("p50 ms", "round_p50_ms", ".1f"),
    ("p99 ms", "round_p99_ms", ".1f"),
    ("CPU p50", "round_cpu_p50_ms", ".1f"),
    ("CPU p99", "round_cpu_p99_ms", ".1f"),
    ("gap", "gap", ".1e"),
    ("starts", "starts_per_round", ".0f"),
)

_REWARDS = frozenset({ActionKind.REWARD, ActionKind.TOOL_CALL})
_ENGINE = frozenset({ActionKind.GENERATE})

DONE = AttemptSucceeded(b"")
# The core's clock; a round comes every so many seconds.
START = 1_000_000.0
STEP_S = 0.05
# Events handed to the core at once.
BATCH = 10_000


@dataclass(frozen=True, slots=True)
class PoolKind:
    """Alike nodes: what they have and what they serve."""

    service: str
    kinds: frozenset[ActionKind]
    cores: int = 0
    memory: int = 0
    gpus: int = 0
    slots: int = 0

    def describe(self, name: str) -> NodeDescription:
        """One of the nodes."""
        capacity = {MEMORY: self.memory} if self.memory else {}
        if self.gpus:
            capacity[GPU] = self.gpus
        return NodeDescription(name, capacity, (tuple(range(self.cores)),) if self.cores else ())


POOL_KINDS = (
    PoolKind("tests", _REWARDS, cores=8, memory=32_768),
    PoolKind("tests", _REWARDS, cores=16, memory=32_768),
    PoolKind("tests", _REWARDS, cores=12, memory=131_072),
    PoolKind("judges", _REWARDS, gpus=4, memory=65_536),
    PoolKind("judges", _REWARDS, gpus=8, memory=131_072),
    PoolKind("engine", _ENGINE, slots=4),
    PoolKind("engine", _ENGINE, slots=6),
    PoolKind("tests", _REWARDS, cores=4, memory=65_536),
)


def fleet_events(nodes: int, pools: int) -> Iterator[Event]:
    """Every manager registers; nodes are divided evenly among the pools."""
    for index in range(nodes):
        kind = POOL_KINDS[index % pools]
        yield from joining(kind.describe(f"node-{index}"), ServiceDescription(kind.service, kind.kinds, kind.slots, {}))


@dataclass(frozen=True, slots=True)
class ActionClass:
    """Alike actions."""

    label: str
    job: str
    kind: ActionKind
    service: str
    demand: Demand
    seconds: float

    def request(self, number: int) -> ActionRequest:
        """One of them."""
        return ActionRequest(
            key=ActionKey(self.job, f"{self.label}/{number}"),
            kind=self.kind,
            trajectory_id="",
            service=self.service,
            demand=self.demand,
            timeouts=_FOREVER,
            retry=_RETRY,
            weight=1.0,
            wait_if_unservable=True,
            in_sandbox=False,
            expected_duration=self.seconds,
            body_hash=b"",
            spec=b"",
            label=self.label,
        )


def draw_classes(count: int, pools: int, seed: int) -> list[ActionClass]:
    """Classes for the services that the fleet has."""
    draw = random.Random(seed)
    classes = []
    for index in range(count):
        kind = draw.choice(POOL_KINDS[:pools])
        seconds = draw.lognormvariate(1.5, 1.2)
        demand = _draw_demand(kind, draw)
        job = JOBS[index % len(JOBS)]
        action_kind = ActionKind.GENERATE if kind.slots else ActionKind.REWARD
        classes.append(ActionClass(f"class-{index}", job, action_kind, kind.service, demand, seconds))
    return classes


def _draw_demand(kind: PoolKind, draw: random.Random) -> Demand:
    if kind.slots:
        return Demand()
    memory = ResourceDemand(MEMORY, size := draw.choice([512, 1_024, 2_048, 4_096]), size)
    if kind.gpus:
        chunk = draw.choice([1, 1, 2, 4])
        return Demand((ResourceDemand(GPU, chunk, chunk), memory))
    fewest = draw.choice([1, 1, 1, 2])
    most = fewest * draw.choice([1, 4, 8])
    return Demand((ResourceDemand(CPU, fewest, most, SpeedUp(draw.uniform(0.3, 0.98))), memory))


def run_planner_bench(settings: PlannerBenchSettings, progress: Progress) -> PlannerBenchReport:
    """Measures every length of the queue, with the garbage collector set as in the service."""
    results = []
    for queued in settings.queued:
        progress(f"{queued:,} queued actions, {settings.nodes:,} nodes")
        with short_pauses():
            world = _World(settings, queued)
            world.fill()
            results.append(world.measure())
        progress(f"  round p50 {results[-1].round_p50_ms:.1f} ms, p99 {results[-1].round_p99_ms:.1f} ms")
    return PlannerBenchReport(settings.seed, settings.solver_s, settings.rounds, tuple(results))


def _encode(facts: OutcomeFacts) -> bytes:
    return b""


class _World:
    """A core with a full fleet and a queue."""

    def __init__(self, settings: PlannerBenchSettings, queued: int) -> None:
        self._settings = settings
        self._queued = queued
        self._draw = random.Random(settings.seed)
        self._classes = draw_classes(settings.classes, settings.pools, settings.seed)
        self._numbers = count()
        self._now = START
        self._running: list[Dispatch] = []
        core = CoreSettings(
            max_open_actions=2 * queued + 1_000_000, max_job_open_actions=2 * queued + 1_000_000, manager_lease=1e12
        )
        self._state = SchedulerState(1, _encode, core)
        budget = Budget(seconds=settings.solver_s)
        self._planner = ElasticPlanner(
            ElasticSettings(budget=budget, seed=settings.seed, dispatch_cap=settings.ends), stopwatch=time.perf_counter
        )
        self._planner.attach(self._state)

    def fill(self) -> None:
        """Lets the fleet join, and submits and dispatches until it is full and the queue has its length."""
        jobs = [JobRequest(job, 1.0, PriorityClass.TRAIN, 0, 0, b"", detached=True) for job in JOBS]
        self._handle([JobOpenRequested(TO_CLIENT, job) for job in jobs])
        self._handle(list(fleet_events(self._settings.nodes, self._settings.pools)))
        self._submit()
        while self._round().assignments:
            self._submit()

    def measure(self) -> QueueResult:
        """Measures rounds, with attempts that end and actions that come between them."""
        settings = self._settings
        taken: list[float] = []
        used: list[float] = []
        gaps: list[float] = []
        classes: list[int] = []
        queued: list[int] = []
        starts = 0
        for number in range(settings.warm_up + settings.rounds):
            self._end_some()
            self._submit()
            classes.append(len(self._waiting_classes()))
            queued.append(len(self._state.ready))
            began = time.thread_time()
            plan = self._planner.plan(self._state, self._now)
            cpu_s = time.thread_time() - began
            self._handle([PlanReady(plan)])
            if number >= settings.warm_up:
                report = plan.report
                taken.append(1000.0 * report.wall_s)
                used.append(1000.0 * cpu_s)
                gaps.append((report.objective - report.bound) / max(abs(report.bound), 1e-12))
                starts += len(plan.assignments)
        return QueueResult(
            queued=min(queued),
            nodes=len(self._state.nodes),
            pools=settings.pools,
            classes=min(classes),
            round_p50_ms=percentile(taken, 50),
            round_p99_ms=percentile(taken, 99),
            round_cpu_p50_ms=percentile(used, 50),
            round_cpu_p99_ms=percentile(used, 99),
            gap=max(gaps),
            starts_per_round=starts / settings.rounds,
        )

    def _handle(self, events: list[Event]) -> None:
        for first in range(0, len(events), BATCH):
            for command in handle(self._state, events[first : first + BATCH], self._now):
                if type(command) is Dispatch:
                    self._running.append(command)

    def _round(self) -> ElasticPlan:
        plan = self._planner.plan(self._state, self._now)
        self._handle([PlanReady(plan)])
        return plan

    def _waiting_classes(self) -> list[ClassKey]:
        """Classes with actions in the queue."""
        return [key for key, members in self._state.ready.classes.items() if members.count]

    def _submit(self) -> None:
        """Gives the queue its length again: one action of each class that has left it whole, then any.

        There is room for them, as a class that has left took at least one action out of the queue.
        """
        waiting = {key.label for key in self._waiting_classes()}
        absent = [each for each in self._classes if each.label not in waiting]
        lacking = self._queued - len(self._state.ready) - len(absent)
        drawn = [*absent, *(self._draw.choice(self._classes) for _ in range(lacking))]
        self._handle([SubmitRequested(TO_CLIENT, each.request(next(self._numbers)), None) for each in drawn])

    def _end_some(self) -> None:
        self._now += STEP_S
        self._draw.shuffle(self._running)
        ended, self._running = self._running[: self._settings.ends], self._running[self._settings.ends :]
        self._handle([_end_of(dispatch) for dispatch in ended])


def _end_of(dispatch: Dispatch) -> AttemptEnded:
    return AttemptEnded(
        manager_of(dispatch), dispatch.token, dispatch.request.key, dispatch.attempt, DONE, True, 1.0, b""
    )


@dataclass(frozen=True, slots=True)
class QueueResult:
    """Rounds with one length of the queue.

    Attributes:
        queued: Actions that wait when a round begins; the fewest of all rounds, as with `classes`.
        nodes: Of the fleet.
        pools: Pools they make.
        classes: Classes that the waiting actions make.
        round_p50_ms: From the core's state to a plan, model building and placement included.
        round_p99_ms: The same.
        round_cpu_p50_ms: CPU time of the same; beside other load it tells more than wall time.
        round_cpu_p99_ms: The same.
        gap: (objective - bound) / |bound|, the worst of all rounds.
        starts_per_round: Actions started by a round, on average.
    """

    queued: int
    nodes: int
    pools: int
    classes: int
    round_p50_ms: float
    round_p99_ms: float
    round_cpu_p50_ms: float
    round_cpu_p99_ms: float
    gap: float
    starts_per_round: float


@dataclass(frozen=True, slots=True)
class PlannerBenchReport(BenchmarkReport):
    """Results by length of the queue."""

    seed: int
    solver_s: float
    rounds: int
    results: tuple[QueueResult, ...]

    @property
    def bars(self) -> Sequence[Bar]:
        """Rounds are judged by ratios of CPU time, which other machines and other load change least."""
        tails = [
            Bar(f"{each.queued:,} queued: p99 by p50", each.round_cpu_p99_ms / each.round_cpu_p50_ms, at_most=MOST_TAIL)
            for each in self.results
        ]
        p50_ms = {each.queued: each.round_cpu_p50_ms for each in self.results}
        longest = max(p50_ms)
        if longest > _COMPARED in p50_ms:
            growth = p50_ms[longest] / p50_ms[_COMPARED]
            tails.append(Bar(f"p50: {longest:,} queued by {_COMPARED:,}", growth, at_most=MOST_GROWTH))
        return tails

    def as_json(self) -> list[dict[str, Any]]:
        """One object for each length."""
        return [rounded(asdict(each), digits=4) for each in self.results]

    def tables(self) -> Iterator[Table]:
        """A row for each length."""
        title = f"Planning rounds: {self.rounds} each, solver {1000 * self.solver_s:g} ms, seed {self.seed}"
        yield figures_table(title, "queued", _COLUMNS, ((f"{each.queued:,}", each) for each in self.results))
