"""Small real models for tests."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import torch
from callsheet.managers.inference.driver import GenerateRequest, Generation, Sampling
from callsheet.managers.inference.torch_engine.engine import TorchEngine
from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.models.config_file import CONFIG_FILE, WEIGHTS_FILE
from callsheet.managers.models.transformer import LanguageModel, initialise
from torch import nn

# Kernels this small gain nothing from a second thread, and threads that wait for each other are slow on a busy machine.
torch.set_num_threads(1)

SMALL = TransformerConfig(context_length=256, layers=2, width=64, heads=2, hidden_width=96)


def small_model(seed: int = 0, config: TransformerConfig = SMALL) -> LanguageModel:
    """A language model with random weights."""
    model = LanguageModel(config)
    initialise(model, seed)
    return model.eval().requires_grad_(False)


def save_weights(model: nn.Module, config: TransformerConfig, directory: Path) -> None:
    """Writes `config.json` and `weights.pt` into a directory, which is made if it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG_FILE).write_text(json.dumps(dataclasses.asdict(config), indent=2) + "\n", encoding="utf-8")
    torch.save(model.state_dict(), directory / WEIGHTS_FILE)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    """Random byte tokens."""
    numbers = random.Random(seed)
    return tuple(numbers.randrange(256) for _ in range(length))


def request(name: str, tokens: tuple[int, ...], **sampling: object) -> GenerateRequest:
    """A request; sampling parameters by name, 16 new tokens that no end token cuts short and seed 0 unless told."""
    told = {"max_new_tokens": 16, "seed": 0, "ignore_eos": True, **sampling}
    return GenerateRequest(name, tokens, Sampling(**told))  # type: ignore[arg-type]


def full_pass_log_probs(model: LanguageModel, tokens: tuple[int, ...], output: tuple[int, ...]) -> list[float]:
    """Log-probabilities of `output` after `tokens` from one plain pass without a cache, in float64 at the end."""
    whole = torch.tensor([[*tokens, *output]])
    with torch.no_grad():
        table = torch.log_softmax(model(whole)[0].double(), dim=-1)
    return [float(table[len(tokens) - 1 + index, token]) for index, token in enumerate(output)]


def run_out(engine: TorchEngine, *requests: GenerateRequest) -> list[Generation]:
    """Computes requests side by side, a turn of each in turn, to their ends."""
    sequences = [engine.sequence(each) for each in requests]
    while any(each.ended is None for each in sequences):
        for each in sequences:
            engine.turn(each)
    return [each.generation() for each in sequences]
