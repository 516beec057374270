"""Models of transformers in the torch engine: what they compute is what transformers itself computes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from callsheet.managers.inference.driver import Generation, LogProbsMode
from callsheet.managers.inference.torch_engine.batcher import Batcher, BatchLimits
from callsheet.managers.inference.torch_engine.hf.fitting import fit_runner
from callsheet.managers.inference.torch_engine.hf.packed_runner import PackedRunner, SequenceRunner, ServedBounds
from transformers import PreTrainedModel

from tests.support.hf_models import VOCABULARY, reference_greedy, reference_log_probs, seeded_model
from tests.support.torch_models import prompt, request

CHUNK = 16
WINDOW = 24
NEW_TOKENS = 12
LENGTHS = (3, 16, 37, 50)

OWN_NAMES: dict[str, object] = {"n_embd": 128, "n_head": 2, "n_layer": 2, "n_positions": 512}
LATENT: dict[str, object] = {
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 32,
    "head_dim": 16,
    "num_key_value_heads": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 64,
}
PACKED: dict[str, dict[str, object]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": WINDOW},
    "gemma2": {"sliding_window": WINDOW, "attn_logit_softcapping": 5.0},
    "gemma3_text": {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    "phi3": {},
    "gpt2": OWN_NAMES,
    "gpt_neox": {},
    "opt": {},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    "gpt_oss": {"num_local_experts": 4, "sliding_window": WINDOW},
    "deepseek_v3": LATENT,
}
ONE_BY_ONE: dict[str, dict[str, object]] = {
    "mamba": {},
    "bloom": {"n_head": 2, "n_layer": 2},
    "llama4_text": {"num_local_experts": 2, "attention_chunk_size": 32},
}


def engine_of(model: PreTrainedModel) -> tuple[Batcher, PackedRunner | SequenceRunner]:
    """An engine on a model of its own."""
    runner = fit_runner(model, ServedBounds(VOCABULARY, 512), kv_cache_tokens=2048)
    assert isinstance(runner, PackedRunner | SequenceRunner)
    limits = BatchLimits(prefill_chunk=CHUNK, prefix_cache_tokens=512)
    engine = Batcher(runner, limits, version=0)
    with torch.inference_mode():
        engine.prepare()
    return engine, runner


def generate(engine: Batcher, prompts: Sequence[tuple[int, ...]]) -> list[Generation]:
    """Greedy, all of them side by side."""
    for index, tokens in enumerate(prompts):
        asked = request(str(index), tokens, temperature=0, max_new_tokens=NEW_TOKENS, log_probs_mode=LogProbsMode.RAW)
        engine.submit(asked, index)
    results: dict[object, Generation] = {}
    with torch.inference_mode():
        while engine.can_step():
            results.update({one.tag: one.result for one in engine.step() if isinstance(one.result, Generation)})
    return [results[index] for index in range(len(prompts))]


@pytest.mark.parametrize("kind", [*PACKED, *ONE_BY_ONE])
def test_tokens_and_log_probs_are_those_of_transformers(kind: str) -> None:
    """Alone and beside others, with prompts in chunks, and again with prefixes that are known by then."""
    changes = PACKED.get(kind) or ONE_BY_ONE.get(kind) or {}
    own = seeded_model(kind, 0, **changes)
    engine, runner = engine_of(seeded_model(kind, 0, **changes))
    assert isinstance(runner, PackedRunner if kind in PACKED else SequenceRunner)
    prompts = [prompt(length, seed=length) for length in LENGTHS]
    together = generate(engine, prompts)
    for tokens, result in zip(prompts, together, strict=True):
        assert result.token_ids == reference_greedy(own, tokens, NEW_TOKENS)
        assert result.log_probs == pytest.approx(reference_log_probs(own, tokens, result.token_ids), abs=1e-4)
        again = generate(engine, [tokens])[0]
        assert (again.token_ids, again.log_probs) == (result.token_ids, result.log_probs)
        reusable = (len(tokens) - 1) // CHUNK * CHUNK if kind in PACKED else 0
        assert again.cached_tokens == reusable


def test_rows_may_be_computed_together_as_they_come_where_that_is_asked_for() -> None:
    """Tokens are then those of transformers up to rounding, and the engine says that batches matter."""
    own = seeded_model("qwen2")
    model = seeded_model("qwen2")
    runner = fit_runner(model, ServedBounds(VOCABULARY, 512), kv_cache_tokens=2048, batch_invariant=False)
    assert not runner.batch_invariant
    engine = Batcher(runner, BatchLimits(prefill_chunk=CHUNK), version=0)
    engine.prepare()
    prompts = [prompt(20 + length, seed=length) for length in range(11)]
    for tokens, result in zip(prompts, generate(engine, prompts), strict=True):
        assert result.token_ids == reference_greedy(own, tokens, NEW_TOKENS)
        assert result.log_probs == pytest.approx(reference_log_probs(own, tokens, result.token_ids), abs=1e-4)
