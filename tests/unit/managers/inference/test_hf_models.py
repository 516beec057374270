"""Models of transformers in the torch engine: what they compute is what transformers itself computes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from callsheet.managers.inference.driver import Generation, LogProbsMode
from callsheet.managers.inference.torch_engine.engine import TorchEngine
from callsheet.managers.inference.torch_engine.hf.runner import HfRunner, ServedBounds
from transformers import PreTrainedModel

from tests.support.hf_models import VOCABULARY, reference_greedy, reference_log_probs, seeded_model
from tests.support.torch_models import prompt, request, run_out

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
IN_CHUNKS: dict[str, dict[str, object]] = {
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
    "bloom": {"n_head": 2, "n_layer": 2},
    "llama4_text": {"num_local_experts": 2, "attention_chunk_size": 32},
}
IN_ONE_PIECE: dict[str, dict[str, object]] = {"mamba": {}}
OWN_LENGTH = 64
"""Positions for which a rotary embedding was made; beyond, it depends on the length."""
ROPES: dict[str, dict[str, object]] = {
    "dynamic": {"max_position_embeddings": OWN_LENGTH},
    "longrope": {"max_position_embeddings": 4 * OWN_LENGTH},
}
LONG_ROPE = {
    "short_factor": [1.0] * 32,
    "long_factor": [2.0] * 32,
    "original_max_position_embeddings": OWN_LENGTH,
}


def generate(engine: TorchEngine, prompts: Sequence[tuple[int, ...]]) -> list[Generation]:
    """Greedy, all of them side by side."""
    raw = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "log_probs_mode": LogProbsMode.RAW}
    return run_out(engine, *(request(str(index), tokens, **raw) for index, tokens in enumerate(prompts)))


@pytest.mark.parametrize("kind", [*IN_CHUNKS, *IN_ONE_PIECE])
def test_tokens_and_log_probs_are_those_of_transformers(kind: str) -> None:
    """Alone and beside others, with prompts in chunks, and again with prefixes that are known by then."""
    changes = IN_CHUNKS.get(kind) or IN_ONE_PIECE.get(kind) or {}
    own = seeded_model(kind, 0, **changes)
    runner = HfRunner(seeded_model(kind, 0, **changes), ServedBounds(VOCABULARY, 512))
    assert runner.in_chunks is (kind in IN_CHUNKS)
    engine = TorchEngine(runner, prefill_chunk=CHUNK, prefix_cache_tokens=512)
    prompts = [prompt(length, seed=length) for length in LENGTHS]
    for tokens, result in zip(prompts, generate(engine, prompts), strict=True):
        assert result.token_ids == reference_greedy(own, tokens, NEW_TOKENS)
        assert result.log_probs == pytest.approx(reference_log_probs(own, tokens, result.token_ids), abs=1e-4)
        again = generate(engine, [tokens])[0]
        assert (again.token_ids, again.log_probs) == (result.token_ids, result.log_probs)
        assert again.cached_tokens == ((len(tokens) - 1) // CHUNK * CHUNK if runner.in_chunks else 0)


@pytest.mark.parametrize("kind", ROPES)
def test_a_rotary_embedding_that_depends_on_the_length_sees_only_its_own_sequence(kind: str) -> None:
    """Beside longer and shorter ones, on both sides of the length for which the embedding was made."""
    rope = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 4.0, **(LONG_ROPE if kind == "longrope" else {})}

    def model() -> PreTrainedModel:
        """A fresh one: transformers' own goes on as the longest sequence has left it."""
        return seeded_model("llama", 0, rope_parameters=rope, **ROPES[kind])

    engine = TorchEngine(HfRunner(model(), ServedBounds(VOCABULARY, 512)), prefill_chunk=CHUNK, prefix_cache_tokens=512)
    prompts = [prompt(length, seed=length) for length in (150, 80, 40, 60)]
    for tokens, result in zip(prompts, generate(engine, prompts), strict=True):
        assert result.token_ids == reference_greedy(model(), tokens, NEW_TOKENS)
        again = generate(engine, [tokens])[0]
        assert (again.token_ids, again.log_probs) == (result.token_ids, result.log_probs)
        assert again.cached_tokens == 0
