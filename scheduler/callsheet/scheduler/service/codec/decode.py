"""From the contract's messages to the core's requests, checking every rule on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Concatenate, Final, Literal, ParamSpec, TypeVar, cast

from callsheet.scheduler.core.words.cached_tokens import GenerationSize
from callsheet.scheduler.core.words.model import (
    ActionKey,
    ActionKind,
    ActionRequest,
    Demand,
    GroupRequest,
    JobRequest,
    OnInfra,
    PriorityClass,
    ResourceDemand,
    RetryPolicy,
    SpeedUp,
    Timeouts,
    TrajectoryRequest,
)
from callsheet.scheduler.core.words.refusals import invalid
from callsheet.scheduler.service.codec.action_kinds import KIND_RULES
from callsheet.v1 import action_pb2, common_pb2, job_pb2
from callsheet.v1.names import MAX_SPEC_BYTES
from callsheet.v1.rules.actions import MAX_WEIGHT, check_work, needs_sandbox
from callsheet.v1.rules.fields import at_least, identifier, known, longer_than_zero, seconds, to_seconds, within
from callsheet.v1.rules.options import (
    DEFAULT_SCHEDULE_TO_START,
    DEFAULT_START_TO_CLOSE,
    MILLI,
    check_demand,
    check_retry,
    check_timeouts,
    default_close,
    whole_units,
)
from callsheet.v1.set_ups import set_up_name
from callsheet.wire.encoded_fields import embedded, tag

MAX_CACHED = 4096
MAX_CACHED_KEY_BYTES = 1024
DEFAULT_IDLE_TIMEOUT = 3600.0
MAX_BUFFERED: Final = 100_000
_TRACEPARENT_TAG = tag(action_pb2.ActionSpec.TRACEPARENT_FIELD_NUMBER)
P = ParamSpec("P")
T = TypeVar("T")


def decode_job(spec: job_pb2.JobSpec) -> JobRequest:
    """Returns a validated job.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the field.
    """
    priority = known("job.priority_class", spec.priority_class, job_pb2.PriorityClass.values())
    return JobRequest(
        job_id=identifier("job.job_id", spec.job_id),
        weight=within("job.share", spec.share, 0.0, MAX_WEIGHT) or 1.0,
        priority_class=PriorityClass(priority or PriorityClass.TRAIN),
        max_actions=int(at_least("job.max_actions", spec.max_actions, 0)),
        max_staleness=int(at_least("job.staleness.max_versions", spec.staleness.max_versions, 0)),
        spec=spec.SerializeToString(deterministic=True),
        grace=longer_than_zero("job.grace", spec.grace) if spec.HasField("grace") else None,
        detached=spec.detached,
        dead_sandbox_is_infra=spec.dead_sandbox_is_infra,
        idle_timeout=longer_than_zero("job.idle_timeout", spec.idle_timeout) if spec.HasField("idle_timeout") else None,
        max_buffered=int(within("job.max_buffered", spec.max_buffered, 0, MAX_BUFFERED)),
        admit_within=_versions(spec.staleness, "admit_within"),
        select_within=_versions(spec.staleness, "select_within"),
    )


def _versions(staleness: job_pb2.Staleness, name: Literal["admit_within", "select_within"]) -> int | None:
    return int(at_least(f"job.staleness.{name}", getattr(staleness, name), 0)) if staleness.HasField(name) else None


def decode_trajectory(spec: job_pb2.TrajectorySpec) -> TrajectoryRequest:
    """Returns a validated trajectory.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the field.
    """
    group = None
    if spec.HasField("group"):
        size = int(at_least("trajectory.group.size", spec.group.size, 1))
        quorum = int(within("trajectory.group.quorum", spec.group.quorum, 0, size)) or size
        on_infra = known("trajectory.group.on_infra", spec.group.on_infra, job_pb2.OnInfra.values())
        budget = None
        if spec.group.HasField("infra_budget"):
            budget = int(at_least("trajectory.group.infra_budget", spec.group.infra_budget, 0))
        group_id = identifier("trajectory.group.group_id", spec.group.group_id)
        group = GroupRequest(group_id, size, quorum, OnInfra(on_infra or OnInfra.REPLACE), budget)
    return TrajectoryRequest(
        job_id=identifier("trajectory.job_id", spec.job_id),
        trajectory_id=identifier("trajectory.trajectory_id", spec.trajectory_id),
        group=group,
        idle_timeout=seconds("trajectory.idle_timeout", spec.idle_timeout) or DEFAULT_IDLE_TIMEOUT,
        spec=spec.SerializeToString(deterministic=True),
        deadline=longer_than_zero("trajectory.deadline", spec.deadline) if spec.HasField("deadline") else 0.0,
    )


def decode_action(spec: action_pb2.ActionSpec) -> tuple[ActionRequest, list[common_pb2.PayloadReference]]:
    """Returns a validated action, and the stored payloads that it refers to.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the field.
    """
    body = _encode_body(spec)
    encoded = body + encode_traceparent(spec.traceparent)
    if len(encoded) > MAX_SPEC_BYTES:
        raise invalid("action", f"{len(encoded)} bytes", f"must have at most {MAX_SPEC_BYTES} bytes")
    references = check_work(spec)
    rules = KIND_RULES[spec.WhichOneof("payload") or ""]
    kind = rules.kind
    demand = (
        _decode_demand(spec.demand.SerializeToString(deterministic=True), kind)
        if spec.HasField("demand")
        else rules.demand(spec)
    )
    request = ActionRequest(
        key=ActionKey(spec.job_id, spec.action_id),
        kind=kind,
        trajectory_id=spec.trajectory_id,
        service=rules.service(spec),
        demand=demand.with_guaranteed_memory() if spec.env_reset.guaranteed_memory else demand,
        timeouts=_decode_timeouts(spec.timeouts.SerializeToString() if spec.HasField("timeouts") else b""),
        retry=_decode_retry(spec.retry.SerializeToString() if spec.HasField("retry") else b""),
        weight=spec.weight or 1.0,
        wait_if_unservable=spec.unservable == action_pb2.UNSERVABLE_WAIT,
        in_sandbox=needs_sandbox(spec),
        expected_duration=to_seconds(spec.expected_duration) if spec.HasField("expected_duration") else 0.0,
        body_hash=hashlib.blake2b(body, digest_size=16).digest(),
        spec=encoded,
        label=spec.label,
        task=spec.task,
        set_up=set_up_name(spec.env_reset) if kind is ActionKind.ENV_RESET else "",
        called_once=rules.called_once(spec),
        command_timeout=to_seconds(spec.env_reset.defaults.start_to_close),
        copy=rules.copy(spec),
        payloads=tuple(reference.sha256 for reference in references),
        generation=_generation(spec.generate) if kind is ActionKind.GENERATE else None,
        traceparent=spec.traceparent,
    )
    return request, references


def _encode_body(spec: action_pb2.ActionSpec) -> bytes:
    """Returns the part that submits of one key have in common: a client that comes back has another span."""
    if spec.traceparent:
        body = action_pb2.ActionSpec()
        body.CopyFrom(spec)
        body.ClearField("traceparent")
        spec = body
    return spec.SerializeToString(deterministic=True)


def encode_traceparent(value: str) -> bytes:
    """Returns the end of an encoded ActionSpec. It is kept but sent to no manager, so that no older one refuses it."""
    return embedded(_TRACEPARENT_TAG, value.encode()) if value else b""


def _generation(payload: action_pb2.GenerateInput) -> GenerationSize:
    return GenerationSize(len(payload.prompt_token_ids), payload.sampling.max_new_tokens)


def _shared(decode: Callable[Concatenate[bytes, P], T]) -> Callable[Concatenate[bytes, P], T]:
    """Decodes equal parts of actions once, as they repeat, but for large ones, as unknown fields make them."""
    cached = cast(Callable[Concatenate[bytes, P], T], lru_cache(maxsize=MAX_CACHED)(decode))

    def decode_once(encoded: bytes, /, *others: P.args, **named: P.kwargs) -> T:
        if len(encoded) > MAX_CACHED_KEY_BYTES:
            return decode(encoded, *others, **named)
        return cached(encoded, *others, **named)

    return decode_once


@_shared
def _decode_demand(encoded: bytes, kind: ActionKind) -> Demand:
    demand = action_pb2.Demand.FromString(encoded)
    check_demand(demand, of_reset=kind is ActionKind.ENV_RESET)
    return Demand(tuple(map(_resource, demand.resources)))


def _resource(entry: action_pb2.ResourceDemand) -> ResourceDemand:
    most = entry.max_milli_units or entry.min_milli_units
    return ResourceDemand(
        entry.resource,
        *whole_units(entry),
        _speed_up(entry.speed_up),
        entry.hold == action_pb2.HOLD_TRAJECTORY,
        most if most % MILLI else 0,
    )


def _speed_up(message: action_pb2.SpeedUp) -> SpeedUp:
    if message.HasField("amdahl_fraction"):
        return SpeedUp(amdahl_fraction=message.amdahl_fraction)
    return SpeedUp(points=tuple((point.units, point.speed_up) for point in message.table.points))


@_shared
def _decode_timeouts(encoded: bytes) -> Timeouts:
    timeouts = action_pb2.Timeouts.FromString(encoded)
    check_timeouts(timeouts)
    start, execute = to_seconds(timeouts.schedule_to_start), to_seconds(timeouts.start_to_close)
    given_close = to_seconds(timeouts.schedule_to_close)
    close = given_close or default_close(start, execute)
    return Timeouts(
        schedule_to_start=start or min(DEFAULT_SCHEDULE_TO_START, close),
        start_to_close=execute or min(DEFAULT_START_TO_CLOSE, close),
        schedule_to_close=close,
        heartbeat=to_seconds(timeouts.heartbeat),
        execution_given=bool(execute),
        close_given=bool(given_close),
    )


@_shared
def _decode_retry(encoded: bytes) -> RetryPolicy:
    retry = action_pb2.RetryPolicy.FromString(encoded)
    check_retry(retry)
    default = RetryPolicy()
    return RetryPolicy(
        max_attempts=retry.max_attempts or default.max_attempts,
        initial_backoff=(
            to_seconds(retry.initial_backoff) if retry.HasField("initial_backoff") else default.initial_backoff
        ),
        backoff_multiplier=retry.backoff_multiplier or default.backoff_multiplier,
        max_backoff=to_seconds(retry.max_backoff) if retry.HasField("max_backoff") else default.max_backoff,
    )
