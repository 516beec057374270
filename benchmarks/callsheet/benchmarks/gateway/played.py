"""What came of conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from callsheet.benchmarks.gateway.check import EngineCall
from callsheet.gateway.chat import Message
from callsheet.gateway.conversations.samples import Sample

PROGRESS_EVERY: Final = 200
"""Conversations from one line of progress to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of conversations, by their names.

    Attributes:
        whole: The messages of each call, with its reply as it came.
        calls: What the engine was asked and answered, in the order of commits.
        samples: What the gateway exports.
        seconds: Of all calls together, each from its request to its reply; in one process without the engine.
        sampled_again: Generations that the engine made for a call that it had answered before.
        kills: How often the gateway was killed meanwhile.
    """

    whole: Mapping[str, Sequence[Sequence[Message]]]
    calls: Mapping[str, Sequence[EngineCall]]
    samples: Mapping[str, Sequence[Sample]]
    seconds: float
    sampled_again: int = 0
    kills: int = 0
