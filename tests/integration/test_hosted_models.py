"""Hosted models in real workers: scores as of each alone, and what becomes of kills, garbage and used-up memory."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from callsheet.client import Client, ConversationText, Failed, FailureKind, Reason
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Stopped
from callsheet.managers.reward.hosted.executor import HostedModelsExecutor
from callsheet.managers.reward.hosted.model_spec import ModelSpec, ModelTask
from callsheet.managers.reward.hosted.residency import ModelStage
from callsheet.managers.reward.hosted.settings import HostedSettings
from callsheet.v1 import action_pb2, outcome_pb2
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from tests.support.attempts_of_models import attempt_of
from tests.support.expected import present
from tests.support.hosted_models import CONFIGURATIONS, load_model, load_tokenizer, make_model, rename_weights
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
TEXT = action_pb2.ConversationText(prompt="score the answer", response="of the assistant")


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> list[ModelSpec]:
    directory = tmp_path_factory.mktemp("classifiers")
    return [make_model(directory, architecture) for architecture in CONFIGURATIONS if architecture != "wide"]


@dataclass(frozen=True)
class Shared:
    """Models that several tests ask of one worker, which reads torch once."""

    executor: HostedModelsExecutor
    teacher: ModelSpec
    judge: ModelSpec
    renamed: ModelSpec
    renamed_score: float
    """What the last one says of [5, 6] as it was written."""


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory, classifiers: list[ModelSpec]) -> AsyncIterator[Shared]:
    directory = tmp_path_factory.mktemp("shared")
    teacher = make_model(directory, "qwen2", ModelTask.TEACHER)
    judge = make_model(directory, "llama", ModelTask.JUDGE, max_new_tokens=6)
    renamed = make_model(directory, "gpt2", seed=3)
    renamed_score = alone(renamed, [5, 6])
    rename_weights(renamed)
    async with hosting(*classifiers, teacher, judge, renamed) as executor:
        yield Shared(executor, teacher, judge, renamed, renamed_score)


@asynccontextmanager
async def hosting(*models: ModelSpec, **changes: Any) -> AsyncIterator[HostedModelsExecutor]:
    """An executor of these models, in memory for two or so."""
    settings = HostedSettings(models=models, memory_budget_mib=1, restart_s=0.01, **changes)
    executor = HostedModelsExecutor(settings)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(executor.serve)
            yield executor
            tasks.cancel_scope.cancel()
    finally:
        await executor.close()


def reward_attempt(spec: ModelSpec, /, **scorer: Any) -> Attempt:
    """An attempt at a reward by a model."""
    return attempt_of(1, action_pb2.ActionSpec(reward=action_pb2.RewardInput(**scorer)), service=spec.name)


async def score(executor: HostedModelsExecutor, model: ModelSpec, tokens: list[int]) -> AttemptResult:
    """What becomes of a request for a score."""
    return await executor.run(reward_attempt(model, model=action_pb2.ModelScoreInput(token_ids=tokens)))


def scored(result: AttemptResult) -> float:
    """The score of a success."""
    assert isinstance(result, Completed), result
    return result.succeeded.reward.score


def alone(model: ModelSpec, tokens: list[int]) -> float:
    """The score of the model as transformers runs it, alone."""
    return float(load_model(model)(input_ids=torch.tensor([tokens])).logits[0, 0])


def failure(result: AttemptResult) -> tuple[int, str]:
    """Who is at fault, and the reason."""
    assert isinstance(result, Broken), result
    return result.failed.kind, result.failed.reason


async def test_scores_are_those_of_each_model_alone(shared: Shared, classifiers: list[ModelSpec]) -> None:
    asked = [(model, list(range(5, 5 + length))) for length in (3, 30, 11, 4) for model in classifiers]
    results: dict[int, AttemptResult] = {}

    async def ask(executor: HostedModelsExecutor, number: int, model: ModelSpec, tokens: list[int]) -> None:
        results[number] = await score(executor, model, tokens)

    executor = shared.executor
    async with anyio.create_task_group() as tasks:
        for number, (model, tokens) in enumerate(asked):
            tasks.start_soon(ask, executor, number, model, tokens)
    there = [tenant for tenant in executor.host.residency.tenants.values() if tenant.place is not None]
    assert sum(tenant.size for tenant in there) <= 1 << 20
    states = {state.name: state for state in executor.service_states()}
    assert {name for name, state in states.items() if state.instances} == {
        tenant.name for tenant in there if tenant.stage is ModelStage.RESIDENT
    }
    assert all(state.setup_s > 0 for state in states.values() if not state.instances)
    text = await executor.run(reward_attempt(classifiers[0], model=action_pb2.ModelScoreInput(text=TEXT)))
    unknown = await score(executor, classifiers[0], [5, 4000])
    wrong = await executor.run(reward_attempt(classifiers[0], judge=action_pb2.JudgeInput(rubric="r", text=TEXT)))
    stopped = reward_attempt(classifiers[0], model=action_pb2.ModelScoreInput(token_ids=[5]))
    stopped.stop_requested.set()
    assert isinstance(await executor.run(stopped), Stopped | Completed)
    for number, (model, tokens) in enumerate(asked):
        assert scored(results[number]) == pytest.approx(alone(model, tokens), abs=1e-5), model.name
    made = load_tokenizer(classifiers[0]).apply_chat_template(
        [{"role": "user", "content": TEXT.prompt}, {"role": "assistant", "content": TEXT.response}], return_dict=True
    )
    assert scored(text) == pytest.approx(alone(classifiers[0], made["input_ids"]), abs=1e-5)
    assert failure(unknown) == (outcome_pb2.FAILURE_KIND_ENV, "token_out_of_vocabulary")
    assert failure(wrong) == (outcome_pb2.FAILURE_KIND_ENV, "wrong_kind_of_model")


async def test_a_teacher_and_a_judge(shared: Shared) -> None:
    executor, teacher, judge = shared.executor, shared.teacher, shared.judge
    asked = action_pb2.TeacherInput(prompt_token_ids=[5, 6, 7], token_ids=[8, 9])
    rubric = action_pb2.JudgeInput(rubric="Score from 0 to 10.", text=TEXT)
    looked_at = await executor.run(reward_attempt(teacher, teacher=asked))
    whole = await executor.run(reward_attempt(teacher, teacher=action_pb2.TeacherInput(token_ids=[5, 6, 7, 8, 9])))
    as_text = await executor.run(reward_attempt(teacher, teacher=action_pb2.TeacherInput(text=TEXT)))
    first = await executor.run(reward_attempt(teacher, teacher=action_pb2.TeacherInput(token_ids=[5])))
    judged = await executor.run(reward_attempt(judge, judge=rubric))
    assert failure(first) == (outcome_pb2.FAILURE_KIND_ENV, "no_tokens")
    logits = load_model(teacher)(torch.tensor([[5, 6, 7, 8, 9]])).logits[0]
    expected = [float(torch.log_softmax(logits[at], -1)[token]) for at, token in enumerate([6, 7, 8, 9])]
    assert isinstance(looked_at, Completed)
    assert list(looked_at.succeeded.reward.log_probs) == pytest.approx(expected[2:], abs=1e-4)
    assert list(looked_at.succeeded.reward.token_ids) == [8, 9]
    assert dict(looked_at.usage.cost.used) == {"tokens_in": 5.0}
    # It has its worker's one thread while its batch is computed, and uses no more than that.
    assert looked_at.usage.cost.held.keys() == {"cpu"}
    assert looked_at.usage.cost.held["cpu"] >= looked_at.usage.cpu_s > 0
    assert scored(looked_at) == pytest.approx(sum(expected[2:]), abs=1e-4)
    assert isinstance(whole, Completed)
    assert list(whole.succeeded.reward.log_probs) == pytest.approx(expected, abs=1e-4)
    assert isinstance(as_text, Completed)
    response = load_tokenizer(teacher)(TEXT.response, add_special_tokens=False)["input_ids"]
    assert list(as_text.succeeded.reward.token_ids) == response
    assert as_text.usage.cost.used["tokens_in"] > len(response)
    # Cut at its six tokens, whatever they are.
    assert failure(judged) == (outcome_pb2.FAILURE_KIND_INFRA, "no_verdict")
    assert isinstance(judged, Broken)
    # No score, and all that it took to find none.
    assert (judged.usage.cpu_s > 0, judged.usage.cost.used["tokens_out"]) == (True, 6)
    said = judged.failed.partial.reward.text
    chat = [{"role": "user", "content": f"{rubric.rubric}\n\nuser:\n{TEXT.prompt}\n\nassistant:\n{TEXT.response}"}]
    made = load_tokenizer(judge)
    given = made.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    assert judged.usage.cost.used["tokens_in"] == given["input_ids"].shape[1]
    answer = load_model(judge).generate(**given, do_sample=False, max_new_tokens=6)
    assert said == made.decode(answer[0, given["input_ids"].shape[1] :], skip_special_tokens=True)


async def test_a_killed_worker_leaves_the_others_serving(classifiers: list[ModelSpec]) -> None:
    dying, other = replace(classifiers[0], worker="dying"), replace(classifiers[1], worker="other")
    async with hosting(dying, other) as executor:
        expected = scored(await score(executor, dying, [5, 6]))
        unharmed = scored(await score(executor, other, [5, 6]))
        worker = present(executor.host.workers["dying"].process)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        died: list[AttemptResult] = []

        async def ask() -> None:
            died.append(await score(executor, dying, [5, 6]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await until(lambda: executor.host.workers["dying"].busy)
            assert scored(await score(executor, other, [5, 6])) == unharmed
            os.kill(worker.pid, signal.SIGKILL)
        assert failure(died[0]) == (outcome_pb2.FAILURE_KIND_INFRA, "reward_worker_died")
        assert scored(await score(executor, dying, [5, 6])) == expected
        assert scored(await score(executor, other, [5, 6])) == unharmed
        assert executor.host.workers["other"].deaths == 0


def spoil(path: Path) -> None:
    """Changes weights on the disk, as a failing one would."""
    tensors = load_file(path)
    name = max(tensors, key=lambda each: tensors[each].numel())
    tensors[name] = tensors[name].flip(0)
    save_file(tensors, path, {"format": "pt"})


async def test_weights_that_changed_are_read_anew_or_never_used(shared: Shared, classifiers: list[ModelSpec]) -> None:
    executor, model, expected, other = shared.executor, shared.renamed, shared.renamed_score, classifiers[0]
    host = executor.host
    assert scored(await score(executor, model, [5, 6])) == pytest.approx(expected, abs=1e-5)
    (parked,) = host.parked_directory.glob("*/model.safetensors")
    host.park(model.name)
    spoil(parked)
    with capture_logs() as logs:
        assert scored(await score(executor, model, [5, 6])) == pytest.approx(expected, abs=1e-5)
    assert [each["event"] for each in logs].count("reward model answers garbage") == 1
    host.park(model.name)
    spoil(parked)
    spoil(model.directory / "model.safetensors")
    garbage = await score(executor, model, [5, 6])
    assert failure(garbage) == (outcome_pb2.FAILURE_KIND_INFRA, "reward_model_garbage")
    assert failure(await score(executor, model, [5, 6])) == failure(garbage)
    assert scored(await score(executor, other, [5, 6])) == pytest.approx(alone(other, [5, 6]), abs=1e-5)


async def test_one_request_that_takes_too_much_memory(tmp_path: Path, classifiers: list[ModelSpec]) -> None:
    wide = make_model(tmp_path, "wide")
    other = classifiers[0]
    async with hosting(wide, other, scratch_mib=1) as executor:
        await score(executor, wide, [5, 6])
        large, small = await score(executor, wide, list(range(5, 255))), await score(executor, wide, [5, 6])
        assert failure(large) == (outcome_pb2.FAILURE_KIND_RESOURCE_LIMIT, "reward_out_of_memory")
        assert scored(small) == pytest.approx(alone(wide, [5, 6]), abs=1e-5)
        assert scored(await score(executor, other, [5, 6])) == pytest.approx(alone(other, [5, 6]), abs=1e-5)
        assert executor.host.workers["models"].deaths == 0


# By day the rule alone: test_reward_residency.py.
@pytest.mark.nightly
async def test_idle_models_give_their_memory_back(classifiers: list[ModelSpec]) -> None:
    pinned, idle = replace(classifiers[0], pinned=True), classifiers[1]
    async with hosting(pinned, idle, park_after_s=0.2, close_after_s=0.2, prewarm=False) as executor:
        assert scored(await score(executor, idle, [5, 6])) == pytest.approx(alone(idle, [5, 6]), abs=1e-5)
        tenants = executor.host.residency.tenants
        await until(
            lambda: tenants[idle.name].stage is ModelStage.COLD and tenants[pinned.name].stage is ModelStage.RESIDENT
        )
        assert scored(await score(executor, idle, [5, 6])) == pytest.approx(alone(idle, [5, 6]), abs=1e-5)
        assert tenants[pinned.name].stage is ModelStage.RESIDENT


async def test_models_of_the_command_line_behind_a_scheduler(tmp_path: Path, classifiers: list[ModelSpec]) -> None:
    model, other = classifiers[0], classifiers[2]
    given = [f"--model={each.name}={each.directory}" for each in (model, other)]
    arguments: Mapping[str, Sequence[str]] = {Role.REWARD: [*given, "--memory-budget-mib=1", "--no-test-suites"]}
    settings = StackSettings(data_dir=tmp_path, managers=(Role.REWARD,), arguments=arguments)
    async with local_stack(settings) as stack, Client(stack.address) as client, await client.open_job("job") as job:
        first = (await job.reward_model([5, 6], model=model.name)).unwrap()
        text = ConversationText(TEXT.prompt, TEXT.response)
        second = (await job.reward_model(model=other.name, text=text)).unwrap()
        refused = await job.teacher_log_probs(model.name, [5, 6])
    assert first.score == pytest.approx(alone(model, [5, 6]), abs=1e-5)
    assert first.line_s >= first.restore_s > 0
    made = load_tokenizer(other).apply_chat_template(
        [{"role": "user", "content": TEXT.prompt}, {"role": "assistant", "content": TEXT.response}], return_dict=True
    )
    assert second.score == pytest.approx(alone(other, made["input_ids"]), abs=1e-5)
    assert isinstance(refused, Failed)
    assert (refused.kind, refused.reason) == (FailureKind.ENV, Reason.WRONG_KIND_OF_MODEL)
