"""Policies, which reply in an episode.

`TokenPolicy` samples with the exact tokens that a trainer needs. `GatewayPolicy` asks the gateway for chat completions,
as any agent does, and needs no tokenizer here.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn, Protocol

import anyio
import anyio.to_thread
from callsheet.client import (
    ActionOptions,
    Cancelled,
    Failed,
    FailureKind,
    FinishReason,
    GatewayAccess,
    GenerateResult,
    PolicyVersionSpan,
    Reason,
    Sampling,
    TrainingSample,
    Trajectory,
)
from callsheet.client.gateway import gateway_opener
from callsheet.client.settings import ClientOptions
from callsheet.environments.failures import EpisodeFailure
from callsheet.gateway.chat import (
    FAILURE_HEADER,
    RETRY_HEADER,
    AskedSampling,
    ChatRequest,
    Message,
    ReplyEnd,
    Tool,
)
from callsheet.gateway.conversations.conversation import Conversation
from callsheet.gateway.conversations.renderer import Renderer
from callsheet.gateway.conversations.turns import Generated, GeneratedSpan

MAX_CONTINUATIONS: Final = 32
"""How often one reply goes on after an update of weights has cut it."""
_DEFAULT_SAMPLING: Final = Sampling(max_new_tokens=512)
_TRY_AGAIN: Final = frozenset({429, 500, 502, 503})
_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0)
_LONGEST_PAUSE_S: Final = 10.0
_MOST_ERROR_BYTES: Final = 65_536
_OK, _BAD_REQUEST, _CONFLICT, _TIMEOUT = 200, 400, 409, 504


class ReplyLimitError(Exception):
    """No reply fits any more: the episode's tokens are used up. It is scored as it stands."""


class CutReplyError(ReplyLimitError):
    """A limit of tokens cut the reply, so that it may hold half a call. It ends the episode and is never carried out.

    Attributes:
        reply: The message as far as it goes.
    """

    def __init__(self, reply: Message) -> None:
        super().__init__("a limit of tokens cut the reply")
        self.reply = reply


class EpisodePolicy(Protocol):
    """Replies in one episode. There is a new one for each trajectory."""

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        """Returns the next message of the assistant.

        Args:
            trajectory: The episode's trajectory.
            messages: The whole conversation, its own earlier replies included and unchanged.
            tools: The tools that it may call.

        Raises:
            CutReplyError: A limit of tokens cut the reply.
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
        """Returns the next message. A reply that was cut is in the samples.

        Raises:
            CutReplyError: A limit of tokens cut the reply.
            ReplyLimitError: No reply fits any more.
            NotSucceededError: A generate action did not succeed.
            BadRequestError: The template refuses the messages.
        """
        asked = AskedSampling(stop=tuple(self._sampling.stop))
        prepared = self._conversation.prepare(ChatRequest(tuple(messages), tools=tuple(tools), sampling=asked))
        self._bound_completion(len(prepared.token_ids))
        room = self._room(len(prepared.token_ids))
        generated = await self._generate(trajectory, prepared.token_ids, min(room, self._sampling.max_new_tokens))
        committed = self._conversation.commit(prepared, generated)
        if generated.end is ReplyEnd.LENGTH:
            raise CutReplyError(committed.message)
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
            return self._sampling.max_new_tokens
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
            if part.finish_reason is not FinishReason.ABORT or len(so_far) + len(part.token_ids) >= most:
                return joined(parts)
            if len(parts) > MAX_CONTINUATIONS:
                message = f"updates of weights cut the reply {len(parts)} times"
                EpisodeFailure(FailureKind.INFRA, Reason.OTHER.value, message).throw()

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


@dataclass(frozen=True, slots=True)
class GatewaySampling:
    """Sampling that is forced on each call of a trajectory; None leaves a field to the model.

    Attributes:
        temperature: At least 0.
        top_p: Above 0 and at most 1.
        top_k: At least 0; 0 means all.
        max_tokens: The most new tokens of a call.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None

    @classmethod
    def of(cls, sampling: Sampling) -> GatewaySampling:
        """Returns what forces a trainer's sampling on an agent: samples are then drawn as the trainer takes them."""
        return GatewaySampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_new_tokens)

    async def access(self, trajectory: Trajectory) -> GatewayAccess:
        """Returns a key of the trajectory with this sampling."""
        return await trajectory.gateway(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, max_tokens=self.max_tokens
        )


_ANY_SAMPLING: Final = GatewaySampling()


