"""Whose turn it is among hosted models, beside simpler rules: bars of `callsheet bench rewards` in virtual time."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
from callsheet.benchmarks.rewards.models import FirstCome, ResidentFirst
from callsheet.benchmarks.rewards.report import MOST_MEAN, MOST_P99
from callsheet.benchmarks.rewards.run import ScoringRequest, draw_scorings
from callsheet.managers.reward.hosted.places import ModelDevices
from callsheet.managers.reward.hosted.residency import HostedTenant, ModelStage, Residency
from callsheet.managers.reward.hosted.turns import ModelLine, ModelTurns, PatientTurns

SIZE = 64
LOOK_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosts:
    """What things take, in seconds; each time by up to `spread` more or less.

    Attributes:
        execution_s: A request alone.
        further: Each further request of a batch, as a share of that.
        restore_s: A restore.
    """

    execution_s: float = 0.012
    further: float = 0.6
    restore_s: float = 0.1
    spread: float = 0.3


@dataclass(slots=True)
class WorldResult:
    """What became of all requests.

    Attributes:
        waits: From asked to answered, in seconds, sorted.
        restores: Models that came.
        hits: Requests whose model was there.
    """

    waits: list[float] = field(default_factory=list)
    restores: int = 0
    hits: int = 0

    @property
    def mean_s(self) -> float:
        """Their mean."""
        return sum(self.waits) / len(self.waits)

    @property
    def p99_s(self) -> float:
        """Their 99th percentile."""
        return self.waits[int(0.99 * len(self.waits))]


class HostedModelWorld:
    """Serves requests by some rule.

    Args:
        turns: The rule.
        models: How many models of one size there are.
        room: How many fit.
        costs: What things take.
        seed: Of the spread of costs.
    """

    def __init__(
        self, turns: ModelTurns, *, models: int = 9, room: int = 3, costs: ModelCosts | None = None, seed: int = 0
    ) -> None:
        self._turns = turns
        self._names = [f"model-{number}" for number in range(models)]
        self._residency = Residency(ModelDevices(1, room * SIZE), [HostedTenant(name, SIZE) for name in self._names])
        self._costs = costs or ModelCosts()
        self._draw = random.Random(seed)
        self._lines: dict[str, deque[tuple[float, int]]] = {name: deque() for name in self._names}
        self._events: list[tuple[float, int, str, str]] = []
        self._numbers = count()
        self._running: list[tuple[float, int]] = []
        self._busy = self._restoring = self._looking = False
        self.result = WorldResult()

    def serve(self, scorings: Sequence[ScoringRequest], between_s: float) -> WorldResult:
        """Serves requests that come at their times; returns what became of them."""
        for scoring in scorings:
            self._at(scoring.at * between_s, "ask", self._names[scoring.model])
        while len(self.result.waits) < len(scorings):
            now, _, what, model = heapq.heappop(self._events)
            self._happen(now, what, model)
            self._decide(now)
        self.result.waits.sort()
        return self.result

    def _at(self, when: float, what: str, model: str = "") -> None:
        heapq.heappush(self._events, (when, next(self._numbers), what, model))

    def _happen(self, now: float, what: str, model: str) -> None:
        if what == "ask":
            self.result.hits += self._residency.tenants[model].stage is ModelStage.RESIDENT
            self._residency.request(model, now)
            self._lines[model].append((now, next(self._numbers)))
        elif what == "answered":
            self._busy = False
            self._residency.end(model, now)
            self.result.waits += [now - asked_at for asked_at, _ in self._running]
        elif what == "restored":
            self._restoring = False
            self._residency.arrive(model, now, self._costs.restore_s)
            self.result.restores += 1
        else:
            self._looking = False

    def _decide(self, now: float) -> None:
        if not self._busy and (model := self._turns.next_batch(self._waiting(), self._residency, now)) is not None:
            line = self._lines[model]
            self._running = [line.popleft() for _ in range(min(len(line), 16))]
            self._busy = True
            self._residency.run(model, now)
            length = 1 + self._costs.further * (len(self._running) - 1)
            self._at(now + self._about(length * self._costs.execution_s), "answered", model)
        restore = None if self._restoring else self._turns.next_restore(self._waiting(), self._residency, now)
        if restore is not None:
            self._restoring = True
            self._residency.begin(restore.model, restore.choice)
            self._at(now + self._about(self._costs.restore_s), "restored", restore.model)
        if not self._looking and self._waiting():
            self._looking = True
            self._at(now + LOOK_AGAIN_S, "look")

    def _waiting(self) -> list[ModelLine]:
        return [ModelLine(name, len(line), *line[0]) for name, line in self._lines.items() if line]

    def _about(self, seconds: float) -> float:
        return seconds * self._draw.uniform(1 - self._costs.spread, 1 + self._costs.spread)


SCORINGS = 2000
LOAD = 1.2


@pytest.mark.parametrize(
    "costs",
    [ModelCosts(), ModelCosts(restore_s=0.2), ModelCosts(execution_s=0.026), ModelCosts(further=0.3)],
    ids=["usual", "slow restores", "slow answers", "good batches"],
)
def test_mean_and_longest_waits_are_below_those_of_simpler_rules(costs: ModelCosts) -> None:
    scorings = draw_scorings(SCORINGS, 9, 1, 1.0, 0)
    ours, *rivals = (
        HostedModelWorld(turns, costs=costs).serve(scorings, costs.execution_s / LOAD)
        for turns in (PatientTurns(), FirstCome(), ResidentFirst())
    )
    assert ours.mean_s <= MOST_MEAN * min(each.mean_s for each in rivals)
    assert ours.p99_s <= MOST_P99 * min(each.p99_s for each in rivals)


def test_to_wait_for_what_is_cheap_to_lose_keeps_the_popular_ones_there() -> None:
    scorings = draw_scorings(SCORINGS, 9, 1, 1.0, 0)
    waits, never = (
        HostedModelWorld(turns).serve(scorings, 0.012 / LOAD)
        for turns in (PatientTurns(), PatientTurns(waiting_gain=1e9))
    )
    assert waits.hits > 1.03 * never.hits
    assert waits.mean_s < never.mean_s
