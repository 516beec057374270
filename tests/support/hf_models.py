"""Small models in the format of Hugging Face, with random weights of a seed. Nothing is downloaded."""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import cast

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
# Bars of progress are lines of their own in a test's output.
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

# As in torch_models: kernels this small gain nothing from a second thread.
torch.set_num_threads(1)
transformers_logging.disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)

VOCABULARY = 320
"""Rows of the embedding: 256 bytes, three special tokens, what was merged, and some that no text gives."""
END = "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = ["the agent writes a file, runs the tests and reads what they say", "grüße, 世界: 42 = 6 * 7\n"] * 8

# Wide heads, as engines for CPUs want them, and weights so large that tokens differ clearly in their likelihood.
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 16_384,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}


@functools.cache
def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer as of GPT-2, Llama 3 or Qwen, trained on a few lines, with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 16,
        special_tokens=["<|endoftext|>", "<|im_start|>", END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )


@functools.cache
def tokenizer_without_end() -> PreTrainedTokenizerFast:
    """As `byte_level_tokenizer`; servers that end generation at a tokenizer's end token find none."""
    backend = byte_level_tokenizer().backend_tokenizer
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE)


@functools.cache
def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """A BPE tokenizer with marked spaces and single bytes for what it does not know, as of Llama 2 or Mistral."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 16,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    trained.train_from_iterator([_TEXT[0]], trainer)
    learned = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab=learned["vocab"], merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def seeded_model(kind: str = "qwen2", seed: int = 0, /, **changes: object) -> PreTrainedModel:
    """A model in float32 with random weights.

    Args:
        kind: Its `model_type`, such as "llama" or "qwen2".
        seed: Of the weights.
        changes: Fields of its configuration; None leaves one out that the architecture does not have.
    """
    fields = {**_SHAPE, **changes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(kind, **fields)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # A model that was not loaded would drop out.
    model.eval()
    model.requires_grad_(False)
    return model


def save_model(
    directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast | None = None, *, eos: bool = False
) -> Path:
    """Writes a model as users have it: config.json, safetensors, a tokenizer with its chat template; returns where.

    Args:
        directory: Is made if it is not there.
        model: The model.
        tokenizer: Its tokenizer; a byte-level one unless given.
        eos: Whether generation is to end at the tokenizer's end token.
    """
    tokenizer = tokenizer or byte_level_tokenizer()
    if eos:
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@functools.cache
def _models_of_this_run() -> Path:
    place = tempfile.mkdtemp(prefix="hf-models-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return Path(place)


@functools.cache
def model_directory(kind: str = "qwen2", seed: int = 0, /, **changes: object) -> Path:
    """A saved `seeded_model`, made once in a process; not to be written to."""
    name = "-".join([kind, str(seed), *(f"{field}={value}" for field, value in changes.items())])
    return save_model(_models_of_this_run() / name, seeded_model(kind, seed, **changes))


@functools.cache
def loaded_model(directory: Path) -> PreTrainedModel:
    """What transformers loads from a directory, once in a process."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
    return cast(PreTrainedModel, model)


def reference_log_probs(model: PreTrainedModel, tokens: Sequence[int], output: Sequence[int]) -> list[float]:
    """Log-probabilities of `output` after `tokens` from one plain pass of transformers' own."""
    whole = torch.tensor([[*tokens, *output]])
    with torch.no_grad():
        table = torch.log_softmax(model(whole).logits[0].double(), dim=-1)
    return [float(table[len(tokens) - 1 + index, token]) for index, token in enumerate(output)]


def reference_greedy(model: PreTrainedModel, tokens: Sequence[int], new_tokens: int) -> tuple[int, ...]:
    """Greedy tokens of transformers' own `generate`, which ends at no token of its own."""
    with torch.no_grad():
        ids = torch.tensor([list(tokens)])
        out = model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return tuple(out[0, len(tokens) :].tolist())
