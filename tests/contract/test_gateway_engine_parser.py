"""Replies that a server parses as SGLang 0.5 does, and what becomes of them where it does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from aiohttp import web
from callsheet.gateway.conversations.renderer import ParsedReply, WrittenCall
from callsheet.gateway.server.engine_parser import EngineParser

from tests.support.ports import free_port

pytestmark = pytest.mark.anyio
_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_TEXT = "<think>hm</think>\n\nI look.[look:{}]"


class ParsingServer:
    """Parses `[NAME:ARGUMENTS]` and `<think>`, by SGLang's two requests."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answer: web.Response | None = None
        self.silent = False

    async def handle(self, request: web.Request) -> web.Response:
        assert request.headers["authorization"] == "Bearer secret"
        body = await request.json()
        self.asked.append((request.path, body))
        if self.silent:
            await anyio.sleep_forever()
        if self.answer is not None:
            return self.answer
        text = body["text"]
        if request.path == "/separate_reasoning":
            thought, _, rest = text.removeprefix("<think>").partition("</think>")
            return web.json_response({"reasoning_text": thought, "text": rest})
        said, _, call = text.partition("[")
        name, _, arguments = call.removesuffix("]").partition(":")
        calls = [{"tool_index": 0, "name": name, "parameters": arguments}] if name else []
        return web.json_response({"normal_text": said, "calls": calls})


@pytest.fixture
async def server() -> AsyncIterator[ParsingServer]:
    found = ParsingServer()
    app = web.Application()
    app.router.add_post("/{name}", found.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    found.url = f"http://127.0.0.1:{port}"
    yield found
    await runner.cleanup()


def parser(server: ParsingServer, tools: str | None, reasoning: str | None, timeout_s: float = 20.0) -> EngineParser:
    return EngineParser(
        server.url, tool_parser=tools, reasoning_parser=reasoning, api_key="secret", timeout_s=timeout_s
    )


async def test_calls_and_reasoning_are_those_that_the_server_finds(server: ParsingServer) -> None:
    found = await parser(server, "qwen", "qwen3").parse(_TEXT, (_TOOL,))
    assert found == ParsedReply("I look.", "hm", (WrittenCall("look", "{}"),))
    assert server.asked == [
        ("/separate_reasoning", {"text": _TEXT, "reasoning_parser": "qwen3"}),
        ("/parse_function_call", {"text": "I look.[look:{}]", "tool_call_parser": "qwen", "tools": [_TOOL]}),
    ]


async def test_only_what_has_a_parser_is_asked_for(server: ParsingServer) -> None:
    assert await parser(server, "qwen", None).parse("plain ", (_TOOL,)) == ParsedReply("plain ")
    # Without tools a call is text.
    assert await parser(server, "qwen", "qwen3").parse(_TEXT, ()) == ParsedReply("I look.[look:{}]", "hm")
    assert [path for path, _ in server.asked] == ["/parse_function_call", "/separate_reasoning"]


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=500),
        web.Response(text="no JSON"),
        web.Response(text="[]"),
        web.Response(text='{"normal_text": "a"}'),
        web.Response(text='{"normal_text": "a", "calls": [{"name": null, "parameters": "{}"}]}'),
    ],
)
async def test_an_answer_that_is_none_leaves_it_to_the_gateway(server: ParsingServer, answer: web.Response) -> None:
    server.answer = answer
    assert await parser(server, "qwen", None).parse("a", (_TOOL,)) is None


async def test_a_server_that_is_slow_or_away_leaves_it_to_the_gateway(server: ParsingServer) -> None:
    server.silent = True
    assert await parser(server, "qwen", None, 0.05).parse("a", (_TOOL,)) is None
    server.url = f"http://127.0.0.1:{free_port()}"
    assert await parser(server, "qwen", None).parse("a", (_TOOL,)) is None
