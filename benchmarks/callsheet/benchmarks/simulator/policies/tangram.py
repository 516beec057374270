"""ARL-Tangram's elastic algorithm (arXiv 2603.13019), as published.

Waiting actions are taken first come while they fit at their minimum. Where they do not all get what they could use, the
last candidate is dropped again and again as long as the estimated sum of completion times improves, its cores going to
the others. Cores are exclusive, a command keeps its width, nothing is preempted. Durations come from profiling: the
mean of a command's class and its exact speed-up curve, both taken from the scenario itself, which is the best a profile
can be. GPUs serve calls by evict-on-execution; API quotas are planned, so that no call is refused.

As a sandbox's commands run on its node, each node has its line; commands without a sandbox are in a line of all nodes.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from callsheet.benchmarks.simulator.policies.parts.api_calls import Planned
from callsheet.benchmarks.simulator.policies.parts.baseline import baseline
from callsheet.benchmarks.simulator.policies.parts.cpu_commands import ExclusiveCores
from callsheet.benchmarks.simulator.policies.parts.gpu_calls import SharedGpus
from callsheet.benchmarks.simulator.policies.parts.places import Places, runs_on_cpu
from callsheet.benchmarks.simulator.policy import EndFacts, PolicyFactory, Task, World
from callsheet.benchmarks.simulator.scenario import Scenario, Work
from callsheet.scheduler.core.words.model import ActionKind
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Profile:
    """What offline profiling tells of a command.

    Attributes:
        duration_s: Mean on one core of its class.
        parallel_fraction: Amdahl's fraction; its E(m) is `speed_up(m) / m`.
        max_width: Most cores it can use.
    """

    duration_s: float
    parallel_fraction: float = 0.0
    max_width: int = 1

    def on(self, width: int) -> float:
        """Expected seconds on that many cores."""
        return self.duration_s * ((1.0 - self.parallel_fraction) + self.parallel_fraction / width)


@dataclass(frozen=True, slots=True)
class Release:
    """Cores that come back: in so many seconds, so many."""

    in_s: float
    cores: int


def choose_widths(
    candidates: Sequence[Profile], behind: Sequence[Profile], releases: Sequence[Release], free: int, depth: int
) -> list[int]:
    """Cores for each candidate that starts now; those left out at the end were evicted.

    Evictions are greedy, sizes by dynamic programming. The sum of completion times is exact for the candidates, and for
    those behind them an estimate by a heap of the times at which cores come back.

    Args:
        candidates: First come; no more than there are free cores, so each fits with one.
        behind: The next in line, who do not fit.
        releases: Of running commands.
        free: Cores that are free.
        depth: Most evictions tried.

    Returns:
        Widths of the first candidates; at least one where there are any.
    """
    sizes = _Sizes(candidates, free)
    waiting = [*candidates, *behind]
    kept = len(candidates)
    widths = sizes.widths(kept)
    if kept < 2:
        return widths
    best = _total_s(waiting, widths, releases)
    for _ in range(min(depth, kept - 1)):
        fewer = sizes.widths(kept - 1)
        total_s = _total_s(waiting, fewer, releases)
        if total_s >= best:
            break
        kept, widths, best = kept - 1, fewer, total_s
    return widths


class _Sizes:
    """Best sizes of the first n candidates for every n: one table, as each row needs the one before alone."""

    def __init__(self, candidates: Sequence[Profile], free: int) -> None:
        self._free = free
        self._chosen: list[NDArray[np.int64]] = []
        least = np.zeros(free + 1)  # least[j]: least sum of durations on j cores or fewer
        for candidate in candidates:
            least, chosen = _add(least, candidate)
            self._chosen.append(chosen)

    def widths(self, count: int) -> list[int]:
        """Sizes of the first `count` candidates on all free cores."""
        left = self._free
        widths = []
        for chosen in reversed(self._chosen[:count]):
            widths.append(int(chosen[left]))
            left -= widths[-1]
        return widths[::-1]


def _add(least: NDArray[np.float64], candidate: Profile) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """One more row of the table: the least sums with this candidate too, and the width it then has."""
    cores = len(least) - 1
    options = np.full((min(candidate.max_width, cores), len(least)), np.inf)
    for index in range(len(options)):
        width = index + 1
        options[index, width:] = least[: cores + 1 - width] + candidate.on(width)
    chosen = options.argmin(axis=0)
    return options[chosen, np.arange(len(least))], chosen + 1


def _total_s(waiting: Sequence[Profile], widths: Sequence[int], releases: Sequence[Release]) -> float:
    """Sum of completion times from now, if the first start with these widths and the others follow on one core each."""
    heap = [(release.in_s, release.cores) for release in releases]
    total_s = 0.0
    for profile, width in zip(waiting, widths, strict=False):
        ends_in_s = profile.on(width)
        total_s += ends_in_s
        heap.append((ends_in_s, width))
    heapq.heapify(heap)
    for profile in waiting[len(widths) :]:
        starts_in_s, cores = heap[0]
        ends_in_s = starts_in_s + profile.duration_s
        total_s += ends_in_s
        heapq.heapreplace(heap, (ends_in_s, 1))
        if cores > 1:
            heapq.heappush(heap, (starts_in_s, cores - 1))
    return total_s


@dataclass(frozen=True, slots=True)
class TangramSettings:
    """What the publication leaves open, or gives as measured.

    Attributes:
        overhead_s: Machinery per action: 24 ms measured at a batch of 1280 (table of the AI coding runs).
        depth: Most evictions tried in a round, and most commands behind the candidates that the estimate covers.
            Evictions end at the first that does not pay, mostly the very first; and commands further behind wait
            equally long either way. With 64 results are those of 1,024 (tests show it), at a bounded cost.
        resident_first: Whether GPU calls whose model is resident pass older ones whose model is not. Published
            is first come; under overload that restores a model for almost every call. Plain sharing has it.
    """

    overhead_s: float = 0.024
    depth: int = 64
    resident_first: bool = False


class ElasticCores:
    """Rounds of the elastic algorithm at each node."""

    def __init__(self, world: World, places: Places, settings: TangramSettings) -> None:
        self._world = world
        self._settings = settings
        self._lines = ExclusiveCores(world, places)
        self._profiles = ClassProfiles(world.scenario)
        self._ends_at: dict[str, dict[Task, float]] = {node: {} for node in self._lines.cores}
        self._due: dict[str, None] = {}

    def ready(self, task: Task) -> None:
        """A command can start; it takes part in the round of this instant."""
        self._plan_round(self._lines.wait(task))

    def ended(self, task: Task, facts: EndFacts) -> None:
        """A command ended."""
        node = self._lines.ended(task)
        self._ends_at[node].pop(task, None)
        if self._lines.anyone_waits(node):
            self._plan_round(node)

    def woken(self) -> None:
        """All that happens at this instant has happened."""
        due, self._due = self._due, {}
        for node in due:
            self._round(node)

    def _plan_round(self, node: str) -> None:
        if self._lines.free[node] == 0:
            return
        if not self._due:
            self._world.wake_at(self._world.now)
        self._due[node] = None

    def _round(self, node: str) -> None:
        free = self._lines.free[node]
        line = list(islice(self._lines.waiting(node), free))
        profiles = [self._profiles.of(task.work, self._lines.cores[node]) for task in line]
        widths = [profile.max_width for profile in profiles]
        if sum(widths) > free:
            widths = choose_widths(profiles, self._behind(node, free), self._releases(node), free, self._settings.depth)
        for task, profile, width in zip(line, profiles, widths, strict=False):
            if self._lines.start(task, node, width, self._settings.overhead_s):
                self._ends_at[node][task] = self._world.now + self._settings.overhead_s + profile.on(width)

    def _behind(self, node: str, free: int) -> list[Profile]:
        """The commands next in line after the candidates."""
        line = islice(self._lines.waiting(node), free, free + self._settings.depth)
        return [self._profiles.of(task.work, self._lines.cores[node]) for task in line]

    def _releases(self, node: str) -> list[Release]:
        now = self._world.now
        return [Release(max(0.0, at - now), task.width) for task, at in self._ends_at[node].items()]


class ClassProfiles:
    """Mean durations on one core by kind and label, as profiling the whole workload ahead would find them."""

    def __init__(self, scenario: Scenario) -> None:
        durations: defaultdict[tuple[ActionKind, str], list[float]] = defaultdict(list)
        for rollout in scenario.rollouts:
            for work in rollout.works():
                if runs_on_cpu(work):
                    durations[work.kind, work.label].append(min(work.alone_s(), work.timeout_s))
        self._means = {key: sum(values) / len(values) for key, values in durations.items()}

    def of(self, work: Work, cores: int) -> Profile:
        """What is known of a command on a node with that many cores."""
        return Profile(self._means[work.kind, work.label], work.parallel_fraction, max(1, min(work.max_width, cores)))


def tangram(settings: TangramSettings | None = None) -> PolicyFactory:
    """The policy with these settings.

    With `resident_first` it is `tangram_resident_first`; it applies where there are models, elsewhere it is the same.
    """
    chosen = settings or TangramSettings()
    return baseline(
        "tangram_resident_first" if chosen.resident_first else "tangram",
        lambda world, places: ElasticCores(world, places, chosen),
        lambda world: SharedGpus(world, overhead_s=chosen.overhead_s, resident_first=chosen.resident_first),
        Planned,
        lambda scenario: bool(scenario.cluster.models) or not chosen.resident_first,
    )
