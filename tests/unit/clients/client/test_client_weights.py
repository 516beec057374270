"""What a trainer publishes, as the contract has it, and what it learns of the rollout."""

from __future__ import annotations

from pathlib import Path

import pytest
from callsheet.client import BroadcastTensor, Canary, InvalidArgumentError, NotFoundError, Tensors, TransferGroup
from callsheet.client.codec.jobs import encode_publish
from callsheet.client.testing import FakeClient
from callsheet.client.words.weights import PublishedWeights
from callsheet.v1 import weights_pb2
from callsheet.v1.weights_values import RolloutStatus

GROUP = TransferGroup("trainer", 29_500, "g", 3, (BroadcastTensor("w", "bfloat16", (2, 3)),), "gloo")


def test_a_publish_without_a_source_says_nothing_of_weights() -> None:
    request, uploads = encode_publish("job", 3, None)
    assert (request.version, request.HasField("rollout"), uploads) == (3, False, {})


def test_a_path_with_all_that_goes_with_it() -> None:
    canary = Canary((1, 2), (3,), (-0.5,))
    weights = PublishedWeights(Path("/weights/7"), "keep", "policy", 2, canary, 30.0)
    plan = encode_publish("job", 7, weights)[0].rollout
    assert (plan.source.location, plan.mode, plan.service, plan.at_once) == (
        "/weights/7",
        weights_pb2.UPDATE_MODE_KEEP,
        "policy",
        2,
    )
    assert (list(plan.canary.prompt_token_ids), list(plan.canary.expected.log_probs)) == ([1, 2], [-0.5])
    assert plan.timeout.seconds == 30


def test_large_tensors_are_stored_first() -> None:
    request, uploads = encode_publish("job", 1, PublishedWeights(Tensors(b"x" * 100_000)))
    (sha256,) = uploads
    assert request.rollout.source.tensors.reference.sha256 == sha256


def test_a_group() -> None:
    group = encode_publish("job", 1, PublishedWeights(GROUP))[0].rollout.source.group
    assert (group.address, group.world_size, group.backend) == ("trainer", 3, "gloo")
    assert (group.tensors[0].name, list(group.tensors[0].shape)) == ("w", [2, 3])


@pytest.mark.parametrize(
    ("field", "weights"),
    [
        ("mode", PublishedWeights("/w", "swap")),  # type: ignore[arg-type]
        ("at_once", PublishedWeights("/w", at_once=0)),
        ("source", PublishedWeights("")),
        ("source", PublishedWeights(5)),  # type: ignore[arg-type]
        ("source.content", PublishedWeights(Tensors("text"))),  # type: ignore[arg-type]
        ("canary", PublishedWeights("/w", canary=(1, 2))),  # type: ignore[arg-type]
        ("canary.token_ids[0]", PublishedWeights("/w", canary=Canary((), ("a",)))),  # type: ignore[arg-type]
        ("timeout", PublishedWeights("/w", timeout_s=-1.0)),
    ],
)
def test_what_does_not_fit_is_named(field: str, weights: PublishedWeights) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        encode_publish("job", 1, weights)
    assert refusal.value.field == field


def test_the_status_of_a_rollout() -> None:
    message = weights_pb2.RolloutStatus(service="policy", version=2, mode=weights_pb2.UPDATE_MODE_ABORT, at_once=1)
    message.engines.add(manager_id="a", state=weights_pb2.ENGINE_STATE_QUARANTINED, reason="it differs")
    message.engines.add(manager_id="b", state=weights_pb2.ENGINE_STATE_PROVED, version=2, serving=True)
    status = RolloutStatus.from_message(message)
    assert (status.mode, status.done, status.settled) == ("abort", False, True)
    assert str(status) == "version 2 for policy: a: quarantined it differs; b: proved"


@pytest.mark.anyio
async def test_a_fake_has_every_engine_at_once() -> None:
    fake = FakeClient()
    job = await fake.open_job("job")
    with pytest.raises(NotFoundError):
        await job.rollout()
    await job.publish(1, "/weights/1", mode="keep")
    status = await job.rollout(1, wait_s=60.0)
    assert (status.version, status.mode, status.done) == (1, "keep", True)
    assert [each[:2] for each in fake.weights] == [("job", 1)]
