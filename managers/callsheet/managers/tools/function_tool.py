"""A tool that is a function of an installed package: called in processes that come with demand and go when idle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from time import monotonic
from typing import Any, cast

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream
from callsheet.managers.executor import Attempt, Completed
from callsheet.managers.sandbox.process_tree import cpu_seconds_below
from callsheet.managers.tools import function_program
from callsheet.managers.tools.errors import ENV, INFRA, ToolFailedError
from callsheet.managers.tools.quota_gate import QuotaClock, QuotaGate
from callsheet.managers.tools.service import ToolService, read_arguments, told_value
from callsheet.managers.tools.settings import ToolTable
from typing_extensions import override

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
