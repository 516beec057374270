"""Runs an evaluation: all trials that have no result yet, so many at once, each to exactly one result.

The gateway's model replies, a model by its tokens, a policy of the user's, or an agent.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import anyio.to_thread
from callsheet.client import (
    GATEWAY_PLACE,
    Client,
    Command,
    FailedPreconditionError,
    FailureKind,
    GatewayAccess,
    Job,
    PriorityClass,
    Reason,
    RefusedError,
    Sampling,
    Timeouts,
    Trajectory,
)
from callsheet.client.errors import one_error
from callsheet.client.gateway import gateway_url, is_serving
from callsheet.environments import (
    AgentEnvironment,
    Environment,
    EpisodeEnd,
    EpisodeFailure,
    EpisodePolicy,
    EpisodeRecord,
    EpisodeScore,
    EpisodeTask,
    GatewayPolicy,
    GatewaySampling,
    Message,
    PolicyFactory,
    TaskSet,
    TimeLimit,
    TokenPolicy,
    load_task_set,
    roll_out,
)
from callsheet.environments.sandbox_environment import SandboxEnvironment
from callsheet.environments.task_sets import import_by_name, options_from_text
from callsheet.evaluation.results import (
    Evaluated,
    ResultsFile,
    TrialResult,
    check_same,
    check_same_tasks,
    open_results,
    result_of,
)
from callsheet.evaluation.settings import GATEWAY, EvaluationSettings

OnResult: TypeAlias = Callable[[TrialResult, int, int], None]
"""Told each new result, how many there are, and how many there will be."""
OnLimits: TypeAlias = Callable[[Mapping[str, float]], None]
"""Called before anything runs, with the time limits in force: seconds by what they limit."""
_MOST_ID = 200
_DIGEST = 16
# For the reset and the waits in queues, which the time of an episode does not count.
_BESIDES_S = 7200.0
# What a refusal names that may differ from task to task: its Dockerfile, its image and its units.
_TASKS_OWN = frozenset({"build", "image", "demand"})
PROMPT_VARIABLE: Final = "CALLSHEET_PROMPT"
"""In which an agent finds the texts of the environment's first messages."""


class EvaluationError(ValueError):
    """An evaluation cannot run as it was asked for."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One trajectory that is to have a result.

    Attributes:
        task: Its task.
        number: From 0.
    """

    task: EpisodeTask
    number: int


def missing_trials(tasks: Sequence[EpisodeTask], trials: int, found: Sequence[TrialResult]) -> list[Trial]:
    """Returns the trials without a result: the first of all tasks, then the second of all, and so on. Pure.

    Raises:
        EvaluationError: Two tasks have one id.
    """
    twice = [task_id for task_id, times in Counter(task.task_id for task in tasks).items() if times > 1]
    if twice:
        raise EvaluationError(f"tasks: {twice[0]!r} is the id of two of them; results could not be told apart")
    done = {result.key for result in found}
    return [Trial(task, number) for number in range(trials) for task in tasks if (task.task_id, number) not in done]


def concerns_one_task(refusal: RefusedError) -> bool:
    """Returns whether a refusal is for one task's own demands, so that other tasks may be served. Pure."""
    return refusal.field.partition(".")[0] in _TASKS_OWN


def _short(task_id: str) -> str:
    """Returns an id that fits into a trajectory's; a digest tells long ones apart that begin alike."""
    if len(task_id) <= _MOST_ID:
        return task_id
    digest = hashlib.sha256(task_id.encode()).hexdigest()[:_DIGEST]
    return f"{task_id[: _MOST_ID - _DIGEST - 1]}-{digest}"


