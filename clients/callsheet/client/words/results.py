"""Parts of a running command's output, and the union of the values of successes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from callsheet.v1.common_values import OutputStream
from callsheet.v1.outcome_values import CommandResult, EnvResetResult, GenerateResult, RewardResult, ToolCallResult


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A part of a running command's output.

    Attributes:
        stream: The output.
        content: The bytes.
        offset: Number of bytes of this output before `content`.
        dropped_bytes: Bytes of this output between the part before and this part that were lost on the way.
    """

    stream: OutputStream
    content: bytes
    offset: int = 0
    dropped_bytes: int = 0


Result: TypeAlias = GenerateResult | EnvResetResult | CommandResult | ToolCallResult | RewardResult
