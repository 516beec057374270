"""The same models and the same promises on a GPU."""

from __future__ import annotations

import pytest
import torch
from callsheet.managers.inference.driver import Generation, LogProbsMode
from callsheet.managers.inference.torch_engine.batcher import Batcher, BatchLimits
from callsheet.managers.inference.torch_engine.hf.loading import load_hf_model
from callsheet.managers.inference.torch_engine.runner import ModelRunner
from callsheet.managers.inference.torch_engine.settings import Dtype
from callsheet.managers.models.transformer import ScoringModel, initialise
from callsheet.managers.reward.scorer import Scorer
from callsheet.managers.reward.scores import ModelScore

from tests.support.hf_models import loaded_model, model_directory, reference_log_probs
from tests.support.torch_models import SMALL, full_pass_log_probs, prompt, request, small_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


def generate(names: list[str]) -> dict[object, Generation]:
    runner = ModelRunner(small_model(), kv_cache_tokens=4096, device="cuda")
    engine = Batcher(runner, BatchLimits(prefill_chunk=32, prefix_cache_tokens=0), version=0)
    engine.prepare()
    for name in names:
        tokens = prompt(20 + 9 * int(name), seed=int(name))
        engine.submit(request(name, tokens, max_new_tokens=30, seed=int(name)), name)
    results: dict[object, Generation] = {}
    with torch.inference_mode():
        while engine.can_step():
            results.update({one.tag: one.result for one in engine.step() if isinstance(one.result, Generation)})
    return results


def test_log_probs_equal_a_plain_full_pass_on_the_cpu() -> None:
    result = generate(["3"])["3"]
    expected = full_pass_log_probs(small_model(), prompt(47, seed=3), result.token_ids)
    assert result.log_probs == pytest.approx(expected, abs=2e-3)


def test_tokens_do_not_depend_on_the_batch_to_the_last_bit() -> None:
    names = [str(index) for index in range(12)]
    together = generate(names)
    for name in names:
        alone = generate([name])[name]
        assert (together[name].token_ids, together[name].log_probs) == (alone.token_ids, alone.log_probs)


@pytest.mark.parametrize("kind", ["qwen2", "gemma2"])
def test_a_users_model_computes_on_the_gpu_what_it_does_on_the_cpu(kind: str) -> None:
    loaded = load_hf_model(model_directory(kind), kv_cache_tokens=2048, device="cuda", dtype=Dtype.FLOAT32)
    engine = Batcher(loaded.runner, BatchLimits(prefill_chunk=32), version=0)
    engine.prepare()
    for seed in range(3):
        asked = request(str(seed), prompt(40, seed), temperature=0, log_probs_mode=LogProbsMode.RAW)
        engine.submit(asked, seed)
    with torch.inference_mode():
        while engine.can_step():
            for one in engine.step():
                assert isinstance(one.result, Generation)
                tokens = prompt(40, int(str(one.tag)))
                expected = reference_log_probs(loaded_model(model_directory(kind)), tokens, one.result.token_ids)
                assert one.result.log_probs == pytest.approx(expected, abs=2e-3)


@pytest.mark.anyio
async def test_scores_equal_those_of_the_cpu() -> None:
    def model() -> ScoringModel:
        built = ScoringModel(SMALL)
        initialise(built, 0)
        return built

    sequences = [prompt(10 + 7 * index, index) for index in range(10)]
    values = []
    for device in ("cuda", "cpu"):
        scorer = Scorer(model(), device=device)
        tickets = [scorer.submit(tokens, (0,)) for tokens in sequences]
        answers = [await ticket.answer for ticket in tickets]
        values.append([answer.value for answer in answers if isinstance(answer, ModelScore)])
    assert len(values[0]) == len(sequences)
    assert values[0] == pytest.approx(values[1], abs=2e-3)
