"""Models that are loaded with the first request that needs them."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.from_thread
import pytest
from callsheet.managers.executor import AttemptResult, Broken, Completed, Stopped
from callsheet.managers.inference.build import build_inference_executor
from callsheet.managers.inference.driver import EngineDriver
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.torch_engine.abilities import torch_abilities
from callsheet.managers.inference.torch_engine.kind import torch_engine
from callsheet.managers.inference.torch_engine.settings import TorchSettings
from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.models.first_use import FirstUse, LoadError
from callsheet.managers.reward.build import build_reward_executor
from callsheet.managers.reward.settings import RewardSettings
from callsheet.v1 import action_pb2, outcome_pb2

from tests.support.attempts_of_models import generate_attempt, score_attempt
from tests.support.torch_models import prompt, save_weights, small_model

pytestmark = pytest.mark.anyio
CONFIG = TransformerConfig(context_length=256, layers=1, width=32, heads=2, hidden_width=48)
TORCH = TorchSettings(shape=CONFIG)
LAZY = InferenceSettings(kv_cache_tokens=256, policy_version=3, load_at_first_use=True)
WAIT_S = 60


async def test_a_value_is_loaded_once_for_all_who_want_it() -> None:
    calls: list[int] = []

    def load() -> list[int]:
        calls.append(1)
        return calls

    first_use = FirstUse(load)
    assert first_use.value is None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first_use.wait)
        for _ in range(10):
            tasks.start_soon(first_use.get)
    assert await first_use.wait() is calls
    assert calls == [1]


async def test_what_cannot_be_loaded_says_so_to_everybody() -> None:
    def load() -> str:
        raise ValueError("torn")

    first_use = FirstUse(load)
    for _ in range(2):
        with pytest.raises(LoadError, match="ValueError: torn"):
            await first_use.get()
    with pytest.raises(LoadError, match="torn"):
        await first_use.wait()


def test_managers_without_requests_import_no_torch() -> None:
    code = (
        "import sys\n"
        "from callsheet.managers.inference.build import build_inference_executor\n"
        "from callsheet.managers.inference.settings import InferenceSettings\n"
        "from callsheet.managers.reward.build import build_reward_executor\n"
        "from callsheet.managers.reward.settings import RewardSettings\n"
        "from callsheet.managers.inference.torch_engine.kind import torch_engine\n"
        "from callsheet.managers.inference.torch_engine.settings import TorchSettings\n"
        "settings = InferenceSettings(load_at_first_use=True)\n"
        "inference = build_inference_executor(settings, torch_engine(TorchSettings(), settings))\n"
        "reward = build_reward_executor(RewardSettings(load_at_first_use=True))\n"
        "inference.services(), inference.capabilities(), reward.services(), reward.capabilities()\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert done.stdout.strip() == "False"


async def test_an_engine_says_the_same_of_itself_before_and_after() -> None:
    executor = build_inference_executor(LAZY, torch_engine(TORCH, LAZY))
    before = (list(executor.services()), executor.capabilities())
    assert executor.engine.value is None
    result = await executor.run(generate_attempt(1, prompt(9)))
    assert isinstance(result, Completed)
    assert result.succeeded.generate.policy_versions[0].version == 3
    assert executor.engine.value is not None
    assert executor.engine.value.capabilities == torch_abilities(prefix_cache=True, stop_texts=True, device="cpu")
    assert (list(executor.services()), executor.capabilities()) == before
    await executor.close()


async def test_a_stop_while_the_model_loads_reaches_the_request() -> None:
    engine = torch_engine(TORCH, LAZY)
    loading, stopped = anyio.Event(), threading.Event()

    def load() -> EngineDriver:
        anyio.from_thread.run_sync(loading.set)
        assert stopped.wait(WAIT_S)
        return engine.load()

    executor = build_inference_executor(LAZY, replace(engine, load=load))
    attempt = generate_attempt(1, prompt(9), action_pb2.SamplingParameters(max_new_tokens=200))
    results: list[AttemptResult] = []

    async def run() -> None:
        results.append(await executor.run(attempt))

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await loading.wait()
            attempt.stop_requested.set()
            stopped.set()
    assert isinstance(results[0], Stopped)
    await executor.close()


async def test_tensors_that_cannot_be_read_end_the_engine(tmp_path: Path) -> None:
    save_weights(small_model(1, CONFIG), CONFIG, tmp_path)
    (tmp_path / "weights.pt").write_bytes(b"torn")
    settings = InferenceSettings(weights=tmp_path, load_at_first_use=True)
    executor = build_inference_executor(settings, torch_engine(TORCH, settings))
    result = await executor.run(generate_attempt(1, prompt(9)))
    assert isinstance(result, Broken)
    assert (result.failed.kind, result.failed.reason) == (outcome_pb2.FAILURE_KIND_INFRA, "engine_failed")
    assert "weights.pt" in result.failed.message
    assert "weights.pt" in await executor.wait_failed()
    await executor.close()


async def test_a_scoring_model_is_loaded_with_the_first_score(tmp_path: Path) -> None:
    executor = build_reward_executor(RewardSettings(shape=CONFIG, load_at_first_use=True))
    assert isinstance(await executor.run(score_attempt(1, prompt(9))), Completed)
    await executor.close()
    save_weights(small_model(1, CONFIG), CONFIG, tmp_path)
    broken = build_reward_executor(RewardSettings(weights=tmp_path, load_at_first_use=True))
    result = await broken.run(score_attempt(1, prompt(9)))
    assert isinstance(result, Broken)
    assert (result.failed.kind, result.failed.reason) == (outcome_pb2.FAILURE_KIND_INFRA, "scorer_failed")
    await broken.close()
