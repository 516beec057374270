"""A node whose cores are shared like a fluid, driven by node sharing: for tests, under virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from callsheet.managers.sandbox.node_sharing import KnownCommand, Lane, LaneChange, NodeSharing, NodeSharingSettings

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
