"""The seam between the reward manager and a scoring model. Imports nothing heavy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class ScorerError(Exception):
    """The scorer cannot answer; `reason` is a stable word: "scorer_busy", "scorer_failed", "scorer_closed"."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ModelScore:
    """A model's answer.

    Attributes:
        value: The score, unbounded; not finite if the weights are broken.
        cpu_s: CPU seconds of the batch's thread, shared out by tokens; further threads of the kernels not counted.
    """

    value: float
    cpu_s: float


@dataclass(slots=True, eq=False)
class ScoreRequest:
    """A request for a score.

    Attributes:
        token_ids: The sequence.
        cores: Cores it may use; empty for the shared lane.
        asked_at: When it came, in monotonic seconds.
        waited_s: Seconds until its batch began; 0 before.
        answer: Done with its score, with why there is none, or with None once it was withdrawn.
    """

    token_ids: tuple[int, ...]
    cores: frozenset[int]
    answer: asyncio.Future[ModelScore | ScorerError | None] = field(repr=False)
    asked_at: float = field(default_factory=time.monotonic)
    waited_s: float = 0.0


class Scores(Protocol):
    """A scoring model and what runs it. Must be used from one event loop."""

    def submit(self, token_ids: tuple[int, ...], cores: Sequence[int]) -> ScoreRequest:
        """Queues a sequence that the model can take.

        Raises:
            ScorerError: Too many requests, or the scorer is closed.
        """

    def withdraw(self, ticket: ScoreRequest) -> None:
        """Takes a request back if its batch has not begun."""

    def shut(self) -> None:
        """Takes no more requests."""

    def join(self, timeout_s: float) -> None:
        """Waits for the batches that run, at most so many seconds; blocks."""


# Cuts the sequences that wait for a score into batches of similar length. Pure.


def plan_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Groups sequences so that little is wasted on padding.

    In a batch the longest sequence is at most twice the shortest, and the padded tokens are at most `max_tokens`; a
    sequence that is longer than that has a batch of its own.

    Args:
        lengths: Tokens of each sequence, at least 1.
        max_tokens: Bound of a batch's padded size in tokens.

    Returns:
        Batches of indices into `lengths`; every index once, by rising length.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        batch = batches[-1] if batches else None
        length = lengths[index]
        if batch and length <= 2 * lengths[batch[0]] and length * (len(batch) + 1) <= max_tokens:
            batch.append(index)
        else:
            batches.append([index])
    return batches
