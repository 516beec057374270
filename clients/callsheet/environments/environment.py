"""Protocol of an environment for policies, trainers and evaluations: three verbs over one trajectory.

An environment never computes here. It submits actions of its trajectory, with their demands, and reads outcomes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from callsheet.client import GatewayAccess, Trajectory
from callsheet.gateway.chat import Message, Tool


@dataclass(frozen=True, slots=True)
class EpisodeTask:
    """Task of one episode. It pickles, and a row of a trainer's dataset can hold it.

    Attributes:
        task_id: Its id, unique in its task set and the same in every process.
        data: Data from which the task set makes the environment; JSON can hold it.
    """

    task_id: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Beginning:
    """First messages and tools for a policy.

    Attributes:
        messages: The conversation so far, at least one message; the last one is not the assistant's.
        tools: The tools that it may call, the same for the whole episode.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """Answer of an environment to a reply.

    Attributes:
        messages: Messages for the policy; at least one unless the episode is done.
        done: Whether the episode is over.
    """

    messages: Sequence[Message] = ()
    done: bool = False


@dataclass(frozen=True, slots=True)
class EpisodeScore:
    """Score of an episode.

    Attributes:
        value: The score; a finite number.
        components: Named parts of it, for logs.
        said: The last lines that its tests printed, for people; empty if there are none.
    """

    value: float
    components: Mapping[str, float] = field(default_factory=dict)
    said: str = field(default="", compare=False)


class Environment(Protocol):
    """One episode's world. Each call submits actions of the trajectory it is given, and no other.

    A method that cannot go on raises the `NotSucceededError` of an `unwrap()`; the episode then ends with that failure.
    A text of the model that no command can be given is the outcome POLICY `bad_command`. Any other exception is a
    mistake in the environment, and ends the run; so is such a text of which the model's replies have no sign.
    """

    async def reset(self, trajectory: Trajectory) -> Beginning:
        """Begins the episode: makes the sandbox, if it needs one, and tells the policy what to do."""

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        """Carries out what the policy replied.

        Args:
            trajectory: The episode's trajectory.
            reply: An assistant's message, in the shape of chat completions: `content` and, maybe, `tool_calls`.
        """

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        """Scores the episode; called once, after the last step."""


@runtime_checkable
class AgentEnvironment(Protocol):
    """The world of a black box: an agent with a loop of its own, which speaks to the model through the gateway.

    Having `run` tells it from an `Environment`.
    """

    async def reset(self, trajectory: Trajectory) -> None:
        """Makes the sandbox, if it needs one."""

    async def run(self, trajectory: Trajectory, access: GatewayAccess) -> None:
        """Runs the agent to its end, for instance as an env_step of its command.

        Args:
            trajectory: The episode's trajectory.
            access: Base URL and key for the agent.
        """

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        """Scores the episode; called once, after the agent has ended."""


class TaskSet(Protocol):
    """Tasks, and the environment of each. It pickles."""

    def tasks(self) -> Sequence[EpisodeTask]:
        """Returns all tasks, in an order that stays."""

    def environment(self, task: EpisodeTask) -> Environment | AgentEnvironment:
        """Returns a new environment for one episode of a task. It is called in threads, and may read files."""
