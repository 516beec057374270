"""Everything that generations teach: rates of engines, lengths of answers, places of prefixes."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Container, Hashable, Sequence
from typing import NamedTuple

from callsheet.scheduler.core.state.entities import Attempt
from callsheet.scheduler.core.state.ledger import Service
from callsheet.scheduler.core.words.events import AttemptEnded, AttemptSucceeded
from callsheet.scheduler.core.words.model import ActionRequest, GeneratedTokens, TrajectoryKey
from callsheet.scheduler.planner.engines.claims import (
    EngineRates,
    KvClaim,
    KvClaims,
    UsualTurn,
    break_even_s,
    headroom_tokens,
)

# How fast an engine is, learned from the generations that ended on it.
#
# A generation of u prompt tokens that were not cached and n new ones in a batch of b takes about ``u / prefill_rate
# + n * (step + b * step_per_sequence)``. That is linear in three unknown times, so each engine keeps the normal
# equations of a least-squares fit of relative errors, in which old observations fade (Gelman and Hill, Data
# Analysis Using Regression, 2007, for weighting; Haykin, Adaptive Filter Theory, for fading). No time can be below
# 0: of all subsets of the three the best fit without a negative one counts. What all engines of a service showed
# stands in for what this one has not shown yet.

# Of a small model on an ordinary GPU; a few observations make it irrelevant.
FIRST_RATES = EngineRates(prefill_tokens_per_s=8192.0, step_s=0.01, step_per_sequence_s=0.0005)
# Weight that an observation keeps when the next one comes: about 200 of them count.
RATES_FADING = 0.995
# Observations that what is known beforehand counts as, before there is another one. It is divided by their number: what
# they show counts alone soon, and what they do not show stays.
TRUST = 0.1
# A first guess that is further off than that, by what was seen, is not believed.
FAR_OFF = 4.0
LEAST_S = 1e-9
LEAST_OBSERVED_S = 1e-4
_SUPPORTS = tuple(subset for size in (3, 2, 1) for subset in itertools.combinations(range(3), size))


class ObservedGeneration(NamedTuple):
    """A generation that ended.

    Attributes:
        prefilled_tokens: Tokens of its prompt that were not cached.
        new_tokens: Tokens it wrote.
        batch: Sequences it was with on average, itself included.
        execution_s: What it took.
    """

    prefilled_tokens: int
    new_tokens: int
    batch: float
    execution_s: float


class RateFit:
    """A fit of an engine's rates; see the module's docstring."""

    def __init__(self) -> None:
        """Starts with nothing seen."""
        self.observations = 0
        self._matrix = [[0.0] * 3 for _ in range(3)]
        self._vector = [0.0] * 3
        self._shown = [0.0] * 3
        self._shown_s = 0.0

    def observe(self, run: ObservedGeneration) -> None:
        """Takes a generation into account."""
        seconds = max(run.execution_s, LEAST_OBSERVED_S)
        features = _features(run.prefilled_tokens, run.new_tokens, run.batch)
        _add(self._matrix, self._vector, [each / seconds for each in features], RATES_FADING, 1.0)
        self._shown = [RATES_FADING * old + new for old, new in zip(self._shown, features, strict=True)]
        self._shown_s = RATES_FADING * self._shown_s + seconds
        self.observations += 1

    def rates(self, beforehand: EngineRates | None = None) -> EngineRates:
        """The rates that fit best, and what was known beforehand where too little was seen.

        Args:
            beforehand: What alike engines showed; without, a guess.
        """
        if not self.observations:
            return beforehand or FIRST_RATES
        times = _times(beforehand) if beforehand is not None else self._guessed()
        matrix, vector = [list(row) for row in self._matrix], list(self._vector)
        trust = TRUST / self.observations
        for typical in _TYPICAL:
            seconds = max(sum(each * time for each, time in zip(typical, times, strict=True)), LEAST_S)
            _add(matrix, vector, [each / seconds for each in typical], 1.0, trust)
        prefill_s, step_s, step_per_sequence_s = (max(each, LEAST_S) for each in _least_squares(matrix, vector))
        return EngineRates(1.0 / prefill_s, step_s, step_per_sequence_s)

    def _guessed(self) -> list[float]:
        """The first guess, brought near to what was seen where it is far off.

        Otherwise a guess for a much faster engine outweighs dozens of observations, as its relative errors are large.
        """
        times = _times(FIRST_RATES)
        guessed_s = sum(each * time for each, time in zip(self._shown, times, strict=True))
        slower = self._shown_s / max(guessed_s, LEAST_S)
        beyond = slower / min(max(slower, 1.0 / FAR_OFF), FAR_OFF)
        return [beyond * each for each in times]


_Row = Sequence[float]


def _features(prefilled: int, new: int, batch: float) -> tuple[float, float, float]:
    return (float(prefilled), float(new), new * batch)


def _times(rates: EngineRates) -> list[float]:
    return [1.0 / rates.prefill_tokens_per_s, rates.step_s, rates.step_per_sequence_s]


_TYPICAL = (_features(1024, 0, 1.0), _features(0, 256, 1.0), _features(0, 256, 16.0))


def _add(matrix: list[list[float]], vector: list[float], row: _Row, memory: float, weight: float) -> None:
    """Adds an observation to normal equations, in place. Plain lists: there are three unknowns, and many engines."""
    for index, left in enumerate(row):
        mine = matrix[index]
        for other, right in enumerate(row):
            mine[other] = memory * mine[other] + weight * left * right
        vector[index] = memory * vector[index] + weight * left


def _least_squares(matrix: Sequence[_Row], vector: _Row) -> list[float]:
    """The minimum of x'Ax - 2b'x without negative entries, by trying which are above 0: there are three."""
    best, best_value = [0.0] * 3, 0.0
    for chosen in _SUPPORTS:
        part = _solved([[*(matrix[row][column] for column in chosen), vector[row]] for row in chosen])
        if part is None or min(part) < 0.0:
            continue
        value = -sum(vector[row] * each for row, each in zip(chosen, part, strict=True))
        if value < best_value:
            best, best_value = [0.0] * 3, value
            for row, each in zip(chosen, part, strict=True):
                best[row] = each
    return best


def _solved(rows: list[list[float]]) -> list[float] | None:
    """Solves equations, each with its right side at its end, by elimination; None where they have no one solution."""
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        if rows[pivot][column] == 0.0:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        head = rows[column]
        for row in rows[column + 1 :]:
            factor = row[column] / head[column]
            for place in range(column, size + 1):
                row[place] -= factor * head[place]
    found = [0.0] * size
    for index in reversed(range(size)):
        known = sum(rows[index][place] * found[place] for place in range(index + 1, size))
        found[index] = (rows[index][size] - known) / rows[index][index]
    return found


# Whose prefixes engines are expected to hold in their KV caches.

# Actual tokens found by expected ones, of the last dozens of generations that were sent for their prefix.
MEMORY = 0.95
MOST_PREFIXES = 262_144


class Prefix(NamedTuple):
    """The end of a trajectory's last generation.

    Attributes:
        engine: The manager of the engine that ran it.
        tokens: Its prompt and what it wrote.
        weights: What tells the weights that the engine had then from others.
    """

    engine: str
    tokens: int
    weights: Hashable


class Prefixes:
    """Each trajectory's newest prefix. An engine with too many is expected to drop the least recently used.

    How much of what it should hold an engine really has is learned: some keep no prefixes, some are shared.
    """

    def __init__(self) -> None:
        self._newest: OrderedDict[TrajectoryKey, Prefix] = OrderedDict()
        self._held: dict[str, OrderedDict[TrajectoryKey, int]] = {}
        self._total: dict[str, int] = {}
        self._found: dict[str, float] = {}

    def of(self, trajectory: TrajectoryKey) -> Prefix | None:
        """Where a trajectory's prefix is expected to be."""
        return self._newest.get(trajectory)

    def share_found(self, engine: str) -> float:
        """The share of expected tokens that an engine really has."""
        return self._found.get(engine, 1.0)

    def put(self, trajectory: TrajectoryKey, prefix: Prefix, room: int) -> None:
        """Notes the end of a generation.

        Args:
            trajectory: Whose.
            prefix: What its engine holds of it now.
            room: Tokens that the engine's cache can hold beside those that are in use; what is beyond it is dropped.
        """
        self.forget(trajectory)
        self._newest[trajectory] = prefix
        held = self._held.setdefault(prefix.engine, OrderedDict())
        held[trajectory] = prefix.tokens
        self._total[prefix.engine] = self._total.get(prefix.engine, 0) + prefix.tokens
        while held and self._total[prefix.engine] > max(room, 0):
            self.forget(next(iter(held)))
        while len(self._newest) > MOST_PREFIXES:
            self.forget(next(iter(self._newest)))

    def found(self, engine: str, expected: int, actual: int) -> None:
        """Learns from a generation that was sent to an engine for its prefix."""
        share = min(actual / expected, 1.0)
        self._found[engine] = MEMORY * self.share_found(engine) + (1.0 - MEMORY) * share

    def forget(self, trajectory: TrajectoryKey) -> None:
        """Drops a trajectory's prefix."""
        prefix = self._newest.pop(trajectory, None)
        if prefix is None:
            return
        self._total[prefix.engine] -= self._held[prefix.engine].pop(trajectory)
        if not self._held[prefix.engine]:
            del self._held[prefix.engine], self._total[prefix.engine]

    def forget_engine(self, engine: str) -> None:
        """Drops all prefixes of an engine that is gone."""
        for trajectory in list(self._held.get(engine, ())):
            self.forget(trajectory)
        self._found.pop(engine, None)


