"""A tool that is a function of an installed package: called in processes that come with demand and go when idle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from time import monotonic
from typing import Any, cast

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream
from callsheet.managers.executor import Attempt, Completed
from callsheet.managers.sandbox.process_tree import cpu_seconds_below
from callsheet.managers.tools import function_program
from callsheet.managers.tools.errors import ENV, INFRA, POLICY, ToolFailedError
from callsheet.managers.tools.quota_gate import QuotaClock, QuotaGate
from callsheet.managers.tools.settings import SpendingTable, ToolTable
from callsheet.v1 import action_pb2, outcome_pb2
from typing_extensions import override

# The seam between the tools manager and one of its services, and what tools have in common.

# Of the mean, and by how much another mean differs.
_SHARE_OF_ONE = 0.05
_NEWS = 0.2


class ToolService(ABC):
    """One service: a tool or a judge.

    Attributes:
        kind: What it serves.
        spending: Its settings.
        gate: Its way to what it spends.
        tokens_per_call: Tokens that a call takes, as the scheduler is told.
    """

    kind: action_pb2.ActionKind.ValueType = action_pb2.ACTION_KIND_TOOL_CALL

    def __init__(self, spending: SpendingTable, gate: QuotaGate) -> None:
        self.spending = spending
        self.gate = gate
        self.tokens_per_call = spending.tokens_per_call
        self._mean_tokens = float(spending.tokens_per_call)

    @abstractmethod
    async def call(self, attempt: Attempt, clock: QuotaClock) -> Completed:
        """Runs an attempt; cancelled when it is to stop.

        Args:
            attempt: The attempt.
            clock: Its clock, which stands while it waits for its quota.

        Raises:
            ToolFailedError: It has no result.
        """

    def learn(self, tokens: int) -> None:
        """Notes what a call took; the scheduler hears of a mean that is another than the one it was told."""
        self._mean_tokens += (tokens - self._mean_tokens) * _SHARE_OF_ONE
        if abs(self._mean_tokens - self.tokens_per_call) > _NEWS * self.tokens_per_call:
            self.tokens_per_call = max(round(self._mean_tokens), 1)
            self.gate.report()

    async def serve(self) -> None:
        """Does what there is to do beside calls until it is cancelled."""

    async def close(self) -> None:
        """Releases everything."""


async def read_arguments(attempt: Attempt) -> dict[str, Any]:
    """Returns the arguments of a tool call: a JSON object, or nothing.

    Raises:
        ToolFailedError: They are something else.
    """
    content = await attempt.payloads.read(attempt.action.tool_call.arguments)
    try:
        arguments = json.loads(content) if content else {}
    except (ValueError, RecursionError) as error:
        raise bad_arguments("arguments: must be JSON") from error
    if not isinstance(arguments, dict):
        raise bad_arguments("arguments: must be a JSON object")
    return arguments


async def told_value(attempt: Attempt, value: object) -> outcome_pb2.Succeeded:
    """Returns what a tool answered as the result of its call."""
    blob = await attempt.payloads.write(json.dumps(value, ensure_ascii=False).encode())
    return outcome_pb2.Succeeded(tool_call=outcome_pb2.ToolCallResult(response=blob))


def bad_arguments(message: str) -> ToolFailedError:
    """Returns that a call is none that its tool takes."""
    return ToolFailedError(POLICY, "bad_arguments", message)


_END_S = 5.0
_BROKEN = (
    OSError,
    ValueError,
    anyio.BrokenResourceError,
    anyio.DelimiterNotFound,
    anyio.EndOfStream,
    anyio.IncompleteRead,
)
# Without others of the manager's: its keys may be among them.
_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH")


class FunctionTool(ToolService):
    """Calls a function; each process has one call at a time."""

    def __init__(self, table: ToolTable, gate: QuotaGate) -> None:
        super().__init__(table, gate)
        self._table = table
        self._idle: list[tuple[float, _FunctionProcess]] = []

    @override
    async def call(self, attempt: Attempt, clock: QuotaClock) -> Completed:
        arguments = await read_arguments(attempt)
        async with self.gate.admitted(self._table.tokens_per_call, clock):
            said = await self._ask(arguments, clock)
        if "raised" in said:
            raise ToolFailedError(ENV, "tool_raised", f"{self._table.function}: {said['raised']}")
        return Completed(await told_value(attempt, said["value"]))

    @override
    async def serve(self) -> None:
        while True:
            await anyio.sleep(self._table.idle_s / 4)
            # The longest idle is first, as the last one is taken first.
            while self._idle and monotonic() - self._idle[0][0] >= self._table.idle_s:
                await self._idle.pop(0)[1].end()

    @override
    async def close(self) -> None:
        while self._idle:
            await self._idle.pop()[1].end()

    async def _ask(self, arguments: dict[str, Any], clock: QuotaClock) -> dict[str, Any]:
        process = self._idle.pop()[1] if self._idle else _FunctionProcess(self._table)
        unbroken = False
        try:
            with anyio.fail_after(self._table.timeout_s):
                said = await process.ask(arguments)
            unbroken = True
        except TimeoutError as error:
            raise ToolFailedError(INFRA, "tool_timeout", f"{self._table.function}: no answer in time") from error
        except _BROKEN as error:
            message = f"{self._table.function}: its process ended, or said too much: {type(error).__name__}"
            raise ToolFailedError(INFRA, "tool_died", message) from error
        finally:
            clock.cpu_s += process.untold_cpu_s()
            if unbroken:
                self._idle.append((monotonic(), process))
            else:
                await process.end()
        return said


class _FunctionProcess:
    """One process; it starts with its first call."""

    def __init__(self, table: ToolTable) -> None:
        self._table = table
        self._process: Process | None = None
        self._told_cpu_s = 0.0

    async def ask(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._process = await anyio.open_process(
                [sys.executable, "-P", function_program.__file__, self._table.function],
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in (*_VARIABLES, *self._table.variables) if name in os.environ},
                start_new_session=True,
            )
            self._lines = BufferedByteReceiveStream(cast("ByteReceiveStream", self._process.stdout))
            if "raised" in (ready := await self._answer()):
                return ready
        await cast("ByteSendStream", self._process.stdin).send(json.dumps(arguments).encode() + b"\n")
        return await self._answer()

    def untold_cpu_s(self) -> float:
        """CPU seconds of it, and of processes that it waited for, since this was last asked."""
        before = self._told_cpu_s
        if self._process is not None:
            self._told_cpu_s = max(before, cpu_seconds_below(self._process.pid, include_root=True))
        return self._told_cpu_s - before

    async def end(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True), anyio.move_on_after(_END_S):
                await self._process.aclose()

    async def _answer(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(await self._lines.receive_until(b"\n", self._table.max_response_bytes))
        return said
