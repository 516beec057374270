"""How long what runs now is going to run on, given how long it has run already, and what it then gives back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from callsheet.scheduler.core.state.entities import Attempt, Manager
from callsheet.scheduler.core.words.model import CPU, Token
from callsheet.scheduler.planner.fleet.pools import MILLI, Fleet, Host, Pool, shared_column, slot_column
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.predictors.log_normal import remaining_life
from callsheet.scheduler.planner.predictors.predictors import amdahl_slowness
from callsheet.scheduler.planner.predictors.requests import predict, relative_units
from callsheet.scheduler.planner.question.instance import ResourceRow


class Life(NamedTuple):
    """What is expected of an attempt.

    Attributes:
        attained_s: Seconds on its execution clock so far.
        remaining_s: Seconds expected from now on.
        use: Cores that it would use: what its grant said, if it said anything.
    """

    attained_s: float
    remaining_s: float
    use: float


class Lives:
    """How long attempts have run, and are expected to run on; each is asked about once."""

    def __init__(self, predictors: Predictors, now: float) -> None:
        """Answers for one moment.

        Args:
            predictors: What actions are expected to take.
            now: Seconds since the epoch.
        """
        self._predictors = predictors
        self._now = now
        self._known: dict[Token, Life] = {}

    def of(self, attempt: Attempt) -> Life:
        """The life of an attempt."""
        life = self._known.get(attempt.token)
        if life is None:
            life = self._known[attempt.token] = self._ask(attempt)
        return life

    def _ask(self, attempt: Attempt) -> Life:
        request = attempt.action.request
        prediction = predict(self._predictors, request)
        slowness = amdahl_slowness(prediction.amdahl_fraction, relative_units(request.demand, attempt.granted))
        attained_s = _attained_s(attempt, self._now)
        # Predictions are at the fewest units.
        scale = max(slowness, 1e-9)
        timeout_s = request.timeouts.start_to_close / scale
        remaining_s = remaining_life(prediction, attained_s / scale, timeout_s) * scale
        granted = attempt.prediction.use if attempt.prediction is not None else 0.0
        use = granted if granted > 0.0 else min(prediction.use / slowness, request.demand.most_cores())
        return Life(attained_s, remaining_s, use)


def _attained_s(attempt: Attempt, now: float) -> float:
    if attempt.clock_at:
        return attempt.clock_s + max(now - attempt.clock_at, 0.0)
    return max(now - (attempt.started_at or attempt.dispatched_at), 0.0)


def with_returns(resources: Sequence[ResourceRow], fleet: Fleet, lives: Lives) -> list[ResourceRow]:
    """The rows of an instance, with what attempts that run now are expected to give back, and when."""
    returns: dict[str, list[tuple[float, int]]] = {}
    for pool in fleet.pools:
        for managers in pool.managers:
            for place, manager in enumerate(managers):
                for attempt in manager.attempts.values():
                    left_s = lives.of(attempt).remaining_s
                    for column, units in _units(pool, place, manager, attempt):
                        returns.setdefault(f"{column}@{pool.name}", []).append((left_s, units))
    return [replace(row, returns=tuple(returns[row.name])) if row.name in returns else row for row in resources]


def _units(pool: Pool, place: int, manager: Manager, attempt: Attempt) -> Iterator[tuple[str, int]]:
    """What an attempt gives back, by column of its pool."""
    yield from attempt.units.items()
    host = _host(pool, place, attempt.service)
    if host is None:
        return
    if host.slots:
        yield slot_column(host), 1
    expected = attempt.prediction
    if expected is not None and CPU in manager.services[attempt.service].description.shared:
        yield shared_column(host), round(expected.use * MILLI)


def _host(pool: Pool, place: int, service: str) -> Host | None:
    return next((host for host in pool.hosts if (host.manager, host.service) == (place, service)), None)
