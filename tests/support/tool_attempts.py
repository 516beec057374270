"""Attempts at tool calls and judgements, for executors without a scheduler."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed
from callsheet.managers.tools.executor import ToolsExecutor, build_tools_executor
from callsheet.managers.tools.settings import ToolsSettings
from callsheet.v1 import action_pb2, common_pb2, manager_service_pb2, outcome_pb2


class InlinePayloads:
    """All payloads are inline."""

    async def read(self, blob: common_pb2.Blob) -> bytes:
        """Returns its bytes."""
        return blob.inline

    async def write(self, content: bytes) -> common_pb2.Blob:
        """Returns a blob of the bytes."""
        return common_pb2.Blob(inline=content)


def call_attempt(service: str, method: str = "call", *, deadline_s: float = 30.0, **arguments: Any) -> Attempt:
    """An attempt at a tool call."""
    content = json.dumps(arguments).encode() if arguments else b""
    call = action_pb2.ToolCallInput(method=method, arguments=common_pb2.Blob(inline=content))
    return _attempt(action_pb2.ActionSpec(service=service, tool_call=call), deadline_s)


def judge_attempt(service: str, prompt: str, *, deadline_s: float = 30.0) -> Attempt:
    """An attempt at a judgement."""
    text = action_pb2.ConversationText(prompt=prompt, response="42")
    judge = action_pb2.JudgeInput(rubric="End with 'Score: N'.", text=text)
    spec = action_pb2.ActionSpec(service=service, reward=action_pb2.RewardInput(judge=judge))
    return _attempt(spec, deadline_s)


def _attempt(spec: action_pb2.ActionSpec, deadline_s: float) -> Attempt:
    grant = manager_service_pb2.Grant(token=manager_service_pb2.FencingToken(epoch=1, sequence=1))
    grant.start_to_close.FromMilliseconds(round(deadline_s * 1000))
    return Attempt(grant, spec, InlinePayloads())


def answered(result: AttemptResult) -> Any:
    """What a tool answered, also in a failure."""
    succeeded = result.succeeded if isinstance(result, Completed) else failure(result).partial
    return json.loads(succeeded.tool_call.response.inline)


def failure(result: AttemptResult) -> outcome_pb2.Failed:
    """The failure of an attempt."""
    assert isinstance(result, Broken), result
    return result.failed


@asynccontextmanager
async def tools_executor(directory: Path, text: str, **settings: Any) -> AsyncIterator[ToolsExecutor]:
    """An executor of a tools file, which serves for the length of the block."""
    path = directory / "tools.toml"
    path.write_text(text)
    executor = build_tools_executor(ToolsSettings(tools_file=path, **settings))
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(executor.serve)
            yield executor
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await executor.close()
