"""A client in memory, for tests of code that uses the client: no scheduler, no gRPC, scripted outcomes.

    fake = FakeClient()
    fake.on_env_step(lambda step: Succeeded(CommandResult(0, stdout=b"ok")))
    await code_under_test(fake)
    assert [submission.action for submission in fake.submitted] == [EnvStep("make test")]

Wrap it for code that uses the sync facade: `SyncClient(fake)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from callsheet.client.backend import Backend
from callsheet.client.client import Client
from callsheet.client.errors import ClientClosedError
from callsheet.client.testing.fake_backend import FakeBackend
from callsheet.client.words.actions import (
    EnvReset,
    EnvStep,
    Generate,
    Judge,
    RewardModel,
    RewardScript,
    RewardTests,
    Submission,
    TeacherLogProbs,
    ToolCall,
)
from callsheet.client.words.outcomes import Outcome
from callsheet.client.words.weights import PublishedWeights
from callsheet.v1.job_values import JobDescription, TrajectoryEnd
from callsheet.v1.outcome_values import CommandResult, EnvResetResult, GenerateResult, RewardResult, ToolCallResult

T = TypeVar("T")
ActionT = TypeVar("ActionT")
Script: TypeAlias = Callable[[ActionT], Outcome[T] | Awaitable[Outcome[T]]]
"""Makes the outcome of an action. May be async, to wait for something; may raise a RefusedError."""


class FakeClient(Client):
    """A `Client` whose outcomes come from scripts, one per sort of action.

    An action without a script raises LookupError. All else is as with a real scheduler: ids belong to one body, what is
    closed stays so, groups have seats and a quorum, and values of a wrong type are refused.
    """

    def __init__(self) -> None:
        super().__init__("fake:1")
        self._scripts: dict[type[Any], Script[Any, Any]] = {}
        self._fake = FakeBackend(self._scripts, self.steps)

    @property
    def submitted(self) -> list[Submission[Any]]:
        """All accepted submissions, in order."""
        return self._fake.submitted

    @property
    def cancelled(self) -> list[tuple[str, str, str]]:
        """(job id, action id, reason) of all cancels, those by a cancelled caller included."""
        return self._fake.cancelled

    @property
    def published(self) -> list[tuple[str, int]]:
        """(job id, version) of all published policy versions."""
        return self._fake.published

    @property
    def weights(self) -> list[tuple[str, int, PublishedWeights]]:
        """(job id, version, weights) of all policy versions that were published with a source."""
        return self._fake.weights

    @property
    def closed_trajectories(self) -> dict[tuple[str, str], TrajectoryEnd]:
        """How closed trajectories ended, by (job id, trajectory id)."""
        return self._fake.closed_trajectories

    @property
    def open_jobs(self) -> dict[str, JobDescription]:
        """Descriptions of open jobs by id."""
        return self._fake.open_jobs

    def on_generate(self, script: Script[Generate, GenerateResult]) -> None:
        """Sets the script of generate actions."""
        self._scripts[Generate] = script

    def on_env_reset(self, script: Script[EnvReset, EnvResetResult]) -> None:
        """Sets the script of env_reset actions."""
        self._scripts[EnvReset] = script

    def on_env_step(self, script: Script[EnvStep, CommandResult]) -> None:
        """Sets the script of env_step actions."""
        self._scripts[EnvStep] = script

    def on_tool_call(self, script: Script[ToolCall, ToolCallResult]) -> None:
        """Sets the script of tool_call actions."""
        self._scripts[ToolCall] = script

    def on_reward_tests(self, script: Script[RewardTests, RewardResult]) -> None:
        """Sets the script of rewards by tests."""
        self._scripts[RewardTests] = script

    def on_reward_script(self, script: Script[RewardScript, RewardResult]) -> None:
        """Sets the script of rewards by a script."""
        self._scripts[RewardScript] = script

    def on_reward_model(self, script: Script[RewardModel, RewardResult]) -> None:
        """Sets the script of rewards by a model."""
        self._scripts[RewardModel] = script

    def on_teacher_log_probs(self, script: Script[TeacherLogProbs, RewardResult]) -> None:
        """Sets the script of a teacher's log-probabilities."""
        self._scripts[TeacherLogProbs] = script

    def on_judge(self, script: Script[Judge, RewardResult]) -> None:
        """Sets the script of judgements."""
        self._scripts[Judge] = script

    def backend(self) -> Backend:
        """Returns the backend in memory.

        Raises:
            ClientClosedError: The client was closed.
        """
        if self._closed:
            raise ClientClosedError("the client is closed")
        return self._fake
