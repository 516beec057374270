"""Tiny models of real architectures with seeded random weights, as a user's directories of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from callsheet.managers.reward.hosted.model_spec import ModelSpec, ModelTask
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

VOCABULARY = 320
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SMALL: dict[str, Any] = {"vocab_size": VOCABULARY, "num_labels": 1, "pad_token_id": 0}
_DECODER: dict[str, Any] = _SMALL | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
}
# Its layers need megabytes for what a long input makes of itself.
_WIDE: dict[str, Any] = _DECODER | {"hidden_size": 16, "intermediate_size": 4096, "num_hidden_layers": 1}
CONFIGURATIONS: dict[str, transformers.PretrainedConfig] = {
    "qwen2": transformers.Qwen2Config(**_DECODER, tie_word_embeddings=True),
    "llama": transformers.LlamaConfig(**_DECODER),
    "wide": transformers.LlamaConfig(**_WIDE),
    "gpt2": transformers.GPT2Config(**_SMALL, n_embd=64, n_layer=2, n_head=2, n_positions=256),
    "bert": transformers.BertConfig(
        **_SMALL, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2
    ),
    "roberta": transformers.RobertaConfig(
        **{**_SMALL, "pad_token_id": 1},
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=130,
    ),
}
_CLASSES: dict[ModelTask, Any] = {
    ModelTask.CLASSIFY: transformers.AutoModelForSequenceClassification,
    ModelTask.TEACHER: transformers.AutoModelForCausalLM,
    ModelTask.JUDGE: transformers.AutoModelForCausalLM,
}


def make_model(
    directory: Path, architecture: str, kind: ModelTask = ModelTask.CLASSIFY, *, seed: int = 1, **spec: Any
) -> ModelSpec:
    """Writes a model with a tokenizer to a directory of its own; returns how it is hosted."""
    name = f"{architecture}-{kind.value}-{seed}"
    where = directory / name
    torch.manual_seed(seed)
    _CLASSES[kind].from_config(CONFIGURATIONS[architecture]).save_pretrained(where)
    tokenizer().save_pretrained(where)
    return ModelSpec(name=name, directory=where, kind=kind, **spec)


def rename_weights(model: ModelSpec) -> None:
    """Gives the weights the names of an older release, which cannot be read as they are."""
    path = model.directory / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})


def load_model(spec: ModelSpec) -> Any:
    """The same as transformers loads it."""
    return _CLASSES[spec.kind].from_pretrained(spec.directory).eval().requires_grad_(False)


def load_tokenizer(spec: ModelSpec) -> Any:
    """Its tokenizer: one that is made anew may break ties between pairs otherwise."""
    return transformers.AutoTokenizer.from_pretrained(spec.directory)


def tokenizer() -> Any:
    """A small tokenizer of bytes and pairs, with a chat template."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<unk>", "<|user|>", "<|assistant|>", "<|system|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["score the answer of the assistant from zero to ten"] * 4, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", chat_template=CHAT_TEMPLATE
    )
