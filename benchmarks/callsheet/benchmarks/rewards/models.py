"""Makes the models: real architectures with seeded random weights, and the scores of each alone.

Everything here runs in a process of its own, so that its memory is no part of what is measured.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ARCHITECTURES = ("llama", "bert", "qwen2", "roberta", "qwen3", "gpt2", "deberta", "mistral", "electra")
_SMALL_MIB = 64


def make_models(directory: Path, count: int, model_mib: int, seed: int) -> None:
    """Writes so many models, each to a directory of its architecture's name."""
    _quiet()
    import torch
    from transformers import AutoModelForSequenceClassification

    for index, name in enumerate(ARCHITECTURES[:count]):
        torch.manual_seed(seed * len(ARCHITECTURES) + index)
        AutoModelForSequenceClassification.from_config(_configuration(name, model_mib)).save_pretrained(
            directory / name
        )


def vocabulary(model_mib: int) -> int:
    """Tokens of each model's vocabulary: its rows are most of the weights."""
    hidden, layers_mib = (512, 32) if model_mib >= _SMALL_MIB else (64, 0)
    return max(256, (model_mib - layers_mib) * (1 << 20) // (4 * hidden))


def scores_alone(directory: Path, questions: Sequence[Sequence[int]]) -> list[float]:
    """The score of each question by a model that transformers runs, one at a time."""
    _quiet()
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.set_num_threads(1)
    model = AutoModelForSequenceClassification.from_pretrained(directory, local_files_only=True).eval()
    with torch.inference_mode():
        return [float(model(input_ids=torch.tensor([question])).logits[0, 0]) for question in questions]


def _quiet() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def _configuration(name: str, model_mib: int) -> Any:
    import transformers as t

    hidden, layers = (512, 4) if model_mib >= _SMALL_MIB else (64, 2)
    common: dict[str, Any] = {"vocab_size": vocabulary(model_mib), "num_labels": 1, "pad_token_id": 0}
    sizes = common | {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
    }
    decoder = sizes | {"num_key_value_heads": max(1, hidden // 128), "max_position_embeddings": 1024}
    encoder = sizes | {"max_position_embeddings": 1024}
    makers: dict[str, Any] = {
        "llama": lambda: t.LlamaConfig(**decoder),
        "bert": lambda: t.BertConfig(**encoder),
        "qwen2": lambda: t.Qwen2Config(**decoder),
        "roberta": lambda: t.RobertaConfig(**(encoder | {"max_position_embeddings": 1026})),
        "qwen3": lambda: t.Qwen3Config(**decoder, head_dim=64),
        "gpt2": lambda: t.GPT2Config(**common, n_embd=hidden, n_layer=layers, n_head=hidden // 64, n_positions=1024),
        "deberta": lambda: t.DebertaV2Config(**encoder, relative_attention=True, pos_att_type=["p2c", "c2p"]),
        "mistral": lambda: t.MistralConfig(**decoder),
        "electra": lambda: t.ElectraConfig(**encoder, embedding_size=hidden),
    }
    return makers[name]()
