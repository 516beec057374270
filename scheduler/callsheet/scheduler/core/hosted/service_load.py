"""Demand for services whose instances come and go, as far as their managers cannot see it.

A manager of models decides which of them lie in memory, by what it was sent. It does not know of actions that wait
here, nor of those that trajectories under way will come to ask for. So it is told both after its heartbeats: a model
that many will ask for soon may come before that, and one that nobody will ask for gives way first.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from callsheet.scheduler.core.state.entities import Action, Manager
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.words.commands import TellDemand
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.registration import is_meant

TELL_EVERY_S = 0.5
"""A manager is told at most so often."""
# What is expected is told anew where it changed by this share.
_NEWS = 0.2
MOST_SERVICES = 64
"""Services of which a job's rewards are counted."""


def count_reward(action: Action) -> None:
    """Notes that a job asked a service for a reward."""
    request, asked = action.request, action.job.rewards_asked
    if (
        request.kind is ActionKind.REWARD
        and request.service
        and (request.service in asked or len(asked) < MOST_SERVICES)
    ):
        asked[request.service] = asked.get(request.service, 0) + 1


def expected_rewards(state: SchedulerState, service: str) -> float:
    """Rewards that trajectories under way will ask a service for, if each asks as often as its job's did on average."""
    return sum(
        job.live_trajectories * asked / (job.live_trajectories + job.completed_trajectories)
        for job in state.jobs.values()
        if job.live_trajectories and (asked := job.rewards_asked.get(service))
    )


def tell_demand(state: SchedulerState, manager: Manager, now: float) -> None:
    """Reports to a manager the demand for its services that come and go, if the demand has changed."""
    if manager.session is None or now - manager.demand_told_at < TELL_EVERY_S:
        return
    coming_and_going = [each for each in manager.services.values() if _comes_and_goes(each)]
    if not coming_and_going:
        return
    manager.demand_told_at = now
    waiting: Counter[str] = Counter()
    for key, ready in state.ready.classes.items():
        if key.kind is ActionKind.REWARD and not key.pinned_to:
            waiting[key.service] += ready.count
    for service in coming_and_going:
        name = service.description.name
        queued = sum(count for asked, count in waiting.items() if is_meant(name, asked))
        coming = expected_rewards(state, name)
        if _is_news(service.demand_told, (queued, coming)):
            service.demand_told = queued, coming
            state.emit(TellDemand(manager.session, name, queued, coming))


def forget_told(manager: Manager) -> None:
    """A manager has registered: it is told everything."""
    manager.demand_told_at = -inf
    for service in manager.services.values():
        service.demand_told = None


def _comes_and_goes(service: Service) -> bool:
    return ActionKind.REWARD in service.description.kinds and bool(service.setup_s or service.instances)


def _is_news(told: tuple[int, float] | None, now: tuple[int, float]) -> bool:
    return told is None or any(abs(one - other) > _NEWS * max(one, other) for one, other in zip(told, now, strict=True))
