"""Weights by their version, and a model of them that has no cache, no batch and no engine around it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from abc import ABC, abstractmethod
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast

import torch
from callsheet.managers.inference.http_engine.weights_check import shapes_in
from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.models.config_file import CONFIG_FILE, WEIGHTS_FILE
from callsheet.managers.models.transformer import LanguageModel, initialise
from safetensors.torch import save_file
from torch import Tensor
from typing_extensions import override

CONFIG: Final = TransformerConfig(context_length=2048, layers=2, width=64, heads=2, hidden_width=96)
WRONG: Final = 999_983
"""Stands for weights that nobody publishes."""
_KEPT_MODELS: Final = 32
_HF_CONFIG_FILE: Final = "config.json"


class ModelVersions(ABC):
    """The model that engines serve, with the weights of each version: its number is the seed of its weights."""

    @abstractmethod
    def tensors(self, version: int) -> dict[str, Tensor]:
        """The weights of a version by the names that engines know them by."""

    @abstractmethod
    def save(self, version: int, directory: Path) -> Path:
        """Writes the weights of a version as engines read them, and returns their directory."""

    @abstractmethod
    def logits(self, version: int, tokens: list[int]) -> Tensor:
        """What a version makes of a sequence: the logits behind each place, (tokens, vocabulary)."""

    @torch.no_grad()
    def greedy_answer(self, version: int, prompt: tuple[int, ...], tokens: int) -> tuple[list[int], list[float]]:
        """Returns what a version answers to a prompt, with the log-probability of each token."""
        known, log_probs = list(prompt), []
        for _ in range(tokens):
            table = torch.log_softmax(self.logits(version, known)[-1].double(), dim=-1)
            known.append(int(table.argmax()))
            log_probs.append(float(table.max()))
        return known[len(prompt) :], log_probs

    @torch.no_grad()
    def errors_of(
        self, version: int, prompt: tuple[int, ...], output: tuple[int, ...], log_probs: tuple[float, ...]
    ) -> tuple[float, float]:
        """Compares greedy output with what a version computes from nothing but the tokens before.

        Returns:
            The largest difference of a log-probability, and by how much the likeliest token was likelier than the
            chosen one, at most.
        """
        if not output:
            return 0.0, 0.0
        logits = self.logits(version, [*prompt, *output])
        table = torch.log_softmax(logits.double(), dim=-1)[len(prompt) - 1 : -1]
        chosen = table[torch.arange(len(output)), torch.tensor(output)]
        given = torch.tensor(log_probs, dtype=torch.float64)
        return float((chosen - given).abs().max()), float((table.max(dim=-1).values - chosen).max())


class EmbeddedVersions(ModelVersions):
    """The small model of the embedded engine."""

    def __init__(self) -> None:
        """Makes models when they are asked for."""
        self._model = lru_cache(maxsize=_KEPT_MODELS)(self._make)

    def _make(self, version: int) -> LanguageModel:
        model = LanguageModel(CONFIG)
        initialise(model, version)
        return model.eval().requires_grad_(False)

    @override
    def tensors(self, version: int) -> dict[str, Tensor]:
        return {name: values.contiguous() for name, values in self._model(version).state_dict().items()}

    @override
    def save(self, version: int, directory: Path) -> Path:
        place = directory / str(version)
        place.mkdir(parents=True, exist_ok=True)
        (place / CONFIG_FILE).write_text(json.dumps(dataclasses.asdict(CONFIG)) + "\n", encoding="utf-8")
        torch.save(self._model(version).state_dict(), place / WEIGHTS_FILE)
        return place

    @override
    def logits(self, version: int, tokens: list[int]) -> Tensor:
        return cast(Tensor, self._model(version)(torch.tensor([tokens]))[0])


class DirectoryVersions(ModelVersions):
    """The model in a directory of Hugging Face's format, computed by transformers.

    Version 0 has the directory's own weights; those of all others are drawn anew.
    """

    def __init__(self, directory: Path) -> None:
        """Args: directory: What the servers serve.

        Raises:
            ValueError: It has a torn file.
        """
        self._directory = directory
        self._names = shapes_in(directory).keys()
        self._model = lru_cache(maxsize=_KEPT_MODELS)(self._make)

    def _make(self, version: int) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM

        if version == 0:
            model = AutoModelForCausalLM.from_pretrained(self._directory, dtype=torch.float32, local_files_only=True)
        else:
            config = AutoConfig.from_pretrained(self._directory, local_files_only=True)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(version)
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        return model.eval().requires_grad_(False)

    @override
    def tensors(self, version: int) -> dict[str, Tensor]:
        # A state has tensors twice that a file has once, where two layers share them.
        state = self._model(version).state_dict()
        return {name: values.contiguous() for name, values in state.items() if name in self._names}

    @override
    def save(self, version: int, directory: Path) -> Path:
        place = directory / str(version)
        place.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self._directory / _HF_CONFIG_FILE, place / _HF_CONFIG_FILE)
        save_file(self.tensors(version), place / "model.safetensors", metadata={"format": "pt"})
        return place

    @override
    def logits(self, version: int, tokens: list[int]) -> Tensor:
        return cast(Tensor, self._model(version)(torch.tensor([tokens])).logits[0])
