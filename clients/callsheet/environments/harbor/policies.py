"""Policies that check tasks: `oracle` solves each by its own solution, `nothing` does nothing.

    callsheet eval harbor --task-option path=FOLDER --policy callsheet.environments.harbor:oracle

A sound task gives the first one a reward of 1, and the second one 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio.to_thread
from callsheet.client import Demand, SandboxFile, Timeouts, TrainingSample, Trajectory
from callsheet.environments.bash_replies import SUBMIT, call_message
from callsheet.environments.environment import EpisodeTask
from callsheet.environments.harbor.folders import archive_of, read_task
from callsheet.environments.harbor.task import SOLUTION, HarborTask, HarborTaskError, TaskFormat, solution_command
from callsheet.environments.sandbox_environment import PATIENCE_S
from callsheet.gateway.chat import Message, Tool

_SUBMIT_ID: Final = "submit-1"


class SubmittingPolicy:
    """Submits at once."""

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        """Returns the call of `submit`."""
        del trajectory, messages, tools
        return call_message(SUBMIT, {}, _SUBMIT_ID)

    async def samples(self, trajectory: Trajectory) -> tuple[TrainingSample, ...]:
        """None: it has no tokens."""
        del trajectory
        return ()


class OraclePolicy(SubmittingPolicy):
    """Runs the task's own solution in the sandbox, and submits. How the solution ends is left to the tests."""

    def __init__(self, task: HarborTask) -> None:
        """Raises HarborTaskError for a task without a solution."""
        if not task.solution.is_file():
            raise HarborTaskError(f"task {task.name!r}: has no {task.solution.relative_to(task.folder)} for an oracle")
        self._task = task

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        """Runs the solution and returns the call of `submit`; raises NotSucceededError if it took too long."""
        task = self._task
        archive = await anyio.to_thread.run_sync(_solution, task)
        outcome = await trajectory.env_step(
            solution_command(task, await anyio.to_thread.run_sync(task.solution.read_bytes)),
            files=(SandboxFile(SOLUTION[task.format], archive, unpack=True),),
            demand=Demand(cpu=task.cpus),
            label="oracle",
            task=task.name,
            timeouts=Timeouts(schedule_to_start_s=PATIENCE_S, start_to_close_s=task.agent_timeout_s),
        )
        outcome.unwrap()
        return await super().reply(trajectory, messages, tools)


def oracle(task: EpisodeTask) -> OraclePolicy:
    """Returns the policy that solves a task by its own solution."""
    return OraclePolicy(read_task(Path(task.data["folder"])))


def nothing(task: EpisodeTask) -> SubmittingPolicy:
    """Returns the policy that submits at once."""
    del task
    return SubmittingPolicy()


def _solution(task: HarborTask) -> bytes:
    """Blocks: returns an archive of the solution's files."""
    if task.format is TaskFormat.HARBOR:
        return archive_of(task.solution.parent, executable=True)
    return archive_of(None, (task.solution,), executable=True)
