"""Values of common.proto, which `make protos` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self

from callsheet.v1 import common_pb2
from callsheet.v1.values import CostMethods, mapping


class OutputStream(Enum):
    """One of a command's two outputs."""

    UNSPECIFIED = "unspecified"
    """Not an output. Also a value that is newer than this code."""
    STDOUT = "stdout"
    """Standard output."""
    STDERR = "stderr"
    """Standard error."""


OUTPUT_STREAM: Final[Mapping[int, OutputStream]] = {
    0: OutputStream.UNSPECIFIED,
    1: OutputStream.STDOUT,
    2: OutputStream.STDERR,
}


@dataclass(frozen=True, slots=True)
class Cost(CostMethods):
    """The cost of an action, a trajectory, a group or a job, by resource.

    Costs add up: the cost of a job is the sum over its trajectories and its actions without one.

    "cpu" is in core-seconds, "memory" in GiB-seconds and "gpu" in GPU-seconds. "tokens_in" are tokens of prompts that
    an engine or a provider computed, "tokens_cached" those that it had in its cache, and "tokens_out" those that it
    made. "calls:SERVICE" are calls of an API outside, by the name of the service.

    Attributes:
        held: Amounts that were kept from others, used or not: "cpu", "memory" and "gpu" only. Nothing that waits holds.
        used: Amounts that were used, as far as that was measured: all resources but "gpu".
    """

    held: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_message(cls, message: common_pb2.Cost) -> Self:
        """Returns the value of a message."""
        return cls(
            mapping(message.held),
            mapping(message.used),
        )
