"""The executor over the real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from time import monotonic
from unittest.mock import AsyncMock

import anyio
import pytest
from callsheet.managers.executor import AttemptResult, Broken, Completed, Stopped
from callsheet.managers.inference.build import build_inference_executor
from callsheet.managers.inference.driver import (
    EngineDriver,
    EngineError,
    NonFiniteError,
    RequestRefusedError,
    UpdateMode,
    WeightUpdate,
)
from callsheet.managers.inference.executor import InferenceExecutor
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.torch_engine.kind import torch_engine
from callsheet.managers.inference.torch_engine.settings import TorchSettings
from callsheet.managers.inference.weights import DiskWeights
from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.models.config_file import WeightsError
from callsheet.v1 import action_pb2, manager_service_pb2, outcome_pb2, weights_pb2

from tests.support.attempts_of_models import generate_attempt
from tests.support.torch_models import full_pass_log_probs, prompt, save_weights, small_model

pytestmark = pytest.mark.anyio
CONFIG = TransformerConfig(context_length=16_384, layers=1, width=32, heads=2, hidden_width=48)
TORCH = TorchSettings(shape=CONFIG)
SETTINGS = InferenceSettings(kv_cache_tokens=4 * CONFIG.context_length)
WAIT_S = 60


@pytest.fixture
async def executor() -> AsyncIterator[InferenceExecutor]:
    built = build_inference_executor(SETTINGS, torch_engine(TORCH, SETTINGS))
    yield built
    await built.close()


def engine_of(executor: InferenceExecutor) -> EngineDriver:
    """The engine, which is loaded."""
    assert executor.engine.value is not None
    return executor.engine.value


def completed(result: AttemptResult) -> outcome_pb2.GenerateResult:
    assert isinstance(result, Completed), result
    return result.succeeded.generate


def broken(result: AttemptResult) -> tuple[int, str]:
    """The kind and the reason of a failure."""
    assert isinstance(result, Broken), result
    assert result.failed.message
    return result.failed.kind, result.failed.reason


async def test_generate(executor: InferenceExecutor) -> None:
    result = await executor.run(generate_attempt(7, prompt(50)))
    generated = completed(result)
    expected = full_pass_log_probs(small_model(0, CONFIG), prompt(50), tuple(generated.token_ids))
    assert list(generated.log_probs) == pytest.approx(expected, abs=2e-5)
    assert generated.finish_reason == outcome_pb2.FINISH_REASON_LENGTH
    assert [(span.version, span.begin, span.end) for span in generated.policy_versions] == [(0, 0, 16)]
    assert dict(result.usage.cost.used) == {"tokens_in": 50.0, "tokens_out": 16.0}
    # Alone it holds the engine's one thread, which does its work.
    assert result.usage.cost.held["cpu"] >= result.usage.cpu_s > 0
    assert "gpu" not in result.usage.cost.held


async def test_stop_tokens_and_sampling_reach_the_engine(executor: InferenceExecutor) -> None:
    greedy = action_pb2.SamplingParameters(max_new_tokens=8, temperature=0)
    free = completed(await executor.run(generate_attempt(1, prompt(9), greedy)))
    greedy.stop_token_ids.append(free.token_ids[3])
    stopped = completed(await executor.run(generate_attempt(2, prompt(9), greedy)))
    assert stopped.finish_reason == outcome_pb2.FINISH_REASON_STOP
    assert list(stopped.token_ids) == list(free.token_ids)[: list(free.token_ids).index(free.token_ids[3]) + 1]


async def test_unset_sampling_is_temperature_1_with_a_seed_of_its_own(executor: InferenceExecutor) -> None:
    unset = action_pb2.SamplingParameters(max_new_tokens=24)
    siblings = [completed(await executor.run(generate_attempt(index, prompt(9), unset))) for index in range(1, 9)]
    assert len({tuple(sibling.token_ids) for sibling in siblings}) == 8
    assert {sibling.log_probs_mode for sibling in siblings} == {action_pb2.LOG_PROBS_MODE_SAMPLED}
    for sibling in siblings[:2]:
        seeded = action_pb2.SamplingParameters(max_new_tokens=24, temperature=1.0, seed=sibling.seed)
        again = completed(await executor.run(generate_attempt(9, prompt(9), seeded)))
        assert (again.token_ids, again.seed) == (sibling.token_ids, sibling.seed)


async def test_stop_texts_and_the_mode_of_log_probs_reach_the_engine(executor: InferenceExecutor) -> None:
    sampling = action_pb2.SamplingParameters(
        max_new_tokens=200, temperature=3.0, seed=0, log_probs_mode=action_pb2.LOG_PROBS_MODE_RAW, stop=["a", "e"]
    )
    result = completed(await executor.run(generate_attempt(1, prompt(9), sampling)))
    assert result.finish_reason == outcome_pb2.FINISH_REASON_STOP
    assert result.token_ids[-1] in b"ae"
    assert result.log_probs_mode == action_pb2.LOG_PROBS_MODE_RAW
    assert (result.HasField("seed"), result.seed) == (True, 0)
    expected = full_pass_log_probs(small_model(0, CONFIG), prompt(9), tuple(result.token_ids))
    assert list(result.log_probs) == pytest.approx(expected, abs=2e-5)


async def test_stop_texts_are_refused_for_a_vocabulary_without_a_tokenizer() -> None:
    shape = TransformerConfig(vocabulary_size=300, context_length=64, layers=1, width=32, heads=2, hidden_width=48)
    settings = InferenceSettings(kv_cache_tokens=64)
    built = build_inference_executor(settings, torch_engine(TorchSettings(shape=shape), settings))
    asked = action_pb2.SamplingParameters(max_new_tokens=4, stop=["x"])
    result = await built.run(generate_attempt(1, prompt(9), asked))
    await built.close()
    assert broken(result) == (outcome_pb2.FAILURE_KIND_ENV, "no_tokenizer")


async def test_an_engines_gpus_are_shared_out_among_its_sequences_whatever_becomes_of_them() -> None:
    settings = replace(SETTINGS, engine_gpus=4)
    built = build_inference_executor(settings, torch_engine(TORCH, settings))
    results: list[AttemptResult] = []

    async def run(sequence: int, length: int) -> None:
        sampling = action_pb2.SamplingParameters(max_new_tokens=4 * sequence, seed=sequence)
        results.append(await built.run(generate_attempt(sequence, prompt(length, sequence), sampling)))

    began = monotonic()
    async with anyio.create_task_group() as tasks:
        for sequence in range(1, 9):
            tasks.start_soon(run, sequence, CONFIG.context_length + 1 if sequence == 8 else 9)
    took_s = monotonic() - began
    await built.close()
    assert [type(result) for result in results].count(Broken) == 1
    assert all("gpu" in result.usage.cost.held for result in results)
    assert 0.0 < sum(result.usage.cost.held["gpu"] for result in results) <= 4 * took_s
    assert sum(result.usage.cost.used["tokens_out"] for result in results) == sum(4 * each for each in range(1, 8))


async def test_a_stop_gives_partial_tokens(executor: InferenceExecutor) -> None:
    attempt = generate_attempt(1, prompt(9), action_pb2.SamplingParameters(max_new_tokens=16_000, temperature=1.0))
    results: list[AttemptResult] = []

    async def run() -> None:
        results.append(await executor.run(attempt))

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            # Once it has been submitted, the end of one that came after it shows that it has tokens.
            await anyio.wait_all_tasks_blocked()
            await executor.run(generate_attempt(2, prompt(9)))
            attempt.stop_requested.set()
    (result,) = results
    assert isinstance(result, Stopped)
    assert result.partial is not None
    partial = result.partial.generate
    assert partial.finish_reason == outcome_pb2.FINISH_REASON_ABORT
    assert 0 < len(partial.token_ids) == len(partial.log_probs) < 16_000


async def test_a_stop_before_the_start(executor: InferenceExecutor) -> None:
    attempt = generate_attempt(1, prompt(9), action_pb2.SamplingParameters(max_new_tokens=16_000))
    attempt.stop_requested.set()
    with anyio.fail_after(WAIT_S):
        assert isinstance(await executor.run(attempt), Stopped)


async def test_an_abort_by_the_engine_is_a_success_with_partial_tokens(
    executor: InferenceExecutor, tmp_path: Path
) -> None:
    save_weights(small_model(1, CONFIG), CONFIG, tmp_path)
    results: list[AttemptResult] = []

    async def run() -> None:
        sampling = action_pb2.SamplingParameters(max_new_tokens=16_000, temperature=1.0)
        results.append(await executor.run(generate_attempt(1, prompt(9), sampling)))

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            await executor.run(generate_attempt(2, prompt(9)))
            await engine_of(executor).update_weights(WeightUpdate(DiskWeights(str(tmp_path)), 5, UpdateMode.ABORT))
    assert completed(results[0]).finish_reason == outcome_pb2.FINISH_REASON_ABORT
    assert executor.services()[0].policy_version == 5


@pytest.mark.parametrize(
    ("tokens", "sampling", "reason"),
    [
        (prompt(16_384), {"max_new_tokens": 4}, "prompt_too_long"),
        ((5, 400), {"max_new_tokens": 4}, "token_out_of_vocabulary"),
        ((5,), {"max_new_tokens": 0}, "invalid_sampling"),
        ((5,), {"max_new_tokens": 4, "top_p": 1.5}, "invalid_sampling"),
        ((5,), {"max_new_tokens": 4, "temperature": float("inf")}, "invalid_sampling"),
        ((5,), {"max_new_tokens": 4, "log_probs_mode": 9}, "invalid_sampling"),
        ((5,), {"max_new_tokens": 4, "stop": [""]}, "invalid_sampling"),
    ],
)
async def test_what_can_never_be_served_is_not_the_models_fault(
    executor: InferenceExecutor, tokens: tuple[int, ...], sampling: dict[str, object], reason: str
) -> None:
    result = await executor.run(generate_attempt(1, tokens, action_pb2.SamplingParameters(**sampling)))  # type: ignore[arg-type]
    assert broken(result) == (outcome_pb2.FAILURE_KIND_ENV, reason)


async def test_a_dead_engine_fails_as_infra(executor: InferenceExecutor) -> None:
    await engine_of(executor).close()
    result = await executor.run(generate_attempt(1, prompt(4)))
    assert broken(result) == (outcome_pb2.FAILURE_KIND_INFRA, "engine_failed")


@pytest.mark.parametrize(
    "error", [NonFiniteError("it is NaN"), RequestRefusedError("duplicate_request", "the id is live")]
)
async def test_what_another_engine_may_do_better_is_infra(
    executor: InferenceExecutor, monkeypatch: pytest.MonkeyPatch, error: EngineError
) -> None:
    monkeypatch.setattr(engine_of(executor), "generate", AsyncMock(side_effect=error))
    result = await executor.run(generate_attempt(1, prompt(4)))
    assert broken(result) == (outcome_pb2.FAILURE_KIND_INFRA, error.reason)


async def test_another_kind_of_action_is_refused(executor: InferenceExecutor) -> None:
    attempt = generate_attempt(1, prompt(4))
    attempt.action.env_step.SetInParent()
    assert broken(await executor.run(attempt))[1] == "unsupported_kind"


async def test_registration(executor: InferenceExecutor) -> None:
    (service,) = executor.services()
    assert service == manager_service_pb2.HostedService(
        name="policy",
        kinds=[action_pb2.ACTION_KIND_GENERATE],
        slots=64,
        reserved={"cpu": 1},
        instances=1,
        kv_tokens=65536,
        weights=manager_service_pb2.EngineWeights(standing=weights_pb2.WEIGHTS_STANDING_INITIAL),
    )
    capabilities = executor.capabilities()
    assert (capabilities["weights"], capabilities["engine"]) == ("random", "torch")
    assert int(capabilities["kv_cache_bytes"]) == 4 * 16_384 * CONFIG.kv_bytes_per_token
    assert list(executor.sandboxes()) == []


async def test_weights_from_a_directory(tmp_path: Path) -> None:
    model = small_model(3, CONFIG)
    save_weights(model, CONFIG, tmp_path)
    settings = InferenceSettings(weights=tmp_path, policy_version=9, kv_cache_tokens=CONFIG.context_length, model="m")
    built = build_inference_executor(settings, torch_engine(TORCH, settings))
    generated = completed(await built.run(generate_attempt(1, prompt(20))))
    expected = full_pass_log_probs(model, prompt(20), tuple(generated.token_ids))
    assert list(generated.log_probs) == pytest.approx(expected, abs=2e-5)
    assert generated.policy_versions[0].version == 9
    assert (built.services()[0].name, built.capabilities()["weights"]) == ("m", "file")
    await built.close()


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"config\.json"):
        torch_engine(TORCH, InferenceSettings(weights=tmp_path))


@pytest.mark.parametrize(("field", "value"), [("threads", 0), ("slots", 0), ("model", ""), ("policy_version", -1)])
def test_bad_settings_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        InferenceSettings(**{field: value})  # type: ignore[arg-type]


def test_the_executor_can_be_built_before_the_event_loop_runs(tmp_path: Path) -> None:
    built = build_inference_executor(SETTINGS, torch_engine(TORCH, SETTINGS))
    save_weights(small_model(1, CONFIG), CONFIG, tmp_path)

    async def use() -> AttemptResult:
        await engine_of(built).update_weights(WeightUpdate(DiskWeights(str(tmp_path)), 1, UpdateMode.DRAIN))
        result = await built.run(generate_attempt(1, prompt(4)))
        await built.close()
        return result

    assert completed(anyio.run(use)).policy_versions[0].version == 1
