"""Node sharing on random commands, on a node that shares its cores like a fluid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from callsheet.managers.sandbox.node_sharing import KnownCommand, Lane, LaneChange, NodeSharing, NodeSharingSettings
from callsheet.managers.sandbox.node_sharing.rank import level_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.lane_explanation import explain, foreground_use
from tests.support.samples import examples

_DONE = 1e-9


@dataclass(frozen=True, slots=True)
class FluidCommand:
    """A command: `cpu_s` of work, at most `use` cores at once, from `arrives` on."""

    arrives: float
    cpu_s: float
    use: float
    demotable: bool = True
    weight: float = 1.0

    @property
    def alone_s(self) -> float:
        """How long it takes with the node to itself."""
        return self.cpu_s / self.use


@dataclass(slots=True)
class FluidRun:
    """What became of a command."""

    command: FluidCommand
    lane: Lane = Lane.FOREGROUND
    attained_s: float = 0.0
    ended_at: float = math.nan
    demotions: int = 0
    clock_s: float = 0.0
    starved_s: float = 0.0
    longest_starved_s: float = 0.0

    @property
    def slowdown(self) -> float:
        """Time until its end over the time it takes alone."""
        return (self.ended_at - self.command.arrives) / self.command.alone_s


@dataclass(slots=True)
class FluidNode:
    """Runs commands to their ends; `check` is called after every event."""

    cores: float
    settings: NodeSharingSettings = field(default_factory=NodeSharingSettings)
    check: Callable[[FluidNode], None] = lambda node: None
    now: float = 0.0
    runs: list[FluidRun] = field(default_factory=list)
    live: dict[int, FluidRun] = field(default_factory=dict)
    sharing: NodeSharing = field(init=False)
    events: int = 0

    def run(self, commands: Sequence[FluidCommand]) -> list[FluidRun]:
        """Returns what became of each."""
        self.sharing = NodeSharing(self.cores, self.settings)
        self.runs = [FluidRun(command) for command in commands]
        waiting = sorted(range(len(commands)), key=lambda index: commands[index].arrives, reverse=True)
        while waiting or self.live:
            rates = self.rates()
            arrival = commands[waiting[-1]].arrives if waiting else math.inf
            review = self.sharing.next_review(self.now)
            at = min(arrival, math.inf if review is None else max(review, self.now), self._first_end(rates))
            self._pass_time(rates, at)
            self.events += 1
            self._end_finished()
            if waiting and arrival <= self.now:
                self._start(waiting.pop(), commands)
            elif review is not None and review <= self.now:
                due = self.sharing.due(self.now)
                attained: Mapping[Hashable, float] = {
                    index: self.runs[index].attained_s for index in due if index in self.live
                }
                self._apply(self.sharing.measured(attained, self.now))
            self.check(self)
        return self.runs

    def rates(self) -> dict[int, float]:
        """Returns the cores that each live command uses: the background shares what the foreground leaves."""
        lanes: dict[Lane, dict[int, float]] = {Lane.FOREGROUND: {}, Lane.BACKGROUND: {}}
        for index, run in self.live.items():
            lanes[run.lane][index] = run.command.use
        foreground = fair_shares(self.cores, lanes[Lane.FOREGROUND])
        return foreground | fair_shares(self.cores - sum(foreground.values()), lanes[Lane.BACKGROUND])

    def _first_end(self, rates: Mapping[int, float]) -> float:
        ends = (
            self.now + max(0.0, run.command.cpu_s - run.attained_s) / rates[index]
            for index, run in self.live.items()
            if rates[index] > 0
        )
        return min(ends, default=math.inf)

    def _pass_time(self, rates: Mapping[int, float], at: float) -> None:
        passed, self.now = at - self.now, at
        for index, run in self.live.items():
            run.attained_s += rates[index] * passed
            run.starved_s = run.starved_s + passed if rates[index] <= _DONE else 0.0
            run.longest_starved_s = max(run.longest_starved_s, run.starved_s)

    def _start(self, index: int, commands: Sequence[FluidCommand]) -> None:
        command = commands[index]
        self.live[index] = self.runs[index]
        known = KnownCommand(index, command.use, command.demotable, command.weight)
        self._apply(self.sharing.start(known, self.now))

    def _end_finished(self) -> None:
        for index in [index for index, run in self.live.items() if run.attained_s >= run.command.cpu_s - _DONE]:
            run = self.live.pop(index)
            run.ended_at = self.now
            self._apply(self.sharing.measured({index: run.attained_s}, self.now))
            run.clock_s = self.sharing.execution_clock(index, self.now)
            self._apply(self.sharing.end(index, self.now))

    def _apply(self, changes: Sequence[LaneChange]) -> None:
        for change in changes:
            assert isinstance(change.command_id, int)
            run = self.runs[change.command_id]
            run.demotions += change.lane is Lane.BACKGROUND
            run.lane = change.lane


def fair_shares(cores: float, wanted: Mapping[int, float]) -> dict[int, float]:
    """Returns max-min fair shares of the cores, none more than wanted."""
    shares: dict[int, float] = {}
    left = max(0.0, cores)
    for place, (index, want) in enumerate(sorted(wanted.items(), key=lambda item: item[1])):
        shares[index] = min(want, left / (len(wanted) - place))
        left -= shares[index]
    return shares


_CORES = 4.0
_WEIGHTS = st.sampled_from([0.5, 1.0, 2.0])
_COMMANDS = st.builds(
    FluidCommand,
    arrives=st.floats(0.0, 60.0),
    cpu_s=st.floats(0.01, 60.0),
    use=st.sampled_from([0.05, 0.3, 0.64, 1.0, 2.0, 4.0]),
    demotable=st.booleans(),
    weight=_WEIGHTS,
)


@st.composite
def _long_ones_under_a_stream(draw: st.DrawFn) -> list[FluidCommand]:
    """Long commands that shorter ones keep in the background, of which few are new at a time: so claims mostly fit."""
    lengths = st.floats(20.0, 80.0)
    long = st.builds(FluidCommand, st.just(0.0), lengths, st.sampled_from([1.0, 2.0]), weight=_WEIGHTS)
    spacing = draw(st.floats(0.8, 1.5))
    stream = draw(st.lists(st.floats(2.0, 11.0), min_size=20, max_size=60))
    shorter = [FluidCommand(15.0 + spacing * index, cpu_s, 1.0) for index, cpu_s in enumerate(stream)]
    return [*draw(st.lists(long, min_size=1, max_size=2)), *shorter]


def _use(node: FluidNode, lane: Lane) -> float:
    return sum(run.command.use for run in node.live.values() if run.lane is lane)


def _claimed_use(node: FluidNode) -> float:
    if not node.live:
        return 0.0
    return explain(node.sharing, next(iter(node.live)), node.now).claimed_use


@given(st.lists(_COMMANDS, min_size=1, max_size=25))
@settings(max_examples=examples(60))
def test_no_cycle_is_lost_and_every_command_ends(commands: list[FluidCommand]) -> None:
    def check(node: FluidNode) -> None:
        assert len(node.sharing) == len(node.live)
        for index, run in node.live.items():
            assert node.sharing.lane(index) is run.lane
            assert run.command.demotable or run.lane is Lane.FOREGROUND
        rates = node.rates()
        wanted = sum(run.command.use for run in node.live.values())
        assert abs(sum(rates.values()) - min(wanted, _CORES)) < 1e-6

    node = FluidNode(_CORES, check=check)
    runs = node.run(commands)
    assert all(run.attained_s >= run.command.cpu_s - 1e-6 for run in runs)
    # The work, done at once by all cores, and the longest command bound a work-conserving node (Graham's list bound).
    assert node.now <= 60.0 + sum(c.cpu_s for c in commands) / _CORES + sum(c.alone_s for c in commands)


@given(st.lists(_COMMANDS, min_size=2, max_size=25))
@settings(max_examples=examples(60))
def test_the_foreground_is_filled_by_levels_and_then_first_come(commands: list[FluidCommand]) -> None:
    sharing_settings = NodeSharingSettings(beta=0.0)

    def order(node: FluidNode, index: int) -> tuple[int, float]:
        command = commands[index]
        attained_s = explain(node.sharing, index, node.now).attained_s
        return level_of(attained_s / command.weight, sharing_settings), command.arrives

    def check(node: FluidNode) -> None:
        waiting = [index for index, run in node.live.items() if run.lane is Lane.BACKGROUND]
        if not waiting:
            return
        first = min(order(node, index) for index in waiting)
        uses = [explain(node.sharing, index, node.now).use for index in waiting if order(node, index) == first]
        assert max(uses) > _CORES - foreground_use(node.sharing) - 1e-6

    FluidNode(_CORES, sharing_settings, check).run(commands)


@given(
    st.one_of(_long_ones_under_a_stream(), st.lists(_COMMANDS, min_size=1, max_size=20)),
    st.sampled_from([0.1, 0.2, 0.5, 1.0]),
)
@settings(max_examples=examples(100))
def test_slowdown_is_bounded_while_claims_fit(commands: list[FluidCommand], beta: float) -> None:
    feasible = True

    def check(node: FluidNode) -> None:
        nonlocal feasible
        # Beyond that the foreground itself is shared, and what was feasible a moment ago leaves its waits behind.
        feasible = feasible and _claimed_use(node) <= _CORES and _use(node, Lane.FOREGROUND) <= _CORES + 1e-6
        if feasible:
            for index in node.live:
                told = explain(node.sharing, index, node.now)
                assert told.feasible
                assert told.lane is Lane.FOREGROUND or told.waited_s <= (told.bound - 1.0) * told.attained_s + 1e-3

    runs = FluidNode(_CORES, NodeSharingSettings(beta=beta), check).run(commands)
    if feasible:
        for run in runs:
            assert run.slowdown <= 1.0 + 1.0 / (beta * run.command.weight) + 0.01


@given(st.lists(_COMMANDS, min_size=1, max_size=25), st.sampled_from([2.0, 10.0]))
@settings(max_examples=examples(60))
def test_no_command_stalls_for_longer_than_allowed(commands: list[FluidCommand], max_stall_s: float) -> None:
    runs = FluidNode(_CORES, NodeSharingSettings(max_stall_s=max_stall_s)).run(commands)
    for run in runs:
        assert run.longest_starved_s <= max_stall_s + 1e-3


@given(st.one_of(_long_ones_under_a_stream(), st.lists(_COMMANDS, min_size=1, max_size=25)))
@settings(max_examples=examples(60))
def test_the_clock_charges_no_more_than_time_and_no_less_than_cpu_received(commands: list[FluidCommand]) -> None:
    for run in FluidNode(_CORES).run(commands):
        assert run.clock_s <= run.ended_at - run.command.arrives + 1e-6
        # Where commands that cannot be demoted crowd the foreground, all are charged the same share of a second.
        if all(command.demotable for command in commands):
            assert run.clock_s >= run.command.cpu_s / max(1.0, run.command.use) - 1e-6


@given(st.integers(0, 2**32))
@settings(max_examples=examples(20))
def test_lane_changes_per_command_stay_few(seed: int) -> None:
    lengths = [0.05, 0.2, 0.4, 1.0, 3.0, 0.1, 12.0, 0.3, 60.0, 0.7]
    commands = [
        FluidCommand(arrives=2.0 * index, cpu_s=lengths[(index * 7 + seed) % len(lengths)], use=1.0)
        for index in range(120)
    ]
    runs = FluidNode(_CORES).run(commands)
    assert sum(run.demotions for run in runs) <= len(runs)


def test_every_history_replays_the_same() -> None:
    commands = [FluidCommand(0.1 * i, 0.2 + i % 7, [0.3, 1.0, 2.0][i % 3], i % 5 > 0) for i in range(60)]
    ends = [[run.ended_at for run in FluidNode(_CORES).run(commands)] for _ in range(2)]
    assert all(first == second for first, second in itertools.pairwise(ends))
