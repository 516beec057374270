"""A model on disk: its shape, its files and what it can take, without loading it. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

# The shape of a transformer. Imports nothing heavy.


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """Shape of a transformer; what `config.json` beside its weights holds.

    Attributes:
        vocabulary_size: Token ids are 0 to `vocabulary_size - 1`.
        context_length: The most tokens of one sequence, prompt and output together.
        layers: Number of blocks.
        width: Width of the residual stream; a multiple of `heads`, with an even quotient.
        heads: Attention heads.
        hidden_width: Width inside the feed-forward part.
        rotary_base: Base of the rotary frequencies.
        norm_epsilon: Added to the mean square in RMSNorm.
    """

    vocabulary_size: int = 259
    context_length: int = 8192
    layers: int = 3
    width: int = 128
    heads: int = 4
    hidden_width: int = 352
    rotary_base: float = 10_000.0
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "context_length", "layers", "width", "heads", "hidden_width"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be an integer of at least 1")
        for name in ("rotary_base", "norm_epsilon"):
            value = getattr(self, name)
            if not isinstance(value, float | int) or not value > 0:
                raise ValueError(f"{name} is {value!r}; it must be a number above 0")
        if self.width % (2 * self.heads):
            raise ValueError(f"width is {self.width}; it must be a multiple of 2 x heads ({2 * self.heads})")

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values in float32 that one token takes in a KV cache."""
        return self.layers * 2 * self.width * 4


# The shape of a model on disk: `config.json` beside its weights. Imports nothing heavy.

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "weights.pt"


class WeightsError(ValueError):
    """A directory does not hold usable weights; the message names file, value and rule."""


def read_config(directory: Path) -> TransformerConfig:
    """Returns the shape in `config.json`.

    Raises:
        WeightsError: The file is missing, is not JSON, or has unknown keys or bad values.
    """
    path = directory / CONFIG_FILE
    fields = read_json(path)
    known = {field.name for field in dataclasses.fields(TransformerConfig)}
    unknown = sorted(set(fields) - known)
    if unknown:
        raise WeightsError(f"{path}: unknown keys {unknown}; known are {sorted(known)}")
    try:
        return TransformerConfig(**fields)
    except ValueError as error:
        raise WeightsError(f"{path}: {error}") from error


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


def check_weights(directory: Path) -> TransformerConfig:
    """Returns the shape in `config.json`, once the weights are known to be beside it.

    Raises:
        WeightsError: One of the files is missing, or `config.json` is not right.
    """
    config = read_config(directory)
    if not (directory / WEIGHTS_FILE).is_file():
        raise WeightsError(f"{directory / WEIGHTS_FILE}: is missing")
    return config


# The safetensors files of a model's directory, known by their headers alone. Imports nothing heavy.

TENSORS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_MOST_HEADER_BYTES = 100 << 20


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        dtype: As safetensors names it, for instance "F32".
        shape: Its shape.
        begin: Bytes before it in the file's data.
        end: Bytes before what follows it.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TensorsFile:
    """A file of safetensors.

    Attributes:
        path: The file.
        begin: Bytes before its data.
        size: Bytes of its data.
        tensors: What is in it, by name.
    """

    path: Path
    begin: int
    size: int
    tensors: Mapping[str, StoredTensor]


def read_tensor_files(directory: Path) -> list[TensorsFile]:
    """Reads the headers of the files that hold a model's tensors.

    Raises:
        WeightsError: A file is missing, is none of safetensors, or was cut short.
    """
    return [_read(path) for path in _paths(directory)]


def _paths(directory: Path) -> list[Path]:
    if (directory / INDEX_FILE).is_file():
        shards = read_json(directory / INDEX_FILE).get("weight_map")
        if not isinstance(shards, Mapping) or not shards:
            raise WeightsError(f"{directory / INDEX_FILE}: has no weight_map")
        if strange := next((name for name in shards.values() if Path(str(name)).name != name), None):
            raise WeightsError(f"{directory / INDEX_FILE}: {strange!r} is no name of a file beside it")
        files = [directory / str(name) for name in sorted(set(shards.values()))]
    else:
        files = sorted(directory.glob("*.safetensors")) or [directory / TENSORS_FILE]
    for file in files:
        if not file.is_file():
            other = next(iter(sorted(directory.glob("*.bin"))), None)
            hint = f"; {other.name} is another format, save the model with safetensors" if other else ""
            raise WeightsError(f"{file}: is missing{hint}")
    return files


def _read(path: Path) -> TensorsFile:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, _MOST_HEADER_BYTES):
                raise WeightsError(f"{path}: is not a file of safetensors, or is cut short")
            header = json.loads(file.read(length))
        tensors = {
            name: StoredTensor(entry["dtype"], tuple(map(int, entry["shape"])), *map(int, entry["data_offsets"]))
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except WeightsError:
        raise
    except (OSError, ValueError, AttributeError, LookupError, TypeError) as error:
        raise WeightsError(f"{path}: is not a file of safetensors ({error})") from error
    data = max((tensor.end for tensor in tensors.values()), default=0)
    if 8 + length + data != size:
        raise WeightsError(f"{path}: has {size} bytes instead of {8 + length + data}; it is cut short")
    return TensorsFile(path, 8 + length, data, tensors)


GENERATION_FILE = "generation_config.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length", "max_seq_len")


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


# Which tokens a model can take. Imports nothing heavy.


class SequenceBounds(Protocol):
    """Which sequences a model can take."""

    @property
    def vocabulary_size(self) -> int:
        """Token ids are 0 to `vocabulary_size - 1`."""

    @property
    def context_length(self) -> int:
        """The most tokens of one sequence, prompt and output together."""


@dataclass(frozen=True, slots=True)
class TokenProblem:
    """Why a model can never take these tokens: a stable word, and a sentence naming value and rule."""

    reason: str
    message: str


def token_problem(token_ids: Sequence[int], bounds: SequenceBounds, new_tokens: int = 0) -> TokenProblem | None:
    """Returns what is wrong with a sequence, or None.

    Args:
        token_ids: The sequence.
        bounds: Of the model.
        new_tokens: Room that must be left in the context.
    """
    if not token_ids:
        return TokenProblem("no_tokens", "the sequence is empty; it must hold at least one token")
    if min(token_ids) < 0 or max(token_ids) >= bounds.vocabulary_size:
        bad = next(token for token in token_ids if not 0 <= token < bounds.vocabulary_size)
        return TokenProblem(
            "token_out_of_vocabulary", f"token id {bad} is not one of the model's 0 to {bounds.vocabulary_size - 1}"
        )
    most = bounds.context_length - new_tokens
    if len(token_ids) > most:
        return TokenProblem(
            "prompt_too_long",
            f"the sequence has {len(token_ids)} tokens; the model's context of {bounds.context_length} takes {most}",
        )
    return None
