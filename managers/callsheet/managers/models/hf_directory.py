"""A model's directory in Hugging Face's layout: its files and bounds, read without loading them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callsheet.managers.models.config_file import CONFIG_FILE, WEIGHTS_FILE, WeightsError, read_json
from callsheet.managers.models.safetensors_files import read_tensor_files

GENERATION_FILE = "generation_config.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length", "max_seq_len")


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """Facts in the files of a model.

    Attributes:
        path: The directory.
        architecture: Its class in transformers, such as "Qwen2ForCausalLM".
        dtype: In which its weights are meant to be computed, such as "bfloat16"; "float32" where nothing is said.
        parameters: Numbers in its files of tensors.
        context_length: The most tokens of one sequence; None where nothing is said, as for models without attention.
        tokenizer: Whether a tokenizer is there.
        chat_template: Whether a chat template is there.
    """

    path: Path
    architecture: str
    dtype: str
    parameters: int
    context_length: int | None
    tokenizer: bool
    chat_template: bool

    def summary(self, dtype: str) -> str:
        """One line for people, of the model as it is computed in `dtype`."""
        size = (
            f"{self.parameters / 1e9:.2f} billion" if self.parameters >= 1e9 else f"{self.parameters / 1e6:.1f} million"
        )
        context = f"context of {self.context_length} tokens" if self.context_length else "context of any length"
        template = "with a chat template" if self.chat_template else "without a chat template"
        text = template if self.tokenizer else "without a tokenizer"
        return f"{self.path.name} ({self.architecture}, {size} parameters, {dtype}, {context}, {text})"


def read_model_directory(path: Path) -> ModelDirectory:
    """Returns what the files of a model say.

    Raises:
        WeightsError: The directory does not hold a whole model; the message names the file that is missing or wrong.
    """
    if not path.is_dir():
        raise WeightsError(f"{path}: is no directory; a model is one with {CONFIG_FILE} and safetensors")
    if (path / "adapter_config.json").is_file() and not (path / CONFIG_FILE).is_file():
        raise WeightsError(f"{path}: holds an adapter (adapter_config.json); merge it into its base model first")
    if (path / WEIGHTS_FILE).is_file():
        raise WeightsError(f"{path}: holds the demo's kind of model ({WEIGHTS_FILE}); give it as weights, not as model")
    config = read_json(path / CONFIG_FILE)
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else config
    architectures = config.get("architectures")
    if not (isinstance(architectures, list) and architectures) and "model_type" not in config:
        raise WeightsError(
            f"{path / CONFIG_FILE}: has neither architectures nor model_type; it is none of transformers'"
        )
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else config["model_type"]
    return ModelDirectory(
        path=path,
        architecture=str(architecture),
        dtype=str(_first(("dtype", "torch_dtype"), config, text) or "float32"),
        parameters=sum(math.prod(tensor.shape) for file in read_tensor_files(path) for tensor in file.tensors.values()),
        context_length=_whole(_first(_CONTEXT_NAMES, text, config)),
        tokenizer=any((path / name).is_file() for name in _TOKENIZER_FILES),
        chat_template=_has_chat_template(path),
    )


def end_tokens(path: Path) -> frozenset[int]:
    """Returns the tokens that end generation by generation_config.json, else by config.json.

    Raises:
        WeightsError: One of the files is not JSON.
    """
    for name in (GENERATION_FILE, CONFIG_FILE):
        fields = read_json(path / name) if (path / name).is_file() else {}
        nested = fields.get("text_config")
        given = _first(("eos_token_id",), fields, nested if isinstance(nested, Mapping) else {})
        if given is not None:
            return frozenset(given if isinstance(given, list) else [given])
    return frozenset()


def _has_chat_template(path: Path) -> bool:
    if (path / "chat_template.jinja").is_file() or (path / "chat_template.json").is_file():
        return True
    settings = path / "tokenizer_config.json"
    return settings.is_file() and bool(read_json(settings).get("chat_template"))


def _first(names: tuple[str, ...], *places: Mapping[str, Any]) -> Any:
    return next((place[name] for place in places for name in names if place.get(name) is not None), None)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
