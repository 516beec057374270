"""New weights, engine by engine: who updates next, who is proved, and who is tried again later.

What an engine has is told by its manager again and again, as a state and not as an event: a report that is lost or
comes twice changes nothing, and a manager that registers anew says all that the core must know.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from callsheet.scheduler.core.state.entities import Job, Manager
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.commands import ReleasePayloads, UpdateWeights
from callsheet.scheduler.core.words.engine_weights import (
    EngineWeights,
    PublishRight,
    UpdateEnd,
    WeightsOffer,
    WeightsRollout,
    WeightsStanding,
    WeightsTold,
)
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.records import RolloutBegun, RolloutChanged
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError, failed_precondition
from callsheet.scheduler.core.words.similar_names import did_you_mean
from callsheet.timing.backoff import backoff_s

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0
# Beside the limits of a drain, of the update and of the canaries before and after.
ANSWER_MARGIN_S = 120.0
RESTORE_TIMEOUT_S = 600.0
"""The longest wait for running requests and for the load, each, where an engine goes back to its first weights."""
NO_ANSWER = "its manager did not say in time what became of the update"
NOT_PROVED = "what was published was not proved"
MAX_NAMED_SERVICES = 64
"""Services that the generates of a job named: clients may invent names."""
RANKS_DIFFER = "the group has {} ranks for {} engines; each must have as many as the others"


class PolicyEngine(NamedTuple):
    """An engine: its manager and the service that it is."""

    manager: Manager
    service: Service

    @property
    def weights(self) -> EngineWeights:
        """The core's knowledge of the engine's weights."""
        return self.service.weights


def engines_of(state: SchedulerState, service: str) -> list[PolicyEngine]:
    """The registered engines of a service, by their managers' ids."""
    managers = state.engines.get(service, {})
    return [PolicyEngine(managers[name], managers[name].services[service]) for name in sorted(managers)]


def forget_engines(state: SchedulerState, manager: Manager, now: float) -> None:
    """A manager is gone, with its engines."""
    for name in manager.services:
        if state.engines.get(name, {}).pop(manager.manager_id, None) is not None:
            advance_services(state, [name], now)


def begin_rollout(state: SchedulerState, job: Job, event: events.PolicyPublished, now: float) -> None:
    """Takes what a job publishes for a service's engines, in place of what it published before.

    Raises:
        RefusedError: FAILED_PRECONDITION: the service is not clear, or another open job publishes for it.
            PERMISSION_DENIED: the job's token does not name the service, and it is for others.
            ALREADY_EXISTS: the version was published with other weights.
    """
    if event.offer is None:
        return
    offer = _with_service(state, event.job_id, event.offer)
    if event.right is not None:
        _require_right(state, job, event.right, offer.service)
    former = state.rollouts.get(offer.service)
    if former is not None and former.job_id != event.job_id:
        rule = "has weights that another open job publishes; close that job first, or name another service"
        raise failed_precondition("rollout.service", offer.service, rule)
    if former is not None and event.version <= former.version:
        if event.version == former.version and offer == former.offer:
            return
        rule = "was published for this service with other weights; publish them under a newer version"
        raise RefusedError(RefusalCode.ALREADY_EXISTS, "version", event.version, rule)
    rollout = WeightsRollout(state.next_token(), job.request.job_id, event.version, offer)
    state.rollouts[offer.service] = rollout
    if former is not None:
        _release_payloads(state, former)
    state.persist(RolloutBegun(rollout.job_id, offer.service, rollout.version, *rollout.token, offer.plan))
    for engine in engines_of(state, offer.service):
        engine.weights.retry_at = -math.inf
    advance(state, rollout, now)


def _require_right(state: SchedulerState, job: Job, right: PublishRight, service: str) -> None:
    """Without its name in the token a service is for whom it was nobody else's at the first publish."""
    if service in right.named:
        return
    cure = f"a token issued with --publishes {service} may publish for it"
    if service in right.reserved:
        raise _not_permitted(service, f"is for jobs whose tokens name it: {cure}")
    owner = state.rollouts.get(service)
    if owner is not None and owner.job_id == job.request.job_id:
        return
    if owner is not None or _others_generate_at(state, job, service):
        raise _not_permitted(service, f"is used by another open job, and this token does not name it: {cure}")


