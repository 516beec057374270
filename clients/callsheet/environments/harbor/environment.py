"""The world of one task (its image, its instruction, its time, its hidden tests), and policies that check tasks.

`oracle` solves each task by its own solution, `nothing` does nothing:

    callsheet eval harbor --task-option path=FOLDER --policy callsheet.environments.harbor:oracle

A sound task gives the first one a reward of 1, and the second one 0.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from callsheet.client import (
    BackgroundProcesses,
    CallsheetError,
    Command,
    CommandDefaults,
    Demand,
    EnvStep,
    Failed,
    FailureKind,
    GatewayAccess,
    Hold,
    ImageBuild,
    Reason,
    Resource,
    SandboxFile,
    Timeouts,
    TrainingSample,
    Trajectory,
    Where,
)
from callsheet.environments.bash_replies import SUBMIT, BadCall, SandboxCommand, call_message
from callsheet.environments.environment import Beginning, EpisodeScore, EpisodeTask, Observation
from callsheet.environments.failures import EpisodeFailure, failure_of_outcome
from callsheet.environments.harbor.folders import archive_of, empty_directories, named_variables, read_task
from callsheet.environments.harbor.task import (
    LOGS,
    SOLUTION,
    TESTS,
    HarborTask,
    HarborTaskError,
    TaskFormat,
    solution_command,
    tests_command,
)
from callsheet.environments.sandbox_environment import (
    PATIENCE_S,
    SandboxDemands,
    SandboxEnvironment,
    SandboxWorld,
    last_lines,
)
from callsheet.gateway.chat import Message, Tool

PROMPT_VARIABLE: Final = "CALLSHEET_PROMPT"
"""In which an agent finds the instruction."""
FAMILY: Final = "harbor"
_HOW: Final = """\

