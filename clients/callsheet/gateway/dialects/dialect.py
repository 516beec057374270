"""Protocol of a dialect: how a provider's requests are read, answered and refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from callsheet.gateway.chat import ChatReply, ChatRequest
from callsheet.gateway.dialects import chat_completions, completions, messages, responses


class Dialect(Protocol):
    """A provider's protocol. Each module of the table below is one."""

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Returns the request of a caller.

        Raises:
            BadRequestError: A field breaks its rule, or would change the answer in a way that the gateway cannot.
        """
        ...

    def answer(self, request: ChatRequest, reply: ChatReply) -> dict[str, Any]:
        """Returns the body of an answer to a call that asked for no stream."""
        ...

    def events(self, request: ChatRequest, reply: ChatReply) -> Iterator[bytes]:
        """Returns the server-sent events of an answer to a call that asked for a stream."""
        ...

    def error(self, status: int, message: str, *, field: str | None = None, code: str | None = None) -> dict[str, Any]:
        """The body of an error, by its HTTP status."""
        ...


DIALECTS: Final[Mapping[str, Dialect]] = {
    "/chat/completions": chat_completions,
    "/completions": completions,
    "/messages": messages,
    "/responses": responses,
}
"""Every dialect by its path below the base URL of version 1, such as `http://gateway/v1`."""


def error_headers(status: int, retry_after_s: float | None = None) -> dict[str, str]:
    """Headers of an error that OpenAI's and Anthropic's clients obey.

    They try a call again after 408, 409, 429 and 5xx. A conflict does not go away, so they are told not to.

    Args:
        status: The answer's HTTP status.
        retry_after_s: After how many seconds the caller should try again; None says nothing.
    """
    headers = {"x-should-retry": "false"} if status == 409 else {}
    if retry_after_s is not None:
        headers["retry-after"] = f"{max(1, math.ceil(retry_after_s))}"
    return headers
