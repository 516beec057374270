"""Conversations through a whole stack: HTTP, gateway, scheduler, and a scripted engine that records what it does.

The gateway is killed in the middle of conversations and started again; harnesses send their calls again, as SDKs do.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
import anyio
from callsheet.benchmarks.gateway.check import EngineCall
from callsheet.benchmarks.gateway.harness import play
from callsheet.benchmarks.gateway.plan import KEY, PlannedConversation, script_of
from callsheet.benchmarks.gateway.played import PROGRESS_EVERY, Played
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.client import Client, ConnectionLostError, Job, TrajectorySamples
from callsheet.client.settings import ClientOptions
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.gateway.chat import ChatRequest, Message
from callsheet.gateway.conversations.samples import Sample
from callsheet.gateway.conversations.turns import Drift
from callsheet.managers.inference.scripted_engine.vocabulary import ScriptVocabulary

AT_ONCE: Final = 8
_JOB: Final = "gateway-bench"
_DEADLINE_S: Final = 120.0
_PAUSE_S: Final = 0.2
_MAX_TOKENS: Final = 4096

T = TypeVar("T")


class CallRefusedError(Exception):
    """A call got no reply, so that there is nothing to compare."""


@dataclass(eq=False)
class GatewayCalls:
    """Sends calls to a gateway over HTTP, again where it is not there.

    Attributes:
        seconds: Of all calls together, each from its request to its reply.
    """

    url: str
    api_key: str
    session: aiohttp.ClientSession
    seconds: float = field(default=0.0)

    async def call(self, conversation: PlannedConversation, request: ChatRequest) -> Message:
        """Returns the reply to a call."""
        body: dict[str, Any] = {"model": "policy", "messages": request.messages, "max_tokens": _MAX_TOKENS}
        if request.tools:
            body["tools"] = request.tools
        begun = time.perf_counter()
        with anyio.fail_after(_DEADLINE_S):
            message = await self._until_answered(conversation, json.dumps(body).encode())
        self.seconds += time.perf_counter() - begun
        return message

    async def _until_answered(self, conversation: PlannedConversation, body: bytes) -> Message:
        tries = 0
        while True:
            with suppress(aiohttp.ClientError):
                status, answer = await self._post(body, tries)
                if status == 200:
                    message: Message = answer["choices"][0]["message"]
                    return message
                if status < 500 and status != 429:
                    raise CallRefusedError(f"{conversation.name}: {status}: {answer}")
            tries += 1
            await anyio.sleep(_PAUSE_S)

    async def _post(self, body: bytes, tries: int) -> tuple[int, Any]:
        headers = {
            "authorization": f"Bearer {self.api_key}",
            "content-type": "application/json",
            "x-stainless-retry-count": str(tries),
        }
        async with self.session.post(f"{self.url}/v1/chat/completions", data=body, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None)


@dataclass(eq=False)
class _Run:
    """What is found while conversations are played."""

    whole: dict[str, list[list[Message]]] = field(default_factory=dict)
    exported: dict[str, TrajectorySamples] = field(default_factory=dict)
    seconds: float = 0.0
    kills: int = 0


async def play_through_gateway(
    plans: Sequence[PlannedConversation],
    model: Path,
    vocabulary: ScriptVocabulary,
    *,
    kills: int,
    progress: Progress,
) -> Played:
    """Plays conversations side by side.

    Args:
        plans: What happens in them.
        model: Directory of the model's tokenizer and template; files are added to it.
        vocabulary: The model's.
        kills: How often the gateway is killed meanwhile.
        progress: Is told how far it is.
    """
    record = model / "record.jsonl"
    script = model / "script.json"
    script.write_text(script_of(plans))
    settings = StackSettings(
        data_dir=model / "data",
        managers=(Role.INFERENCE,),
        gateway="127.0.0.1:0",
        engine="scripted",
        script=script,
        model=str(model),
        arguments={Role.INFERENCE: ("--engine-option", f"record={record}")},
    )
    run = _Run()
    async with local_stack(settings) as stack:
        options = ClientOptions(gateway=stack.gateway_url)
        async with Client(stack.address, options) as client, aiohttp.ClientSession() as session:
            job = await client.open_job(_JOB)
            await _play_all(plans, run, job, session, stack, kills=kills, progress=progress)
            await job.close()
    by_key, again = _by_key(record, vocabulary)
    calls = {plan.name: _engine_calls(plan, run.exported[plan.name], by_key) for plan in plans}
    samples = {name: [_sample(each) for each in exported.samples] for name, exported in run.exported.items()}
    return Played(
        whole=run.whole, calls=calls, samples=samples, seconds=run.seconds, sampled_again=again, kills=run.kills
    )


async def _play_all(
    plans: Sequence[PlannedConversation],
    run: _Run,
    job: Job,
    session: aiohttp.ClientSession,
    stack: Stack,
    *,
    kills: int,
    progress: Progress,
) -> None:
    limiter = anyio.CapacityLimiter(AT_ONCE)
    every = max(1, len(plans) // (kills + 1))

    async def one(plan: PlannedConversation) -> None:
        async with limiter, job.trajectory(plan.name) as trajectory:
            access = await _until_there(trajectory.gateway)
            calls = GatewayCalls(access.url, access.api_key, session)
            run.whole[plan.name] = await play(plan, calls)
            run.seconds += calls.seconds
            run.exported[plan.name] = await _until_there(trajectory.samples)
            done = len(run.exported)
        if done % PROGRESS_EVERY == 0:
            progress(f"{done} of {len(plans)} conversations")
        if done % every == 0 and run.kills < kills:
            run.kills += 1
            os.kill(stack.pid(Role.GATEWAY), signal.SIGKILL)

    async with anyio.create_task_group() as tasks:
        for plan in plans:
            tasks.start_soon(one, plan)


async def _until_there(ask: Callable[[], Awaitable[T]]) -> T:
    """Returns what a gateway answers, once it is there again."""
    with anyio.fail_after(_DEADLINE_S):
        while True:
            with suppress(ConnectionLostError):
                return await ask()
            await anyio.sleep(_PAUSE_S)


def _by_key(record: Path, vocabulary: ScriptVocabulary) -> tuple[dict[str, Mapping[str, Any]], int]:
    """Returns the engine's record of each call, and how many generations it made beside these."""
    found: dict[str, Mapping[str, Any]] = {}
    lines = record.read_text(encoding="utf-8").splitlines()
    for line in lines:
        generation = json.loads(line)
        found[re.findall(KEY, vocabulary.decode(generation["prompt_token_ids"]))[-1]] = generation
    return found, len(lines) - len(found)


def _engine_calls(
    plan: PlannedConversation, exported: TrajectorySamples, by_key: Mapping[str, Mapping[str, Any]]
) -> list[EngineCall]:
    """Returns the calls of a conversation, which it made one after another, as the engine has them."""
    if len(exported.turns) != len(plan.calls):
        raise CallRefusedError(f"{plan.name}: {len(exported.turns)} turns of {len(plan.calls)} calls")
    calls: list[EngineCall] = []
    for call, turn in zip(plan.calls, exported.turns, strict=True):
        generation = by_key[call.key]
        versions = tuple(version for version, begin, end in generation["versions"] for _ in range(begin, end))
        calls.append(
            EngineCall(
                prompt=tuple(generation["prompt_token_ids"]),
                reply=tuple(generation["token_ids"]),
                log_probs=tuple(generation["log_probs"]),
                versions=versions,
                drift=Drift(turn.drift.value),
                parent=turn.parent,
            )
        )
    return calls


def _sample(exported: Any) -> Sample:
    return Sample(exported.token_ids, exported.loss_mask, exported.log_probs, exported.versions, exported.turns)
