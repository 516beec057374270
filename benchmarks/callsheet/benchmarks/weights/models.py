"""Weights by their version, and a model of them that has no cache, no batch and no engine around it."""

from __future__ import annotations

import dataclasses
import json
from functools import lru_cache
from pathlib import Path
from typing import Final

import torch
from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.models.config_file import CONFIG_FILE, WEIGHTS_FILE
from callsheet.managers.models.transformer import LanguageModel, initialise

CONFIG: Final = TransformerConfig(context_length=2048, layers=2, width=64, heads=2, hidden_width=96)
WRONG: Final = 999_983
"""Stands for weights that nobody publishes."""


@lru_cache(maxsize=32)
def model_of(version: int) -> LanguageModel:
    """Returns the model of a version; its number is the seed of its weights."""
    model = LanguageModel(CONFIG)
    initialise(model, version)
    return model.eval().requires_grad_(False)


def save_version(version: int, directory: Path) -> Path:
    """Writes the weights of a version as engines read them, and returns their directory."""
    place = directory / str(version)
    place.mkdir(parents=True, exist_ok=True)
    (place / CONFIG_FILE).write_text(json.dumps(dataclasses.asdict(CONFIG)) + "\n", encoding="utf-8")
    torch.save(model_of(version).state_dict(), place / WEIGHTS_FILE)
    return place


@torch.no_grad()
def greedy_answer(version: int, prompt: tuple[int, ...], tokens: int) -> tuple[list[int], list[float]]:
    """Returns what a version answers to a prompt, with the log-probability of each token."""
    known, log_probs = list(prompt), []
    for _ in range(tokens):
        table = torch.log_softmax(model_of(version)(torch.tensor([known]))[0, -1].double(), dim=-1)
        known.append(int(table.argmax()))
        log_probs.append(float(table.max()))
    return known[len(prompt) :], log_probs


@torch.no_grad()
def errors_of(
    version: int, prompt: tuple[int, ...], output: tuple[int, ...], log_probs: tuple[float, ...]
) -> tuple[float, float]:
    """Compares greedy output with what a version computes from nothing but the tokens before.

    Returns:
        The largest difference of a log-probability, and by how much the likeliest token was likelier than the chosen
        one, at most.
    """
    if not output:
        return 0.0, 0.0
    whole = torch.tensor([[*prompt, *output]])
    table = torch.log_softmax(model_of(version)(whole)[0].double(), dim=-1)[len(prompt) - 1 : -1]
    chosen = table[torch.arange(len(output)), torch.tensor(output)]
    given = torch.tensor(log_probs, dtype=torch.float64)
    return float((chosen - given).abs().max()), float((table.max(dim=-1).values - chosen).max())
