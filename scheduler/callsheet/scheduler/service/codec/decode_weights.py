"""From the contract's messages about weights to the core's, checking every rule on the way."""

from __future__ import annotations

from typing import Final

from callsheet.scheduler.core.words.engine_weights import UpdateEnd, WeightsOffer, WeightsStanding, WeightsTold
from callsheet.scheduler.core.words.model import Token
from callsheet.scheduler.core.words.refusals import invalid
from callsheet.scheduler.service.codec.durations import fill_duration
from callsheet.v1 import client_service_pb2, manager_service_pb2, weights_pb2
from callsheet.v1.rules.fields import (
    MAX_SECONDS,
    References,
    blob,
    few,
    identifier,
    known,
    longer_than_zero,
    short_text,
    token_ids,
    within,
)

MAX_PLAN_BYTES: Final = 2 * 1024 * 1024
MAX_LOCATION: Final = 4096
MAX_AT_ONCE: Final = 100_000
MAX_CANARY_TOKENS: Final = 1024
MAX_REASON: Final = 1024
DEFAULT_TIMEOUT: Final = 600.0
_MODES: Final = weights_pb2.UpdateMode.values()


def decode_offer(
    message: client_service_pb2.PublishPolicyVersionRequest,
) -> tuple[WeightsOffer | None, References]:
    """Returns the weights of a publish, if it has any, and the stored payloads that they are in.

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
    """Returns a validated plan with its defaults filled in, and the stored payloads that it refers to.

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
    """Returns a manager's report on its engine's weights; None if there is none.

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
