"""An executor whose attempts do what the label of their action says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio
from callsheet.managers.clock import waiting
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Executor, Stopped
from callsheet.timing.waits import Cause
from callsheet.v1 import action_pb2, common_pb2, manager_service_pb2, outcome_pb2
from typing_extensions import override

WAIT_S = 60.0


def response(text: str) -> outcome_pb2.Succeeded:
    """Returns the result of a tool call."""
    return outcome_pb2.Succeeded(tool_call=outcome_pb2.ToolCallResult(response=common_pb2.Blob(inline=text.encode())))


class ScriptedExecutor(Executor):
    """Labels: wait, go, uncharged, raise, stuck, cancelled_rpc, read_missing, stop_unasked, large; all others complete.

    `calls` lists what the runtime asked for, in order, as "verb action".
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.go = anyio.Event()
        self.attempts: dict[str, Attempt] = {}
        self.held: list[manager_service_pb2.SandboxState] = []
        self.closed = False
        self.shared_cores: list[Sequence[int]] = []
        self.states: list[manager_service_pb2.ServiceState] = []
        self.report_states: Callable[[], None] | None = None
        self.control_error: Exception | None = None
        self._changed = anyio.Event()
        self._report: Callable[[manager_service_pb2.SandboxState, str], None] | None = None

    @override
    def on_sandbox_lost(self, report: Callable[[manager_service_pb2.SandboxState, str], None]) -> None:
        """See Executor."""
        self._report = report

    @override
    def service_states(self) -> Sequence[manager_service_pb2.ServiceState]:
        """See Executor."""
        return self.states

    @override
    def on_service_change(self, report: Callable[[], None]) -> None:
        """See Executor."""
        self.report_states = report

    @override
    def use_shared_cores(self, cores: Sequence[int]) -> None:
        """See Executor."""
        self.shared_cores.append(cores)
        self._wake()

    async def wait_shared_cores(self, count: int) -> Sequence[int]:
        """Waits until it was told its cores that often, and returns what it was told last."""
        with anyio.fail_after(WAIT_S):
            while len(self.shared_cores) < count:
                await self._changed.wait()
        return self.shared_cores[-1]

    def lose(self, sandbox: manager_service_pb2.SandboxState, reason: str) -> None:
        """Reports a sandbox as lost."""
        assert self._report is not None
        self._report(sandbox, reason)

    async def wait_call(self, call: str) -> None:
        """Waits until the runtime has asked for something."""
        with anyio.fail_after(WAIT_S):
            while call not in self.calls:
                await self._changed.wait()

    @override
    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """See Executor."""
        kinds = [action_pb2.ACTION_KIND_TOOL_CALL, action_pb2.ACTION_KIND_ENV_STEP]
        return [manager_service_pb2.HostedService(name="scripted", kinds=kinds, slots=7)]

    @override
    def capabilities(self) -> Mapping[str, str]:
        """See Executor."""
        return {"executor": "scripted"}

    @override
    def sandboxes(self) -> Sequence[manager_service_pb2.SandboxState]:
        """See Executor."""
        return self.held

    @override
    async def run(self, attempt: Attempt) -> AttemptResult:
        """Does what the label says."""
        self.attempts[attempt.action.action_id] = attempt
        self._note("run", attempt)
        script: dict[str, Callable[[Attempt], Awaitable[AttemptResult]]] = {
            "wait": self._wait,
            "go": self._go,
            "wait_for_image": self._wait_for_image,
            "uncharged": self._uncharged,
            "raise": self._raise,
            "stuck": self._stuck,
            "cancelled_rpc": self._cancelled_rpc,
            "read_missing": self._read_missing,
            "stop_unasked": self._stop_unasked,
            "large": self._large,
        }
        if attempt.action.label in script:
            return await script[attempt.action.label](attempt)
        return Completed(response("done"), outcome_pb2.Usage(cpu_s=0.5))

    @override
    async def resize(self, attempt: Attempt) -> None:
        """See Executor."""
        await self._control("resize", attempt)

    @override
    async def release_sandbox(self, sandbox: manager_service_pb2.SandboxState) -> None:
        """See Executor."""
        self.calls.append(f"release {sandbox.sandbox_id}")
        self._wake()
        if self.control_error is not None:
            raise self.control_error

    @override
    async def close(self) -> None:
        """See Executor."""
        self.closed = True

    async def _control(self, verb: str, attempt: Attempt) -> None:
        self._note(verb, attempt)
        if self.control_error is not None:
            raise self.control_error

    def _note(self, verb: str, attempt: Attempt) -> None:
        self.calls.append(f"{verb} {attempt.action.action_id}")
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _wait(self, attempt: Attempt) -> AttemptResult:
        await attempt.stop_requested.wait()
        return Stopped(response("part"))

    async def _uncharged(self, attempt: Attempt) -> AttemptResult:
        """As wait, but 0.1 s are charged until `go` is set and 0.2 s from then on."""
        attempt.execution_clock = lambda _: 0.2 if self.go.is_set() else 0.1
        return await self._wait(attempt)

    async def _go(self, _: Attempt) -> AttemptResult:
        await self.go.wait()
        return Completed(response("done"))

    async def _wait_for_image(self, _: Attempt) -> AttemptResult:
        """Waits for an image, and within that for memory, in a task of its own."""

        async def prepare() -> None:
            with waiting(Cause.MEMORY):
                await self.go.wait()

        with waiting(Cause.IMAGE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(prepare)
        return Completed(response("done"))

    async def _raise(self, _: Attempt) -> AttemptResult:
        raise RuntimeError("a secret")

    async def _stuck(self, attempt: Attempt) -> AttemptResult:
        try:
            await anyio.sleep_forever()
        finally:
            self._note("unstuck", attempt)
        return Stopped()

    async def _cancelled_rpc(self, _: Attempt) -> AttemptResult:
        raise asyncio.CancelledError

    async def _read_missing(self, attempt: Attempt) -> AttemptResult:
        reference = common_pb2.PayloadReference(sha256="ab" * 32, size=100_000)
        await attempt.payloads.read(common_pb2.Blob(reference=reference))
        return Broken(outcome_pb2.Failed(reason="not_missing"))

    async def _stop_unasked(self, _: Attempt) -> AttemptResult:
        return Stopped()

    async def _large(self, _: Attempt) -> AttemptResult:
        return Completed(response("x" * 100_000))
