"""Who replies in an evaluation: the gateway's model, a model by its tokens, somebody's own policy, or an agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from callsheet.client import GATEWAY_PLACE, Command, GatewayAccess, Sampling, Timeouts, Trajectory
from callsheet.environments import (
    AgentEnvironment,
    Environment,
    EpisodePolicy,
    EpisodeScore,
    EpisodeTask,
    GatewayPolicy,
    GatewaySampling,
    Message,
    PolicyFactory,
    TokenPolicy,
)
from callsheet.environments.sandbox_environment import SandboxEnvironment
from callsheet.environments.task_sets import import_by_name
from callsheet.evaluation.settings import GATEWAY, EvaluationSettings

PROMPT_VARIABLE: Final = "CALLSHEET_PROMPT"
"""In which an agent finds the texts of the environment's first messages."""


def gateway_sampling(settings: EvaluationSettings) -> GatewaySampling:
    """Returns what is forced on calls of the gateway."""
    return GatewaySampling(settings.temperature, settings.top_p, settings.top_k, settings.max_tokens)


def policy_factory(settings: EvaluationSettings) -> PolicyFactory | None:
    """Returns what makes the policies; None where an agent replies.

    Raises:
        ValueError: There is no such policy, or no tokenizer where it should be.
    """
    if settings.agent is not None:
        return None
    if settings.model_dir is not None:
        return _token_policies(settings, settings.model_dir)
    if settings.policy != GATEWAY:
        return _own_policies(settings.policy)
    return lambda _: GatewayPolicy(gateway_sampling(settings), keep_samples=False)


def _token_policies(settings: EvaluationSettings, directory: Path) -> PolicyFactory:
    from callsheet.gateway.renderers.loading import load_renderer

    renderer = load_renderer(str(directory))
    given = {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": settings.top_k}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    sampling = Sampling(max_new_tokens=settings.max_tokens, **chosen)
    return lambda _: TokenPolicy(renderer, sampling, max_total_tokens=settings.max_total_tokens)


def _own_policies(name: str) -> PolicyFactory:
    if ":" not in name:
        raise ValueError(f"policy: {name!r} must be {GATEWAY!r} or MODULE:NAME")
    found: Any = import_by_name(name, "policy")

    def make(task: EpisodeTask) -> EpisodePolicy:
        policy: EpisodePolicy = found(task)
        return policy

    return make


@dataclass(slots=True)
class CommandAgent:
    """An environment whose sandbox an agent's command works in, in place of a policy's replies.

    Attributes:
        inner: The environment.
        command: The agent's shell command.
        timeout_s: How long it may run.
        prompt: What it is asked; empty before the reset.
    """

    inner: Environment
    command: str
    timeout_s: float
    prompt: str = ""

    async def reset(self, trajectory: Trajectory) -> None:
        """Resets the environment."""
        self.prompt = prompt_of((await self.inner.reset(trajectory)).messages)

    async def run(self, trajectory: Trajectory, access: GatewayAccess) -> None:
        """Runs the agent in the sandbox, whatever it exits with."""
        environment = {**access.environment(), PROMPT_VARIABLE: self.prompt}
        command = Command.shell(self.command, environment=environment)
        timeouts = Timeouts(start_to_close_s=self.timeout_s)
        (await trajectory.env_step(command, label="agent", timeouts=timeouts)).unwrap()

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        """Scores what the agent left."""
        return await self.inner.reward(trajectory)


def with_agent(
    environment: Environment | AgentEnvironment, settings: EvaluationSettings
) -> Environment | AgentEnvironment:
    """Returns the environment with the agent of the settings in it, if they name one. Its sandbox reaches the gateway.

    Raises:
        ValueError: It has an agent of its own.
    """
    if settings.agent is None:
        return environment
    if isinstance(environment, AgentEnvironment):
        raise ValueError(f"agent: {type(environment).__name__} has an agent of its own, so none can be given")
    if isinstance(environment, SandboxEnvironment):
        environment.let_reach(GATEWAY_PLACE)
    return CommandAgent(environment, settings.agent, settings.deadline)


def prompt_of(messages: Sequence[Message]) -> str:
    """Returns the texts of messages, one paragraph each."""
    return "\n\n".join(str(message.get("content") or "") for message in messages)
