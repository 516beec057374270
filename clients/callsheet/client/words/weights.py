"""New weights of a policy: their place, and the way that engines load them. Durations are seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Literal

from callsheet.v1.weights_values import Canary, TransferGroup

UpdateModeName = Literal["drain", "abort", "keep"]
"""The effect of an update on requests that have begun: they finish first, end with the tokens they have, or go on."""

DEFAULT_UPDATE_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Tensors:
    """Weights that travel with the publish, for engines that run in their manager's process.

    Attributes:
        content: A file of safetensors, for instance of `safetensors.torch.save`. Tensors left out stay as they are.
    """

    content: bytes = field(repr=False)


Source = str | PathLike[str] | Tensors | TransferGroup
"""A path or a URI that every engine can read, or one of the others."""


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """The announcement of weights by `Job.publish`; see there."""

    source: Source
    mode: UpdateModeName = "drain"
    service: str = ""
    at_once: int = 1
    canary: Canary = field(default_factory=Canary)
    timeout_s: float = DEFAULT_UPDATE_TIMEOUT_S

    @property
    def location(self) -> str | None:
        """The path or URI, if that is the source."""
        return None if isinstance(self.source, Tensors | TransferGroup) else fspath(self.source)
