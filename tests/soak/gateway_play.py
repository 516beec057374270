"""Conversations through a whole stack: HTTP, gateway, scheduler, and a scripted engine that records what it does.

The gateway is killed in the middle of conversations and started again; harnesses send their calls again, as SDKs do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
import anyio
from callsheet.client import Client, ConnectionLostError, TrajectorySamples
from callsheet.client.settings import ClientOptions
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.gateway.chat import ChatRequest, Message
from callsheet.gateway.conversations.samples import Sample
from callsheet.gateway.conversations.turns import Drift
from callsheet.managers.inference.scripted_engine.vocabulary import ScriptVocabulary

from tests.soak.planned_conversations import KEY, PlannedConversation, play, script_of
from tests.support.gateways import CHAT
from tests.support.sample_check import EngineCall

_AT_ONCE: Final = 8
_DEADLINE_S: Final = 120.0
_PAUSE_S: Final = 0.2
_MAX_TOKENS: Final = 4096

T = TypeVar("T")


@dataclass(frozen=True)
class Played:
    """What came of conversations.

    Attributes:
        calls: What the engine was asked and answered, by conversation, in the order of commits.
        samples: What the gateway exports of each.
        generations: How many the engine made.
    """

    calls: Mapping[str, Sequence[EngineCall]]
    samples: Mapping[str, Sequence[Sample]]
    generations: int


async def play_through_gateway(
    plans: Sequence[PlannedConversation], model: Path, vocabulary: ScriptVocabulary, *, kills: int
) -> Played:
    """Plays conversations, eight at once.

    Args:
        plans: What happens in them.
        model: Directory of the model's tokenizer and template; files are added to it.
        vocabulary: The model's.
        kills: How often the gateway is killed meanwhile.
    """
    record, script = model / "record.jsonl", model / "script.json"
    script.write_text(script_of(plans))
    settings = StackSettings(
        data_dir=model / "data",
        managers=(Role.INFERENCE,),
        gateway="127.0.0.1:0",
        given={"engine": "scripted", "script": script, "model": str(model)},
        arguments={Role.INFERENCE: ("--engine-option", f"record={record}")},
    )
    exported: dict[str, TrajectorySamples] = {}
    limiter = anyio.CapacityLimiter(_AT_ONCE)
    killed_after = {len(plans) * number // (kills + 1) for number in range(1, kills + 1)}
    async with (
        local_stack(settings) as stack,
        aiohttp.ClientSession() as session,
        Client(stack.address, ClientOptions(gateway=stack.gateway_url)) as client,
        await client.open_job("conversations") as job,
        anyio.create_task_group() as tasks,
    ):

        async def one(plan: PlannedConversation) -> None:
            async with limiter, job.trajectory(plan.name) as trajectory:
                access = await _until_there(trajectory.gateway)
                await play(plan, lambda request: _call(session, access.url, access.api_key, request))
                exported[plan.name] = await _until_there(trajectory.samples)
                if len(exported) in killed_after:
                    stack.supervisor(Role.GATEWAY).kill()

        for plan in plans:
            tasks.start_soon(one, plan)
    generations = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    by_key = {re.findall(KEY, vocabulary.decode(each["prompt_token_ids"]))[-1]: each for each in generations}
    return Played(
        {plan.name: _engine_calls(plan, exported[plan.name], by_key) for plan in plans},
        {name: [_sample(each) for each in content.samples] for name, content in exported.items()},
        len(generations),
    )


async def _call(session: aiohttp.ClientSession, url: str, api_key: str, request: ChatRequest) -> Message:
    """Sends a call over HTTP, and again while the gateway is not there."""
    body: dict[str, Any] = {"model": "policy", "messages": request.messages, "max_tokens": _MAX_TOKENS}
    if request.tools:
        body["tools"] = request.tools
    tries = 0
    with anyio.fail_after(_DEADLINE_S):
        while True:
            headers = {"authorization": f"Bearer {api_key}", "x-stainless-retry-count": str(tries)}
            with suppress(aiohttp.ClientError):
                async with session.post(f"{url}{CHAT}", json=body, headers=headers) as answer:
                    told = await answer.json(content_type=None)
                    if answer.status == 200:
                        message: Message = told["choices"][0]["message"]
                        return message
                    assert answer.status >= 500 or answer.status == 429, told
            tries += 1
            await anyio.sleep(_PAUSE_S)


async def _until_there(ask: Callable[[], Awaitable[T]]) -> T:
    """Returns what a gateway answers, once it is there again."""
    with anyio.fail_after(_DEADLINE_S):
        while True:
            with suppress(ConnectionLostError):
                return await ask()
            await anyio.sleep(_PAUSE_S)


def _engine_calls(
    plan: PlannedConversation, exported: TrajectorySamples, by_key: Mapping[str, Mapping[str, Any]]
) -> list[EngineCall]:
    """Returns the calls of a conversation, which it made one after another, as the engine has them."""
    calls: list[EngineCall] = []
    for call, turn in zip(plan.calls, exported.turns, strict=True):
        generation = by_key[call.key]
        calls.append(
            EngineCall(
                prompt=tuple(generation["prompt_token_ids"]),
                reply=tuple(generation["token_ids"]),
                log_probs=tuple(generation["log_probs"]),
                versions=tuple(version for version, begin, end in generation["versions"] for _ in range(begin, end)),
                drift=Drift(turn.drift.value),
                parent=turn.parent,
            )
        )
    return calls


def _sample(exported: Any) -> Sample:
    return Sample(exported.token_ids, exported.loss_mask, exported.log_probs, exported.versions, exported.turns)
