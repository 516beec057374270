"""Turns of hosted models are compared with two simpler rules, in virtual time."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf

import pytest
from callsheet.managers.reward.hosted.places import ModelDevices, Occupant, cheapest_choice
from callsheet.managers.reward.hosted.residency import HostedTenant, ModelStage, Residency
from callsheet.managers.reward.hosted.turns import ModelLine, ModelRestore, PatientTurns

SIZE = 64
LOOK_AGAIN_S = 0.05
SCORINGS = 2000
LOAD = 1.2
# Of the better one of the simpler rules, both of which evict the model that was used longest ago.
MOST_MEAN = 0.95
MOST_P99 = 0.9


@dataclass(frozen=True, slots=True)
class ScoringRequest:
    """A request.

    Attributes:
        model: Number of its model.
        at: When it comes, in units of the mean time between two.
    """

    model: int
    at: float


def draw_scorings() -> list[ScoringRequest]:
    """Draws requests that come at random, for nine models whose popularity falls by a power law."""
    draw, scorings, at = random.Random(0), [], 0.0
    for _ in range(SCORINGS):
        at += draw.expovariate(1.0)
        (model,) = draw.choices(range(9), [1.0 / rank for rank in range(1, 10)])
        scorings.append(ScoringRequest(model, at))
    return scorings


@dataclass(frozen=True, slots=True)
class SimplerRule:
    """Serves the oldest request next and brings its model in; evicts what was used longest ago.

    Attributes:
        lets_pass: Requests whose model is there pass those whose model must come. Otherwise nobody passes the oldest.
    """

    lets_pass: bool

    def next_batch(self, lines: Sequence[ModelLine], residency: Residency, now: float) -> str | None:
        """Returns the model of the oldest request that may be served, if it is there."""
        oldest = min(self._served(lines, residency), key=lambda line: line.first, default=None)
        return oldest.model if oldest is not None and is_there(oldest, residency) else None

    def next_restore(self, lines: Sequence[ModelLine], residency: Residency, now: float) -> ModelRestore | None:
        """Returns the model of the oldest request, unless others pass it."""
        oldest = min(lines, key=lambda line: line.first, default=None)
        if oldest is None or (self.lets_pass and any(is_there(line, residency) for line in lines)):
            return None
        tenant = residency.tenants[oldest.model]
        if tenant.place is not None:
            return None
        holders = {
            name: Occupant(each.place, inf if each.running or not resident(each) else 0.0, each.used_at)
            for name, each in residency.tenants.items()
            if each.place is not None
        }
        choice = cheapest_choice(residency.devices, tenant.width, tenant.size, holders)
        return None if choice is None else ModelRestore(oldest.model, choice)

    def _served(self, lines: Sequence[ModelLine], residency: Residency) -> Sequence[ModelLine]:
        return [line for line in lines if is_there(line, residency)] if self.lets_pass else lines


def resident(tenant: HostedTenant) -> bool:
    """Returns true for a model that is in memory."""
    return tenant.stage is ModelStage.RESIDENT


def is_there(line: ModelLine, residency: Residency) -> bool:
    """Returns true for a line whose model is in memory."""
    return resident(residency.tenants[line.model])


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
    """Serves requests to nine models of one size by some rule; three fit into memory.

    Args:
        turns: The rule.
        costs: The seconds that things take.
    """

    def __init__(self, turns: PatientTurns | SimplerRule, costs: ModelCosts | None = None) -> None:
        self._turns = turns
        self._names = [f"model-{number}" for number in range(9)]
        self._residency = Residency(ModelDevices(1, 3 * SIZE), [HostedTenant(name, SIZE) for name in self._names])
        self._costs = costs or ModelCosts()
        self._draw = random.Random(0)
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


@pytest.mark.parametrize(
    "costs",
    [ModelCosts(), ModelCosts(restore_s=0.2), ModelCosts(execution_s=0.026), ModelCosts(further=0.3)],
    ids=["usual", "slow restores", "slow answers", "good batches"],
)
def test_mean_and_longest_waits_are_below_those_of_simpler_rules(costs: ModelCosts) -> None:
    scorings = draw_scorings()
    ours, *rivals = (
        HostedModelWorld(turns, costs).serve(scorings, costs.execution_s / LOAD)
        for turns in (PatientTurns(), SimplerRule(lets_pass=False), SimplerRule(lets_pass=True))
    )
    assert ours.mean_s <= MOST_MEAN * min(each.mean_s for each in rivals)
    assert ours.p99_s <= MOST_P99 * min(each.p99_s for each in rivals)


def test_to_wait_for_what_is_cheap_to_lose_keeps_the_popular_ones_there() -> None:
    scorings = draw_scorings()
    waits, never = (
        HostedModelWorld(turns).serve(scorings, 0.012 / LOAD)
        for turns in (PatientTurns(), PatientTurns(waiting_gain=1e9))
    )
    assert waits.hits > 1.03 * never.hits
    assert waits.mean_s < never.mean_s