# Weight that what turns of a service were like keeps when another one ends.
TURNS_FADING = 0.98
# Rates of an engine follow from a small fit; it is made anew after so many observations.
RATES_LIVE = 16


class _Engine(NamedTuple):
    manager_id: str
    service: str


class _Known(NamedTuple):
    rates: EngineRates
    observations: int


# Tokens that generations are expected to write before any has ended; counts as one that did.
FIRST_GUESS_TOKENS = 256.0
# Weight that what was seen keeps when another generation ends.
FADING = 0.99
# Room set aside for an answer, as a multiple of the expected one; few are longer, and an engine can do with less.
MARGIN = 2.0
MOST_LABELS = 65_536


class OutputLengths:
    """Mean lengths of answers by job and label; old ones fade."""

    def __init__(self) -> None:
        """Starts with nothing seen."""
        self._seen: dict[tuple[str, str], tuple[float, float]] = {}

    def expected(self, request: ActionRequest) -> float:
        """Tokens that a generation is expected to write, at most those that it may."""
        written, count = self._seen.get((request.key.job_id, request.label), (FIRST_GUESS_TOKENS, 1.0))
        most = request.generation.max_new_tokens if request.generation is not None else 0
        return min(written / count, float(most))

    def room(self, request: ActionRequest) -> int:
        """Tokens of a KV cache to set aside for a generation."""
        size = request.generation
        if size is None:
            return 0
        return size.prompt_tokens + min(int(MARGIN * self.expected(request)) + 1, size.max_new_tokens)

    def observe(self, request: ActionRequest, tokens: int) -> None:
        """Learns from a generation that ended."""
        key = (request.key.job_id, request.label)
        if key not in self._seen and len(self._seen) >= MOST_LABELS:
            self._seen.clear()
        written, count = self._seen.get(key, (FIRST_GUESS_TOKENS, 1.0))
        self._seen[key] = (FADING * written + tokens, FADING * count + 1.0)


