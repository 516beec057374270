"""Has an SGLang server say what a reply consists of, with the parsers that it has for its models.

A generate action brings tokens and no message, so the server is asked beside it. It sees the reply's text and the
declared tools, and nothing of the prompt. Where it does not answer in time the gateway parses by itself.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio
import anyio.to_thread
import structlog
from callsheet.gateway.chat import Tool
from callsheet.gateway.conversations.renderer import ParsedReply, WrittenCall
from callsheet.gateway.model_json import arguments_text, read_json

TIMEOUT_S: Final = 5.0
"""How long one reply may take."""
_AT_ONCE: Final = 32
_MOST_BYTES: Final = 16 << 20
_log = structlog.get_logger(__name__)


class EngineParser:
    """Asks one server. More replies than a number wait for each other, within the same time."""

    def __init__(
        self,
        url: str,
        *,
        tool_parser: str | None,
        reasoning_parser: str | None,
        api_key: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Args:
        url: Of the server.
        tool_parser: Its parser of calls, by the server's own name; None looks for no calls.
        reasoning_parser: Its parser of reasoning, by the server's own name; None looks for none.
        api_key: What the server wants to be shown.
        timeout_s: How long one reply may take.
        """
        self._url = url.rstrip("/")
        self._tool_parser = tool_parser
        self._reasoning_parser = reasoning_parser
        self._headers = {"content-type": "application/json"} | (
            {"authorization": f"Bearer {api_key}"} if api_key else {}
        )
        self._timeout_s = timeout_s
        self._limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def parse(self, text: str, tools: Sequence[Tool]) -> ParsedReply | None:
        """Returns what a reply says; None if the server did not tell.

        Args:
            text: The reply with its markers of calls and reasoning.
            tools: The tools that may have been called; without any, a call is text.
        """
        try:
            with anyio.fail_after(self._timeout_s):
                return await self._parse(text, tools)
        except (OSError, ValueError) as error:
            # TimeoutError and HTTP's errors are OSErrors.
            _log.warning("parser_away", url=self._url, reason=type(error).__name__)
            return None

    async def _parse(self, text: str, tools: Sequence[Tool]) -> ParsedReply:
        thought: str | None = None
        if self._reasoning_parser is not None:
            asked = {"text": text, "reasoning_parser": self._reasoning_parser}
            found = await self._ask("separate_reasoning", asked)
            thought, text = _text(found, "reasoning_text").strip() or None, _text(found, "text").lstrip("\n")
        if self._tool_parser is None or not tools:
            return ParsedReply(text, thought)
        call = {"text": text, "tool_call_parser": self._tool_parser, "tools": list(tools)}
        found = await self._ask("parse_function_call", call)
        calls = tuple(_call(each) for each in _list(found, "calls"))
        return ParsedReply(_text(found, "normal_text").rstrip() if calls else text, thought, calls)

    async def _ask(self, what: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        request = urllib.request.Request(f"{self._url}/{what}", json.dumps(body).encode(), self._headers)

        def ask() -> Any:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            try:
                with opener.open(request, timeout=self._timeout_s) as answer:
                    return read_json(answer.read(_MOST_BYTES).decode())
            except urllib.error.HTTPError as error:
                error.close()
                raise OSError(f"status {error.code}") from None

        found = await anyio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=self._limiter)
        if not isinstance(found, dict):
            raise ValueError(f"{what}: the answer is {type(found).__name__}; it must be an object")
        return found


def _call(found: object) -> WrittenCall:
    if not isinstance(found, dict):
        raise ValueError("calls: an entry is no object")
    return WrittenCall(_text(found, "name"), arguments_text(found.get("parameters")))


def _text(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is {type(value).__name__}; it must be a text")
    return value


def _list(found: Mapping[str, Any], name: str) -> list[Any]:
    value = found.get(name)
    if not isinstance(value, list):
        raise ValueError(f"{name} is {type(value).__name__}; it must be a list")
    return value
