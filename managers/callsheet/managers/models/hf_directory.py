"""A model in the format of Hugging Face: what its files say, without loading it. Imports nothing heavy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callsheet.managers.models.config_file import CONFIG_FILE, WEIGHTS_FILE, WeightsError

TENSORS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GENERATION_FILE = "generation_config.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length", "max_seq_len")
_MOST_HEADER_BYTES = 100 << 20


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """What the files of a model say.

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
        parameters=sum(_numbers_in(each) for each in tensor_files(path)),
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


def tensor_files(path: Path) -> list[Path]:
    """Returns the files that hold the model's tensors.

    Raises:
        WeightsError: One is missing.
    """
    if (path / INDEX_FILE).is_file():
        shards = read_json(path / INDEX_FILE).get("weight_map")
        if not isinstance(shards, Mapping) or not shards:
            raise WeightsError(f"{path / INDEX_FILE}: has no weight_map")
        files = [path / str(name) for name in sorted(set(shards.values()))]
    else:
        files = [path / TENSORS_FILE]
    for file in files:
        if not file.is_file():
            other = next(iter(sorted(path.glob("*.bin"))), None)
            hint = f"; {other.name} is another format, save the model with safetensors" if other else ""
            raise WeightsError(f"{file}: is missing{hint}")
    return files


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a file.

    Raises:
        WeightsError: The file is missing, or does not hold one JSON object.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise WeightsError(f"{path}: is missing") from error
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error})") from error
    except ValueError as error:
        raise WeightsError(f"{path}: is not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise WeightsError(f"{path}: holds {type(fields).__name__}; it must be one object")
    return fields


def _numbers_in(path: Path) -> int:
    """Numbers in a file of safetensors, by its header; a file that was cut short is told apart."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, _MOST_HEADER_BYTES):
            raise WeightsError(f"{path}: is not a file of safetensors, or is cut short")
        try:
            header = json.loads(file.read(length))
            tensors = [entry for name, entry in header.items() if name != "__metadata__"]
            ends = [entry["data_offsets"][1] for entry in tensors]
            numbers = sum(int(math.prod(entry["shape"])) for entry in tensors)
        except (ValueError, AttributeError, LookupError, TypeError) as error:
            raise WeightsError(f"{path}: is not a file of safetensors ({error})") from error
    if 8 + length + max(ends, default=0) != size:
        raise WeightsError(f"{path}: has {size} bytes instead of {8 + length + max(ends, default=0)}; it is cut short")
    return numbers


def _has_chat_template(path: Path) -> bool:
    if (path / "chat_template.jinja").is_file() or (path / "chat_template.json").is_file():
        return True
    settings = path / "tokenizer_config.json"
    return settings.is_file() and bool(read_json(settings).get("chat_template"))


def _first(names: tuple[str, ...], *places: Mapping[str, Any]) -> Any:
    return next((place[name] for place in places for name in names if place.get(name) is not None), None)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
