"""Everything that generations teach: rates of engines, lengths of answers, places of prefixes."""

from __future__ import annotations

from collections.abc import Container, Hashable
from typing import NamedTuple

from callsheet.scheduler.core.entities import Attempt
from callsheet.scheduler.core.events import AttemptEnded, AttemptSucceeded
from callsheet.scheduler.core.model import ActionRequest
from callsheet.scheduler.core.services import Service
from callsheet.scheduler.planner.engines.output_lengths import OutputLengths
from callsheet.scheduler.planner.engines.prefixes import Prefix, Prefixes
from callsheet.scheduler.planner.engines.price import EngineRates
from callsheet.scheduler.planner.engines.rates import ObservedGeneration, RateFit

# Rates of an engine follow from a small fit; it is made anew after so many observations.
RATES_LIVE = 16


class _Engine(NamedTuple):
    manager_id: str
    service: str


class _Known(NamedTuple):
    rates: EngineRates
    observations: int


class EngineKnowledge:
    """What a planner knows of engines. It is told of ends before the core forgets their attempts."""

    def __init__(self) -> None:
        """Starts with nothing known."""
        self.lengths = OutputLengths()
        self.prefixes = Prefixes()
        self._fits: dict[_Engine, RateFit] = {}
        self._of_service: dict[str, RateFit] = {}
        self._known: dict[_Engine, _Known] = {}

    def rates(self, manager_id: str, service: str) -> EngineRates:
        """How fast an engine is taken to be."""
        engine = _Engine(manager_id, service)
        alike = self._of_service.setdefault(service, RateFit())
        known = self._known.get(engine)
        if known is None or alike.observations - known.observations >= min(RATES_LIVE, alike.observations):
            own = self._fits.setdefault(engine, RateFit())
            known = self._known[engine] = _Known(own.rates(alike.rates()), alike.observations)
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
        self._note_prefix(request, manager.manager_id, service, generated.new_tokens, generated.cached_tokens)

    def keep_only(self, managers: Container[str]) -> None:
        """Forgets engines whose managers are gone."""
        for engine in [engine for engine in self._fits if engine.manager_id not in managers]:
            del self._fits[engine]
            self._known.pop(engine, None)
            self.prefixes.forget_engine(engine.manager_id)

    def _note_prefix(self, request: ActionRequest, manager_id: str, service: Service, new: int, cached: int) -> None:
        if not request.trajectory_id or request.generation is None:
            return
        trajectory, prompt = (request.key.job_id, request.trajectory_id), request.generation.prompt_tokens
        before = self.prefixes.of(trajectory)
        weights = _weights_of(service)
        if before is not None and before.engine == manager_id and before.weights == weights and before.tokens:
            self.prefixes.found(manager_id, max(min(before.tokens, prompt), 1), cached)
        free = service.free_kv_tokens
        if free is not None:
            self.prefixes.put(trajectory, Prefix(manager_id, prompt + new, weights), free)


def _weights_of(service: Service) -> Hashable:
    """What tells an engine's weights from those before and after: KV of others is of no use."""
    told = service.weights.told
    return (service.description.policy_version, told.version, told.proved_by)
