"""New weights for an engine, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class UpdateMode(Enum):
    """Effect of a weight update on requests that have begun; other requests run under the new weights."""

    DRAIN = "drain"
    """They finish under the old weights first."""
    ABORT = "abort"
    """They end now with the tokens they have."""
    KEEP = "keep"
    """The weights change between two tokens. Their KV cache stays, or is computed anew as the engine prefers."""


@dataclass(frozen=True, slots=True)
class DiskWeights:
    """Weights that the engine reads by itself.

    Attributes:
        location: A directory's path or a URI, as the engine sees it, in the engine's own format.
    """

    location: str


@dataclass(frozen=True, slots=True)
class TensorWeights:
    """Weights that came with the update.

    Attributes:
        path: A file of safetensors that the engine's manager can read; tensors left out stay as they are.
    """

    path: Path


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that a trainer will broadcast: its name, its torch dtype such as "bfloat16", and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupWeights:
    """Weights that a trainer broadcasts to a group of torch.distributed which it formed as rank 0.

    Attributes:
        address: Host of the group's rendezvous.
        port: Its port.
        group_name: Names the group; an engine that is in it already does not join again.
        world_size: Members, the trainer among them.
        rank: Of this engine's first worker, at least 1.
        backend: "nccl", or "gloo" on a CPU.
        tensors: What will be broadcast, in that order.
    """

    address: str
    port: int
    group_name: str
    world_size: int
    rank: int
    backend: str
    tensors: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class FirstWeights:
    """Those that the engine was started with, or was found with."""


WeightSource = DiskWeights | TensorWeights | GroupWeights | FirstWeights


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """New weights for an engine.

    Attributes:
        source: Where they are.
        version: The policy version they are, 0 or more.
        mode: What becomes of running requests.
        timeout_s: The longest wait for a drain and for the update, each.
    """

    source: WeightSource
    version: int
    mode: UpdateMode
    timeout_s: float = 600.0