class GatewayPolicy:
    """Replies by chat completions of the gateway. Samples come from the gateway, too, token-exact.

    Args:
        sampling: What is forced on each call.
        keep_samples: Whether `samples` asks the gateway for them; an evaluation needs none.
        timeout_s: The longest wait for one reply.
    """

    def __init__(
        self,
        sampling: GatewaySampling = _ANY_SAMPLING,
        *,
        keep_samples: bool = True,
        timeout_s: float = 600.0,
    ) -> None:
        self._sampling = sampling
        self._keep_samples = keep_samples
        self._timeout_s = timeout_s
        self._access: GatewayAccess | None = None
        # Not the threads that others wait for: a reply takes long.
        self._threads = anyio.CapacityLimiter(1)

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        """Returns the next message; what may go well the next time is tried again.

        Raises:
            CutReplyError: A limit of tokens cut the reply.
            ReplyLimitError: The prompt leaves no room in the model's context.
            NotSucceededError: There is no reply, as the gateway tells it.
            ConnectionLostError: There is no gateway where a key could be got.
        """
        if self._access is None:
            self._access = await self._sampling.access(trajectory)
        body: dict[str, Any] = {"model": "policy", "messages": [dict(message) for message in messages]}
        if tools:
            body["tools"] = [dict(tool) for tool in tools]
        content = json.dumps(body).encode()
        for retries, pause_s in enumerate((*_PAUSES_S, None)):
            answer = await self._ask(trajectory.client.options, self._access, content, retries)
            if pause_s is None or not answer.may_go_well_next_time:
                return message_of(answer)
            await anyio.sleep(min(answer.retry_after_s or pause_s, _LONGEST_PAUSE_S))
        raise AssertionError("the last try returns")

    async def samples(self, trajectory: Trajectory) -> tuple[TrainingSample, ...]:
        """Returns what the gateway keeps of the trajectory."""
        if not self._keep_samples:
            return ()
        return (await trajectory.samples()).samples

    async def _ask(self, options: ClientOptions, access: GatewayAccess, content: bytes, retries: int) -> GatewayAnswer:
        headers = {"authorization": f"Bearer {access.api_key}", "content-type": "application/json"}
        headers[RETRY_HEADER] = str(retries)
        request = urllib.request.Request(f"{access.base_url}/chat/completions", content, headers)
        return await anyio.to_thread.run_sync(
            _answer, request, options, self._timeout_s, abandon_on_cancel=True, limiter=self._threads
        )


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """Answer of a gateway to a call.

    Attributes:
        status: HTTP status; 503 if there was no answer.
        body: JSON of the answer.
        failure: The failure that it names, as "KIND/reason"; empty if it names none.
        retry_after_s: Seconds until the call is to be tried again; None if the gateway does not name them.
    """

    status: int
    body: Mapping[str, Any]
    failure: str = ""
    retry_after_s: float | None = None

    @property
    def may_go_well_next_time(self) -> bool:
        """Returns whether a retry is worth its time: only if the service or a quota failed, and not the action."""
        own = ("INFRA/", "QUOTA/")
        return self.status in _TRY_AGAIN and (not self.failure or self.failure.startswith(own))


def message_of(answer: GatewayAnswer) -> Message:
    """Returns the assistant's message of an answer. Pure.

    Raises:
        CutReplyError: A limit of tokens cut the reply.
        ReplyLimitError: The prompt leaves no room in the model's context.
        NotSucceededError: There is no reply.
    """
    if answer.status != _OK:
        _refuse(answer)
    try:
        message: Message = answer.body["choices"][0]["message"]
        cut = answer.body["choices"][0].get("finish_reason") == ReplyEnd.LENGTH.value
    except (KeyError, IndexError, TypeError):
        _refuse(GatewayAnswer(503, {"error": {"message": "an answer without a message"}}, "INFRA/connection_lost"))
    if cut:
        raise CutReplyError(message)
    return message


def _refuse(answer: GatewayAnswer) -> NoReturn:
    told = answer.body.get("error")
    said = str(told.get("message") if isinstance(told, Mapping) else told or f"status {answer.status}")
    kind, _, named = answer.failure.partition("/")
    reason = Reason(named) if named in set(Reason) else Reason.OTHER
    if reason is Reason.PROMPT_TOO_LONG or (answer.status == _BAD_REQUEST and "maximum context length" in said):
        raise ReplyLimitError(said)
    if answer.status == _CONFLICT:
        cancelled: Cancelled[object] = Cancelled(reason=said)
        cancelled.unwrap()
    message = f"the gateway says: {said}"
    failed: Failed[object] = Failed(kind=_kind_of(answer.status, kind), reason=reason, message=message)
    failed.unwrap()


def _kind_of(status: int, named: str) -> FailureKind:
    if named in FailureKind.__members__:
        return FailureKind[named]
    if status == _TIMEOUT:
        return FailureKind.TIMEOUT
    # What the messages brought about is the environment's, which made them.
    return FailureKind.INFRA if status >= 500 or status == 429 else FailureKind.ENV


def _answer(request: urllib.request.Request, options: ClientOptions, timeout_s: float) -> GatewayAnswer:
    try:
        with gateway_opener(request, options).open(request, timeout=timeout_s) as answer:
            return GatewayAnswer(answer.status, json.load(answer))
    except urllib.error.HTTPError as error:
        with error:
            body = _json(error.read(_MOST_ERROR_BYTES))
            after = error.headers.get("retry-after", "")
        retry_after_s = float(after) if after.replace(".", "", 1).isdecimal() else None
        return GatewayAnswer(error.code, body, error.headers.get(FAILURE_HEADER, ""), retry_after_s)
    except (OSError, ValueError, RecursionError) as error:
        said = f"no answer from {request.host}: {error}"
        return GatewayAnswer(503, {"error": {"message": said}}, "INFRA/connection_lost")


def _json(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
