"""Parts that are used of a trainer of TRL. Their classes are not imported, so all this is checked without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from callsheet.gateway.renderers.held_tokenizer import HeldTokenizer


class GenerationArguments(Protocol):
    """Part of `GRPOConfig` that is used."""

    @property
    def max_completion_length(self) -> int | None:
        """The most tokens after the prompt, those of tools and environments included."""

    @property
    def temperature(self) -> float:
        """Temperature of sampling."""

    @property
    def top_p(self) -> float:
        """Top-p of sampling."""

    @property
    def top_k(self) -> int | None:
        """Top-k of sampling; 0 means all."""


class AsyncArguments(GenerationArguments, Protocol):
    """Part of `AsyncGRPOConfig` that is used.

    Attributes:
        per_device_train_batch_size: Samples of a micro-batch in each process.
        gradient_accumulation_steps: Micro-batches of an optimiser's step.
        max_inflight_tasks: The most trajectories at once; -1 is `max_staleness` times those of a step.
        max_staleness: Number of versions that a sample may be behind; the trainer drops staler ones.
    """

    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    max_inflight_tasks: int
    max_staleness: int

    @property
    def world_size(self) -> int:
        """Processes that train together."""


class RunState(Protocol):
    """Part of `TrainerState` that is used."""

    @property
    def global_step(self) -> int:
        """Steps of the optimiser so far."""


class AcceleratorPart(Protocol):
    """Part of `Accelerator` that is used."""

    @property
    def process_index(self) -> int:
        """This process among those that train together."""

    @property
    def is_main_process(self) -> bool:
        """Returns whether this process is the one that speaks for all."""

    def get_state_dict(self, model: Any) -> Mapping[str, Any]:
        """Gathers a model's tensors; all processes call it together."""


class GrpoTrainerPart(Protocol):
    """Part of `GRPOTrainer` that is used."""

    @property
    def processing_class(self) -> HeldTokenizer:
        """Its tokenizer."""

    @property
    def args(self) -> GenerationArguments:
        """Its settings."""

    @property
    def state(self) -> RunState:
        """How far it is."""

    @property
    def accelerator(self) -> AcceleratorPart:
        """The accelerator that it runs on."""

    @property
    def model(self) -> Any:
        """The policy, a module of torch."""
