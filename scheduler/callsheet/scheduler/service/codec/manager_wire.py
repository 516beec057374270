"""From a manager's messages to the core's events, checking every rule on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.cached_tokens import GeneratedTokens
from callsheet.scheduler.core.words.model import CPU, ActionKey, ActionKind, FailureKind, TimeoutKind, Token
from callsheet.scheduler.core.words.peers import ManagerSession
from callsheet.scheduler.core.words.refusals import invalid
from callsheet.scheduler.core.words.registration import (
    NodeDescription,
    QuotaDescription,
    RunningAttempt,
    SandboxRef,
    ServiceDescription,
    ServiceState,
)
from callsheet.scheduler.service.codec.action_kinds import KIND_RULES
from callsheet.scheduler.service.codec.costs import cost_of
from callsheet.scheduler.service.codec.decode_weights import MAX_REASON, decode_told
from callsheet.timing import waits
from callsheet.v1 import action_pb2, manager_service_pb2, outcome_pb2
from callsheet.v1.names import MAX_ID
from callsheet.v1.rules.fields import MAX_SECONDS, at_least, few, identifier, known, within

# Levels of buckets are floats and must count single units.
MAX_PER_SECOND = 1e9
MAX_BURST = 1e12
# Planning counts the units of all nodes of a pool together, in 64 bits.
MAX_UNITS = 10**12

# What is said of a manager is looked at in every round and shown by each status: one must not take the time of all.
MAX_SERVICES = 1024
MAX_KINDS = 64
MAX_RESOURCES = 256
MAX_CORES = 16_384
MAX_KEPT_SET_UPS = 1024
MAX_CAPABILITIES = 64
MAX_CAPABILITY = 1024
MAX_DESCRIPTION_BYTES = 1024 * 1024

# Stories and summaries keep reasons; what is to be read at length is the message.
MAX_MESSAGE = 65_536
# A message takes 16 MiB, and an outcome says some more.
MAX_RESULT_BYTES = 16 * 1024 * 1024 - 128 * 1024

_FAILURES: Final = frozenset(kind.value for kind in FailureKind)
_TIMEOUTS: Final = frozenset(kind.value for kind in TimeoutKind)


def decode_registration(session: ManagerSession, message: manager_service_pb2.Registration) -> events.ManagerJoined:
    """Returns a validated registration.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the field.
    """
    if not message.services:
        raise invalid("registration.services", "[]", "must name at least one service")
    few("registration.services", len(message.services), MAX_SERVICES, "services")
    size = message.node.ByteSize() + sum(service.ByteSize() for service in message.services)
    if size > MAX_DESCRIPTION_BYTES:
        rule = f"must have at most {MAX_DESCRIPTION_BYTES} bytes in node and services"
        raise invalid("registration", f"{size} bytes", rule)
    node = _decode_node(message.node)
    services = tuple(
        _decode_service(f"registration.services[{index}]", service) for index, service in enumerate(message.services)
    )
    for index, service in enumerate(services):
        for resource in sorted((service.reserved.keys() | service.shared.keys()) & node.quotas.keys()):
            path = f"registration.services[{index}].{'shared' if resource in service.shared else 'reserved'}"
            raise invalid(path, resource, "must not be a quota of the node")
    names = [service.name for service in services]
    if len(set(names)) < len(names):
        raise invalid("registration.services", names, "must have different names")
    return events.ManagerJoined(
        session=session,
        manager_id=identifier("registration.manager_id", message.manager_id),
        incarnation=identifier("registration.incarnation", message.incarnation),
        node=node,
        services=services,
        running=tuple(_decode_running(running) for running in message.running),
        sandboxes=tuple(decode_sandbox(sandbox) for sandbox in message.sandboxes),
        capabilities=_decode_capabilities(message.capabilities),
    )


def _decode_capabilities(capabilities: Mapping[str, str]) -> dict[str, str]:
    few("registration.capabilities", len(capabilities), MAX_CAPABILITIES, "entries")
    for name, value in capabilities.items():
        identifier("registration.capabilities", name)
        if len(value) > MAX_CAPABILITY:
            rule = f"must have at most {MAX_CAPABILITY} characters"
            raise invalid(f"registration.capabilities[{name}]", f"{len(value)} characters", rule)
    return dict(capabilities)


def _check_resources(field: str, units: Mapping[str, int], least: int = 0) -> None:
    few(field, len(units), MAX_RESOURCES, "resources")
    for resource, count in units.items():
        identifier(field, resource)
        within(f"{field}[{resource}]", count, least, MAX_UNITS)


def _decode_node(message: manager_service_pb2.NodeSpec) -> NodeDescription:
    _check_resources("registration.node.capacity", message.capacity)
    if CPU in message.capacity:
        rule = "follows from numa_nodes and must not be given"
        raise invalid("registration.node.capacity[cpu]", message.capacity[CPU], rule)
    few("registration.node.quotas", len(message.quotas), MAX_RESOURCES, "quotas")
    few("registration.node.numa_nodes", len(message.numa_nodes), MAX_CORES, "NUMA nodes")
    few("registration.node.numa_nodes", sum(len(numa.cores) for numa in message.numa_nodes), MAX_CORES, "cores")
    numa_cores = tuple(tuple(numa.cores) for numa in message.numa_nodes)
    cores = [core for numa in numa_cores for core in numa]
    if len(set(cores)) < len(cores) or any(core < 0 for core in cores):
        raise invalid("registration.node.numa_nodes", cores, "must name each core once, none below 0")
    return NodeDescription(
        identifier("registration.node.node_id", message.node_id),
        dict(message.capacity),
        numa_cores,
        {name: _decode_quota(name, quota, message) for name, quota in message.quotas.items()},
    )


def _decode_quota(
    name: str, quota: manager_service_pb2.QuotaSpec, node: manager_service_pb2.NodeSpec
) -> QuotaDescription:
    path = f"registration.node.quotas[{name}]"
    identifier("registration.node.quotas", name)
    if name == CPU or name in node.capacity:
        raise invalid(path, name, "must not be a resource of the node's capacity")
    if within(f"{path}.per_second", quota.per_second, 0.0, MAX_PER_SECOND) == 0.0:
        raise invalid(f"{path}.per_second", 0, "must be above 0")
    return QuotaDescription(quota.per_second, int(within(f"{path}.burst", quota.burst, 1, MAX_BURST)))


def _decode_service(path: str, message: manager_service_pb2.HostedService) -> ServiceDescription:
    if not message.kinds:
        raise invalid(f"{path}.kinds", "[]", "must name at least one kind")
    few(f"{path}.kinds", len(message.kinds), MAX_KINDS, "kinds")
    for kind in message.kinds:
        known(f"{path}.kinds", kind, action_pb2.ActionKind.values(), required=True)
    _check_resources(f"{path}.reserved", message.reserved)
    _check_resources(f"{path}.shared", message.shared, least=1)
    _check_resources(f"{path}.demand", message.demand, least=1)
    return ServiceDescription(
        name=identifier(f"{path}.name", message.name),
        kinds=frozenset(ActionKind(kind) for kind in message.kinds),
        slots=int(at_least(f"{path}.slots", message.slots, 0)),
        reserved=dict(message.reserved),
        policy_version=int(at_least(f"{path}.policy_version", message.policy_version, 0)),
        shared=dict(message.shared),
        setup_s=within(f"{path}.setup_s", message.setup_s, 0.0, MAX_SECONDS),
        instances=int(at_least(f"{path}.instances", message.instances, 0)),
        kept_set_ups=_decode_kept(path, message.kept_set_ups),
        copies_sandboxes=message.copies_sandboxes,
        weights=decode_told(path, message.weights) if message.HasField("weights") else None,
        kv_tokens=int(within(f"{path}.kv_tokens", message.kv_tokens, 0, MAX_UNITS)),
        instance_slots=int(within(f"{path}.instance_slots", message.instance_slots, 0, MAX_UNITS)),
        demand=dict(message.demand),
    )


def _decode_service_state(path: str, message: manager_service_pb2.ServiceState) -> ServiceState:
    _check_resources(f"{path}.demand", message.demand, least=1)
    return ServiceState(
        name=identifier(f"{path}.name", message.name),
        setup_s=within(f"{path}.setup_s", message.setup_s, 0.0, MAX_SECONDS),
        instances=int(at_least(f"{path}.instances", message.instances, 0)),
        kept_set_ups=_decode_kept(path, message.kept_set_ups),
        no_room=message.no_room,
        weights=decode_told(path, message.weights) if message.HasField("weights") else None,
        others_sequences=int(within(f"{path}.others_sequences", message.others_sequences, 0, MAX_UNITS)),
        others_kv_tokens=int(within(f"{path}.others_kv_tokens", message.others_kv_tokens, 0, MAX_UNITS)),
        problem=message.problem[:MAX_REASON],
        instance_slots=int(within(f"{path}.instance_slots", message.instance_slots, 0, MAX_UNITS)),
        waiting_for_memory=int(within(f"{path}.waiting_for_memory", message.waiting_for_memory, 0, MAX_UNITS)),
        demand=dict(message.demand),
    )


def _decode_kept(path: str, kept: Mapping[str, float]) -> dict[str, float]:
    few(f"{path}.kept_set_ups", len(kept), MAX_KEPT_SET_UPS, "set-ups")
    for name, took_s in kept.items():
        identifier(f"{path}.kept_set_ups", name)
        within(f"{path}.kept_set_ups[{name}]", took_s, 0.0, MAX_SECONDS)
    return dict(kept)


def _decode_token(message: manager_service_pb2.FencingToken) -> Token:
    return Token(message.epoch, message.sequence)


def _decode_running(message: manager_service_pb2.RunningAttempt) -> RunningAttempt:
    path = "registration.running"
    _check_resources(f"{path}.resources", message.resources)
    few(f"{path}.cores", len(message.cores), MAX_CORES, "cores")
    for core in message.cores:
        at_least(f"{path}.cores", core, 0)
    return RunningAttempt(
        token=_decode_token(message.token),
        key=ActionKey(
            identifier(f"{path}.key.job_id", message.key.job_id),
            identifier(f"{path}.key.action_id", message.key.action_id),
        ),
        attempt=int(at_least(f"{path}.attempt", message.attempt, 1)),
        started=message.started,
        resources=dict(message.resources),
        cores=tuple(message.cores),
        body_hash=message.body_hash,
        execution_s=_seconds(message.execution_s) if message.HasField("execution_s") else None,
    )


def decode_sandbox(message: manager_service_pb2.SandboxState) -> SandboxRef:
    """Returns a reference to a sandbox.

    Raises:
        RefusedError: INVALID_ARGUMENT naming the id that is none.
    """
    return SandboxRef(
        identifier("sandbox.job_id", message.job_id),
        identifier("sandbox.trajectory_id", message.trajectory_id),
        identifier("sandbox.sandbox_id", message.sandbox_id),
        int(within("sandbox.held_mib", message.held_mib, 0, MAX_UNITS)),
    )


def decode_item(manager_id: str, session: ManagerSession, item: manager_service_pb2.ManagerItem) -> events.Event:
    """Returns an item of a manager's session as an event.

    Raises:
        RefusedError: INVALID_ARGUMENT if the item is empty or does not belong here.
    """
    match item.WhichOneof("item"):
        case "heartbeat":
            told = item.heartbeat.services
            few("heartbeat.services", len(told), MAX_SERVICES, "services")
            services = tuple(_decode_service_state(f"heartbeat.services[{i}]", each) for i, each in enumerate(told))
            return events.ManagerHeartbeat(manager_id, session, services)
        case "started":
            return events.AttemptStarted(manager_id, _decode_token(item.started.token))
        case "progress":
            progress = item.progress
            execution_s = _seconds(progress.execution_s) if progress.HasField("execution_s") else None
            return events.AttemptProgressed(manager_id, _decode_token(progress.token), execution_s)
        case "ended":
            return _decode_ended(manager_id, item.ended)
        case "draining":
            return events.ManagerDraining(manager_id, session)
        case "sandbox_lost":
            lost = item.sandbox_lost
            return events.SandboxLost(manager_id, decode_sandbox(lost.sandbox), lost.reason[:MAX_ID])
        case other:
            raise invalid("items", other, "must be set, and registration only once")


def _decode_ended(manager_id: str, message: manager_service_pb2.AttemptEnded) -> events.AttemptEnded:
    return events.AttemptEnded(
        manager_id=manager_id,
        token=_decode_token(message.token),
        key=ActionKey(message.key.job_id, message.key.action_id),
        attempt=message.attempt,
        result=_decode_result(message),
        started=message.started,
        execution_s=_seconds(message.execution_s),
        body_hash=message.body_hash,
        usage=message.usage,
        waited_s=_waits(message.waited_s) if message.waited_s else {},
        sandbox_held_mib=min(max(message.sandbox_held_mib, 0), MAX_UNITS),
        cost=cost_of(message.usage.cost),
    )


def _waits(told: Mapping[str, float]) -> Mapping[str, float]:
    waited: dict[str, float] = {}
    for told_cause, seconds in told.items():
        cause = waits.known(told_cause)
        waited[cause] = waited.get(cause, 0.0) + _seconds(seconds)
    return waited


def _decode_result(message: manager_service_pb2.AttemptEnded) -> events.AttemptResult:
    _translate_exit_codes(message)
    result = _decode_any_result(message)
    # What no message can carry would end each session that it is delivered to.
    size = events.result_bytes(result) + message.usage.ByteSize()
    if size > MAX_RESULT_BYTES:
        told = f"the result has {size} bytes, and at most {MAX_RESULT_BYTES} can be delivered"
        return events.AttemptFailed(FailureKind.INFRA, "result_too_large", told)
    return result


def _decode_any_result(message: manager_service_pb2.AttemptEnded) -> events.AttemptResult:
    match message.WhichOneof("result"):
        case "succeeded":
            succeeded = message.succeeded
            if succeeded.WhichOneof("result") == "env_reset":
                made = succeeded.env_reset
                if not made.sandbox_id.isprintable() or len(made.sandbox_id) > MAX_ID:
                    return events.AttemptFailed(FailureKind.INFRA, "no_result", "the id of the sandbox is none")
                return events.AttemptSucceeded(succeeded.SerializeToString(), made.sandbox_id, made.trajectory_id)
            generated = _generated(succeeded.generate) if succeeded.WhichOneof("result") == "generate" else None
            return events.AttemptSucceeded(succeeded.SerializeToString(), generated=generated)
        case "cancelled":
            return events.AttemptCancelled(_partial(message.cancelled))
        case "failed":
            failed = message.failed
            if failed.kind == outcome_pb2.FAILURE_KIND_CANCELLED:
                return events.AttemptCancelled(_partial(failed))
            return events.AttemptFailed(
                kind=FailureKind(failed.kind) if failed.kind in _FAILURES else FailureKind.INFRA,
                reason=failed.reason[:MAX_ID],
                message=failed.message[:MAX_MESSAGE],
                partial=_partial(failed),
                timeout=TimeoutKind(failed.timeout) if failed.timeout in _TIMEOUTS else TimeoutKind.NONE,
                retry_after=_seconds(failed.retry_after_s),
            )
        case _:
            return events.AttemptFailed(FailureKind.INFRA, "no_result", "the manager reported an end without a result")


def _generated(result: outcome_pb2.GenerateResult) -> GeneratedTokens:
    return GeneratedTokens(len(result.token_ids), max(result.cached_tokens, 0))


def _seconds(value: float) -> float:
    """Returns a time that a manager measured or got from others; 0 if the value is no time."""
    return value if math.isfinite(value) and value > 0.0 else 0.0


def _translate_exit_codes(message: manager_service_pb2.AttemptEnded) -> None:
    """Gives a command that a signal ended its exit code: an older manager leaves 0 there."""
    done = _done(message)
    for command in (done.env_step, done.env_reset.set_up, done.reward.command):
        if command.signal:
            command.exit_code = -command.signal


def _done(message: manager_service_pb2.AttemptEnded) -> outcome_pb2.Succeeded:
    """Returns what an attempt did; an empty message for nothing."""
    match message.WhichOneof("result"):
        case "failed":
            return message.failed.partial
        case "cancelled":
            return message.cancelled.partial
        case _:
            return message.succeeded


def references_of(message: manager_service_pb2.AttemptEnded) -> list[str]:
    """Returns the SHA-256 of the stored payloads that a result refers to, including a result that is partial."""
    succeeded = _done(message)
    rules = KIND_RULES.get(succeeded.WhichOneof("result") or "")
    blobs = rules.result_blobs(succeeded) if rules is not None else ()
    return [blob.reference.sha256 for blob in blobs if blob.WhichOneof("content") == "reference"]


def _partial(message: outcome_pb2.Failed | outcome_pb2.Cancelled) -> bytes | None:
    return message.partial.SerializeToString() if message.HasField("partial") else None
