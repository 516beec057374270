"""Runs reward actions: scores by a model, and test suites through the sandbox room's executor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.to_thread
from callsheet.managers.clock import waiting
from callsheet.managers.ends import infra_failure
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Executor, Stopped
from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.models.first_use import FirstUse, LoadError
from callsheet.managers.models.requests import token_problem
from callsheet.managers.reward.scores import ModelScore, ScoreRequest, ScorerError, Scores
from callsheet.managers.reward.settings import RewardSettings
from callsheet.timing.waits import Cause
from callsheet.v1 import action_pb2, common_pb2, manager_service_pb2, outcome_pb2
from typing_extensions import override

SCORER_SERVICE = "scorer"
_CLOSE_TIMEOUT_S = 5.0


class ScorerExecutor(Executor):
    """Scores with one model, on the grants' cores. A forward pass cannot be paused or resized, and is over soon."""

    def __init__(self, scorer: FirstUse[Scores], config: TransformerConfig, settings: RewardSettings) -> None:
        """Takes the scorer over: `close` closes it.

        Args:
            scorer: The model.
            config: Its shape.
            settings: How it is registered.
        """
        self._scorer = scorer
        self._config = config
        self._settings = settings

    @override
    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """The scorer."""
        return [
            manager_service_pb2.HostedService(
                name=SCORER_SERVICE,
                kinds=[action_pb2.ACTION_KIND_REWARD],
                slots=self._settings.slots,
                instances=1,
            )
        ]

    @override
    def capabilities(self) -> Mapping[str, str]:
        """Describes the model: "weights" is "random" if no trained ones were given."""
        return {"weights": "random" if self._settings.weights is None else "file"}

    @override
    async def run(self, attempt: Attempt) -> AttemptResult:
        """Scores; a stop withdraws a request that has not begun, one that has takes its few milliseconds."""
        if attempt.action.reward.WhichOneof("scorer") != "model":
            return Broken(infra_failure("unsupported_kind", "this service scores with a model only"))
        if attempt.action.reward.model.HasField("text"):
            return Broken.of(outcome_pb2.FAILURE_KIND_ENV, "no_tokenizer", "this model has none: send token ids")
        tokens = tuple(attempt.action.reward.model.token_ids)
        if (problem := token_problem(tokens, self._config)) is not None:
            return Broken.of(outcome_pb2.FAILURE_KIND_ENV, problem.reason, problem.message)
        try:
            with waiting(Cause.MODEL):
                scorer = await self._scorer.get()
            ticket = scorer.submit(tokens, attempt.grant.cores)
        except LoadError as error:
            return Broken(infra_failure("scorer_failed", str(error)))
        except ScorerError as error:
            return Broken(infra_failure(error.reason, str(error)))
        answer = await _answer(scorer, attempt, ticket)
        usage = outcome_pb2.Usage(cost=common_pb2.Cost(used={"tokens_in": len(tokens)}))
        attempt.waits.add(Cause.MODEL, ticket.waited_s)
        return _result(answer, usage)

    @override
    async def close(self) -> None:
        """Waits for the batches that run."""
        if (scorer := self._scorer.value) is not None:
            scorer.shut()
            await anyio.to_thread.run_sync(scorer.join, _CLOSE_TIMEOUT_S)


class RewardExecutor(Executor):
    """Two in one: one for model scores, and the sandbox room's stateless one for commands."""

    def __init__(self, scorer: Executor, test_suite: Executor | None = None) -> None:
        """Takes both over: `close` closes them.

        Args:
            scorer: Serves what models answer.
            test_suite: Serves "test-suite"; None where this manager runs none.
        """
        self._parts = [scorer] if test_suite is None else [scorer, test_suite]
        self._by_scorer: dict[str, Executor] = {"model": scorer, "teacher": scorer, "judge": scorer}
        if test_suite is not None:
            self._by_scorer.update(test_suite=test_suite, script=test_suite)

    @override
    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """The services of all parts."""
        return [service for part in self._parts for service in part.services()]

    @override
    def capabilities(self) -> Mapping[str, str]:
        """The capabilities of all parts."""
        return {key: value for part in self._parts for key, value in part.capabilities().items()}

    @override
    def use_shared_cores(self, cores: Sequence[int]) -> None:
        """Hands them on."""
        for part in self._parts:
            part.use_shared_cores(cores)

    @override
    def service_states(self) -> Sequence[manager_service_pb2.ServiceState]:
        """The states of all parts."""
        return [state for part in self._parts for state in part.service_states()]

    @override
    def take_demand(self, demand: manager_service_pb2.ServiceDemand) -> None:
        """Hands it on."""
        for part in self._parts:
            part.take_demand(demand)

    @override
    def on_service_change(self, report: Callable[[], None]) -> None:
        """Hands it on."""
        for part in self._parts:
            part.on_service_change(report)

    @override
    async def wait_failed(self) -> str | None:
        """Waits until a part is dead and returns why; None where no part can die."""
        reasons: list[str] = []

        async def wait(part: Executor) -> None:
            if (reason := await part.wait_failed()) is not None:
                reasons.append(reason)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for part in self._parts:
                tasks.start_soon(wait, part)
        return reasons[0] if reasons else None

    @override
    async def serve(self) -> None:
        """Does what the parts do beside their attempts."""
        async with anyio.create_task_group() as tasks:
            for part in self._parts:
                tasks.start_soon(part.serve)

    @override
    async def run(self, attempt: Attempt) -> AttemptResult:
        """Hands the attempt to the part that serves its payload."""
        part = self._part(attempt)
        if part is None:
            asked = attempt.action.reward.WhichOneof("scorer") or attempt.action.WhichOneof("payload")
            message = f"this manager serves {sorted(self._by_scorer)}, not {asked}"
            return Broken(infra_failure("unsupported_kind", message))
        return await part.run(attempt)

    @override
    async def resize(self, attempt: Attempt) -> None:
        """Hands it on."""
        if (part := self._part(attempt)) is not None:
            await part.resize(attempt)

    @override
    async def close(self) -> None:
        """Closes all parts, together."""
        async with anyio.create_task_group() as tasks:
            for part in self._parts:
                tasks.start_soon(part.close)

    def _part(self, attempt: Attempt) -> Executor | None:
        return self._by_scorer.get(attempt.action.reward.WhichOneof("scorer") or "")


async def _answer(scorer: Scores, attempt: Attempt, ticket: ScoreRequest) -> ModelScore | ScorerError | None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_withdraw_when_stopped, scorer, attempt, ticket)
        try:
            # Bounded: a stop withdraws the ticket, or its batch has begun and ends by itself.
            answer = await ticket.answer
        finally:
            scorer.withdraw(ticket)
        tasks.cancel_scope.cancel()
    return answer


async def _withdraw_when_stopped(scorer: Scores, attempt: Attempt, ticket: ScoreRequest) -> None:
    await attempt.stop_requested.wait()
    scorer.withdraw(ticket)


def _result(answer: ModelScore | ScorerError | None, usage: outcome_pb2.Usage) -> AttemptResult:
    if answer is None:
        return Stopped()
    if isinstance(answer, ScorerError):
        return Broken(infra_failure(answer.reason, str(answer)))
    if not math.isfinite(answer.value):
        message = f"the model's score is {answer.value}; its weights are broken"
        return Broken(infra_failure("non_finite_score", message))
    succeeded = outcome_pb2.Succeeded(reward=outcome_pb2.RewardResult(score=answer.value))
    usage.cpu_s = answer.cpu_s
    return Completed(succeeded, usage)
