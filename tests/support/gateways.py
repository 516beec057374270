"""A gateway in this process, before a scheduler and a scripted engine in processes of their own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anyio
from callsheet.client import Client, Job
from callsheet.client.settings import ClientOptions
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.gateway.server.server import serve
from callsheet.gateway.server.settings import GatewaySettings

from tests.support.waiting import until_so

CHAT = "/v1/chat/completions"
RETRY = {"x-stainless-retry-count": "1"}
SLOW_S = 1.0


def script() -> dict[str, Any]:
    """Replies by what is asked. Each sampling of "dice" differs from the others."""
    return {
        "replies": [
            {"match": "dice", "random_tokens": 24, "repeat": True},
            {"match": "slow", "random_tokens": 8, "delay_s": SLOW_S, "repeat": True},
            {"match": "endless", "random_tokens": 2000, "token_s": 0.05, "repeat": True},
            {"text": "It is fine.", "repeat": True},
        ]
    }


@asynccontextmanager
async def scripted_stack_parts(data_dir: Path, **settings: Any) -> AsyncIterator[Stack]:
    """A scheduler and a scripted engine."""
    file = data_dir / "script.json"
    file.write_text(json.dumps(script()))
    stack = StackSettings(
        data_dir, managers=(Role.INFERENCE,), given={"engine": "scripted", "script": file}, **settings
    )
    async with local_stack(stack) as running:
        yield running


@asynccontextmanager
async def scripted_stack(data_dir: Path, **settings: Any) -> AsyncIterator[str]:
    """A scheduler and a scripted engine; yields the scheduler's address."""
    async with scripted_stack_parts(data_dir, **settings) as running:
        yield running.address


@dataclass(frozen=True)
class Answer:
    """What an HTTP request got."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def text(self) -> str:
        """The content of a chat completion's message."""
        content: str = self.body["choices"][0]["message"]["content"]
        return content


class RunningGateway:
    """A gateway, and a job to use it in.

    Attributes:
        url: Its URL.
        job: Open.
    """

    def __init__(self, url: str, job: Job, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.job = job
        self.session = session

    async def post(self, path: str, body: Any, key: str = "", headers: Mapping[str, str] | None = None) -> Answer:
        """Sends a request as no SDK does it again."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        own = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        async with self.session.post(f"{self.url}{path}", data=content, headers=own | dict(headers or {})) as answer:
            text = await answer.text()
            is_json = answer.headers.get("content-type", "").startswith("application/json")
            return Answer(answer.status, answer.headers, json.loads(text) if is_json else text)

    async def succeeded(self) -> int:
        """How many actions of the job have succeeded."""
        return (await self.job.status()).actions.get("succeeded", 0)

    async def wait_for_actions(self, state: str, count: int) -> None:
        """Waits until so many actions of the job are in a state."""
        await until_so(self.job.status, lambda it: it.actions.get(state, 0) >= count, every_s=0.02)


@asynccontextmanager
async def running_gateway(
    scheduler: str, job_id: str, data_dir: Path, *, token: str | None = None, **settings: Any
) -> AsyncIterator[RunningGateway]:
    """Runs a gateway in this process, with a job of its own."""
    stop = anyio.Event()
    given = GatewaySettings(scheduler=scheduler, listen="127.0.0.1:0", data_dir=data_dir, **settings)
    async with anyio.create_task_group() as tasks:
        url = await tasks.start(serve, given, stop)
        options = ClientOptions(gateway=url, token=token)
        async with (
            Client(scheduler, options) as client,
            await client.open_job(job_id) as job,
            aiohttp.ClientSession() as session,
        ):
            yield RunningGateway(url, job, session)
        stop.set()


def chat(*texts: str, **fields: Any) -> dict[str, Any]:
    """A chat completion's body: texts of the user and of the assistant, in turn."""
    roles = ("user", "assistant")
    messages: Sequence[dict[str, str]] = [
        {"role": roles[place % 2], "content": text} for place, text in enumerate(texts)
    ]
    return {"model": "any-name", "messages": messages, **fields}