class EngineKnowledge:
    """What a planner knows of engines. It is told of ends before the core forgets their attempts."""

    def __init__(self) -> None:
        """Starts with nothing known."""
        self.lengths = OutputLengths()
        self.prefixes = Prefixes()
        self.claims = KvClaims()
        self._new_claims: dict[TrajectoryKey, KvClaim] = {}
        self._turns: dict[str, UsualTurn] = {}
        self._fits: dict[_Engine, RateFit] = {}
        self._of_service: dict[str, RateFit] = {}
        self._known: dict[_Engine, _Known] = {}
        self._known_of_service: dict[str, _Known] = {}

    def rates(self, manager_id: str, service: str) -> EngineRates:
        """How fast an engine is taken to be."""
        engine = _Engine(manager_id, service)
        own = self._fits.get(engine)
        if own is None or not own.observations:
            return self._rates_of_service(service)
        known = self._known.get(engine)
        if known is None or own.observations - known.observations >= min(RATES_LIVE, known.observations):
            # Of its service only what this engine has not shown matters, so that this may be older.
            rates = own.rates(self._rates_of_service(service))
            known = self._known[engine] = _Known(rates, own.observations)
        return known.rates

    def _rates_of_service(self, service: str) -> EngineRates:
        """What all engines of a service showed."""
        alike = self._of_service.setdefault(service, RateFit())
        known = self._known_of_service.get(service)
        if known is None or alike.observations - known.observations >= min(RATES_LIVE, alike.observations):
            known = self._known_of_service[service] = _Known(alike.rates(), alike.observations)
        return known.rates

    def cached_tokens(self, request: ActionRequest, manager_id: str, service: Service) -> int:
        """Tokens of a generation's prompt that an engine is expected to have."""
        prefix = self.prefixes.of((request.key.job_id, request.trajectory_id)) if request.trajectory_id else None
        if prefix is None or request.generation is None or prefix.engine != manager_id:
            return 0
        if prefix.weights != _weights_of(service):
            return 0
        expected = min(prefix.tokens, request.generation.prompt_tokens)
        return int(expected * self.prefixes.share_found(manager_id))

    def even_s(self, manager_id: str, service: Service) -> float:
        """Seconds after which KV that nobody uses has cost as much as computing it anew; see `break_even_s`."""
        rates = self.rates(manager_id, service.description.name)
        return break_even_s(service.description.kv_tokens, rates, service.busy)

    def headroom(self, manager_id: str, service: Service) -> int:
        """Tokens to leave free when a trajectory without a claim is let in; see `headroom_tokens`."""
        turn = self._turns.get(service.description.name)
        if turn is None or not service.description.kv_tokens:
            return 0
        rates = self.rates(manager_id, service.description.name)
        return headroom_tokens(service.description.kv_tokens, rates, service.busy, turn)

    def begin_claims(self, now: float) -> dict[TrajectoryKey, KvClaim]:
        """Lets trajectories whose generations ended since the last call keep their places; returns their claims."""
        begun, self._new_claims = self._new_claims, {}
        self.claims.expire(now)
        for trajectory, claim in begun.items():
            begun[trajectory] = claim._replace(ends_at=now + claim.ends_at)
            self.claims.keep(trajectory, begun[trajectory])
        return begun

    def observe(self, attempt: Attempt, event: AttemptEnded) -> None:
        """Learns from the end of an attempt; one that is no generation that ran to its end teaches nothing."""
        request, result, manager = attempt.action.request, event.result, attempt.manager
        if not isinstance(result, AttemptSucceeded) or result.generated is None or request.generation is None:
            return
        service = manager.services.get(attempt.service) if manager is not None else None
        if manager is None or service is None or event.execution_s <= 0.0:
            return
        generated = result.generated
        self.lengths.observe(request, generated.new_tokens)
        prefilled = max(request.generation.prompt_tokens - generated.cached_tokens, 0)
        batch = max((attempt.batch + service.busy) / 2.0, 1.0)
        run = ObservedGeneration(prefilled, generated.new_tokens, batch, event.execution_s)
        for fit in (
            self._fits.setdefault(_Engine(manager.manager_id, attempt.service), RateFit()),
            self._of_service.setdefault(attempt.service, RateFit()),
        ):
            fit.observe(run)
        self._note_turn(attempt, manager.manager_id, service, generated.new_tokens)
        self._note_prefix(attempt, manager.manager_id, service, generated)

    def keep_only(self, managers: Container[str]) -> None:
        """Forgets engines whose managers are gone."""
        for engine in [engine for engine in self._fits if engine.manager_id not in managers]:
            del self._fits[engine]
            self._known.pop(engine, None)
            self.prefixes.forget_engine(engine.manager_id)
            self.claims.forget_engine(engine.manager_id)

    def _note_turn(self, attempt: Attempt, manager_id: str, service: Service, new: int) -> None:
        """Learns what turns are like, and has the trajectory keep its place; before its new prefix is noted."""
        request, trajectory = attempt.action.request, attempt.action.trajectory
        if trajectory is None or request.generation is None or not service.description.kv_tokens:
            return
        before = self.prefixes.of(trajectory.key)
        context, name = request.generation.prompt_tokens + new, service.description.name
        if before is not None and context > before.tokens:
            seen = UsualTurn(context, context - before.tokens, new)
            self._turns[name] = self._turns.get(name, seen).faded(seen, TURNS_FADING)
        growth = self._turns[name].growth_tokens if name in self._turns else 0.0
        tokens = context + int(growth + MARGIN * self.lengths.expected(request))
        began = trajectory.admitted_at or trajectory.opened_at
        self._new_claims[trajectory.key] = KvClaim(manager_id, tokens, began, self.even_s(manager_id, service))

    def _note_prefix(self, attempt: Attempt, manager_id: str, service: Service, generated: GeneratedTokens) -> None:
        request, new, cached = attempt.action.request, generated.new_tokens, generated.cached_tokens
        if not request.trajectory_id or request.generation is None:
            return
        trajectory, prompt = (request.key.job_id, request.trajectory_id), request.generation.prompt_tokens
        before = self.prefixes.of(trajectory)
        weights = _weights_of(service)
        if before is not None and before.engine == manager_id and before.weights == weights and before.tokens:
            self.prefixes.found(manager_id, max(min(before.tokens, prompt), 1), cached)
        free = service.free_kv_tokens
        if free is not None:
            # What is booked for it is free from now on, and has its prefix.
            self.prefixes.put(trajectory, Prefix(manager_id, prompt + new, weights), free + attempt.kv_tokens)


def _weights_of(service: Service) -> Hashable:
    """What tells an engine's weights from those before and after: KV of others is of no use."""
    told = service.weights.told
    return (service.description.policy_version, told.version, told.proved_by)
