"""The closed loop of trajectories and engines, and what a routing policy may see and do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import inf
from typing import Protocol

import numpy as np
from callsheet.benchmarks.simulator.events import EventQueue
from callsheet.benchmarks.simulator.kv.measured import KvRun
from callsheet.benchmarks.simulator.kv.shapes import KvRollout, KvScenario, KvTurn
from callsheet.benchmarks.simulator.physics.engine import Engine, EngineSequence


class KvTrajectory:
    """A trajectory in the world, as a policy may know it.

    Attributes:
        began_at: When it asked for its first generation.
        asked_at: When it asked for the one it waits for or has.
        turn: Index of that, counted from when it was first seen.
        context_tokens: What its last generation left in a KV cache: prompt and answer; 0 before the first has ended.
        prompt_tokens: Of the generation it waits for or has.
        tool_label: Class of the tool call that it makes or made last.
        tool_timeout_s: Seconds after which that call is ended.
    """

    __slots__ = (
        "_rollout",
        "asked_at",
        "began_at",
        "context_tokens",
        "number",
        "prompt_tokens",
        "task",
        "tool_label",
        "tool_timeout_s",
        "turn",
    )

    def __init__(self, number: int, rollout: KvRollout, now: float) -> None:
        self.number = number
        self.task = rollout.task
        self.began_at = now
        self.asked_at = now
        self.turn = 0
        self.context_tokens = 0
        self.prompt_tokens = rollout.turns[0].generation.prompt_tokens
        self.tool_label = ""
        self.tool_timeout_s = inf
        self._rollout = rollout

    @property
    def drawn(self) -> KvTurn:
        """The turn it is in. For the world alone: a policy may not know what is to come."""
        return self._rollout.turns[self.turn]

    @property
    def at_end(self) -> bool:
        """Whether this turn is its last. For the world alone."""
        return self.turn + 1 >= len(self._rollout.turns)


class KvPolicy(Protocol):
    """A way to route generations. It acts through the world that it was made with."""

    def asked(self, trajectory: KvTrajectory) -> None:
        """A trajectory waits for a generation; `KvWorld.send` lets it run, now or later."""

    def acting(self, trajectory: KvTrajectory, output_tokens: int, execution_s: float, cached_tokens: int) -> None:
        """Its generation has ended, and its tool call begins."""

    def acted(self, trajectory: KvTrajectory, tool_s: float) -> None:
        """Its tool call has ended; `asked` or `ended` follows at once."""

    def ended(self, trajectory: KvTrajectory) -> None:
        """It is over."""

    def woken(self) -> None:
        """The time asked for by `KvWorld.wake_at` has come."""


class KvWorld:
    """Runs a scenario under a policy; once."""

    def __init__(self, scenario: KvScenario, make_policy: Callable[[KvWorld], KvPolicy]) -> None:
        self.scenario = scenario
        self._events = EventQueue()
        self.engines: Sequence[Engine] = [Engine(scenario.engine, self._events) for _ in range(scenario.engines)]
        self._numbers = count()
        self._later = 0
        self._visited: dict[KvTrajectory, set[int]] = {}
        self._latencies: list[float] = []
        self._turns = 0
        self._ended = 0
        self._outputs = 0
        self._generating: dict[KvTrajectory, None] = {}
        self._policy = make_policy(self)

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._events.now

    def wake_at(self, at: float) -> None:
        """Asks for `KvPolicy.woken`."""
        self._events.at(at, self._woken, None)

    def send(self, trajectory: KvTrajectory, index: int) -> None:
        """Gives the generation that a trajectory waits for to an engine, for good."""
        self._visited.setdefault(trajectory, set()).add(index)
        engine = self.engines[index]
        cached = engine.load(trajectory).cached_tokens
        done = partial(self._generated, trajectory, self.now, cached)
        engine.begin(EngineSequence(trajectory, trajectory.drawn.generation, done))

    def run(self, warm_up: float = 0.25) -> KvRun:
        """Runs to the horizon.

        Args:
            warm_up: Part of the horizon that counts for nothing.
        """
        for rollout in self.scenario.first:
            # Not all at one instant: an engine that has run for long has its trajectories spread over their turns.
            self._events.at(0.0, self._arrive, rollout)
        horizon = self.scenario.horizon_s
        self._events.run(warm_up * horizon)
        before, latencies = self._counted(), len(self._latencies)
        self._events.run(horizon)
        after = [now - then for now, then in zip(self._counted(), before, strict=True)]
        hours = (1.0 - warm_up) * horizon / 3600.0
        measured = np.array(
            [*self._latencies[latencies:], *(self.now - each.asked_at for each in self._generating)] or [0.0]
        )
        turns, ended, outputs, prefilled, repeated = after
        return KvRun(
            turns_per_hour=turns / hours,
            trajectories_per_hour=ended / hours,
            output_tokens_per_s=outputs / (3600.0 * hours),
            prefilled_tokens_per_turn=prefilled / max(turns, 1),
            repeated_tokens_per_turn=repeated / max(turns, 1),
            generate_mean_s=float(measured.mean()),
            generate_p99_s=float(np.percentile(measured, 99)),
            generate_max_s=float(measured.max()),
        )

    def _counted(self) -> tuple[int, int, int, int, int]:
        prefilled = sum(engine.prefilled_tokens for engine in self.engines)
        repeated = sum(engine.repeated_tokens for engine in self.engines)
        return self._turns, self._ended, self._outputs, prefilled, repeated

    def _arrive(self, rollout: KvRollout) -> None:
        trajectory = KvTrajectory(next(self._numbers), rollout, self.now)
        self._ask(trajectory)

    def _ask(self, trajectory: KvTrajectory) -> None:
        trajectory.asked_at = self.now
        trajectory.prompt_tokens = trajectory.drawn.generation.prompt_tokens
        self._generating[trajectory] = None
        self._policy.asked(trajectory)

    def _generated(self, trajectory: KvTrajectory, sent_at: float, cached: int) -> None:
        generation = trajectory.drawn.generation
        del self._generating[trajectory]
        self._latencies.append(self.now - trajectory.asked_at)
        self._turns += 1
        self._outputs += generation.output_tokens
        trajectory.context_tokens = generation.prompt_tokens + generation.output_tokens
        trajectory.tool_label = trajectory.drawn.tool_label
        trajectory.tool_timeout_s = trajectory.drawn.tool_timeout_s
        self._policy.acting(trajectory, generation.output_tokens, self.now - sent_at, cached)
        self._events.at(self.now + trajectory.drawn.tool_s, self._tool_ended, trajectory)

    def _tool_ended(self, trajectory: KvTrajectory) -> None:
        self._policy.acted(trajectory, trajectory.drawn.tool_s)
        if not trajectory.at_end:
            trajectory.turn += 1
            self._ask(trajectory)
            return
        visited = self._visited.pop(trajectory, set())
        if self.scenario.forgets_ended:
            for index in visited:
                self.engines[index].forget(trajectory)
        self._ended += 1
        self._policy.ended(trajectory)
        self._arrive(self.scenario.later[self._later % len(self.scenario.later)])
        self._later += 1

    def _woken(self, _: None) -> None:
        self._policy.woken()
