"""What is asked, of whom and when. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScoringRequest:
    """A request.

    Attributes:
        model: Number of its model.
        question: Number of its input among the model's.
        at: When it comes, in units of the mean time between two.
    """

    model: int
    question: int
    at: float


def draw_questions(count: int, tokens: tuple[int, int], vocabulary: int, seed: int) -> list[list[int]]:
    """Inputs of a model."""
    draw = random.Random(seed)
    return [[draw.randrange(5, vocabulary) for _ in range(draw.randint(*tokens))] for _ in range(count)]


def draw_scorings(count: int, models: int, questions: int, zipf: float, seed: int) -> list[ScoringRequest]:
    """Requests that come at random, for models whose popularity falls by a power law."""
    draw = random.Random(seed)
    popularity = [1.0 / (rank + 1) ** zipf for rank in range(models)]
    scorings, at = [], 0.0
    for _ in range(count):
        at += draw.expovariate(1.0)
        model = draw.choices(range(models), popularity)[0]
        scorings.append(ScoringRequest(model, draw.randrange(questions), at))
    return scorings


def differences(found: Sequence[float], alone: Sequence[float]) -> float:
    """The largest distance between scores."""
    return max((abs(one - other) for one, other in zip(found, alone, strict=True)), default=0.0)
