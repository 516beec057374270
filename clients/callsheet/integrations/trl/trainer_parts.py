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
