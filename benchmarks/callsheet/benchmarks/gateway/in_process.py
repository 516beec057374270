"""The gateway's conversations and a scripted engine in one process, without what is between them."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from callsheet.benchmarks.gateway.check import EngineCall
from callsheet.benchmarks.gateway.harness import play
from callsheet.benchmarks.gateway.plan import PlannedConversation, script_of
from callsheet.benchmarks.gateway.played import PROGRESS_EVERY, Played
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.gateway.chat import ChatRequest, Message, ReplyEnd
from callsheet.gateway.conversations.conversation import Conversation
from callsheet.gateway.conversations.renderer import Renderer
from callsheet.gateway.conversations.samples import Sample
from callsheet.gateway.conversations.turns import Generated, GeneratedSpan, to_record
from callsheet.managers.inference.driver import EngineDriver, FinishReason, GenerateRequest, Generation, Sampling
from callsheet.managers.inference.scripted_engine.driver import ScriptedEngineDriver
from callsheet.managers.inference.scripted_engine.script import read_script
from callsheet.managers.inference.scripted_engine.vocabulary import ScriptVocabulary

_MAX_NEW_TOKENS = 4096


class InProcessGateway:
    """Conversations in front of an engine, whose own record of every request is kept.

    Attributes:
        calls: What the engine was asked and answered, by conversation, in the order of commits.
        seconds: Time that the conversations took, without the engine's.
    """

    def __init__(self, renderer: Renderer, engine: EngineDriver) -> None:
        self.calls: dict[str, list[EngineCall]] = defaultdict(list)
        self.seconds = 0.0
        self._renderer = renderer
        self._engine = engine
        self._conversations: dict[str, Conversation] = {}
        self._records: dict[str, list[Mapping[str, Any]]] = defaultdict(list)

    async def call(self, conversation: PlannedConversation, request: ChatRequest) -> Message:
        """Returns the reply to a call."""
        name = conversation.name
        begun = time.perf_counter()
        kept = self._conversations.setdefault(name, Conversation(self._renderer))
        if conversation.restarts:
            records = json.loads(json.dumps(self._records[name]))
            kept = self._conversations[name] = Conversation.restore(self._renderer, records)
        prepared = kept.prepare(request)
        self.seconds += time.perf_counter() - begun
        sampling = Sampling(max_new_tokens=_MAX_NEW_TOKENS, stop_token_ids=self._renderer.stop_token_ids)
        place = len(self.calls[name])
        generation = await self._engine.generate(GenerateRequest(f"{name}-{place}", prepared.token_ids, sampling))
        begun = time.perf_counter()
        committed = kept.commit(prepared, _generated(generation))
        self.seconds += time.perf_counter() - begun
        self._records[name].append(to_record(committed))
        self.calls[name].append(
            EngineCall(
                prompt=prepared.token_ids,
                reply=generation.token_ids,
                log_probs=generation.log_probs,
                versions=tuple(span.version for span in generation.version_spans for _ in range(span.begin, span.end)),
                drift=prepared.drift,
                parent=prepared.parent,
            )
        )
        return committed.message

    def samples(self, name: str) -> Sequence[Sample]:
        """Returns the samples of a conversation."""
        return self._conversations[name].samples()


async def play_in_process(
    plans: Sequence[PlannedConversation], renderer: Renderer, vocabulary: ScriptVocabulary, progress: Progress
) -> Played:
    """Plays conversations one after another."""
    engine = ScriptedEngineDriver(read_script(script_of(plans)), vocabulary)
    gateway = InProcessGateway(renderer, engine)
    whole: dict[str, list[list[Message]]] = {}
    for number, plan in enumerate(plans, start=1):
        whole[plan.name] = await play(plan, gateway)
        if number % PROGRESS_EVERY == 0:
            progress(f"{number} of {len(plans)} conversations")
    await engine.close()
    samples = {plan.name: gateway.samples(plan.name) for plan in plans}
    return Played(whole=whole, calls=gateway.calls, samples=samples, seconds=gateway.seconds)


def _generated(generation: Generation) -> Generated:
    return Generated(
        generation.token_ids,
        generation.log_probs,
        tuple(GeneratedSpan(span.version, span.begin, span.end) for span in generation.version_spans),
        ReplyEnd.STOP if generation.finish_reason is FinishReason.STOP else ReplyEnd.LENGTH,
    )
