"""Policies against a real gateway and a real scheduler: the same samples by tokens and by chat completions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from callsheet.client import FailureKind, GatewayAccess, Sampling, Trajectory
from callsheet.environments import (
    Beginning,
    EpisodeEnd,
    EpisodePolicy,
    EpisodeRecord,
    EpisodeScore,
    EpisodeTask,
    GatewayPolicy,
    GatewaySampling,
    Message,
    Observation,
    TokenPolicy,
    roll_out,
)
from callsheet.gateway.renderers.byte_renderer import ByteRenderer

from tests.support.gateways import CHAT, RunningGateway, chat, running_gateway, scripted_stack

pytestmark = pytest.mark.anyio
_TASK = EpisodeTask("talk")


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    async with (
        scripted_stack(tmp_path_factory.mktemp("stack")) as address,
        running_gateway(address, "job", tmp_path_factory.mktemp("gateway")) as running,
    ):
        yield running


class _Talk:
    """Asks twice, and is pleased if it is fine."""

    def __init__(self) -> None:
        self._said: list[str] = []

    async def reset(self, trajectory: Trajectory) -> Beginning:
        return Beginning([{"role": "user", "content": "How is it?"}])

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        self._said.append(str(reply["content"]))
        return Observation([{"role": "user", "content": "Really?"}], done=len(self._said) == 2)

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        return EpisodeScore(float(self._said == ["It is fine."] * 2))


async def _talk(gateway: RunningGateway, name: str, policy: EpisodePolicy) -> EpisodeRecord:
    return await roll_out(gateway.job, name, _Talk(), _TASK, policy)


async def test_both_policies_say_the_same_with_the_same_samples(gateway: RunningGateway) -> None:
    by_gateway = await _talk(gateway, "by-gateway", GatewayPolicy(GatewaySampling(temperature=0.0)))
    by_tokens = await _talk(gateway, "by-tokens", TokenPolicy(ByteRenderer(), Sampling(max_new_tokens=64)))
    for record in (by_gateway, by_tokens):
        assert (record.end, record.failure) == (EpisodeEnd.DONE, None)
        assert record.score == EpisodeScore(1.0)
    assert by_gateway.samples == by_tokens.samples
    assert sum(by_tokens.samples[0].loss_mask) == 2 * len("It is fine." + "\n")
    assert [message["content"] for message in by_gateway.messages] == [
        message["content"] for message in by_tokens.messages
    ]


async def test_an_evaluation_needs_no_samples(gateway: RunningGateway) -> None:
    record = await _talk(gateway, "no-samples", GatewayPolicy(keep_samples=False))
    assert (record.score, record.samples) == (EpisodeScore(1.0), ())


async def test_messages_that_the_gateway_refuses_are_the_environments_failure(gateway: RunningGateway) -> None:
    class Wrong(_Talk):
        async def reset(self, trajectory: Trajectory) -> Beginning:
            return Beginning([{"role": "nobody", "content": "How is it?"}])

    record = await roll_out(gateway.job, "wrong", Wrong(), _TASK, GatewayPolicy())
    assert record.failure is not None
    assert record.failure.kind is FailureKind.ENV
    assert "role" in record.failure.message


async def test_a_trajectory_that_is_closed_meanwhile_is_cancelled(gateway: RunningGateway) -> None:
    class Closing(_Talk):
        async def reset(self, trajectory: Trajectory) -> Beginning:
            await trajectory.cancel("enough")
            return await super().reset(trajectory)

    with anyio.fail_after(30.0):
        record = await roll_out(gateway.job, "closed", Closing(), _TASK, GatewayPolicy())
    assert record.failure is not None
    assert record.failure.kind is FailureKind.CANCELLED


async def test_an_agent_of_its_own_speaks_through_the_gateway(gateway: RunningGateway) -> None:
    class BlackBox:
        said = ""

        async def reset(self, trajectory: Trajectory) -> None:
            del trajectory

        async def run(self, trajectory: Trajectory, access: GatewayAccess) -> None:
            del trajectory
            self.said = (await gateway.post(CHAT, chat("How is it?"), access.api_key)).text

        async def reward(self, trajectory: Trajectory) -> EpisodeScore:
            return EpisodeScore(float(self.said == "It is fine."))

    record = await roll_out(gateway.job, "black-box", BlackBox(), _TASK, agent_sampling=GatewaySampling(max_tokens=64))
    assert (record.failure, record.score, record.turns) == (None, EpisodeScore(1.0), 0)
    assert sum(record.samples[0].loss_mask) == len("It is fine.") + 1