def note_generation(job: Job, service: str) -> None:
    """A job has a service generate, "" for one that is not known. Beyond some names it counts as a user of all."""
    job.generated_at.add(service if len(job.generated_at) < MAX_NAMED_SERVICES else "")


def _others_generate_at(state: SchedulerState, job: Job, service: str) -> bool:
    users = {service, ""}
    return any(each is not job and not each.generated_at.isdisjoint(users) for each in state.jobs.values())


def _not_permitted(service: str, rule: str) -> RefusedError:
    return RefusedError(RefusalCode.PERMISSION_DENIED, "rollout.service", service, rule)


def _release_payloads(state: SchedulerState, former: WeightsRollout) -> None:
    """Weights of a publish that another took the place of fill the store no longer."""
    needed = {
        sha256 for each in state.rollouts.values() if each.job_id == former.job_id for sha256 in each.offer.payloads
    }
    if former.offer.payloads - needed:
        state.emit(ReleasePayloads(former.job_id, former.offer.payloads - needed))


def _with_service(state: SchedulerState, job_id: str, offer: WeightsOffer) -> WeightsOffer:
    names = {name for name, managers in state.engines.items() if managers}
    if offer.service:
        if names and offer.service not in names and not state.awaits_returns:
            rule = f"no registered manager serves generate under this name{did_you_mean(offer.service, names)}"
            raise failed_precondition("rollout.service", offer.service, rule)
        return offer
    if state.awaits_returns:
        before = [each.service for each in state.rollouts.values() if each.job_id == job_id]
        if len(before) == 1:
            return replace(offer, service=before[0])
        rule = "must be named until the managers from before the scheduler's restart had time to come back"
        retry_after = state.settings.full_retry_after
        raise RefusedError(RefusalCode.UNAVAILABLE, "rollout.service", "", rule, retry_after)
    if len(names) != 1:
        rule = f"must name one of {sorted(names)}" if names else "must be named, as no manager serves generate yet"
        raise failed_precondition("rollout.service", "", rule)
    return replace(offer, service=names.pop())


def end_rollouts(state: SchedulerState, job_id: str, now: float) -> None:
    """A job is closed: nobody owns the weights of its services now. Engines keep what they have."""
    for service in [name for name, each in state.rollouts.items() if each.job_id == job_id]:
        del state.rollouts[service]
        for engine in engines_of(state, service):
            engine.weights.retry_at = -math.inf
            # What an engine was started with needs no proof, and what is not proved is not served in any case.
            _change(engine, now, trusted=True)
        restore_lost(state, service, now)


def restore_lost(state: SchedulerState, service: str, now: float) -> None:
    """Has engines go back to their first weights that have none that are proved, where nobody publishes others."""
    engines = engines_of(state, service)
    lost = [each for each in engines if each.weights.told.standing is WeightsStanding.UNPROVED]
    for engine in lost:
        if engine.manager.accepting and not engine.weights.busy and engine.weights.retry_at <= now:
            _restore(state, engine, now)
    _set_timer(state, service, engines, lost, now)


def heal(state: SchedulerState, manager: Manager, now: float) -> None:
    """Has the quarantined engines of a manager go back to their first weights, also where others are published.

    Raises:
        RefusedError: FAILED_PRECONDITION: it is away, draining, or has no engine.
    """
    engines = [
        PolicyEngine(manager, each)
        for each in manager.services.values()
        if ActionKind.GENERATE in each.description.kinds
    ]
    if not engines or not manager.accepting:
        rule = "is away or draining" if engines else "has no engine"
        raise failed_precondition("manager_id", manager.manager_id, rule)
    for engine in engines:
        if engine.weights.gated and not engine.weights.busy:
            _restore(state, engine, now)
        advance_services(state, [engine.service.description.name], now)


def _restore(state: SchedulerState, engine: PolicyEngine, now: float) -> None:
    weights = engine.weights
    weights.updating, weights.rollout = state.next_token(), None
    weights.answer_by = now + 4 * RESTORE_TIMEOUT_S + ANSWER_MARGIN_S
    update, name = weights.updating, engine.service.description.name
    state.emit(UpdateWeights(engine.manager.session, update, update, name, 0, b"", b"", 0))


