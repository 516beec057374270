"""SDKs that lose answers, and a gateway that is killed in mid-call: each call is sampled once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web
from callsheet.client import Client, Job, PromptDrift, Trajectory, TrajectorySamples
from callsheet.client.settings import ClientOptions
from callsheet.managers.supervision.processes import ChildProcess, ProcessSpec, run_process

from tests.support.expected import expect
from tests.support.gateways import RunningGateway, running_gateway, scripted_stack
from tests.support.ports import free_port
from tests.support.waiting import until_so


class Fate(Enum):
    """What becomes of an answer."""

    ERROR = "error"
    """Its place takes a 500 of the proxy's own."""
    CUT = "cut"
    """The connection is reset before its first byte."""
    HALF = "half"
    """The connection is reset in its middle."""


class FaultyHttpProxy:
    """Passes requests on, and deals with their answers as it is told.

    Attributes:
        url: Where clients connect.
        fates: Of the next answers; the ones after them are passed on.
        requests: How many came.
    """

    def __init__(self, target: str) -> None:
        self.url = ""
        self.fates: list[Fate] = []
        self.requests = 0
        self._target = target

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serves one request."""
        self.requests += 1
        headers = {name: value for name, value in request.headers.items() if name.lower() not in {"host"}}
        body = await request.read()
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(request.method, f"{self._target}{request.path_qs}", data=body, headers=headers) as answer,
        ):
            content = await answer.read()
        fate = self.fates.pop(0) if self.fates else None
        if fate is Fate.ERROR:
            return web.Response(status=500, text="injected")
        kept = {name: value for name, value in answer.headers.items() if name.lower() != "transfer-encoding"}
        response = web.StreamResponse(status=answer.status, headers=kept)
        if fate is Fate.CUT:
            _reset(request)
            return response
        response.content_length = len(content)
        await response.prepare(request)
        await response.write(content[: len(content) // 2] if fate is Fate.HALF else content)
        if fate is Fate.HALF:
            _reset(request)
        return response


def _reset(request: web.Request) -> None:
    expect(asyncio.Transport, request.transport).abort()


@asynccontextmanager
async def faulty_http_proxy(target: str) -> AsyncIterator[FaultyHttpProxy]:
    """Runs a proxy on a free loopback port."""
    proxy = FaultyHttpProxy(target)
    application = web.Application(client_max_size=1 << 30)
    application.router.add_route("*", "/{path:.*}", proxy.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        proxy.url = f"http://{host}:{port}"
        yield proxy
    finally:
        await runner.cleanup()


pytestmark = pytest.mark.anyio
_FAULTS = (Fate.ERROR, Fate.CUT, Fate.HALF)
_DEADLINE_S = 60.0
Ask = Callable[[str], Awaitable[str]]


@pytest.fixture(scope="module")
async def scheduler(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with scripted_stack(tmp_path_factory.mktemp("stack")) as address:
        yield address


@pytest.fixture(scope="module")
async def gateway(scheduler: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    async with running_gateway(scheduler, "retries", tmp_path_factory.mktemp("gateway")) as running:
        yield running


@asynccontextmanager
async def openai_chat(url: str, key: str, retries: int) -> AsyncIterator[Ask]:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=retries) as client:
        messages: list[Any] = []

        async def ask(text: str) -> str:
            messages.append({"role": "user", "content": text})
            answer = await client.chat.completions.create(model="m", messages=messages)
            messages.append(answer.choices[0].message.model_dump(exclude_none=True))
            return answer.id

        yield ask


@asynccontextmanager
async def openai_responses(url: str, key: str, retries: int) -> AsyncIterator[Ask]:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=retries) as client:
        items: list[Any] = []

        async def ask(text: str) -> str:
            items.append({"role": "user", "content": text})
            answer = await client.responses.create(model="m", input=items, store=False)
            items.extend(item.model_dump(exclude_none=True) for item in answer.output)
            return answer.id

        yield ask


@asynccontextmanager
async def anthropic_messages(url: str, key: str, retries: int) -> AsyncIterator[Ask]:
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=retries) as client:
        messages: list[Any] = []

        async def ask(text: str) -> str:
            messages.append({"role": "user", "content": text})
            answer = await client.messages.create(model="m", max_tokens=64, messages=messages)
            messages.append({"role": "assistant", "content": [block.model_dump() for block in answer.content]})
            return answer.id

        yield ask


@pytest.mark.parametrize("sdk", [openai_chat, openai_responses, anthropic_messages])
async def test_a_call_whose_answers_are_lost_is_sampled_once(gateway: RunningGateway, sdk: Any) -> None:
    trajectory = gateway.job.trajectory(f"lossy-{sdk.__name__}")
    await trajectory.open()
    key = (await trajectory.gateway()).api_key
    before = await gateway.succeeded()
    proxy: FaultyHttpProxy
    with anyio.fail_after(_DEADLINE_S):
        async with faulty_http_proxy(gateway.url) as proxy, sdk(proxy.url, key, 2) as ask:
            for fate in _FAULTS:
                proxy.fates = [fate]
                await ask("How is it?")
            proxy.fates = [Fate.CUT, Fate.ERROR]
            await ask("How is it?")
    assert proxy.requests == 4 + len(_FAULTS) + 2
    assert await gateway.succeeded() == before + 4
    samples = await trajectory.samples()
    assert [turn.parent for turn in samples.turns] == [None, 0, 1, 2]
    assert {turn.drift for turn in samples.turns} == {PromptDrift.CLEAN}
    assert len(samples.samples) == 1


@asynccontextmanager
async def gateway_process(scheduler: str, port: int, data_dir: Path) -> AsyncIterator[ChildProcess]:
    listen = ("--listen", f"127.0.0.1:{port}", "--data-dir", str(data_dir))
    spec = ProcessSpec("gateway", "callsheet.cli.main", ("gateway", "--scheduler", scheduler, *listen))
    async with run_process(spec) as process:
        yield process


async def calls_under_way(job: Job) -> int:
    counts = (await job.status()).actions
    return counts.get("running", 0) + counts.get("dispatched", 0)


async def test_a_gateway_that_is_killed_in_mid_call_goes_on_where_it_was(scheduler: str, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with (
        Client(scheduler, ClientOptions(gateway=url)) as client,
        await client.open_job("killed") as job,
        job.trajectory("t") as trajectory,
    ):
        with anyio.fail_after(_DEADLINE_S):
            samples = await _converse(scheduler, port, tmp_path, job, trajectory)
            assert (await job.status()).actions == {"succeeded": 3}
    clean = PromptDrift.CLEAN
    assert [(turn.parent, turn.drift) for turn in samples.turns] == [(None, clean), (0, clean), (1, clean)]
    assert len(samples.samples) == 1


async def _converse(scheduler: str, port: int, data_dir: Path, job: Job, trajectory: Trajectory) -> TrajectorySamples:
    """Three calls of one conversation; the gateway is killed while the second one generates."""
    async with AsyncExitStack() as exits:
        first = await exits.enter_async_context(gateway_process(scheduler, port, data_dir))
        access = await trajectory.gateway()
        ask = await exits.enter_async_context(openai_chat(access.url, access.api_key, 12))
        await ask("Hello")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_finish, ask("slow"))
            await until_so(lambda: calls_under_way(job), every_s=0.02)
            first.kill()
            await first.wait()
            await exits.enter_async_context(gateway_process(scheduler, port, data_dir))
        await ask("Hello again")
        return await trajectory.samples()


async def _finish(asking: Awaitable[str]) -> None:
    await asking
