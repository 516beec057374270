"""A provider inside the test: real clients call it over a transport without a network, and it answers by a dialect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
from callsheet.gateway.chat import BadRequestError, ChatReply, ChatRequest, ReplyEnd, ReplyToken
from callsheet.gateway.dialects.dialect import DIALECTS, error_headers

if TYPE_CHECKING:
    import anthropic
    import openai

KEY = "a-key"


def reply_of(
    content: str = "",
    *,
    reasoning: str = "",
    calls: Sequence[tuple[str, str]] = (),
    end: ReplyEnd | None = None,
    tokens: Sequence[ReplyToken] = (),
) -> ChatReply:
    """A reply; `calls` are names of tools, each with its arguments."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for index, (name, arguments) in enumerate(calls)
        ]
    return ChatReply(
        call_id="c1",
        created_s=1_790_000_000,
        model="policy",
        message=message,
        end=end or (ReplyEnd.TOOL_CALLS if calls else ReplyEnd.STOP),
        prompt_tokens=11,
        completion_tokens=7,
        cached_tokens=5,
        tokens=tokens,
    )


@dataclass
class DialectAnswers:
    """Answers each call with the next reply or error, and keeps what the calls asked for.

    Attributes:
        replies: What to answer, in order; a status is an error, and bytes are a stream's.
        bodies: The bodies that came.
        requests: What the dialect read in them.
    """

    replies: list[ChatReply | int | bytes] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    requests: list[ChatRequest] = field(default_factory=list)

    def _answer(self, call: httpx2.Request) -> httpx2.Response:
        body = json.loads(call.content)
        dialect = DIALECTS[call.url.path.removeprefix("/v1")]
        self.bodies.append(body)
        try:
            request = dialect.read(body)
        except BadRequestError as error:
            return httpx2.Response(400, json=dialect.error(400, str(error), field=error.field))
        self.requests.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, int):
            return httpx2.Response(reply, json=dialect.error(reply, "no"), headers=error_headers(reply))
        if isinstance(reply, bytes) or request.stream:
            stream = reply if isinstance(reply, bytes) else b"".join(dialect.events(request, reply))
            return httpx2.Response(200, content=stream, headers={"content-type": "text/event-stream"})
        return httpx2.Response(200, json=dialect.answer(request, reply))

    def openai(self) -> openai.OpenAI:
        """OpenAI's client, which tries nothing twice."""
        import openai

        http = httpx2.Client(transport=httpx2.MockTransport(self._answer))
        return openai.OpenAI(api_key=KEY, base_url="http://provider/v1", http_client=http, max_retries=0)

    def anthropic(self) -> anthropic.Anthropic:
        """Anthropic's client, which tries nothing twice."""
        import anthropic

        http = httpx2.Client(transport=httpx2.MockTransport(self._answer))
        return anthropic.Anthropic(api_key=KEY, base_url="http://provider", http_client=http, max_retries=0)
