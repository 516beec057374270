"""A policy that asks the gateway for chat completions, as any agent does. It needs no tokenizer here."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import anyio
import anyio.to_thread
from callsheet.client import (
    Cancelled,
    Failed,
    FailureKind,
    GatewayAccess,
    Reason,
    Sampling,
    TrainingSample,
    Trajectory,
)
from callsheet.client.gateway import gateway_opener
from callsheet.client.settings import ClientOptions
from callsheet.environments.policy import ReplyLimitError
from callsheet.gateway.chat import Message, Tool

FAILURE_HEADER: Final = "x-callsheet-failure"
"""In which a gateway names the failure of an action, as "KIND/reason"."""
_RETRY_HEADER: Final = "x-stainless-retry-count"
_TRY_AGAIN: Final = frozenset({429, 500, 502, 503})
_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0)
_LONGEST_PAUSE_S: Final = 10.0
_MOST_ERROR_BYTES: Final = 65_536
_OK, _BAD_REQUEST, _CONFLICT, _TIMEOUT = 200, 400, 409, 504


@dataclass(frozen=True, slots=True)
class GatewaySampling:
    """What is forced on each call of a trajectory; None leaves it to the model.

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
        headers[_RETRY_HEADER] = str(retries)
        request = urllib.request.Request(f"{access.base_url}/chat/completions", content, headers)
        return await anyio.to_thread.run_sync(
            _answer, request, options, self._timeout_s, abandon_on_cancel=True, limiter=self._threads
        )


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """What a gateway answered to a call.

    Attributes:
        status: Of HTTP; 503 where there was no answer.
        body: Its JSON.
        failure: The failure that it names, as "KIND/reason"; empty if it names none.
        retry_after_s: When it is to be tried again; None if it does not say.
    """

    status: int
    body: Mapping[str, Any]
    failure: str = ""
    retry_after_s: float | None = None

    @property
    def may_go_well_next_time(self) -> bool:
        """Whether a retry is worth its time: only what is the service's or a quota's, not a failure of the action."""
        own = ("INFRA/", "QUOTA/")
        return self.status in _TRY_AGAIN and (not self.failure or self.failure.startswith(own))


def message_of(answer: GatewayAnswer) -> Message:
    """Returns the assistant's message of an answer. Pure.

    Raises:
        ReplyLimitError: The prompt leaves no room in the model's context.
        NotSucceededError: There is no reply.
    """
    if answer.status != _OK:
        _refuse(answer)
    try:
        message: Message = answer.body["choices"][0]["message"]
    except (KeyError, IndexError, TypeError):
        _refuse(GatewayAnswer(503, {"error": {"message": "an answer without a message"}}, "INFRA/connection_lost"))
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
