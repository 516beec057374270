"""New weights of a policy: where they are, how engines take them, and how far they are. Durations are seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Literal

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


@dataclass(frozen=True, slots=True)
class BroadcastTensor:
    """A tensor that the trainer broadcasts: its name, its torch dtype such as "bfloat16", and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransferGroup:
    """Weights that the trainer broadcasts to a group of torch.distributed which it forms as rank 0.

    All engines of the service join it, in the order of their managers' ids and with as many ranks each, and update
    together. `publish` returns once that was accepted: form the group and broadcast then.

    Attributes:
        address: Host of the group's rendezvous.
        port: Its port.
        group_name: Names the group; an engine that is in it already does not join again.
        world_size: Members, the trainer among them.
        tensors: The tensors of the broadcast, in its order.
        backend: "nccl", or "gloo" on CPUs.
    """

    address: str
    port: int
    group_name: str
    world_size: int
    tensors: tuple[BroadcastTensor, ...]
    backend: str = "nccl"


@dataclass(frozen=True, slots=True)
class Canary:
    """The proof of one set of weights: a prompt, and the trainer's own greedy answer to it.

    Attributes:
        prompt_token_ids: The prompt; empty takes one that every vocabulary has.
        token_ids: The answer; empty where the trainer does not know it. All engines must then answer as the first one.
        log_probs: Of each token of the answer, at temperature 1 over the whole vocabulary.
        unchanged: The weights are those of before under a new version, so no warning says that the answer is as before.
    """

    prompt_token_ids: Sequence[int] = ()
    token_ids: Sequence[int] = ()
    log_probs: Sequence[float] = ()
    unchanged: bool = False


Source = str | PathLike[str] | Tensors | TransferGroup
"""A path or a URI that every engine can read, or one of the others."""


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """The announcement of weights by `Job.publish`; see there."""

    source: Source
    mode: UpdateModeName = "drain"
    service: str = ""
    at_once: int = 1
    canary: Canary = Canary()
    timeout_s: float = DEFAULT_UPDATE_TIMEOUT_S

    @property
    def location(self) -> str | None:
        """The path or URI, if that is the source."""
        return None if isinstance(self.source, Tensors | TransferGroup) else fspath(self.source)
