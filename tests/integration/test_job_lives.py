"""A job that is opened anew under the id of a closed one is another job, and has nothing of the former one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from callsheet.client import Client, ClientOptions, NotFoundError, Trajectory
from callsheet.client.gateway import GatewayAccess

from tests.support.gateways import CHAT, Answer, RunningGateway, chat, running_gateway, scripted_stack

pytestmark = pytest.mark.anyio
Ask = Callable[[RunningGateway, Trajectory], Awaitable[Answer]]
RUNS = 5


@pytest.fixture(scope="module")
async def scheduler(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with scripted_stack(tmp_path_factory.mktemp("stack")) as address:
        yield address


@pytest.fixture(scope="module")
async def gateway(scheduler: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    async with running_gateway(scheduler, "lasting", tmp_path_factory.mktemp("gateway")) as running:
        yield running


async def by_key(gateway: RunningGateway, trajectory: Trajectory) -> Answer:
    return await gateway.post(CHAT, chat("Roll the dice"), (await trajectory.gateway()).api_key)


async def by_name(gateway: RunningGateway, trajectory: Trajectory) -> Answer:
    return await gateway.post(CHAT, chat("Roll the dice"), f"{trajectory.job_id}/{trajectory.trajectory_id}")


async def by_idempotency_key(gateway: RunningGateway, trajectory: Trajectory) -> Answer:
    named = {"idempotency-key": "the same in each run"}
    return await gateway.post(CHAT, chat("Roll the dice"), (await trajectory.gateway()).api_key, named)


@pytest.mark.parametrize("ask", [by_key, by_name, by_idempotency_key])
async def test_each_run_has_its_own_samples_alone(scheduler: str, gateway: RunningGateway, ask: Ask) -> None:
    job_id = f"run {ask.__name__}".replace(" ", "-")
    former: list[Trajectory] = []
    async with Client(scheduler, ClientOptions(gateway=gateway.url)) as client:
        for _ in range(RUNS):
            async with await client.open_job(job_id) as job:
                async with job.trajectory("t") as trajectory:
                    answer = await ask(gateway, trajectory)
                    assert answer.status == 200, answer.body
                samples = await trajectory.samples()
                assert (len(samples.samples), len(samples.turns)) == (1, 1)
                # One that only names it means the job that is open.
                assert await client.job(job_id).trajectory("t").samples() == samples
                assert (await job.status()).actions == {"succeeded": 1}
                for earlier in former:
                    assert len((await earlier.samples()).turns) == 1, "each has its own still"
            former.append(trajectory)
        # Also once the job is closed.
        assert len((await former[-1].samples()).turns) == 1
        assert len((await client.job(job_id).trajectory("t").samples()).turns) == 1
        async with await client.open_job(job_id) as job, job.trajectory("t") as trajectory:
            assert (await trajectory.samples()).turns == ()
            with pytest.raises(NotFoundError):
                await job.trajectory("never opened").samples()


async def test_calls_outside_of_trajectories_are_the_runs_own(scheduler: str, gateway: RunningGateway) -> None:
    async with Client(scheduler, ClientOptions(gateway=gateway.url)) as client:
        for _ in range(3):
            async with await client.open_job("outside") as job:
                named = {"idempotency-key": "the same in each run"}
                assert (await gateway.post(CHAT, chat("Roll the dice"), "outside", named)).status == 200
                assert (await job.status()).actions == {"succeeded": 1}


async def test_a_key_of_a_former_run_is_refused_in_the_next(scheduler: str, gateway: RunningGateway) -> None:
    keys: list[GatewayAccess] = []
    async with Client(scheduler, ClientOptions(gateway=gateway.url)) as client:
        for _ in range(2):
            async with await client.open_job("keys") as job, job.trajectory("t") as trajectory:
                keys.append(await trajectory.gateway())
                for access in keys[:-1]:
                    late = await gateway.post(CHAT, chat("An agent that is left over"), access.api_key)
                    assert late.status == 401, late.body
                    assert "of an earlier job of the same id" in str(late.body)
                assert (await gateway.post(CHAT, chat("Roll the dice"), keys[-1].api_key)).status == 200
                assert len((await trajectory.samples()).turns) == 1


async def test_a_gateway_that_was_started_again_tells_runs_apart(scheduler: str, tmp_path: Path) -> None:
    texts = ("Roll the dice", "again", "and again")
    for run in range(2):
        async with running_gateway(scheduler, "restarted", tmp_path) as gateway:
            trajectory = gateway.job.trajectory("t")
            await trajectory.open()
            for text in texts[: run + 1]:
                assert (await gateway.post(CHAT, chat(text), (await trajectory.gateway()).api_key)).status == 200
            assert len((await trajectory.samples()).turns) == run + 1
    async with (
        running_gateway(scheduler, "another", tmp_path) as gateway,
        Client(scheduler, ClientOptions(gateway=gateway.url)) as client,
    ):
        # Of a closed job that it is not told more of than its name it has the newest that is kept.
        assert len((await client.job("restarted").trajectory("t").samples()).turns) == 2
