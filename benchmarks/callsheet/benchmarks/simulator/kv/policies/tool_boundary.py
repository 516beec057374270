"""Callsheet's rule, by the planner's own functions: generations wait at tool calls while KV is short.

Which engine: `cheapest_engine`; whose place is kept, and how long: `callsheet.scheduler.planner.engines.claims`.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

import numpy as np
from callsheet.benchmarks.simulator.kv.world import KvTrajectory, KvWorld
from callsheet.scheduler.core.model import ActionKind
from callsheet.scheduler.planner.engines.claims import (
    KvClaim,
    KvClaims,
    UsualTurn,
    break_even_s,
    headroom_tokens,
    idle_for_s,
    keep_for_s,
)
from callsheet.scheduler.planner.engines.knowledge import RATES_LIVE
from callsheet.scheduler.planner.engines.prefixes import Prefix, Prefixes
from callsheet.scheduler.planner.engines.price import EngineLoads, generation_prices
from callsheet.scheduler.planner.engines.rates import FIRST_RATES, ObservedGeneration, RateFit
from callsheet.scheduler.planner.predictors import ObservedRun, PredictionKey, Predictors
from callsheet.scheduler.planner.round.generations import PATIENCE_S

_JOB = "kv"


class _Sent(NamedTuple):
    engine: int
    booked: int
    batch: int


class ToolBoundary:
    """See the module's docstring."""

    def __init__(self, world: KvWorld) -> None:
        self._world = world
        self._engine = world.scenario.engine
        self._fit = RateFit()
        self._rates, self._fitted = FIRST_RATES, 0
        self._claims = KvClaims()
        self._prefixes = Prefixes()
        self._predictors = Predictors()
        self._booked = [0] * len(world.engines)
        self._sequences = [0] * len(world.engines)
        self._running: dict[KvTrajectory, _Sent] = {}
        self._waiting: list[tuple[float, int, KvTrajectory]] = []
        self._output = 256.0
        self._growth = 1024.0
        self._context = 16384.0
        self._headroom = [0] * len(world.engines)
        self._wakes_at = float("inf")

    def asked(self, trajectory: KvTrajectory) -> None:
        """See `KvPolicy`."""
        if trajectory.context_tokens:
            self._growth += 0.02 * (trajectory.prompt_tokens - trajectory.context_tokens - self._growth)
        insort(self._waiting, (trajectory.asked_at, trajectory.number, trajectory))
        self._serve()

    def acting(self, trajectory: KvTrajectory, output_tokens: int, execution_s: float, cached_tokens: int) -> None:
        """See `KvPolicy`."""
        engine, booked, batch = self._running.pop(trajectory)
        computed = max(trajectory.prompt_tokens - cached_tokens, 0)
        self._learn(ObservedGeneration(computed, output_tokens, (batch + self._sequences[engine]) / 2.0, execution_s))
        self._output += 0.01 * (output_tokens - self._output)
        self._context += 0.01 * (trajectory.context_tokens - self._context)
        even_s = break_even_s(self._engine.kv_tokens, self._rates, self._sequences[engine])
        usual = UsualTurn(self._context, self._growth + self._output, self._output)
        self._headroom[engine] = headroom_tokens(self._engine.kv_tokens, self._rates, self._sequences[engine], usual)
        self._booked[engine] -= booked
        self._sequences[engine] -= 1
        prefix = Prefix(str(engine), trajectory.context_tokens, 0)
        self._prefixes.put(_key(trajectory), prefix, self._engine.kv_tokens - self._booked[engine])
        call = self._predictors.predict(_prediction_key(trajectory))
        keep_s = keep_for_s(call, 0.0, even_s, trajectory.tool_timeout_s)
        if keep_s > 0.0:
            tokens = trajectory.context_tokens + int(self._growth) + self._room_to_write()
            now = self._world.now
            self._claims.keep(trajectory, KvClaim(engine, tokens, trajectory.began_at, now + keep_s))
        self._serve()

    def _learn(self, run: ObservedGeneration) -> None:
        """Fits the engines' rates, which are alike, as often as the planner does."""
        self._fit.observe(run)
        if self._fit.observations - self._fitted >= min(RATES_LIVE, self._fitted):
            self._rates, self._fitted = self._fit.rates(), self._fit.observations

    def acted(self, trajectory: KvTrajectory, tool_s: float) -> None:
        """See `KvPolicy`."""
        self._predictors.observe(ObservedRun(_prediction_key(trajectory), tool_s))

    def ended(self, trajectory: KvTrajectory) -> None:
        """See `KvPolicy`."""
        self._claims.release(trajectory)
        self._prefixes.forget(_key(trajectory))
        self._serve()

    def woken(self) -> None:
        """See `KvPolicy`."""
        self._wakes_at = float("inf")
        self._serve()

    def _room_to_write(self) -> int:
        return int(2.0 * self._output)

    def _free(self, engine: int) -> int:
        return self._engine.kv_tokens - self._booked[engine] - self._claims.tokens_on(engine)

    def _serve(self) -> None:
        """Lets those generate that there is room for, first come; who waits for long keeps an engine for himself."""
        self._claims.expire(self._world.now)
        kept: set[int] = set()
        sent: list[int] = []
        for place, (_, _, trajectory) in enumerate(self._waiting):
            if len(kept) == len(self._booked) and self._claims.of(trajectory) is None:
                continue
            engine = self._place(trajectory, kept)
            if engine is not None:
                sent.append(place)
                self._send(trajectory, engine)
        for place in reversed(sent):
            del self._waiting[place]
        next_end = self._claims.next_end()
        if self._waiting and next_end is not None:
            self._look_again(next_end)

    def _look_again(self, at: float) -> None:
        if at < self._wakes_at:
            self._wakes_at = at
            self._world.wake_at(at)

    def _place(self, trajectory: KvTrajectory, kept: set[int]) -> int | None:
        needed = trajectory.prompt_tokens + self._room_to_write()
        own = self._claims.release(trajectory)
        if own is not None:
            home = own.engine
            assert isinstance(home, int)
            lacking = needed - self._free(home)
            began_at = trajectory.began_at
            if lacking <= 0 or self._claims.take(home, lacking, lambda _, claim: claim.began_at > began_at):
                return home
        fitting = [
            engine
            for engine in range(len(self._booked))
            if engine not in kept
            and (self._free(engine) >= needed + self._headroom[engine] or self._takes_all(trajectory, engine, needed))
        ]
        if fitting:
            chosen = self._cheapest(trajectory, fitting)
            self._claims.give_way(chosen, needed - self._free(chosen))
            return chosen
        most = max((engine for engine in range(len(self._booked)) if engine not in kept), key=self._free, default=None)
        if most is not None and self._world.now - trajectory.asked_at > PATIENCE_S:
            kept.add(most)
        return None

    def _takes_all(self, trajectory: KvTrajectory, engine: int, needed: int) -> bool:
        """Whether an engine has been idle for so long that the trajectory may take what is claimed there."""
        if self._sequences[engine]:
            return False
        now = self._world.now
        since = max(self._claims.idle_since(engine, now), trajectory.asked_at)
        claimed, prefill = self._claims.tokens_on(engine), self._rates.prefill_tokens_per_s
        idle_s = idle_for_s(needed, np.array([self._free(engine)]), np.array([claimed]), np.array([prefill]))
        at = since + float(idle_s[0])
        if at > now:
            self._look_again(at)
        return at <= now

    def _cheapest(self, trajectory: KvTrajectory, fitting: list[int]) -> int:
        engine, count = self._engine, len(fitting)
        prefix = self._prefixes.of(_key(trajectory))
        cached = [prefix.tokens if prefix is not None and prefix.engine == str(each) else 0 for each in fitting]
        loads = EngineLoads(
            np.full(count, engine.prefill_tokens_per_s),
            np.full(count, engine.step_s),
            np.full(count, engine.step_per_sequence_s),
            np.array([self._sequences[each] for each in fitting], np.int64),
            np.full(count, engine.max_batch, np.int64),
            np.array(cached, np.int64),
        )
        return fitting[int(np.argmin(generation_prices(trajectory.prompt_tokens, self._output, loads)))]

    def _send(self, trajectory: KvTrajectory, engine: int) -> None:
        booked = trajectory.prompt_tokens + self._room_to_write()
        self._booked[engine] += booked
        self._sequences[engine] += 1
        self._running[trajectory] = _Sent(engine, booked, self._sequences[engine])
        self._claims.began(engine)
        self._world.send(trajectory, engine)


def _key(trajectory: KvTrajectory) -> tuple[str, str]:
    return (_JOB, str(trajectory.number))


def _prediction_key(trajectory: KvTrajectory) -> PredictionKey:
    return PredictionKey(_JOB, ActionKind.ENV_STEP, trajectory.tool_label, trajectory.task)
