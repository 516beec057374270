"""The interface between the tools manager and one of its services, and helpers that all tools share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

from callsheet.managers.executor import Attempt, Completed
from callsheet.managers.tools.errors import POLICY, ToolFailedError
from callsheet.managers.tools.quota_gate import QuotaClock, QuotaGate
from callsheet.managers.tools.settings import SpendingTable
from callsheet.v1 import action_pb2, outcome_pb2

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
