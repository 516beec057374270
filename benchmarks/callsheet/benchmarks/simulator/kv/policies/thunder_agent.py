"""ThunderAgent's program scheduler (arXiv 2602.13692), by its wiki and its code at a7eef77, in our words.

A program is a trajectory. Each is on one engine or paused. An engine's load is the tokens of its programs that
generate, those of its programs that act times a weight, and 100 for each program. Every few seconds, first paused
programs are resumed: those that have asked before new ones before those that still act, each the smallest first, as
many as fit into what all engines have left; the largest of them is placed first, on the engine with most left. Then
each engine that is over its capacity pauses programs: those that act first, then it marks those that generate, to be
paused when their tool call begins, the smallest first. A program that is on an engine generates there at once. A new
program begins at once if nobody is paused and it fits on an engine. After 30 minutes a program is resumed in any
case.

The weight counts acting programs whole by default. Decay, off by default, counts them by half less each second when
programs are resumed. Its text counts tokens that programs share, which there are none of here. Where its code falls
short of its text, the text counts: in the code a mark does not lower the load, so that one overload marks all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from callsheet.benchmarks.simulator.kv.world import KvTrajectory, KvWorld

BUFFER_TOKENS = 100
FORCED_AFTER_S = 1800.0


@dataclass(slots=True, eq=False)
class _Program:
    trajectory: KvTrajectory
    engine: int = -1
    asks: bool = True
    marked: bool = False
    first: bool = True
    acting_since: float = 0.0
    paused_at: float = 0.0

    @property
    def tokens(self) -> int:
        return self.trajectory.prompt_tokens if self.asks else self.trajectory.context_tokens


class ThunderAgent:
    """See the module's docstring."""

    def __init__(
        self, world: KvWorld, interval_s: float = 5.0, acting_weight: float = 1.0, *, decay: bool = False
    ) -> None:
        self._world = world
        self._interval_s = interval_s
        self._acting_weight = acting_weight
        self._decay = decay
        self._capacity = world.scenario.engine.kv_tokens
        self._programs: dict[KvTrajectory, _Program] = {}
        self._paused: dict[KvTrajectory, _Program] = {}
        self._on: list[dict[KvTrajectory, _Program]] = [{} for _ in world.engines]
        world.wake_at(interval_s)

    def asked(self, trajectory: KvTrajectory) -> None:
        """See `KvPolicy`."""
        program = self._programs.get(trajectory)
        if program is None:
            program = self._programs[trajectory] = _Program(trajectory)
            best = self._for_new(program)
            if best is None:
                self._pause(program)
            else:
                self._place(program, best)
            return
        program.asks, program.first = True, False
        if program.engine >= 0:
            self._world.send(trajectory, program.engine)

    def acting(self, trajectory: KvTrajectory, output_tokens: int, execution_s: float, cached_tokens: int) -> None:
        """See `KvPolicy`."""
        program = self._programs[trajectory]
        program.asks, program.acting_since = False, self._world.now
        if program.marked:
            self._pause(program)

    def acted(self, trajectory: KvTrajectory, tool_s: float) -> None:
        """See `KvPolicy`."""

    def ended(self, trajectory: KvTrajectory) -> None:
        """See `KvPolicy`."""
        program = self._programs.pop(trajectory)
        self._paused.pop(trajectory, None)
        if program.engine >= 0:
            del self._on[program.engine][trajectory]

    def woken(self) -> None:
        """See `KvPolicy`."""
        self._resume()
        for engine in range(len(self._on)):
            self._relieve(engine)
        self._world.wake_at(self._world.now + self._interval_s)

    def _left(self, engine: int, weigh: Callable[[_Program], float]) -> float:
        programs = self._on[engine].values()
        return self._capacity - sum(weigh(each) + BUFFER_TOKENS for each in programs if not each.marked)

    def _weight(self, program: _Program) -> float:
        return program.tokens * (1.0 if program.asks else self._acting_weight)

    def _decayed(self, program: _Program) -> float:
        if program.asks:
            return program.tokens
        return program.tokens * math.exp2(-(self._world.now - program.acting_since))

    def _for_new(self, program: _Program) -> int | None:
        if self._paused:
            return None
        used = [sum(self._weight(each) for each in programs.values()) for programs in self._on]
        needed = program.tokens + BUFFER_TOKENS
        fitting = [engine for engine in range(len(self._on)) if self._left(engine, self._weight) >= needed]
        return min(fitting, key=lambda engine: used[engine], default=None)

    def _pause(self, program: _Program) -> None:
        if program.engine >= 0:
            del self._on[program.engine][program.trajectory]
        program.engine, program.marked, program.paused_at = -1, False, self._world.now
        self._paused[program.trajectory] = program

    def _place(self, program: _Program, engine: int) -> None:
        self._paused.pop(program.trajectory, None)
        program.engine = engine
        self._on[engine][program.trajectory] = program
        if program.asks:
            self._world.send(program.trajectory, engine)

    def _resume(self) -> None:
        now = self._world.now
        for program in [each for each in self._paused.values() if now - each.paused_at > FORCED_AFTER_S and each.asks]:
            self._place(program, min(range(len(self._on)), key=lambda engine: len(self._on[engine])))
        weigh = self._decayed if self._decay else self._weight
        left = {engine: self._left(engine, weigh) for engine in range(len(self._on))}
        left = {engine: tokens for engine, tokens in left.items() if tokens > BUFFER_TOKENS}
        total, chosen = sum(left.values()), []
        for program in sorted(self._paused.values(), key=lambda each: (_rank(each), each.tokens)):
            if program.tokens + BUFFER_TOKENS <= total:
                chosen.append(program)
                total -= program.tokens + BUFFER_TOKENS
        for program in sorted(chosen, key=lambda each: -each.tokens):
            engine = max(left, key=lambda each: left[each], default=None)
            needed = program.tokens + BUFFER_TOKENS
            if engine is None or left[engine] < needed:
                continue
            self._place(program, engine)
            left[engine] -= needed
            if left[engine] <= BUFFER_TOKENS:
                del left[engine]

    def _relieve(self, engine: int) -> None:
        over = -self._left(engine, self._weight)
        if over <= 0:
            return
        programs = [each for each in self._on[engine].values() if not each.marked]
        for program in sorted(programs, key=lambda each: (each.asks, each.tokens)):
            if over <= 0:
                return
            over -= self._weight(program) + BUFFER_TOKENS
            if program.asks:
                program.marked = True
            else:
                self._pause(program)


def _rank(program: _Program) -> int:
    if program.first:
        return 1
    return 0 if program.asks else 2