def registered(state: SchedulerState, manager: Manager, service: Service, told: WeightsTold | None, now: float) -> None:
    """A manager registered for the first time: engines that come when weights were published must prove them."""
    if ActionKind.GENERATE in service.description.kinds:
        fresh = told is None or told.standing is WeightsStanding.INITIAL
        state.engines.setdefault(service.description.name, {})[manager.manager_id] = manager
        trusted = not (fresh and service.description.name in state.rollouts)
        _change(PolicyEngine(manager, service), now, trusted=trusted)
        weights_told(state, manager, service, told, now)


def weights_told(
    state: SchedulerState, manager: Manager, service: Service, told: WeightsTold | None, now: float
) -> None:
    """Takes over what a manager says of its engine's weights, if it says anything."""
    if told is None:
        return
    engine = PolicyEngine(manager, service)
    if told == service.weights.told:
        return
    _change(engine, now, told=told)
    end = told.last_update
    if end is not None and end.update == service.weights.updating:
        _settle(state, engine, end, now)
    advance_services(state, [service.description.name], now)


def reconnected(state: SchedulerState, manager: Manager, now: float) -> None:
    """All that a manager had to say over its new stream was said: an update that it knows nothing of was lost."""
    for service in manager.services.values():
        weights, rollout = service.weights, state.rollouts.get(service.description.name)
        if weights.updating is None or weights.told.updating == weights.updating:
            continue
        if rollout is not None and rollout.begun:
            _settle(state, PolicyEngine(manager, service), UpdateEnd(weights.updating, NO_ANSWER), now)
        weights.updating = None
    advance_services(state, manager.services, now)


def advance_services(state: SchedulerState, services: Iterable[str], now: float) -> None:
    """Looks after the rollouts of those services whose engines came, went or answered."""
    for name in services:
        if name not in state.engines:
            continue
        rollout = state.rollouts.get(name)
        if rollout is not None:
            advance(state, rollout, now)
        else:
            restore_lost(state, name, now)


def rollout_due(state: SchedulerState, service: str, now: float) -> None:
    """An update should have been answered for, or an engine may be tried again."""
    for engine in engines_of(state, service):
        weights = engine.weights
        if weights.updating is None or now < weights.answer_by:
            continue
        if weights.told.updating == weights.updating:
            # Its manager limits it; meanwhile the engine is given nothing.
            weights.answer_by = now + ANSWER_MARGIN_S
        else:
            _settle(state, engine, UpdateEnd(weights.updating, NO_ANSWER), now)
    advance_services(state, [service], now)


def _settle(state: SchedulerState, engine: PolicyEngine, end: UpdateEnd, now: float) -> None:
    weights = engine.weights
    weights.updating = None
    rollout = state.rollouts.get(engine.service.description.name)
    if not end.failure:
        weights.failures, weights.reason, weights.retry_at = 0, "", -math.inf
        if weights.rollout is None:
            # It was healed from what was published then, and takes what was published since.
            healed = rollout is not None and rollout.token < end.update
            weights.retry_at = math.inf if healed else -math.inf
            _change(engine, now, trusted=True)
        if rollout is not None and weights.has_proved(rollout) and not rollout.reference and end.canary:
            rollout.reference = end.canary
            _persist_changes(state, rollout)
        return
    weights.failures += 1
    weights.reason = end.failure
    last_chance = rollout is not None and rollout.offer.group_ranks and weights.rollout == rollout.token
    wait_s = math.inf if last_chance else backoff_s(weights.failures, FIRST_RETRY_S, LONGEST_RETRY_S)
    superseded = weights.rollout != (None if rollout is None else rollout.token)
    weights.retry_at = -math.inf if superseded else now + wait_s


def advance(state: SchedulerState, rollout: WeightsRollout, now: float) -> None:
    """Orders the engines whose turn it is to update, and sets a timer for the next look."""
    engines = engines_of(state, rollout.service)
    waiting = [each for each in engines if not each.weights.busy and not each.weights.has_proved(rollout)]
    if rollout.offer.group_ranks:
        _begin_group(state, rollout, engines, now)
    else:
        room = rollout.width - sum(each.weights.busy for each in engines)
        able = [each for each in waiting if each.manager.accepting and each.weights.retry_at <= now]
        able.sort(key=_turn)
        for engine in able[: max(room, 0)]:
            _tell(state, rollout, engine, 0, now)
    _set_timer(state, rollout.service, engines, waiting, now)


