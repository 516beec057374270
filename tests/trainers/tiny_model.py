"""A small model that calls tools, trained here for a minute at most and kept below build/."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.trainers import notes

# Kernels this small gain nothing from a second thread, and lose much where others have the cores.
torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "trainers"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
STEPS = 200


def conversation(number: int) -> list[dict[str, Any]]:
    """A conversation as the model is to have it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": notes.question_of(number)}]
    for name, text in notes.notes_of(number).items():
        call = {"type": "function", "function": {"name": "read", "arguments": {"name": name}}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "name": "read", "content": text})
    return [*messages, {"role": "assistant", "content": notes.answer_of(number)}]


def chat_template() -> str:
    """The template of Qwen 2.5 as TRL has it: TRL knows models by it."""
    return (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()


def make_tokenizer() -> Any:
    """A byte-level tokenizer that has learned such conversations, so that they are short."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    plain: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=chat_template()
    )
    texts = [
        plain.apply_chat_template(conversation(number), tools=[dict(notes.READ)], tokenize=False)
        for number in range(0, 60, 7)
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=chat_template()
    )


def make_model(seed: int = 0) -> Any:
    """A small Qwen 2 with random weights."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=704,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config.eos_token_id = 2
    model.generation_config.pad_token_id = 0
    return model


def example(tokenizer: Any, number: int) -> tuple[list[int], list[int]]:
    """Tokens of a conversation, and labels: what the assistant says."""
    messages = conversation(number)
    tokens: list[int] = []
    labels: list[int] = []
    for end in [at for at, message in enumerate(messages) if message["role"] == "assistant"]:
        tools = [dict(notes.READ)]
        given: Any = {"tools": tools, "tokenize": True, "return_dict": False}
        prompt = tokenizer.apply_chat_template(messages[:end], add_generation_prompt=True, **given)
        whole = tokenizer.apply_chat_template(messages[: end + 1], **given)
        whole = whole[: len(whole) - whole[::-1].index(2)]
        labels += [-100] * (len(prompt) - len(tokens)) + whole[len(prompt) :]
        tokens = whole
    return tokens, labels


def prime(model: Any, tokenizer: Any, steps: int, batch: int = 8) -> float:
    """Trains the model on such conversations; returns its last loss."""
    torch.manual_seed(1)
    examples = [example(tokenizer, number) for number in range(200)]
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=6e-3, total_steps=steps)
    model.train()
    loss = float("nan")
    for _ in range(steps):
        chosen = [examples[index] for index in torch.randint(len(examples), (batch,)).tolist()]
        longest = max(len(tokens) for tokens, _ in chosen)
        ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in chosen])
        labels = torch.tensor([wanted + [-100] * (longest - len(wanted)) for _, wanted in chosen])
        out = model(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels)
        optimiser.zero_grad()
        out.loss.backward()
        optimiser.step()
        schedule.step()
        loss = float(out.loss.detach())
    model.eval()
    return loss


def primed_model(steps: int = STEPS) -> Path:
    """Returns the directory of the model, made once for each text of these files and each version of transformers."""
    source = inspect.getsource(sys.modules[__name__]) + inspect.getsource(notes) + chat_template()
    versions = f"{metadata.version('transformers')} {metadata.version('tokenizers')} {steps}"
    place = PLACE / f"model-{hashlib.sha256((source + versions).encode()).hexdigest()[:12]}"
    if not (place / "config.json").is_file():
        tokenizer, model = make_tokenizer(), make_model()
        prime(model, tokenizer, steps)
        made = place.with_name(f"{place.name}-{os.getpid()}")
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        if not place.exists():
            made.rename(place)
    return place
