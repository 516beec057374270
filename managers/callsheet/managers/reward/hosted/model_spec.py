"""Which models a reward manager hosts, as its command line or a file of models says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from callsheet.managers.reward.hosted.places import WIDTHS
from callsheet.options.declaration import AtLeast, PathRule, Setting, check_least
from callsheet.options.tables import from_table, read_toml

# The last "score: 7" or "rating = 0.5" of an answer.
SCORE_PATTERN = r"(?i)(?:score|rating)\s*[:=]\s*\[{0,2}(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"

_SCHEMES = ("http", "https")


class ModelTask(Enum):
    """What a model answers."""

    CLASSIFY = "classify"
    """The raw logit of a sequence classification head."""
    TEACHER = "teacher"
    """The log-probabilities of given tokens."""
    JUDGE = "judge"
    """A text by a rubric, and the score that stands in it."""


class ServerEngine(Enum):
    """Which engine a server runs."""

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
        """Whether a directory was given."""
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


# Settings of hosted models. Imports nothing heavy.

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedSettings:
    """The models that share the memory of a reward manager's devices.

    Attributes:
        slots: The most requests at once for each model.
        max_batch: Requests that one batch takes at most.
        max_batch_tokens: Padded tokens of one forward pass.
        load_timeout_s: How long a model may take to be opened or restored.
        answer_timeout_s: How long a batch may take; then its worker is killed.
        restart_s: First wait before a worker that died is started again; it doubles up to `restart_most_s`.
        restart_most_s: The longest such wait.
    """

    models: Annotated[
        tuple[ModelSpec, ...],
        Setting(
            "A model to host, as NAME=DIR|URL[,kind=classify|teacher|judge][,OPTION=VALUE]. Repeatable.",
            flag="--model",
            metavar="NAME=DIR|URL",
            text=str,
            parse=parse_model,
            repeatable=True,
        ),
    ] = ()
    models_file: Annotated[
        Path | None,
        Setting(
            "A TOML file with a table for each model to host.",
            default_text="none",
            path=PathRule(exists=True, file=True, directory=False, resolve=True),
        ),
    ] = None
    memory_budget_mib: Annotated[
        int | None, Setting("Memory for the weights of hosted models, on each device.", least=1, default_text="none")
    ] = None
    device: Annotated[str, Setting("Where they compute: cpu, or cuda:0, or cuda:0,cuda:1.")] = "cpu"
    model_threads: Annotated[int, Setting("Cores that hosted models compute with; they are reserved.", least=1)] = 1
    scratch_mib: Annotated[
        int | None,
        Setting("Memory that one batch may take beside the weights, on a CPU.", least=1, default_text="no limit"),
    ] = None
    park_after_s: Annotated[
        float, Setting("A model that was idle for so many seconds gives its memory back; 0 for never.", least=0)
    ] = 0.0
    close_after_s: Annotated[float, Setting("A parked one is closed after so many seconds; 0 for never.", least=0)] = (
        0.0
    )
    server_api_key: Annotated[
        str | None,
        Setting(
            "What the servers of hosted models ask for.",
            variable="CALLSHEET_REWARD_SERVER_API_KEY",
            secret=True,
            default_text="none",
        ),
    ] = field(default=None, repr=False)
    prewarm: Annotated[bool, Setting("Bring models in before they are asked for, where that pays.")] = True
    slots: Annotated[int, AtLeast(1)] = 64
    max_batch: Annotated[int, AtLeast(1)] = 16
    max_batch_tokens: Annotated[int, AtLeast(1)] = 16_384
    load_timeout_s: float = 600.0
    answer_timeout_s: float = 600.0
    restart_s: float = 0.5
    restart_most_s: float = 30.0

    def __post_init__(self) -> None:
        """Checks what needs no model.

        Raises:
            ValueError: A field breaks its rule.
        """
        check_least(self)
        check_names(self.all_models)
        if self.all_models and self.memory_budget_mib is None:
            raise ValueError("memory_budget_mib: None: must be given with models, for instance 4096")
        for device in self.devices:
            if device != "cpu" and not (device.startswith("cuda:") and device[5:].isdecimal()):
                raise ValueError(f"device: {device!r}: must be cpu or cuda:N")
        if "cpu" in self.devices and len(self.devices) > 1:
            raise ValueError(f"device: {self.device!r}: cpu must stand alone")

    @property
    def all_models(self) -> tuple[ModelSpec, ...]:
        """Those of the command line and those of the file.

        Raises:
            ValueError: The file cannot be read, or breaks a rule.
        """
        return self.models + (read_models(self.models_file) if self.models_file is not None else ())

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices, as torch names them."""
        return tuple(self.device.split(","))

    @property
    def budget_bytes(self) -> int:
        """Bytes for weights on each device."""
        return (self.memory_budget_mib or 0) * MIB
