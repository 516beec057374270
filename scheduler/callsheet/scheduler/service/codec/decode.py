"""From the contract's messages to the core's requests, checking every rule on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Concatenate, Final, Literal, ParamSpec, TypeVar, cast

from callsheet.scheduler.core.words.cached_tokens import GenerationSize
from callsheet.scheduler.core.words.engine_weights import UpdateEnd, WeightsOffer, WeightsStanding, WeightsTold
from callsheet.scheduler.core.words.model import (
    CPU,
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
    Token,
    TrajectoryRequest,
)
from callsheet.scheduler.core.words.refusals import invalid
from callsheet.scheduler.service.codec.action_kinds import KIND_RULES
from callsheet.scheduler.service.codec.rules import (
    MAX_SECONDS,
    at_least,
    blob,
    encode_traceparent,
    few,
    fill_duration,
    identifier,
    known,
    longer_than_zero,
    seconds,
    short_text,
    to_seconds,
    token_ids,
    traceparent,
    within,
)
from callsheet.v1 import action_pb2, client_service_pb2, common_pb2, job_pb2, manager_service_pb2, weights_pb2
from callsheet.v1.set_ups import set_up_name

MAX_SPEC_BYTES = 2 * 1024 * 1024
MAX_CACHED = 4096
MAX_CACHED_KEY_BYTES = 1024
# Sums of weights must stay finite.
MAX_WEIGHT = 1e6
# So must durations divided by the product of all speed-ups.
MIN_SPEED_UP = 0.01
MAX_SPEED_UP = 1e6
MAX_SPEED_UP_POINTS = 256
# The widths of elastic resources are planned together, each with each.
MAX_ELASTIC = 4
# Every round looks at all of them for each class that waits.
MAX_RESOURCES = 64
DEFAULT_IDLE_TIMEOUT = 3600.0
DEFAULT_SCHEDULE_TO_START = 1800.0
DEFAULT_START_TO_CLOSE = 600.0
DEFAULT_SCHEDULE_TO_CLOSE = 3600.0

_UNSERVABLE: Final = frozenset(action_pb2.Unservable.values())
MAX_BUFFERED: Final = 100_000
# Thousandths of a unit.
MILLI = 1000


def decode_job(spec: job_pb2.JobSpec) -> JobRequest:
    """A validated job.

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
    """A validated trajectory.

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
    """A validated action, and the stored payloads it refers to.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the field.
    """
    payload = spec.WhichOneof("payload")
    if payload is None:
        raise invalid("payload", "", f"must be one of {', '.join(KIND_RULES)}")
    body = _encode_body(spec)
    traced = traceparent("traceparent", spec.traceparent) if spec.traceparent else ""
    encoded = body + encode_traceparent(traced)
    if len(encoded) > MAX_SPEC_BYTES:
        raise invalid("action", f"{len(encoded)} bytes", f"must have at most {MAX_SPEC_BYTES} bytes")
    rules = KIND_RULES[payload]
    kind, references, in_sandbox = rules.kind, rules.check(spec), rules.in_sandbox(spec)
    trajectory_id = spec.trajectory_id
    if trajectory_id or in_sandbox:
        identifier("trajectory_id", trajectory_id)
    demand = (
        _decode_demand(spec.demand.SerializeToString(deterministic=True), kind)
        if spec.HasField("demand")
        else rules.demand(spec)
    )
    unservable = known("unservable", spec.unservable, _UNSERVABLE)
    request = ActionRequest(
        key=ActionKey(identifier("job_id", spec.job_id), identifier("action_id", spec.action_id)),
        kind=kind,
        trajectory_id=trajectory_id,
        service=rules.service(spec),
        demand=demand.with_guaranteed_memory() if spec.env_reset.guaranteed_memory else demand,
        timeouts=_decode_timeouts(spec.timeouts.SerializeToString() if spec.HasField("timeouts") else b""),
        retry=_decode_retry(spec.retry.SerializeToString() if spec.HasField("retry") else b""),
        weight=within("weight", spec.weight, 0.0, MAX_WEIGHT) or 1.0,
        wait_if_unservable=unservable == action_pb2.UNSERVABLE_WAIT,
        in_sandbox=in_sandbox,
        expected_duration=(
            seconds("expected_duration", spec.expected_duration) if spec.HasField("expected_duration") else 0.0
        ),
        body_hash=hashlib.blake2b(body, digest_size=16).digest(),
        spec=encoded,
        label=short_text("label", spec.label),
        task=short_text("task", spec.task),
        set_up=set_up_name(spec.env_reset) if kind is ActionKind.ENV_RESET else "",
        called_once=rules.called_once(spec),
        command_timeout=to_seconds(spec.env_reset.defaults.start_to_close),
        copy=rules.copy(spec),
        payloads=tuple(reference.sha256 for reference in references),
        generation=_generation(spec.generate) if kind is ActionKind.GENERATE else None,
        traceparent=traced,
    )
    return request, references


def _encode_body(spec: action_pb2.ActionSpec) -> bytes:
    """What submits of one key have in common: a client that comes back has another span."""
    if spec.traceparent:
        body = action_pb2.ActionSpec()
        body.CopyFrom(spec)
        body.ClearField("traceparent")
        spec = body
    return spec.SerializeToString(deterministic=True)


def _generation(payload: action_pb2.GenerateInput) -> GenerationSize:
    return GenerationSize(len(payload.prompt_token_ids), payload.sampling.max_new_tokens)


P = ParamSpec("P")
T = TypeVar("T")


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
    resources = action_pb2.Demand.FromString(encoded).resources
    if len(resources) > MAX_RESOURCES:
        raise invalid("demand.resources", f"{len(resources)} entries", f"must have at most {MAX_RESOURCES}")
    entries: list[ResourceDemand] = []
    names: set[str] = set()
    for index, entry in enumerate(resources):
        path = f"demand.resources[{index}]"
        name = identifier(f"{path}.resource", entry.resource)
        if name in names:
            raise invalid(f"{path}.resource", name, "is named twice")
        names.add(name)
        least, most = _milli_units(path, name, entry)
        hold = known(f"{path}.hold", entry.hold, action_pb2.Hold.values())
        held = hold == action_pb2.HOLD_TRAJECTORY
        if held and kind is not ActionKind.ENV_RESET:
            raise invalid(f"{path}.hold", "HOLD_TRAJECTORY", "is only for env_reset")
        units = (_whole(least), _whole(most))
        elastic = units[1] > units[0]
        speed_up = _decode_speed_up(path, entry, elastic=elastic) if entry.HasField("speed_up") else SpeedUp()
        entries.append(ResourceDemand(name, *units, speed_up, held, most if most % MILLI else 0))
    ranges = sum(entry.elastic for entry in entries)
    if ranges > MAX_ELASTIC:
        raise invalid("demand.resources", f"{ranges} elastic entries", f"must have at most {MAX_ELASTIC} of them")
    return Demand(tuple(entries))


def _milli_units(path: str, name: str, entry: action_pb2.ResourceDemand) -> tuple[int, int]:
    """The fewest and the most thousandths of a unit."""
    least = int(at_least(f"{path}.min_milli_units", entry.min_milli_units, 0))
    most = int(at_least(f"{path}.max_milli_units", entry.max_milli_units, 0)) or least
    if most < least:
        raise invalid(f"{path}.max_milli_units", most, f"must be 0 or at least min_milli_units ({least})")
    for side, units in (("min_milli_units", least), ("max_milli_units", most)):
        if name != CPU and units % MILLI:
            rule = f"must be a multiple of {MILLI}: only {CPU!r} has fractions, and {name!r} whole units"
            raise invalid(f"{path}.{side}", units, rule)
    return least, most


def _whole(milli_units: int) -> int:
    """Units, rounded up."""
    return -(-milli_units // MILLI)


def _decode_speed_up(path: str, entry: action_pb2.ResourceDemand, *, elastic: bool) -> SpeedUp:
    curve = entry.speed_up.WhichOneof("curve")
    if curve is None:
        raise invalid(f"{path}.speed_up", "", "must have exactly one of amdahl_fraction and table")
    if not elastic:
        rule = "is only for an elastic entry (max_milli_units above min_milli_units, both rounded up to whole units)"
        raise invalid(f"{path}.speed_up", curve, rule)
    if curve == "amdahl_fraction":
        fraction = within(f"{path}.speed_up.amdahl_fraction", entry.speed_up.amdahl_fraction, 0.0, 1.0)
        return SpeedUp(amdahl_fraction=fraction)
    points: list[tuple[int, float]] = []
    for index, point in enumerate(entry.speed_up.table.points):
        where = f"{path}.speed_up.table.points[{index}]"
        at_least(f"{where}.units", point.units, (points[-1][0] if points else 0) + 1)
        points.append((point.units, within(f"{where}.speed_up", point.speed_up, MIN_SPEED_UP, MAX_SPEED_UP)))
    if not 0 < len(points) <= MAX_SPEED_UP_POINTS:
        rule = f"must have 1 to {MAX_SPEED_UP_POINTS} points"
        raise invalid(f"{path}.speed_up.table.points", f"{len(points)} points", rule)
    return SpeedUp(points=tuple(points))


@_shared
def _decode_timeouts(encoded: bytes) -> Timeouts:
    timeouts = action_pb2.Timeouts.FromString(encoded)
    start = seconds("timeouts.schedule_to_start", timeouts.schedule_to_start)
    execute = seconds("timeouts.start_to_close", timeouts.start_to_close)
    close = given_close = seconds("timeouts.schedule_to_close", timeouts.schedule_to_close)
    heartbeat = seconds("timeouts.heartbeat", timeouts.heartbeat)
    if not close:
        # What the client asked for must fit; beyond that the default holds.
        close = max(DEFAULT_SCHEDULE_TO_CLOSE, (start or DEFAULT_SCHEDULE_TO_START) + execute)
    for name, value in (("schedule_to_start", start), ("start_to_close", execute), ("heartbeat", heartbeat)):
        if value > close:
            raise invalid(f"timeouts.{name}", f"{value} s", f"must nest in schedule_to_close ({close} s)")
    if heartbeat and execute and heartbeat > execute:
        raise invalid("timeouts.heartbeat", f"{heartbeat} s", f"must nest in start_to_close ({execute} s)")
    return Timeouts(
        schedule_to_start=start or min(DEFAULT_SCHEDULE_TO_START, close),
        start_to_close=execute or min(DEFAULT_START_TO_CLOSE, close),
        schedule_to_close=close,
        heartbeat=heartbeat,
        execution_given=bool(execute),
        close_given=bool(given_close),
    )


@_shared
def _decode_retry(encoded: bytes) -> RetryPolicy:
    retry = action_pb2.RetryPolicy.FromString(encoded)
    default = RetryPolicy()
    multiplier = retry.backoff_multiplier
    if multiplier:
        at_least("retry.backoff_multiplier", multiplier, 1.0)
    return RetryPolicy(
        max_attempts=int(at_least("retry.max_attempts", retry.max_attempts, 0)) or default.max_attempts,
        initial_backoff=(
            seconds("retry.initial_backoff", retry.initial_backoff)
            if retry.HasField("initial_backoff")
            else default.initial_backoff
        ),
        backoff_multiplier=multiplier or default.backoff_multiplier,
        max_backoff=(
            seconds("retry.max_backoff", retry.max_backoff) if retry.HasField("max_backoff") else default.max_backoff
        ),
    )


# From the contract's messages about weights to the core's, checking every rule on the way.

MAX_PLAN_BYTES: Final = 2 * 1024 * 1024
MAX_LOCATION: Final = 4096
MAX_AT_ONCE: Final = 100_000
MAX_CANARY_TOKENS: Final = 1024
MAX_REASON: Final = 1024
DEFAULT_TIMEOUT: Final = 600.0
_MODES: Final = weights_pb2.UpdateMode.values()

References = list[common_pb2.PayloadReference]


def decode_offer(
    message: client_service_pb2.PublishPolicyVersionRequest,
) -> tuple[WeightsOffer | None, References]:
    """The weights of a publish, if it has any, and the stored payloads that they are in.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the field.
    """
    if message.HasField("rollout"):
        if message.source:
            raise invalid("source", message.source, "must be empty where rollout is set")
        return decode_plan(message.rollout)
    if not message.source:
        return None, []
    plan = weights_pb2.RolloutPlan(source=weights_pb2.WeightSource(location=message.source))
    return decode_plan(plan)


def decode_plan(plan: weights_pb2.RolloutPlan) -> tuple[WeightsOffer, References]:
    """A validated plan with its defaults filled in, and the stored payloads that it refers to.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the field.
    """
    known("rollout.mode", plan.mode, _MODES)
    within("rollout.at_once", plan.at_once, 0, MAX_AT_ONCE)
    short_text("rollout.service", plan.service)
    timeout = longer_than_zero("rollout.timeout", plan.timeout) if plan.HasField("timeout") else DEFAULT_TIMEOUT
    references = _check_source(plan.source)
    _check_canary(plan.canary)
    ranks = plan.source.group.world_size - 1 if plan.source.HasField("group") else 0
    expects_answer = bool(plan.canary.expected.token_ids)
    if ranks and not expects_answer:
        rule = "must be given with a group: all engines change at once, and none is there to compare them with"
        raise invalid("rollout.canary.expected", "", rule)
    full = weights_pb2.RolloutPlan()
    full.CopyFrom(plan)
    full.mode = plan.mode or weights_pb2.UPDATE_MODE_DRAIN
    full.at_once = plan.at_once or 1
    fill_duration(full.timeout, timeout)
    encoded = full.SerializeToString(deterministic=True)
    if len(encoded) > MAX_PLAN_BYTES:
        raise invalid("rollout", f"{len(encoded)} bytes", f"must have at most {MAX_PLAN_BYTES} bytes")
    offer = WeightsOffer(
        service=plan.service,
        at_once=full.at_once,
        timeout=timeout,
        plan=encoded,
        expects_answer=expects_answer,
        group_ranks=ranks,
        payloads=frozenset(reference.sha256 for reference in references),
    )
    return offer, references


def _check_source(source: weights_pb2.WeightSource) -> References:
    match source.WhichOneof("source"):
        case "location":
            if not 0 < len(source.location) <= MAX_LOCATION or not source.location.isprintable():
                rule = f"must have 1 to {MAX_LOCATION} printable characters"
                raise invalid("rollout.source.location", source.location, rule)
            return []
        case "tensors":
            return blob("rollout.source.tensors", source.tensors)
        case "group":
            _check_group(source.group)
            return []
        case _:
            raise invalid("rollout.source", "", "must be one of location, tensors, group")


def _check_group(group: weights_pb2.TransferGroup) -> None:
    path = "rollout.source.group"
    identifier(f"{path}.address", group.address)
    within(f"{path}.port", group.port, 1, 65_535)
    identifier(f"{path}.group_name", group.group_name)
    within(f"{path}.world_size", group.world_size, 2, MAX_AT_ONCE)
    identifier(f"{path}.backend", group.backend)
    if not group.tensors:
        raise invalid(f"{path}.tensors", "[]", "must name at least one tensor")
    for index, tensor in enumerate(group.tensors):
        identifier(f"{path}.tensors[{index}].name", tensor.name)
        identifier(f"{path}.tensors[{index}].dtype", tensor.dtype)
        if min(tensor.shape, default=0) < 0:
            raise invalid(f"{path}.tensors[{index}].shape", list(tensor.shape), "must not be negative")


def _check_canary(canary: weights_pb2.Canary) -> None:
    path = "rollout.canary"
    token_ids(f"{path}.prompt_token_ids", canary.prompt_token_ids, required=False)
    few(f"{path}.prompt_token_ids", len(canary.prompt_token_ids), MAX_CANARY_TOKENS, "tokens")
    expected = canary.expected
    token_ids(f"{path}.expected.token_ids", expected.token_ids, required=False)
    few(f"{path}.expected.token_ids", len(expected.token_ids), MAX_CANARY_TOKENS, "tokens")
    if len(expected.log_probs) != len(expected.token_ids):
        rule = f"must be as many as its token_ids, {len(expected.token_ids)}"
        raise invalid(f"{path}.expected.log_probs", len(expected.log_probs), rule)
    for index, log_prob in enumerate(expected.log_probs):
        within(f"{path}.expected.log_probs[{index}]", log_prob, -1e9, 0.0)
    if expected.token_ids and not canary.prompt_token_ids:
        raise invalid(f"{path}.prompt_token_ids", "[]", "must be given where an answer is expected")


def decode_told(path: str, message: manager_service_pb2.EngineWeights) -> WeightsTold | None:
    """What a manager says of its engine's weights; None if it says nothing.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the field.
    """
    known(f"{path}.weights.standing", message.standing, weights_pb2.WeightsStanding.values())
    if not message.standing:
        return None
    return WeightsTold(
        standing=WeightsStanding(message.standing),
        version=int(within(f"{path}.weights.version", message.version, 0, 2**63 - 1)),
        proved_by=_token(message.proved_by) if message.HasField("proved_by") else None,
        updating=_token(message.updating) if message.HasField("updating") else None,
        reason=message.reason[:MAX_REASON],
        last_update=_decode_end(path, message.last_update) if message.HasField("last_update") else None,
    )


def _decode_end(path: str, report: manager_service_pb2.UpdateReport) -> UpdateEnd:
    few(f"{path}.weights.last_update.canary", len(report.canary.token_ids), MAX_CANARY_TOKENS, "tokens")
    return UpdateEnd(
        update=_token(report.update),
        failure=report.failure[:MAX_REASON],
        warning=report.warning[:MAX_REASON],
        exposed_s=within(f"{path}.weights.last_update.exposed_s", report.exposed_s, 0.0, MAX_SECONDS),
        canary=report.canary.SerializeToString(deterministic=True) if report.canary.token_ids else b"",
    )


def _token(message: manager_service_pb2.FencingToken) -> Token:
    return Token(message.epoch, message.sequence)
