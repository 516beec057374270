"""What is used of a trainer of TRL. Their classes are not imported, so that all this is checked without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from callsheet.gateway.renderers.held_tokenizer import HeldTokenizer


class GenerationArguments(Protocol):
    """What is used of `GRPOConfig`."""

    @property
    def max_completion_length(self) -> int | None:
        """The most tokens after the prompt, those of tools and environments included."""

    @property
    def temperature(self) -> float:
        """Of sampling."""

    @property
    def top_p(self) -> float:
        """Of sampling."""

    @property
    def top_k(self) -> int | None:
        """Of sampling; 0 means all."""


class AsyncArguments(GenerationArguments, Protocol):
    """What is used of `AsyncGRPOConfig`.

    Attributes:
        per_device_train_batch_size: Samples of a micro-batch in each process.
        gradient_accumulation_steps: Micro-batches of an optimiser's step.
        max_inflight_tasks: The most trajectories at once; -1 is `max_staleness` times those of a step.
        max_staleness: By how many versions a sample may be behind; the trainer drops what is staler.
    """

    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    max_inflight_tasks: int
    max_staleness: int

    @property
    def world_size(self) -> int:
        """Processes that train together."""


class RunState(Protocol):
    """What is used of `TrainerState`."""

    @property
    def global_step(self) -> int:
        """Steps of the optimiser so far."""


class AcceleratorPart(Protocol):
    """What is used of `Accelerator`."""

    @property
    def process_index(self) -> int:
        """This process among those that train together."""

    @property
    def is_main_process(self) -> bool:
        """Whether it is the one that speaks for all."""

    def get_state_dict(self, model: Any) -> Mapping[str, Any]:
        """Gathers a model's tensors; all processes call it together."""


class GrpoTrainerPart(Protocol):
    """What is used of `GRPOTrainer`."""

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
        """What it runs on."""

    @property
    def model(self) -> Any:
        """The policy, a module of torch."""
