"""The tokens of a job's cost, against the counters of the server that made them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from callsheet.client import Client, FinishReason, GenerateResult, Job, Outcome, Sampling, Timeouts
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.inference.http_engine.client import EngineHttp
from callsheet.managers.inference.proof import CANARY_TOKENS, USUAL_PROMPT
from callsheet.managers.inference.sglang_engine.server import server_of
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings
from prometheus_client.parser import text_string_to_metric_families

from tests.support.contract_http import running
from tests.support.contract_sglang import ContractSGLang
from tests.support.measurements import Measured
from tests.support.real_engines import SGLANG_URL, conformance_model
from tests.support.served_subjects import contract_engine, contract_weights
from tests.support.torch_models import prompt
from tests.support.waiting import until_so

pytestmark = pytest.mark.anyio
MOST_OFF = 0.01
CANARIES = 2
"""One before new weights and one after; the prompt is new to the server each time."""
POLL_S = 0.1
WAIT_S = 600.0
PATIENT = Timeouts(start_to_close_s=WAIT_S, schedule_to_close_s=WAIT_S)
COUNTERS = ("prompt_tokens", "cached_tokens", "generation_tokens", "num_requests")


@dataclass(frozen=True, slots=True)
class Server:
    """A server of SGLang's contract, and weights that it can take."""

    http: EngineHttp
    weights: Path
    endless: int

    async def counted(self) -> dict[str, float]:
        """What the server counted of all requests that have ended. The prompts' tokens include the cached ones."""
        told = dict.fromkeys(COUNTERS, 0.0)
        for family in text_string_to_metric_families(str((await self.http.get("/metrics")).content)):
            for sample in family.samples:
                name = sample.name.removeprefix("sglang:").removesuffix("_total")
                if name in told and sample.name.endswith("_total"):
                    told[name] += sample.value
        return told

    async def until_ended(self, requests: float) -> None:
        """Waits until it has counted so many requests: it counts one after its answer, and after its abort."""
        await until_so(self.counted, lambda it: it["num_requests"] >= requests, every_s=POLL_S)

    async def until_busy(self) -> None:
        """Waits until it computes something."""
        await until_so(
            lambda: self.http.get("/v1/loads"), lambda it: it.content["loads"][0]["num_running_reqs"], every_s=POLL_S
        )


@asynccontextmanager
async def contract_server(place: Path) -> AsyncIterator[Server]:
    async with running(ContractSGLang(contract_engine(place))) as server:
        yield Server(EngineHttp(server.url), contract_weights(place, 1), 16_000)


@asynccontextmanager
async def real_server(place: Path) -> AsyncIterator[Server]:
    yield Server(EngineHttp(os.environ[SGLANG_URL]), conformance_model(place / "1", 1), 1900)


SERVERS = {"contract-sglang": contract_server} | ({"sglang": real_server} if os.environ.get(SGLANG_URL) else {})


@pytest.fixture(params=sorted(SERVERS))
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    async with SERVERS[request.param](tmp_path) as started:
        try:
            yield started
        finally:
            await started.http.close()


async def test_the_tokens_of_a_job_are_those_that_its_server_counted(
    server: Server, tmp_path: Path, measured: Measured
) -> None:
    settings = StackSettings(
        tmp_path / "data", managers=("inference",), given={"engine": "sglang", "url": (server.http.url,)}, cpus=1
    )
    async with (
        local_stack(settings) as stack,
        Client(stack.address) as client,
        await client.open_job("counted") as job,
    ):
        before = await server.counted()
        outcomes = await generations(job, server)
        (cost,) = [each.cost for each in await client.jobs()]
        await server.until_ended(before["num_requests"] + len(outcomes) + CANARIES)
        counted = {name: value - before[name] for name, value in (await server.counted()).items()}
    told = {name: cost.used[f"tokens_{name}"] for name in ("in", "cached", "out")}
    for name, tokens in told.items():
        assert tokens == sum(each.usage.cost.used.get(f"tokens_{name}", 0.0) for each in outcomes)
    expected = {
        "prompt_tokens": told["in"] + told["cached"] + CANARIES * len(USUAL_PROMPT),
        "cached_tokens": told["cached"],
        "generation_tokens": told["out"] + CANARIES * CANARY_TOKENS,
        "num_requests": len(outcomes) + CANARIES,
    }
    measured(f"told {told} in {len(outcomes)} generations; the server counted {counted}, with {CANARIES} canaries")
    assert told["cached"] > 0
    assert counted == pytest.approx(expected, rel=MOST_OFF)


async def generations(job: Job, server: Server) -> list[Outcome[GenerateResult]]:
    """Trajectories of several lengths with one prefix, at once and by turns, and one that new weights cut short."""
    outcomes: list[Outcome[GenerateResult]] = []

    async def rollout(number: int) -> None:
        known = [*prompt(150), *prompt(11 * number + 1, seed=number)]
        async with job.trajectory(f"t{number}") as trajectory:
            for new in (1, 5 + number, 40):
                sampling = Sampling(max_new_tokens=new, ignore_eos=True)
                outcomes.append(await trajectory.generate(known, sampling, timeouts=PATIENT))
                known += outcomes[-1].unwrap().token_ids

    async def cut_short() -> None:
        sampling = Sampling(max_new_tokens=server.endless, ignore_eos=True)
        outcomes.append(await job.generate(prompt(100), sampling, timeouts=PATIENT))

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(rollout, number)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cut_short)
        await server.until_busy()
        await job.publish(1, server.weights, mode="abort")
    assert outcomes[-1].unwrap().finish_reason is FinishReason.ABORT
    await rollout(4)
    return outcomes


async def test_gpus_are_read_from_what_the_server_tells(server: Server, measured: Measured) -> None:
    info = (await server.http.get("/server_info")).content
    told = {name: info[name] for name in ("device", "tp_size", "pp_size", "dp_size", "enable_dp_attention")}
    measured(f"{told}")
    assert server_of(info, {}, SGLangSettings()).abilities.gpus == 0
    # The same server on a GPU.
    assert server_of(info | {"device": "cuda"}, {}, SGLangSettings()).abilities.gpus == 1
