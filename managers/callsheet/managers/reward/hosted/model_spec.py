"""Models that a reward manager hosts, from its command line or from a file of models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from callsheet.managers.reward.hosted.places import WIDTHS
from callsheet.options.tables import from_table, read_toml

# The last "score: 7" or "rating = 0.5" of an answer.
SCORE_PATTERN = r"(?i)(?:score|rating)\s*[:=]\s*\[{0,2}(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"

_SCHEMES = ("http", "https")


class ModelTask(Enum):
    """Kinds of answers of a model."""

    CLASSIFY = "classify"
    """The raw logit of a sequence classification head."""
    TEACHER = "teacher"
    """The log-probabilities of given tokens."""
    JUDGE = "judge"
    """A text by a rubric, and the score that stands in it."""


class ServerEngine(Enum):
    """Engines that a server can run."""

    SGLANG = "sglang"
    VLLM = "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A hosted model.

    Attributes:
        name: Name of the service that it is.
        directory: With its configuration, safetensors and tokenizer. Of a model on a server only the tokenizer is read,
            for texts to classify or to look at; it may be left out.
        url: Of the inference server that has the model; empty for a worker process of this manager's.
        engine: Which engine that server runs.
        memory_mib: Memory that it takes on each device while it is awake.
        sleep_level: What a sleep does to the weights of a vLLM server: 1 keeps them in host memory, 2 drops them.
        kind: What it answers.
        pinned: Whether it stays in memory once it is there.
        prewarm: Whether it is brought in when the manager starts.
        worker: Models with the same word share a process; one that dies takes the others of its process with it.
        gpus: Neighbouring devices that share its weights.
        label: Which logit of a head with several is the score; None for a head with one.
        max_new_tokens: The longest answer of a judge, its thoughts included; one that is longer is no verdict.
        score_pattern: Finds the score in a judge's answer; its first group is the number, and the last match counts.
    """

    name: str
    directory: Path = Path()
    url: str = ""
    engine: ServerEngine = ServerEngine.SGLANG
    memory_mib: int = 0
    sleep_level: int = 1
    kind: ModelTask = ModelTask.CLASSIFY
    pinned: bool = False
    prewarm: bool = False
    worker: str = "models"
    gpus: int = 1
    label: int | None = None
    max_new_tokens: int = 2048
    score_pattern: str = SCORE_PATTERN

    def __post_init__(self) -> None:
        """Checks what needs no file.

        Raises:
            ValueError: A field breaks its rule.
        """
        if not 0 < len(self.name) <= 256 or not self.name.isprintable():
            raise ValueError(f"name: {self.name!r}: must have 1 to 256 printable characters")
        if self.gpus not in WIDTHS:
            raise ValueError(f"gpus: {self.gpus}: must be one of {', '.join(map(str, WIDTHS))}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: {self.max_new_tokens}: must be at least 1")
        if self.label is not None and self.label < 0:
            raise ValueError(f"label: {self.label}: must be at least 0")
        try:
            groups = re.compile(self.score_pattern).groups
        except re.error as error:
            raise ValueError(f"score_pattern: {self.score_pattern!r}: must be a regular expression: {error}") from error
        if groups < 1:
            raise ValueError(f"score_pattern: {self.score_pattern!r}: must have a group for the number")
        self._check_place()

    @property
    def has_directory(self) -> bool:
        """True if a directory was given."""
        return self.directory != Path()

    def _check_place(self) -> None:
        if not self.url:
            if not self.has_directory:
                raise ValueError("directory: must be given, or the url of a server")
            return
        parts = urlsplit(self.url)
        if parts.scheme not in _SCHEMES or not parts.netloc or parts.password:
            raise ValueError(f"url: {self.url!r}: must be http://HOST:PORT, without a password")
        if self.memory_mib < 1:
            raise ValueError(
                f"memory_mib: {self.memory_mib}: must be given for a server: what it takes while it is awake"
            )
        if self.sleep_level not in (1, 2):
            raise ValueError(f"sleep_level: {self.sleep_level}: must be 1 or 2")


def parse_model(text: str) -> ModelSpec:
    """Reads "NAME=DIR[,kind=judge][,pinned=true]...", or "NAME=URL,engine=vllm,memory_mib=16000...".

    Raises:
        ValueError: It is something else.
    """
    name, separator, rest = text.partition("=")
    directory, *options = rest.split(",")
    if not separator or not directory:
        raise ValueError(f"{text!r}: must be NAME=DIR, for instance judge=/models/judge,kind=judge")
    place = "url" if directory.partition("://")[0] in _SCHEMES else "directory"
    values = {place: directory}
    for option in options:
        key, separator, value = option.partition("=")
        if not separator:
            raise ValueError(f"{text!r}: {option!r}: must be OPTION=VALUE")
        values[key] = value
    return _spec(name, values, texts=True)


def read_models(path: Path) -> tuple[ModelSpec, ...]:
    """Reads a TOML file with a table [NAME] for each model; a relative directory is taken from the file's.

    Raises:
        ValueError: It cannot be read, or a table breaks a rule.
    """
    specs = []
    for name, table in read_toml(path).items():
        if not isinstance(table, dict) or not isinstance(table.get("directory", table.get("url")), str):
            raise ValueError(f"{path}: {name}: must be a table with a directory or a url")
        places = {"directory": str(path.parent / table["directory"])} if "directory" in table else {}
        specs.append(_spec(name, table | places))
    return tuple(specs)


def check_names(specs: tuple[ModelSpec, ...]) -> None:
    """Refuses two models of one name.

    Raises:
        ValueError: There are such.
    """
    names = [spec.name for spec in specs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"model: {', '.join(map(repr, twice))}: must be given once")


def _spec(name: str, values: Mapping[str, object], *, texts: bool = False) -> ModelSpec:
    spec = from_table(ModelSpec, f"model {name}", values, {"name": name}, texts=texts)
    return replace(spec, directory=spec.directory.absolute()) if spec.has_directory else spec
