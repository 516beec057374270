"""The reward executor over the real scoring model."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest
import torch
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Executor, Stopped
from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.models.transformer import ScoringModel, initialise
from callsheet.managers.reward.build import build_reward_executor
from callsheet.managers.reward.executor import RewardExecutor
from callsheet.managers.reward.settings import RewardSettings
from callsheet.v1 import action_pb2, manager_service_pb2, outcome_pb2

from tests.support.attempts_of_models import attempt_of, score_attempt
from tests.support.torch_models import SMALL, prompt, save_weights

pytestmark = pytest.mark.anyio
CORE = min(os.sched_getaffinity(0))


def scoring_model(seed: int) -> ScoringModel:
    model = ScoringModel(SMALL)
    initialise(model, seed)
    return model.eval().requires_grad_(False)


def reference(model: ScoringModel, tokens: tuple[int, ...]) -> float:
    return float(model(torch.tensor([tokens]), torch.tensor([len(tokens)])))


@pytest.fixture
async def executor() -> AsyncIterator[RewardExecutor]:
    built = build_reward_executor(RewardSettings(shape=SMALL, seed=4))
    yield built
    await built.close()


def broken(result: AttemptResult) -> tuple[int, str]:
    """The kind and the reason of a failure."""
    assert isinstance(result, Broken), result
    assert result.failed.message
    return result.failed.kind, result.failed.reason


async def test_a_stop_before_the_batch_begins(executor: RewardExecutor) -> None:
    attempt = score_attempt(1, prompt(5))
    attempt.stop_requested.set()
    # The stop and the batch race: both ends are right, and one of them comes.
    assert isinstance(await executor.run(attempt), Stopped | Completed)
    await executor.resize(attempt)


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [((), "no_tokens"), ((3, 259), "token_out_of_vocabulary"), (prompt(257), "prompt_too_long")],
)
async def test_what_can_never_be_scored_is_not_the_models_fault(
    executor: RewardExecutor, tokens: tuple[int, ...], reason: str
) -> None:
    result = await executor.run(score_attempt(1, tokens))
    assert broken(result) == (outcome_pb2.FAILURE_KIND_ENV, reason)


async def test_the_longest_sequence_is_scored(executor: RewardExecutor) -> None:
    assert isinstance(await executor.run(score_attempt(1, prompt(256))), Completed)


async def test_registration(executor: RewardExecutor) -> None:
    assert list(executor.services()) == [
        manager_service_pb2.HostedService(name="scorer", kinds=[action_pb2.ACTION_KIND_REWARD], instances=1)
    ]
    assert executor.capabilities() == {"weights": "random"}
    assert list(executor.sandboxes()) == []


async def test_weights_from_a_directory(tmp_path: Path) -> None:
    model = scoring_model(8)
    save_weights(model, SMALL, tmp_path)
    built = build_reward_executor(RewardSettings(weights=tmp_path))
    result = await built.run(score_attempt(1, prompt(20), (CORE,)))
    assert isinstance(result, Completed)
    assert result.succeeded.reward.score == pytest.approx(reference(model, prompt(20)), abs=1e-5)
    assert built.capabilities()["weights"] == "file"
    await built.close()


async def test_broken_weights_never_make_a_score(tmp_path: Path) -> None:
    model = scoring_model(8)
    model.head.weight.fill_(math.nan)
    save_weights(model, SMALL, tmp_path)
    built = build_reward_executor(RewardSettings(weights=tmp_path))
    result = await built.run(score_attempt(1, prompt(20)))
    assert broken(result) == (outcome_pb2.FAILURE_KIND_INFRA, "non_finite_score")
    await built.close()


async def test_a_closed_scorer_fails_as_infra() -> None:
    built = build_reward_executor(RewardSettings(shape=SMALL))
    await built.close()
    result = await built.run(score_attempt(1, prompt(5)))
    assert broken(result) == (outcome_pb2.FAILURE_KIND_INFRA, "scorer_closed")


async def test_test_suites_are_refused_where_there_are_none(executor: RewardExecutor) -> None:
    payload = action_pb2.RewardInput(test_suite=action_pb2.TestSuiteInput())
    result = await executor.run(attempt_of(1, action_pb2.ActionSpec(reward=payload), service="test-suite"))
    assert broken(result) == (outcome_pb2.FAILURE_KIND_INFRA, "unsupported_kind")


@pytest.mark.parametrize(("field", "value"), [("slots", -1), ("max_batch_tokens", 0)])
def test_bad_settings_are_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=field):
        RewardSettings(**{field: value})  # type: ignore[arg-type]


class _Part(Executor):
    """A part that dies when it is told to, or that cannot die."""

    def __init__(self, name: str, mortal: bool = True) -> None:
        self.name = name
        self.mortal = mortal
        self.dead = anyio.Event()
        self.change: Callable[[], None] | None = None

    def services(self) -> list[manager_service_pb2.HostedService]:
        return [manager_service_pb2.HostedService(name=self.name)]

    async def run(self, attempt: Attempt) -> AttemptResult:
        raise NotImplementedError

    def service_states(self) -> list[manager_service_pb2.ServiceState]:
        return [manager_service_pb2.ServiceState(name=self.name, setup_s=1.0)]

    def on_service_change(self, report: Callable[[], None]) -> None:
        self.change = report

    async def wait_failed(self) -> str | None:
        if not self.mortal:
            return None
        await self.dead.wait()
        return f"{self.name} is dead"


@pytest.mark.parametrize("dies", [0, 1])
async def test_the_manager_leaves_once_a_part_is_dead(dies: int) -> None:
    parts = [_Part("scorer"), _Part("test-suite")]
    found: list[str | None] = []

    async def wait() -> None:
        found.append(await RewardExecutor(*parts).wait_failed())

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            parts[dies].dead.set()
    assert found == [f"{parts[dies].name} is dead"]


async def test_a_part_that_cannot_die_does_not_hide_one_that_does() -> None:
    mortal = _Part("scorer")
    mortal.dead.set()
    with anyio.fail_after(60):
        assert await RewardExecutor(mortal, _Part("test-suite", mortal=False)).wait_failed() == "scorer is dead"
        immortal = RewardExecutor(_Part("scorer", mortal=False), _Part("test-suite", mortal=False))
        assert await immortal.wait_failed() is None


def test_states_of_all_parts_are_told() -> None:
    parts = [_Part("scorer"), _Part("test-suite")]
    executor = RewardExecutor(*parts)
    assert [state.name for state in executor.service_states()] == ["scorer", "test-suite"]
    told: list[str] = []
    executor.on_service_change(lambda: told.append("changed"))
    for part in parts:
        assert part.change is not None
        part.change()
    assert told == ["changed"] * 2


def test_executors_can_be_built_before_the_event_loop_runs() -> None:
    built = build_reward_executor(RewardSettings(shape=TransformerConfig(layers=1)))

    async def use() -> AttemptResult:
        result = await built.run(score_attempt(1, prompt(4)))
        await built.close()
        return result

    assert isinstance(anyio.run(use), Completed)
