"""A model of a hundred thousand weights that calls the tool in the right format, with a command by chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from examples.training.filters import COMMANDS, DONE, FILTER, WANTED

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PAD, END = 0, 2


def conversation(question: str, command: str) -> list[dict[str, Any]]:
    """A conversation in the right format."""
    call = {"type": "function", "function": {"name": "filter", "arguments": {"command": command}}}
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "filter", "content": DONE},
        {"role": "assistant", "content": "ok"},
    ]


def make_tokenizer() -> Any:
    """A byte-level tokenizer that has learned such conversations, so that they are short."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    # TRL knows how to continue conversations of models that have this template.
    template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text(encoding="utf-8")
    given: Any = {"eos_token": SPECIAL[END], "pad_token": SPECIAL[PAD], "chat_template": template}
    plain: Any = PreTrainedTokenizerFast(tokenizer_object=backend, **given)
    texts = [
        plain.apply_chat_template(conversation(question, command), tools=[dict(FILTER)], tokenize=False)
        for question in WANTED
        for command in COMMANDS
    ]
    learning = trainers.BpeTrainer(
        vocab_size=640,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, learning)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **given)


def make_model(seed: int) -> Any:
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
        eos_token_id=END,
        pad_token_id=PAD,
        tie_word_embeddings=True,
    )
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config.eos_token_id = END
    model.generation_config.pad_token_id = PAD
    return model


def example(tokenizer: Any, question: str, command: str) -> tuple[list[int], list[int]]:
    """Tokens of a conversation, and labels: what the assistant says."""
    messages = conversation(question, command)
    tokens: list[int] = []
    labels: list[int] = []
    for end in (1, 3):
        given: Any = {"tools": [dict(FILTER)], "tokenize": True, "return_dict": False}
        prompt = tokenizer.apply_chat_template(messages[:end], add_generation_prompt=True, **given)
        whole = tokenizer.apply_chat_template(messages[: end + 1], **given)
        whole = whole[: len(whole) - whole[::-1].index(END)]
        labels += [-100] * (len(prompt) - len(tokens)) + whole[len(prompt) :]
        tokens = whole
    return tokens, labels


def prime(model: Any, tokenizer: Any, seed: int, steps: int = 240, batch: int = 8) -> float:
    """Trains the model on all questions with all commands, so that it knows the format and nothing else.

    Returns:
        Its last loss.
    """
    torch.manual_seed(seed)
    examples = [example(tokenizer, question, command) for question in WANTED for command in COMMANDS]
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=6e-3, total_steps=steps)
    model.train()
    loss = float("nan")
    for _ in range(steps):
        chosen = [examples[index] for index in torch.randint(len(examples), (batch,)).tolist()]
        longest = max(len(tokens) for tokens, _ in chosen)
        ids = torch.tensor([tokens + [PAD] * (longest - len(tokens)) for tokens, _ in chosen])
        labels = torch.tensor([wanted + [-100] * (longest - len(wanted)) for _, wanted in chosen])
        out = model(input_ids=ids, attention_mask=(ids != PAD).long(), labels=labels)
        optimiser.zero_grad()
        out.loss.backward()
        optimiser.step()
        schedule.step()
        loss = float(out.loss.detach())
    model.eval()
    return loss


def save_small_model(directory: Path, seed: int) -> None:
    """Makes a model and saves it, unless that was done."""
    if (directory / "config.json").is_file():
        return
    torch.set_num_threads(1)  # kernels this small gain nothing from a second thread
    tokenizer, model = make_tokenizer(), make_model(seed)
    loss = prime(model, tokenizer, seed)
    print(f"primed a model of {model.num_parameters():,} weights, loss {loss:.3f}", flush=True)
    making = directory.with_name(directory.name + ".making")
    model.save_pretrained(making)
    tokenizer.save_pretrained(making)
    making.rename(directory)
