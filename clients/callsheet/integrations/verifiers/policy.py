"""Replies of a rollout's model, asked for where verifiers records them. Nothing here imports verifiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from callsheet.client import GatewayAccess, NotSucceededError, TrainingSample, Trajectory
from callsheet.environments import GatewayPolicy, GatewaySampling, Message, ReplyLimitError, Tool


@dataclass(frozen=True, slots=True)
class EndpointAccess(GatewaySampling):
    """The endpoint that verifiers gives to a harness, in place of the gateway.

    Attributes:
        endpoint: Its base URL, which ends with "/v1".
        secret: Its bearer token.
    """

    endpoint: str = ""
    secret: str = field(default="", repr=False)

    async def access(self, trajectory: Trajectory) -> GatewayAccess:
        """Returns the endpoint."""
        del trajectory
        return GatewayAccess(self.endpoint.removesuffix("/v1"), self.secret, float("inf"))


class EndpointPolicy:
    """Replies by chat completions of a rollout's endpoint, which records every call in its trace.

    Attributes:
        access: The endpoint, also for an agent with a loop of its own.

    Args:
        endpoint: Base URL, which ends with "/v1".
        secret: Its bearer token.
        is_stopped: Whether the rollout was stopped, by a limit or a rule of its task.
        timeout_s: The longest wait for one reply.
    """

    def __init__(
        self, endpoint: str, secret: str, is_stopped: Callable[[], bool], *, timeout_s: float = 3600.0
    ) -> None:
        self.access = EndpointAccess(endpoint=endpoint, secret=secret)
        self._asked = GatewayPolicy(self.access, timeout_s=timeout_s)
        self._is_stopped = is_stopped

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        """Returns the next message.

        Raises:
            ReplyLimitError: The rollout was stopped, or the prompt leaves no room. The episode is scored as it stands.
            NotSucceededError: There is no reply.
        """
        try:
            return await self._asked.reply(trajectory, messages, tools)
        except NotSucceededError as error:
            if self._is_stopped():
                raise ReplyLimitError("the rollout was stopped") from error
            raise

    async def samples(self, trajectory: Trajectory) -> tuple[TrainingSample, ...]:
        """Returns none: the trace has what was said."""
        del trajectory
        return ()