def _turn(engine: PolicyEngine) -> tuple[int, bool, int, str]:
    """Those that serve nothing anyway come first, then those with the oldest weights, and those that failed last.

    Publishes may come faster than engines update: the first would else be updated each time, and the others never.
    """
    weights = engine.weights
    return weights.failures, not weights.gated, weights.told.version, engine.manager.manager_id


def _begin_group(state: SchedulerState, rollout: WeightsRollout, engines: list[PolicyEngine], now: float) -> None:
    """All engines join together, or none does."""
    ready = engines and all(each.manager.accepting and not each.weights.busy for each in engines)
    if rollout.begun or not ready or rollout.offer.group_ranks % len(engines):
        return
    rollout.begun = True
    _persist_changes(state, rollout)
    for index, engine in enumerate(engines):
        _tell(state, rollout, engine, 1 + index * (rollout.offer.group_ranks // len(engines)), now)


def _tell(state: SchedulerState, rollout: WeightsRollout, engine: PolicyEngine, rank: int, now: float) -> None:
    weights = engine.weights
    weights.updating, weights.rollout = state.next_token(), rollout.token
    weights.answer_by = now + 4 * rollout.offer.timeout + ANSWER_MARGIN_S
    state.emit(
        UpdateWeights(
            session=engine.manager.session,
            update=weights.updating,
            rollout=rollout.token,
            service=rollout.service,
            version=rollout.version,
            plan=rollout.offer.plan,
            reference=rollout.reference,
            rank=rank,
        )
    )


def _set_timer(
    state: SchedulerState, service: str, engines: list[PolicyEngine], waiting: list[PolicyEngine], now: float
) -> None:
    due = [each.weights.answer_by for each in engines if each.weights.updating is not None]
    idle = [each.weights for each in waiting if not each.weights.busy]
    due += [each.retry_at for each in idle if now < each.retry_at < math.inf]
    if due:
        state.timers.set(("rollout", service), min(due))
    else:
        state.timers.drop(("rollout", service))


def _persist_changes(state: SchedulerState, rollout: WeightsRollout) -> None:
    state.persist(RolloutChanged(rollout.job_id, rollout.service, rollout.reference, rollout.begun))


def _change(engine: PolicyEngine, now: float, *, told: WeightsTold | None = None, trusted: bool | None = None) -> None:
    """Changes what is known of an engine's weights, and with it whether planners may send it anything."""
    weights = engine.weights
    before = weights.gated
    if told is not None:
        weights.told = told
        weights.trusted = weights.trusted or told.standing is WeightsStanding.PROVED
    if trusted is not None:
        weights.trusted = trusted
    if weights.gated and weights.gated_since is None:
        weights.gated_since = now
    elif not weights.gated and weights.gated_since is not None:
        weights.exposed_s, weights.gated_since = weights.exposed_until(now), None
    if weights.gated != before:
        engine.manager.node.changed.add(engine.manager.node)


def why_gated(state: SchedulerState, services: Iterable[Service], job_id: str) -> str:
    """Returns why engines are given nothing, such as "2 engines are updating, 1 quarantined: the canary differs".

    Reasons may name the places of weights, and so are for the job that published them.
    """
    own = {None, *(each.token for each in state.rollouts.values() if each.job_id == job_id)}
    gated = [service.weights for service in services if service.weights.gated]
    updating = [each for each in gated if each.busy]
    quarantined = [each for each in gated if not each.busy and each.reason]
    others = len(gated) - len(updating) - len(quarantined)
    parts = []
    if updating:
        parts.append(f"{len(updating)} {'engine is' if len(updating) == 1 else 'engines are'} updating")
    if quarantined:
        reasons = ", ".join(sorted({each.reason if each.rollout in own else NOT_PROVED for each in quarantined}))
        parts.append(f"{len(quarantined)} quarantined: {reasons}")
    if others:
        parts.append(f"{others} not proved yet")
    return ", ".join(parts)
