"""Runs an evaluation: all trials that have no result yet, so many at once, each to exactly one result."""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
from callsheet.client import Client, FailedPreconditionError, FailureKind, Job, PriorityClass, Reason, RefusedError
from callsheet.client.errors import one_error
from callsheet.client.gateway import gateway_url, is_serving
from callsheet.environments import (
    AgentEnvironment,
    Environment,
    EpisodeEnd,
    EpisodeFailure,
    EpisodeRecord,
    EpisodeTask,
    GatewayPolicy,
    PolicyFactory,
    TaskSet,
    TimeLimit,
    load_task_set,
    roll_out,
)
from callsheet.environments.task_sets import options_from_text
from callsheet.evaluation.replies import gateway_sampling, policy_factory, with_agent
from callsheet.evaluation.results import (
    Evaluated,
    ResultsFile,
    TrialResult,
    check_same,
    check_same_tasks,
    open_results,
    result_of,
)
from callsheet.evaluation.settings import EvaluationSettings

OnResult: TypeAlias = Callable[[TrialResult, int, int], None]
"""Told each new result, how many there are, and how many there will be."""
_MOST_ID = 200
_DIGEST = 16
# For queues, the reset and the reward, which the time of an episode does not count.
_BESIDES_S = 7200.0
# What a refusal names that may differ from task to task: its Dockerfile, its image and its units.
_TASKS_OWN = frozenset({"build", "image", "demand"})


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
    """Whether no manager has what this task asks for, so that other tasks may be served all the same. Pure."""
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

    async def run(self, client: Client, on_result: OnResult = lambda *_: None) -> list[TrialResult]:
        """Runs what has no result yet, and returns all results.

        Args:
            client: Of the scheduler.
            on_result: Told each new result.

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
                deadline_s=settings.deadline + _BESIDES_S,
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
