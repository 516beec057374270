"""A core with engines that tell the size of their KV caches, and a planner that learns of them."""

from __future__ import annotations

from dataclasses import replace

from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.cached_tokens import GeneratedTokens, GenerationSize
from callsheet.scheduler.core.words.model import ActionKey, ActionKind
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.core.words.registration import ServiceDescription
from callsheet.scheduler.planner.elastic import ElasticPlanner
from callsheet.scheduler.planner.engines.knowledge import EngineKnowledge
from callsheet.scheduler.planner.predictors import Predictors

from tests.support.core_requests import JOB, action_request
from tests.support.core_world import CoreWorld, FakeManager, ended


def engine(slots: int = 4, kv_tokens: int = 100_000, version: int = 0) -> ServiceDescription:
    """An engine's service."""
    return ServiceDescription("policy", frozenset({ActionKind.GENERATE}), slots, {}, version, kv_tokens=kv_tokens)


class Rollouts:
    """A core with engines, whose planner learns of them."""

    def __init__(self, predictors: Predictors | None = None, **engines: ServiceDescription) -> None:
        self.knowledge = EngineKnowledge()
        self.planner = ElasticPlanner(predictors=predictors, engines=self.knowledge)
        self.world = CoreWorld(planner=self.planner)
        self.engines: dict[str, FakeManager] = {name: self.world.manager(name, each) for name, each in engines.items()}
        self.world.job()

    def ask(
        self, name: str, prompt: int, new: int = 100, trajectory: str = "", job: str = JOB, *, plan: bool = False
    ) -> None:
        """Submits a generation; `plan` asks the planner afterwards."""
        request = action_request(name, ActionKind.GENERATE, trajectory, job_id=job)
        self.world.submit(replace(request, generation=GenerationSize(prompt, new)), plan=plan)

    def where(self, name: str, job: str = JOB) -> str:
        """The engine that a generation is on; empty while it waits."""
        attempt = self.world.live(ActionKey(job, name)).attempt
        return attempt.manager_id if attempt is not None else ""

    def end(self, name: str, *, new: int = 100, cached: int = 0, seconds: float = 1.0) -> None:
        """Ends a generation well."""
        manager = self.engines[self.where(name)]
        grant = manager.start(name)
        result = events.AttemptSucceeded(b"done", generated=GeneratedTokens(new, cached))
        event = replace(ended(manager.manager_id, grant, result), execution_s=seconds)
        self.knowledge.observe(self.world.state.attempts[grant.token], event)
        self.world.handle(event)

    def turn(self, name: str, trajectory: str, prompt: int, on: str) -> None:
        """A whole turn of a trajectory, which goes to an engine because the test says so."""
        self.ask(name, prompt, trajectory=trajectory)
        self.world.handle(events.PlanReady(Plan(admitted=((JOB, trajectory),))))
        self.world.propose(name, on)
        self.end(name)
