"""The policies of trajectories, made of the trainer's tokenizer and sampling, and of an engine that generates."""

from __future__ import annotations

from dataclasses import dataclass, replace

from callsheet.client import ActionOptions, Sampling
from callsheet.environments import EpisodePolicy, EpisodeTask, GatewaySampling, TokenPolicy
from callsheet.environments.seats import SeatSettings
from callsheet.gateway.conversations.renderer import Renderer


@dataclass(frozen=True, slots=True)
class PolicyMaker:
    """Settings that the policies of a run share.

    Attributes:
        renderer: The trainer's tokenizer and chat template.
        sampling: How each reply is sampled.
        max_completion_tokens: The most tokens of a trajectory after its first prompt.
        model: The service that generates.
        options: Options of each generate action.
    """

    renderer: Renderer
    sampling: Sampling
    max_completion_tokens: int
    model: str = "policy"
    options: ActionOptions | None = None

    def forced_on(self, seats: SeatSettings) -> SeatSettings:
        """Returns settings that force this sampling on black-box agents, unless they name another."""
        return replace(seats, agent_sampling=seats.agent_sampling or GatewaySampling.of(self.sampling))

    def __call__(self, task: EpisodeTask) -> EpisodePolicy:
        """Returns the policy of one trajectory."""
        options: ActionOptions = {"task": task.task_id, **(self.options or {})}
        return TokenPolicy(
            self.renderer,
            self.sampling,
            max_completion_tokens=self.max_completion_tokens,
            model=self.model,
            options=options,
        )