You work in a sandbox. Run a command with the tool bash, or write it in a ```bash block of your reply.
Each command begins in the same directory. When you are done, call the tool submit, or reply without a command.
"""
# For the pull and the layers of an image, besides its build.
_MAKING_S: Final = 900.0
_CLEARING_S: Final = 60.0
_IS_USER: Final = '[ "$USER" = "$1" ] || [ "$(id -u)" = "$1" ]'
_SUBMIT_ID: Final = "submit-1"

_logger = logging.getLogger(__name__)


class HarborEnvironment(SandboxEnvironment):
    """A task for a policy whose replies are commands.

    Its tests are run in the trajectory's own sandbox. First the manager kills what the agent left running, because
    that could read the tests and write the reward. Then the manager lays the places of tests and rewards anew, so
    nothing planted there counts. A task whose tests ask a server of the agent's says so, and its reward can be forged.

    Args:
        task: The task.
        network: Places that the sandbox may reach.
        patience_s: How long an action may wait in the queue.
        clock: Tells seconds, for the agent's time.
    """

    def __init__(
        self,
        task: HarborTask,
        network: tuple[str, ...] = (),
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        memory = Resource("memory", task.memory_mib, hold=Hold.TRAJECTORY)
        demands = SandboxDemands(Demand(memory, cpu=1), Demand(cpu=task.cpus))
        super().__init__(_world(task, network), demands, patience_s=patience_s)
        self.task = task
        self._clock = clock
        self._began = 0.0

    async def reset(self, trajectory: Trajectory) -> Beginning:
        """Makes the sandbox of the task's image, which is built if there is a Dockerfile."""
        task, world = self.task, self._world
        build = await anyio.to_thread.run_sync(_build, task)
        outcome = await trajectory.env_reset(
            files=world.files,
            image=task.image,
            build=build,
            disk_mib=max(1, min(task.storage_mib, task.memory_mib // 2)),
            defaults=world.defaults,
            network=world.network,
            demand=self._demands.reset,
            label=f"{FAMILY}-reset",
            task=world.name,
            timeouts=self._timeouts(self._making_s),
        )
        outcome.unwrap()
        await self._check_user(trajectory)
        self._began = self._clock() - trajectory.waited_s
        return Beginning(world.messages, world.tools)

    @property
    def _making_s(self) -> float:
        return _MAKING_S + (0.0 if self.task.image else self.task.build_timeout_s)

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        """Runs what the reply wants; ends the episode once the agent's time is over."""
        observation = await super().step(trajectory, reply)
        return observation if self.left_s(trajectory) > 0 else replace(observation, done=True)

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        """Has the hidden tests laid into the sandbox and run, reads the reward that they wrote, and removes them."""
        task = self.task
        archive, text = await anyio.to_thread.run_sync(_tests, task)
        outcome = await trajectory.reward_script(
            tests_command(task, text),
            files=(
                *_laid_anew(f"{LOGS}/verifier", empty_directories()),
                *_laid_anew(TESTS, archive),
            ),
            where=Where.IN_SANDBOX,
            background=BackgroundProcesses.RUN if task.keeps_running else BackgroundProcesses.KILL,
            demand=self._demands.step,
            label=f"{FAMILY}-tests",
            task=task.name,
            timeouts=self._timeouts(task.verifier_timeout_s),
        )
        await self._remove_tests(trajectory)
        result = outcome.unwrap()
        return EpisodeScore(result.score, dict(result.components), last_lines(result.command))

    async def _remove_tests(self, trajectory: Trajectory) -> None:
        """Removes the hidden tests, which nobody is to read afterwards.

        The score is there already: neither the end of the episode's time nor a failure loses it. A removal that waits
        for longer stays in the queue, before any further action in the sandbox.
        """
        problem: object = f"no answer in {_CLEARING_S:g} s"
        with anyio.move_on_after(_CLEARING_S, shield=True):
            try:
                handle = await trajectory.submit(
                    # A program of the image, and so it may be the agent's.
                    EnvStep(Command.argv("rm", "-rf", TESTS)),
                    label="rm",
                    task=self.task.name,
                    timeouts=self._timeouts(_CLEARING_S),
                )
                outcome = await handle.outcome()
                trajectory.waited_s += outcome.timeline.queue_s
                problem = failure_of_outcome(outcome)
            except CallsheetError as error:
                problem = error
        if problem is not None:
            _logger.warning(
                "hidden tests not removed job=%s trajectory=%s task=%s: %s",
                trajectory.job_id,
                trajectory.trajectory_id,
                self.task.name,
                problem,
            )

    @property
    def time_limits(self) -> dict[str, float]:
        """How long its parts may take, in seconds, by name."""
        task = self.task
        return super().time_limits | {
            "agent": task.agent_timeout_s,
            "reset": self._making_s,
            "reward": task.verifier_timeout_s,
        }

    def left_s(self, trajectory: Trajectory) -> float:
        """Seconds of its time that the agent has left; what its actions waited in queues is not counted."""
        return self.task.agent_timeout_s - (self._clock() - trajectory.waited_s - self._began)

    async def _check_user(self, trajectory: Trajectory) -> None:
        """Ends the episode where agent and tests are two users: one of them is named, the other one the image's."""
        task = self.task
        named = task.agent_user or task.verifier_user
        if task.agent_user == task.verifier_user:
            return
        outcome = await trajectory.env_step(
            Command.argv("sh", "-c", _IS_USER, "sh", named),
            label="id",
            task=task.name,
            timeouts=self._timeouts(_CLEARING_S),
        )
        if outcome.unwrap().exit_code:
            told = f"task {task.name!r}: user: {named!r}: the image has another one for the rest, and a sandbox has one"
            EpisodeFailure(FailureKind.ENV, Reason.USER_REFUSED.value, told).throw()

    async def _run(self, trajectory: Trajectory, wanted: SandboxCommand | BadCall) -> str:
        left_s = self.left_s(trajectory)
        if left_s <= 0:
            return f"not run: the {self.task.agent_timeout_s:g} seconds of this task are over\n"
        if isinstance(wanted, SandboxCommand):
            wanted = replace(wanted, timeout_s=min(wanted.timeout_s, left_s))
        return await super()._run(trajectory, wanted)


@dataclass(slots=True)
class HarborAgent:
    """A task for an agent with a loop of its own, which is started in the sandbox.

    Attributes:
        inner: The task's environment.
        command: The agent's shell command. It finds the instruction in `CALLSHEET_PROMPT`.
    """

    inner: HarborEnvironment
    command: str

    async def reset(self, trajectory: Trajectory) -> None:
        """Makes the sandbox."""
        await self.inner.reset(trajectory)

    @property
    def time_limits(self) -> dict[str, float]:
        """Those of the environment."""
        return self.inner.time_limits

    async def run(self, trajectory: Trajectory, access: GatewayAccess) -> None:
        """Runs the agent for as long as the task allows, whatever it exits with."""
        task = self.inner.task
        variables = {**task.environment, **access.environment(), PROMPT_VARIABLE: task.instruction}
        timeouts = Timeouts(schedule_to_start_s=PATIENCE_S, start_to_close_s=task.agent_timeout_s)
        command = Command.shell(self.command, environment=variables)
        outcome = await trajectory.env_step(
            command, demand=Demand(cpu=task.cpus), label="agent", task=task.name, timeouts=timeouts
        )
        if not (isinstance(outcome, Failed) and outcome.kind is FailureKind.TIMEOUT):
            outcome.unwrap()

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        """Scores what the agent left, also where its time was over."""
        return await self.inner.reward(trajectory)


def _world(task: HarborTask, network: tuple[str, ...]) -> SandboxWorld:
    nothing = Command.argv("true")
    return SandboxWorld(
        name=task.name,
        family=FAMILY,
        messages=({"role": "user", "content": task.instruction.rstrip() + "\n" + _HOW},),
        files=(SandboxFile(LOGS, empty_directories("agent", "verifier", "artifacts"), unpack=True),),
        set_up=nothing,
        reward=nothing,
        reward_files=(),
        network=network,
        # Where only one of the two is named, it must be the image's own.
        defaults=CommandDefaults(
            environment=task.environment,
            working_directory=task.workdir,
            user=task.agent_user if task.agent_user == task.verifier_user else "",
        ),
    )


def _build(task: HarborTask) -> ImageBuild | None:
    """Blocks: returns what the task's image is built of; None where it has one by name."""
    return None if task.image else ImageBuild(archive_of(task.context), timeout_s=task.build_timeout_s)


def _laid_anew(path: str, archive: bytes) -> tuple[SandboxFile, SandboxFile]:
    """Returns files of a reward that make a directory anew from an archive, whatever an agent put there.

    A reward's file replaces all that has its path, a directory with everything in it too. The archive merges into a
    directory, so it comes second and replaces the file.
    """
    return SandboxFile(path, b""), SandboxFile(path, archive, unpack=True)


def _tests(task: HarborTask) -> tuple[bytes, bytes]:
    """Blocks: returns an archive of the hidden tests, and the script that runs them."""
    more = () if task.format is TaskFormat.HARBOR else (task.test_script,)
    return archive_of(task.folder / "tests", more, executable=True), task.test_script.read_bytes()


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


def read_again(task: EpisodeTask) -> HarborTask:
    """Returns what the folder of a task says; raises HarborTaskError."""
    return read_task(Path(task.data["folder"]), named_variables(task.data.get("variables", ""), os.environ))


def oracle(task: EpisodeTask) -> OraclePolicy:
    """Returns the policy that solves a task by its own solution."""
    return OraclePolicy(read_again(task))


def nothing(task: EpisodeTask) -> SubmittingPolicy:
    """Returns the policy that submits at once."""
    del task
    return SubmittingPolicy()


def _solution(task: HarborTask) -> bytes:
    """Blocks: returns an archive of the solution's files."""
    if task.format is TaskFormat.HARBOR:
        return archive_of(task.solution.parent, executable=True)
    return archive_of(None, (task.solution,), executable=True)
