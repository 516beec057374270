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
