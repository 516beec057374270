"""The same models and the same promises on a GPU."""

from __future__ import annotations

from time import monotonic

import anyio
import pytest
import torch
from callsheet.managers.inference.build import build_inference_executor
from callsheet.managers.inference.driver import Generation, LogProbsMode
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.torch_engine.engine import TorchEngine
from callsheet.managers.inference.torch_engine.hf.loading import load_hf_model
from callsheet.managers.inference.torch_engine.kind import torch_engine
from callsheet.managers.inference.torch_engine.runner import ModelRunner
from callsheet.managers.inference.torch_engine.settings import Dtype, TorchSettings
from callsheet.v1.action_pb2 import SamplingParameters

from tests.support.attempts_of_models import generate_attempt
from tests.support.hf_models import loaded_model, model_directory, reference_log_probs
from tests.support.measurements import Measured
from tests.support.torch_models import SMALL, full_pass_log_probs, prompt, request, run_out, small_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


def generate(names: list[str]) -> list[Generation]:
    engine = TorchEngine(ModelRunner(small_model(), device="cuda"), prefill_chunk=32, prefix_cache_tokens=0)
    return run_out(
        engine,
        *(request(name, prompt(20 + 9 * int(name), int(name)), max_new_tokens=30, seed=int(name)) for name in names),
    )


def test_log_probs_equal_a_plain_full_pass_on_the_cpu() -> None:
    result = generate(["3"])[0]
    expected = full_pass_log_probs(small_model(), prompt(47, seed=3), result.token_ids)
    assert result.log_probs == pytest.approx(expected, abs=2e-3)


def test_tokens_do_not_depend_on_the_batch_to_the_last_bit() -> None:
    names = [str(index) for index in range(12)]
    for name, together in zip(names, generate(names), strict=True):
        alone = generate([name])[0]
        assert (together.token_ids, together.log_probs) == (alone.token_ids, alone.log_probs)


@pytest.mark.parametrize("kind", ["qwen2", "gemma2"])
def test_a_users_model_computes_on_the_gpu_what_it_does_on_the_cpu(kind: str) -> None:
    loaded = load_hf_model(model_directory(kind), kv_cache_tokens=2048, device="cuda", dtype=Dtype.FLOAT32)
    engine = TorchEngine(loaded.runner, prefill_chunk=32)
    raw = {"temperature": 0, "log_probs_mode": LogProbsMode.RAW}
    results = run_out(engine, *(request(str(seed), prompt(40, seed), **raw) for seed in range(3)))
    for seed, result in enumerate(results):
        expected = reference_log_probs(loaded_model(model_directory(kind)), prompt(40, seed), result.token_ids)
        assert result.log_probs == pytest.approx(expected, abs=2e-3)


@pytest.mark.anyio
async def test_gpu_seconds_of_sequences_add_up_to_the_wall_time_of_the_gpu(measured: Measured) -> None:
    settings = InferenceSettings(kv_cache_tokens=16 * SMALL.context_length)
    executor = build_inference_executor(settings, torch_engine(TorchSettings(shape=SMALL, device="cuda"), settings))
    results = [await executor.run(generate_attempt(100, prompt(9)))]

    async def run(sequence: int) -> None:
        sampling = SamplingParameters(max_new_tokens=8 * sequence, seed=sequence)
        results.append(await executor.run(generate_attempt(sequence, prompt(20, sequence), sampling)))

    began = monotonic()
    async with anyio.create_task_group() as tasks:
        for sequence in range(1, 9):
            tasks.start_soon(run, sequence)
    took_s = monotonic() - began
    await executor.close()
    told_s = sum(result.usage.cost.held["gpu"] for result in results[1:])
    measured(f"told {told_s:.4f} GPU-seconds, the wall {took_s:.4f}: {100 * (told_s / took_s - 1):+.2f} %")
    assert told_s == pytest.approx(took_s, rel=0.01)
