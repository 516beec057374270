"""Estimates how long running attempts still run, and the units that they then give back.

The estimate takes into account how long they have run already.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple, TypeAlias

from callsheet.scheduler.core.state.entities import Attempt, Manager
from callsheet.scheduler.core.words.model import CPU, Token
from callsheet.scheduler.planner.fleet.likeness import Host, shared_column, slot_column
from callsheet.scheduler.planner.fleet.pools import MILLI, Fleet, Pool
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.predictors.log_normal import remaining_life
from callsheet.scheduler.planner.predictors.predictors import amdahl_slowness
from callsheet.scheduler.planner.predictors.requests import predict, relative_units

Returns: TypeAlias = dict[str, list[tuple[float, int]]]


class Life(NamedTuple):
    """Expected life of an attempt.

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


def returns_of(fleet: Fleet, lives: Lives) -> Generator[None, None, Returns]:
    """Returns the expected returns of running attempts, and their times, by the row of an instance; in parts."""
    returns: Returns = {}
    for pool in fleet.pools:
        for managers in pool.managers:
            for place, manager in enumerate(managers):
                for attempt in list(manager.attempts.values()):
                    left_s = lives.of(attempt).remaining_s
                    for column, units in _units(pool, place, manager, attempt):
                        returns.setdefault(f"{column}@{pool.name}", []).append((left_s, units))
                yield
    return returns


def _units(pool: Pool, place: int, manager: Manager, attempt: Attempt) -> Iterator[tuple[str, int]]:
    """Returns the units that an attempt gives back, by column of its pool."""
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
