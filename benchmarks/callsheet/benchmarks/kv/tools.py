"""Tools that only take time, as a manager serves them. Nobody is told beforehand how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Executor, Stopped
from callsheet.v1 import action_pb2, manager_service_pb2, outcome_pb2
from typing_extensions import override

SERVICE: Final = "tools"
METHOD: Final = "wait"
LABEL: Final = "tool"


class WaitingTools(Executor):
    """A tool call takes the seconds that its argument names."""

    @override
    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """One service without a limit."""
        return [manager_service_pb2.HostedService(name=SERVICE, kinds=[action_pb2.ACTION_KIND_TOOL_CALL])]

    @override
    async def run(self, attempt: Attempt) -> AttemptResult:
        """Lets the time pass."""
        try:
            tool_s = float(await attempt.payloads.read(attempt.action.tool_call.arguments))
        except ValueError as error:
            return Broken.of(outcome_pb2.FAILURE_KIND_ENV, "invalid_arguments", str(error))
        with anyio.move_on_after(tool_s):
            await attempt.stop_requested.wait()
            return Stopped()
        return Completed(outcome_pb2.Succeeded(tool_call=outcome_pb2.ToolCallResult()))
