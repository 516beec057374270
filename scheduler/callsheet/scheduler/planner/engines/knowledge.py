"""Everything that generations teach: rates of engines, lengths of answers, places of prefixes."""

from __future__ import annotations

from collections.abc import Container, Hashable
from typing import NamedTuple

from callsheet.scheduler.core.state.entities import Attempt
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.words.cached_tokens import GeneratedTokens
from callsheet.scheduler.core.words.events import AttemptEnded, AttemptSucceeded
from callsheet.scheduler.core.words.model import ActionRequest, TrajectoryKey
from callsheet.scheduler.planner.engines.claims import KvClaim, KvClaims, UsualTurn, break_even_s, headroom_tokens
from callsheet.scheduler.planner.engines.generation_prices import EngineRates
from callsheet.scheduler.planner.engines.prefixes import Prefix, Prefixes
from callsheet.scheduler.planner.engines.rates import ObservedGeneration, RateFit

# Weight that what turns of a service were like keeps when another one ends.
TURNS_FADING = 0.98
# Rates of an engine follow from a small fit; it is made anew after so many observations.
RATES_LIVE = 16

# Tokens that generations are expected to write before any has ended; counts as one that did.
FIRST_GUESS_TOKENS = 256.0
# Weight that what was seen keeps when another generation ends.
FADING = 0.99
# Room set aside for an answer, as a multiple of the expected one; few are longer, and an engine can do with less.
MARGIN = 2.0
MOST_LABELS = 65_536


class _Engine(NamedTuple):
    manager_id: str
    service: str


class _Known(NamedTuple):
    rates: EngineRates
    observations: int


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
    """A planner's knowledge of engines. It learns of ends before the core forgets their attempts."""

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
        """Returns the rates that all engines of a service showed."""
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
    """Returns a key of an engine's weights, because KV of other weights is of no use."""
    told = service.weights.told
    return (service.description.policy_version, told.version, told.proved_by)
