"""Settings of hosted models. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from callsheet.managers.reward.hosted.model_spec import ModelSpec, check_names, parse_model, read_models
from callsheet.options.declaration import AtLeast, PathRule, Setting, check_least

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
