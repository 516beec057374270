"""Who replies in an episode. `TokenPolicy` samples with the exact tokens that a trainer needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from callsheet.client import (
    ActionOptions,
    Failed,
    FinishReason,
    GenerateResult,
    PolicyVersionSpan,
    Reason,
    Sampling,
    TrainingSample,
    Trajectory,
)
from callsheet.gateway.chat import AskedSampling, ChatRequest, Message, ReplyEnd, Tool
from callsheet.gateway.conversations.conversation import Conversation
from callsheet.gateway.conversations.renderer import Renderer
from callsheet.gateway.conversations.turns import Generated, GeneratedSpan

MAX_CONTINUATIONS: Final = 32
"""How often one reply goes on after an update of weights has cut it."""
_DEFAULT_SAMPLING: Final = Sampling(max_new_tokens=512)


class ReplyLimitError(Exception):
    """No reply fits any more: the episode's tokens are used up. It is scored as it stands."""


class EpisodePolicy(Protocol):
    """Replies in one episode. There is a new one for each trajectory."""

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        """Returns the next message of the assistant.

        Args:
            trajectory: The episode's trajectory.
            messages: The whole conversation, its own earlier replies included and unchanged.
            tools: The tools that it may call.

        Raises:
            ReplyLimitError: No reply fits any more.
            NotSucceededError: There is no reply; the episode ends with that failure.
        """

    async def samples(self, trajectory: Trajectory) -> tuple[TrainingSample, ...]:
        """Returns what it said, as a trainer takes it; none where it has no tokens."""


class TokenPolicy:
    """Samples replies by generate actions, token-exact: no token that was sampled is ever tokenised again.

    A reply that an update of weights cuts goes on from its tokens, so that it has tokens of several policy versions.

    Args:
        renderer: The model's tokenizer and template, see `callsheet.gateway.renderers.loading.load_renderer`.
        sampling: How each reply is sampled; the renderer's stop tokens are added. A seed is the first reply's, and
            each further one adds 1.
        max_total_tokens: The most tokens of the whole conversation, prompts included; None leaves it to the engine.
        max_completion_tokens: The most tokens after the first prompt, those of the environment included, as trainers
            bound a completion; None leaves it to `max_total_tokens`.
        model: Name of the hosted model.
        options: What goes with each generate action, for instance `timeouts`.
    """

    def __init__(
        self,
        renderer: Renderer,
        sampling: Sampling = _DEFAULT_SAMPLING,
        *,
        max_total_tokens: int | None = None,
        max_completion_tokens: int | None = None,
        model: str = "policy",
        options: ActionOptions | None = None,
    ) -> None:
        for name, value in (("max_total_tokens", max_total_tokens), ("max_completion_tokens", max_completion_tokens)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        self._conversation = Conversation(renderer)
        stops = sorted({*sampling.stop_token_ids, *renderer.stop_token_ids})
        self._sampling = replace(sampling, stop_token_ids=tuple(stops))
        self._max_total_tokens = max_total_tokens
        self._max_completion_tokens = max_completion_tokens
        self._model = model
        self._options: ActionOptions = options or {}
        self._generations = 0

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        """Returns the next message. One that a bound of the tokens cut is in the samples, and ends it all.

        Raises:
            ReplyLimitError: No whole reply fits any more.
            NotSucceededError: A generate action did not succeed.
            BadRequestError: The template refuses the messages.
        """
        asked = AskedSampling(stop=tuple(self._sampling.stop))
        prepared = self._conversation.prepare(ChatRequest(tuple(messages), tools=tuple(tools), sampling=asked))
        self._bound_completion(len(prepared.token_ids))
        room = self._room(len(prepared.token_ids))
        generated = await self._generate(trajectory, prepared.token_ids, min(room, self._sampling.max_new_tokens))
        committed = self._conversation.commit(prepared, generated)
        if generated.end is ReplyEnd.LENGTH and room <= self._sampling.max_new_tokens:
            raise ReplyLimitError(f"the reply was cut at {self._max_total_tokens} tokens of the conversation")
        return committed.message

    async def samples(self, trajectory: Trajectory) -> tuple[TrainingSample, ...]:
        """Returns what it said so far; what continues an earlier reply is in the same sample."""
        del trajectory
        return tuple(
            TrainingSample(each.token_ids, each.loss_mask, each.log_probs, each.versions, each.turns)
            for each in self._conversation.samples()
        )

    def _bound_completion(self, prompt_tokens: int) -> None:
        """Turns the bound of a completion into one of the whole conversation, once the first prompt is known."""
        if self._max_completion_tokens is not None:
            most = prompt_tokens + self._max_completion_tokens
            self._max_total_tokens = most if self._max_total_tokens is None else min(most, self._max_total_tokens)
            self._max_completion_tokens = None

    def _room(self, prompt_tokens: int) -> int:
        if self._max_total_tokens is None:
            return self._sampling.max_new_tokens + 1
        room = self._max_total_tokens - prompt_tokens
        if room < 1:
            raise ReplyLimitError(f"the prompt has {prompt_tokens} tokens, of {self._max_total_tokens} in all")
        return room

    async def _generate(self, trajectory: Trajectory, prompt: tuple[int, ...], most: int) -> Generated:
        parts: list[GenerateResult] = []
        while True:
            so_far = tuple(token for part in parts for token in part.token_ids)
            part = await self._generate_once(trajectory, prompt + so_far, most - len(so_far))
            parts.append(part)
            cut = part.finish_reason is FinishReason.ABORT
            if not cut or len(so_far) + len(part.token_ids) >= most or len(parts) > MAX_CONTINUATIONS:
                return joined(parts)

    async def _generate_once(self, trajectory: Trajectory, prompt: tuple[int, ...], most: int) -> GenerateResult:
        seed = self._sampling.seed
        sampling = replace(self._sampling, max_new_tokens=most, seed=None if seed is None else seed + self._generations)
        self._generations += 1
        outcome = await trajectory.generate(prompt, sampling, model=self._model, **self._options)
        if isinstance(outcome, Failed) and outcome.reason is Reason.PROMPT_TOO_LONG:
            raise ReplyLimitError(outcome.message)
        return outcome.unwrap()


def joined(parts: Sequence[GenerateResult]) -> Generated:
    """Returns one reply of parts that continue each other, with its spans of policy versions.

    A reply whose last part was aborted, too, counts as cut.
    """
    tokens: list[int] = []
    log_probs: list[float] = []
    spans: list[GeneratedSpan] = []
    for part in parts:
        spans += [_moved(span, len(tokens)) for span in part.policy_versions]
        tokens += part.token_ids
        log_probs += part.log_probs
    whole = parts[-1].finish_reason is FinishReason.STOP
    known = tuple(log_probs) if len(log_probs) == len(tokens) else ()
    return Generated(tuple(tokens), known, tuple(spans), ReplyEnd.STOP if whole else ReplyEnd.LENGTH)


def _moved(span: PolicyVersionSpan, by: int) -> GeneratedSpan:
    return GeneratedSpan(span.version, span.begin + by, span.end + by)
