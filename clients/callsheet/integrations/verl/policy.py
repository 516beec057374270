"""A token-exact policy that generates by verl's own servers. Nothing here imports verl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from callsheet.client import FinishReason, GenerateResult, PolicyVersionSpan, Sampling, Trajectory
from callsheet.environments import TokenPolicy
from callsheet.gateway.conversations.renderer import Renderer
from callsheet.integrations.columns import VERSIONS
from callsheet.integrations.verl.lent import LentTrajectory, lending

_ABORTED: Final = frozenset({"aborted", "abort"})


class TokenOutputPart(Protocol):
    """Part of verl's `TokenOutput` that is used."""

    @property
    def token_ids(self) -> list[int]:
        """The new tokens."""

    @property
    def log_probs(self) -> list[float] | None:
        """Log-probability of each new token, if asked for."""

    @property
    def stop_reason(self) -> str | None:
        """Reason for which the output ended."""

    @property
    def extra_fields(self) -> dict[str, Any]:
        """Steps of the trainer whose weights made them, among others."""


class ServerPart(Protocol):
    """Part of verl's `LLMServerClient` that is used."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> TokenOutputPart:
        """Generates tokens."""


class ServerPolicy(TokenPolicy):
    """Replies by verl's servers, with Callsheet's bookkeeping of tokens: none is ever tokenised again.

    Args:
        renderer: The trainer's tokenizer and template.
        server: verl's client of its servers.
        params: verl's sampling parameters.
        sampling: The same as Callsheet's.
        max_completion_tokens: The most tokens after the first prompt.
    """

    def __init__(
        self,
        renderer: Renderer,
        server: ServerPart,
        params: Mapping[str, Any],
        sampling: Sampling,
        *,
        max_completion_tokens: int,
    ) -> None:
        super().__init__(renderer, sampling, max_completion_tokens=max_completion_tokens)
        self._server = server
        self._params = dict(params)

    async def _generate_once(self, trajectory: Trajectory, prompt: tuple[int, ...], most: int) -> GenerateResult:
        params = {**self._params, "max_tokens": most, "stop_token_ids": list(self._sampling.stop_token_ids)}
        # A server client of Callsheet generates in the trajectory that it is lent.
        with lending(LentTrajectory(trajectory)):
            output = await self._server.generate(
                request_id=trajectory.trajectory_id, prompt_ids=list(prompt), sampling_params=params
            )
        return result_of(output, most, self._sampling.stop_token_ids)


def result_of(output: TokenOutputPart, most: int, stop_token_ids: Sequence[int]) -> GenerateResult:
    """Returns what verl's servers generated as the result of an action."""
    tokens = tuple(output.token_ids)
    aborted = output.stop_reason in _ABORTED
    stopped = not aborted and (len(tokens) < most or bool(tokens and tokens[-1] in stop_token_ids))
    reason = FinishReason.STOP if stopped else FinishReason.ABORT if aborted else FinishReason.LENGTH
    return GenerateResult(tokens, tuple(output.log_probs or ()), reason, tuple(_spans(output, len(tokens))))


def _spans(output: TokenOutputPart, count: int) -> list[PolicyVersionSpan]:
    """The versions of tokens: as Callsheet told them, or verl's step where all are of one."""
    told = output.extra_fields.get(VERSIONS)
    if told is not None:
        return [PolicyVersionSpan(version, begin, end) for version, begin, end in told]
    steps = {output.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps")}
    (step, *others) = steps
    return [] if others or step is None or not count else [PolicyVersionSpan(int(step), 0, count)]