class Evaluation:
    """An evaluation of one task set.

    Args:
        name: The task set's name.
        settings: How it runs.

    Attributes:
        name: The task set's name.
        options: The task set's options.
        results: All results so far, those of an earlier run included.

    Raises:
        ValueError: There is no such task set or policy, or it does not take the options.
    """

    def __init__(self, name: str, settings: EvaluationSettings) -> None:
        self.name = name
        self.options: Mapping[str, Any] = options_from_text(name, settings.task_options)
        self.results: list[TrialResult] = []
        self._settings = settings
        self._evaluated = Evaluated(name, self.options, settings.replies)
        self._task_set: TaskSet = load_task_set(name, **self.options)
        self._policies: PolicyFactory | None = policy_factory(settings)
        self._scored = False

    async def run(
        self, client: Client, on_result: OnResult = lambda *_: None, on_limits: OnLimits = lambda _: None
    ) -> list[TrialResult]:
        """Runs what has no result yet, and returns all results.

        Args:
            client: Of the scheduler.
            on_result: Told each new result.
            on_limits: Called with the time limits; those of the environment are the first task's.

        Raises:
            EvaluationError: There is no gateway, two tasks have one id, or there is no task.
            ResultsFileError: The results file is of something else, or of tasks that have changed.
            CallsheetError: The scheduler cannot be reached, or refused something (inside an exception group).
        """
        tasks = list(await anyio.to_thread.run_sync(self._task_set.tasks))[: self._settings.tasks]
        if not tasks:
            raise EvaluationError(f"environment: {self.name!r} has no tasks")
        with self._open() as file:
            wanted = {(task.task_id, number) for task in tasks for number in range(self._settings.trials)}
            check_same_tasks(file.found if file else (), tasks)
            self.results = [each for each in (file.found if file else ()) if each.key in wanted]
            missing = missing_trials(tasks, self._settings.trials, self.results)
            if missing:
                await self._check_gateway(client, tasks[0])
                on_limits(time_limits(await self._environment(tasks[0]), self._settings))
                await self._run_trials(client, missing, file, on_result)
        return self.results

    async def _run_trials(
        self, client: Client, trials: Sequence[Trial], file: ResultsFile | None, on_result: OnResult
    ) -> None:
        job_id = self._settings.job or f"eval-{uuid.uuid4().hex[:12]}"
        waiting = iter(trials)
        in_all = len(self.results) + len(trials)
        writer = anyio.CapacityLimiter(1)
        async with await client.open_job(job_id, priority_class=PriorityClass.EVAL) as job:

            async def work() -> None:
                for trial in waiting:
                    result = await self._run_trial(job, trial)
                    if file is not None:
                        # A line that was begun is written to its end.
                        with anyio.CancelScope(shield=True):
                            await anyio.to_thread.run_sync(file.add, result, limiter=writer)
                    result = replace(result, messages=())
                    self.results.append(result)
                    on_result(result, len(self.results), in_all)

            with one_error():
                async with anyio.create_task_group() as workers:
                    for _ in range(min(self._settings.concurrency, len(trials))):
                        workers.start_soon(work)

    async def _run_trial(self, job: Job, trial: Trial) -> TrialResult:
        """Runs trajectories of a trial until one is not lost to the service, or too many were."""
        lost: list[str] = []
        while True:
            trajectory_id = f"{_short(trial.task.task_id)}/{trial.number}/{len(lost)}"
            record = await self._run_trajectory(job, trajectory_id, trial.task)
            self._scored = self._scored or record.failure is None
            failure = record.failure
            if failure is None or not failure.is_infra or len(lost) >= self._settings.infra_retries:
                return result_of(record, trial.number, self._evaluated, lost)
            lost.append(str(failure))
            await anyio.sleep(min(0.1 * 4 ** len(lost), self._settings.retry_pause_s))

    async def _run_trajectory(self, job: Job, trajectory_id: str, task: EpisodeTask) -> EpisodeRecord:
        settings = self._settings
        environment = with_agent(await self._environment(task), settings)
        try:
            return await roll_out(
                job,
                trajectory_id,
                environment,
                task,
                None if isinstance(environment, AgentEnvironment) or self._policies is None else self._policies(task),
                max_turns=settings.max_turns,
                agent_sampling=gateway_sampling(settings),
                limit=TimeLimit(settings.deadline, settings.truncate),
                # With `truncate` the reward has as much time again.
                deadline_s=settings.deadline * (1 + settings.truncate) + _BESIDES_S,
            )
        except FailedPreconditionError as refusal:
            # What could be served before, and cannot be now, has lost its manager.
            if not self._scored and not concerns_one_task(refusal):
                raise
            failure = EpisodeFailure(FailureKind.INFRA, Reason.UNSERVABLE.value, str(refusal))
            return EpisodeRecord(task, trajectory_id, EpisodeEnd.FAILED, failure=failure)

    async def _environment(self, task: EpisodeTask) -> Environment | AgentEnvironment:
        # It may read files, or fetch some.
        try:
            return await anyio.to_thread.run_sync(self._task_set.environment, task)
        except Exception as error:
            error.add_note(f"in {type(self._task_set).__name__}.environment, task {task.task_id!r}")
            raise

    async def _check_gateway(self, client: Client, task: EpisodeTask) -> None:
        environment = with_agent(await self._environment(task), self._settings)
        asks = isinstance(environment, AgentEnvironment)
        if not asks and self._policies is not None:
            asks = isinstance(self._policies(task), GatewayPolicy)
        if asks and not await anyio.to_thread.run_sync(is_serving, client.options):
            raise EvaluationError(
                f"no gateway answers at {gateway_url(client.options)}: `callsheet up` runs one, CALLSHEET_GATEWAY "
                "names another, and --model-dir needs none"
            )

    @contextmanager
    def _open(self) -> Iterator[ResultsFile | None]:
        if self._settings.results is None:
            yield None
            return
        with open_results(self._settings.results) as file:
            check_same(file.found, self._evaluated)
            yield file


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


def time_limits(environment: Environment | AgentEnvironment, settings: EvaluationSettings) -> dict[str, float]:
    """Returns the time limits of an evaluation, in seconds, by what they limit."""
    return {"episode with its reward": settings.deadline, **getattr(environment, "time_limits", {})}


def prompt_of(messages: Sequence[Message]) -> str:
    """Returns the texts of messages, one paragraph each."""
    return "\n\n".join(str(message.get("content") or "") for message in messages)
