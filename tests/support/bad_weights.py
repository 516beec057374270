"""Publishes of weights that break a rule each, and what their refusals must say."""

from __future__ import annotations

from typing import Any

from callsheet.v1 import client_service_pb2, common_pb2, weights_pb2
from google.protobuf import duration_pb2

from tests.support.bad_request import INVALID, PRECONDITION, Bad
from tests.support.client_items import Item

_PUBLISH = client_service_pb2.PublishPolicyVersionRequest
_PLAN = weights_pb2.RolloutPlan
_SOURCE = weights_pb2.WeightSource
_GROUP = weights_pb2.TransferGroup(
    address="trainer",
    port=29_500,
    group_name="g",
    world_size=3,
    backend="gloo",
    tensors=[weights_pb2.TensorSpec(name="w", dtype="float32", shape=[2])],
)
_NO_TENSORS = weights_pb2.TransferGroup(address="a", port=1, group_name="g", world_size=3, backend="gloo")
_MISSING = common_pb2.Blob(reference=common_pb2.PayloadReference(sha256="0" * 64, size=1))


def publish(**plan: Any) -> Item:
    """A publish of the job "job" with a plan."""
    return Item(publish_policy_version=_PUBLISH(job_id="job", version=1, rollout=_PLAN(**plan)))


BAD_WEIGHTS: dict[str, Bad] = {
    "weights without a source": Bad(
        publish(), INVALID, "rollout.source", "", "must be one of location, tensors, group"
    ),
    "weights at two places": Bad(
        Item(publish_policy_version=_PUBLISH(job_id="job", version=1, source="/w", rollout=_PLAN())),
        INVALID,
        "source",
        "/w",
        "must be empty where rollout is set",
    ),
    "weights at no place": Bad(
        publish(source=_SOURCE(location="a\nb")), INVALID, "rollout.source.location", "a\nb", "printable characters"
    ),
    "unknown mode of an update": Bad(publish(mode=9), INVALID, "rollout.mode", "9", "is not a value"),
    "less than one engine at once": Bad(publish(at_once=-1), INVALID, "rollout.at_once", "-1", "between 0"),
    "no time for an update": Bad(
        publish(source=_SOURCE(location="/w"), timeout=duration_pb2.Duration()),
        INVALID,
        "rollout.timeout",
        "0 s",
        "must be above 0",
    ),
    "group without an expected answer": Bad(
        publish(source=_SOURCE(group=_GROUP)), INVALID, "rollout.canary.expected", "", "must be given with a group"
    ),
    "group without tensors": Bad(
        publish(source=_SOURCE(group=_NO_TENSORS)),
        INVALID,
        "rollout.source.group.tensors",
        "[]",
        "at least one tensor",
    ),
    "canary with too few log-probs": Bad(
        publish(
            source=_SOURCE(location="/w"),
            canary=weights_pb2.Canary(
                prompt_token_ids=[1], expected=weights_pb2.CanaryAnswer(token_ids=[1, 2], log_probs=[-1.0])
            ),
        ),
        INVALID,
        "rollout.canary.expected.log_probs",
        "1",
        "as many as its token_ids",
    ),
    "canary without a prompt": Bad(
        publish(
            source=_SOURCE(location="/w"),
            canary=weights_pb2.Canary(expected=weights_pb2.CanaryAnswer(token_ids=[1], log_probs=[-1.0])),
        ),
        INVALID,
        "rollout.canary.prompt_token_ids",
        "[]",
        "must be given where an answer is expected",
    ),
    "weights in a payload that is not there": Bad(
        publish(source=_SOURCE(tensors=_MISSING)),
        PRECONDITION,
        "reference.sha256",
        "0" * 64,
        "put it first",
    ),
    "weights for a service that nobody has": Bad(
        publish(source=_SOURCE(location="/w"), service="no-such-model"),
        PRECONDITION,
        "rollout.service",
        "no-such-model",
        "no registered manager serves generate under this name",
    ),
}
