"""Makes the models: real architectures with seeded random weights, and the scores of each alone.

What makes them runs in a process of its own, so that its memory is no part of what is measured. Beside them stand two
simpler ways to swap models, for the same workers: both evict what was used longest ago.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from callsheet.managers.reward.hosted.places import Occupant, PlaceChoice, cheapest_choice
from callsheet.managers.reward.hosted.residency import ModelStage, Residency
from callsheet.managers.reward.hosted.turns import ModelLine, ModelRestore

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


@dataclass(frozen=True, slots=True)
class FirstCome:
    """Strictly the oldest request next; its model comes if it is not there. Others of its model join its batch."""

    def next_batch(self, lines: Sequence[ModelLine], residency: Residency, now: float) -> str | None:
        """The model of the oldest request, once it is there."""
        oldest = min(lines, key=lambda line: line.first, default=None)
        return oldest.model if oldest is not None and _there(oldest, residency) else None

    def next_restore(self, lines: Sequence[ModelLine], residency: Residency, now: float) -> ModelRestore | None:
        """The model of the oldest request."""
        oldest = min(lines, key=lambda line: line.first, default=None)
        return _restore(oldest, residency) if oldest is not None else None


@dataclass(frozen=True, slots=True)
class ResidentFirst:
    """Requests whose model is there pass those for which one must come, as ARL-Tangram's rewards do."""

    def next_batch(self, lines: Sequence[ModelLine], residency: Residency, now: float) -> str | None:
        """The model of the oldest request whose model is there."""
        there = [line for line in lines if _there(line, residency)]
        return min(there, key=lambda line: line.first).model if there else None

    def next_restore(self, lines: Sequence[ModelLine], residency: Residency, now: float) -> ModelRestore | None:
        """The model of the oldest request, where none of those that wait has its model there."""
        if not lines or any(_there(line, residency) for line in lines):
            return None
        return _restore(min(lines, key=lambda line: line.first), residency)


def _there(line: ModelLine, residency: Residency) -> bool:
    return residency.tenants[line.model].stage is ModelStage.RESIDENT


def _restore(line: ModelLine, residency: Residency) -> ModelRestore | None:
    tenant = residency.tenants[line.model]
    if tenant.place is not None:
        return None
    holders = {
        name: Occupant(each.place, inf if each.running or each.stage is not ModelStage.RESIDENT else 0.0, each.used_at)
        for name, each in residency.tenants.items()
        if each.place is not None
    }
    choice: PlaceChoice | None = cheapest_choice(residency.devices, tenant.width, tenant.size, holders)
    return None if choice is None else ModelRestore(line.model, choice)
