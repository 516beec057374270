"""Rollouts as clients and operators see them: the core's state as messages."""

from __future__ import annotations

import math
from collections.abc import Iterator

from callsheet.scheduler.core.hosted.rollouts import RANKS_DIFFER, PolicyEngine, engines_of
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.engine_weights import EngineWeights, WeightsRollout
from callsheet.scheduler.service.codec.durations import to_duration
from callsheet.v1 import weights_pb2

HEALED = "it was healed, and serves the weights that it was started with until another publish"
ANOTHER_PUBLISH = "; the trainer broadcasts to a group once: publish the weights again"


def rollouts_of(state: SchedulerState, job_id: str, now: float) -> Iterator[weights_pb2.RolloutStatus]:
    """Yields the rollouts of a job, by service."""
    for service in sorted(state.rollouts):
        rollout = state.rollouts[service]
        if rollout.job_id == job_id:
            yield rollout_status(state, rollout, now)


def rollout_status(state: SchedulerState, rollout: WeightsRollout, now: float) -> weights_pb2.RolloutStatus:
    """Returns a rollout with all its engines."""
    plan = weights_pb2.RolloutPlan.FromString(rollout.offer.plan)
    engines = engines_of(state, rollout.service)
    return weights_pb2.RolloutStatus(
        service=rollout.service,
        version=rollout.version,
        mode=plan.mode,
        at_once=rollout.offer.at_once,
        engines=(_engine_status(rollout, engine, len(engines), now) for engine in engines),
    )


def _engine_status(rollout: WeightsRollout, engine: PolicyEngine, engines: int, now: float) -> weights_pb2.EngineStatus:
    weights, last = engine.weights, engine.weights.told.last_update
    state = _state_of(rollout, weights)
    is_tried_again = state == weights_pb2.ENGINE_STATE_QUARANTINED and weights.retry_at < math.inf
    return weights_pb2.EngineStatus(
        manager_id=engine.manager.manager_id,
        state=state,
        version=weights.told.version,
        serving=not weights.gated and engine.manager.accepting,
        reason=_reason(rollout, engine, engines, state),
        failures=weights.failures,
        retry_in=to_duration(max(weights.retry_at - now, 0.0)) if is_tried_again else None,
        exposed_s=weights.exposed_until(now),
        last_exposed_s=last.exposed_s if last is not None else 0.0,
        warning=last.warning if last is not None and state == weights_pb2.ENGINE_STATE_PROVED else "",
    )


def _state_of(rollout: WeightsRollout, weights: EngineWeights) -> weights_pb2.EngineState.ValueType:
    if weights.busy:
        return weights_pb2.ENGINE_STATE_UPDATING
    if weights.has_proved(rollout):
        return weights_pb2.ENGINE_STATE_PROVED
    if weights.failures and weights.rollout == rollout.token:
        return weights_pb2.ENGINE_STATE_QUARANTINED
    return weights_pb2.ENGINE_STATE_WAITING


def _reason(
    rollout: WeightsRollout, engine: PolicyEngine, engines: int, state: weights_pb2.EngineState.ValueType
) -> str:
    weights = engine.weights
    if state == weights_pb2.ENGINE_STATE_QUARANTINED:
        return weights.reason + (ANOTHER_PUBLISH if weights.retry_at == math.inf else "")
    if state != weights_pb2.ENGINE_STATE_WAITING:
        return ""
    if not engine.manager.accepting:
        return "its manager is away or draining"
    if weights.rollout is None and weights.retry_at == math.inf:
        return HEALED
    ranks = rollout.offer.group_ranks
    if ranks and not rollout.begun and ranks % engines:
        return RANKS_DIFFER.format(ranks, engines)
    if ranks and rollout.begun:
        return (weights.told.reason or "it came after the group was formed") + ANOTHER_PUBLISH
    # Of an earlier rollout it may be of another job, and name where that one's weights were.
    return weights.told.reason if weights.rollout in (None, rollout.token) else ""
