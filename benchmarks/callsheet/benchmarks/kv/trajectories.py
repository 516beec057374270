"""Trajectories as they are drawn ahead, the same for every policy."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import NamedTuple

from callsheet.benchmarks.kv.settings import KvBenchSettings

TOKENS = 256
"""Token ids of prompts are below it; all models have as many."""


class DrawnTurn(NamedTuple):
    """A tool call, and what the prompt after it has more.

    Attributes:
        tool_s: Seconds of the tool call.
        observed: Tokens that it adds.
    """

    tool_s: float
    observed: tuple[int, ...]


class DrawnTrajectory(NamedTuple):
    """One trajectory: it generates, and once more after each of its turns.

    Attributes:
        prompt: Of its first generation.
        turns: What comes after that one.
    """

    prompt: tuple[int, ...]
    turns: tuple[DrawnTurn, ...]


def trajectories_of(settings: KvBenchSettings, place: int) -> Iterator[DrawnTrajectory]:
    """The trajectories that run in a place, one after another and without end.

    The first one is at some turn of its life, as in a run that has gone on for long.
    """
    chance = random.Random(f"{settings.seed} {place}")
    at = chance.randrange(settings.turns)
    while True:
        first = round(settings.context * chance.uniform(0.7, 1.3))
        turns = [_turn(settings, chance) for _ in range(settings.turns - 1)]
        prompt = list(_tokens(chance, first))
        for turn in turns[:at]:
            prompt += [*_tokens(chance, settings.tokens), *turn.observed]
        yield DrawnTrajectory(tuple(prompt), tuple(turns[at:]))
        at = 0


def _turn(settings: KvBenchSettings, chance: random.Random) -> DrawnTurn:
    tool_s = math.exp(chance.gauss(math.log(settings.tool_s), settings.tool_spread))
    return DrawnTurn(tool_s, _tokens(chance, max(1, round(settings.observed * chance.uniform(0.5, 1.5)))))


def _tokens(chance: random.Random, count: int) -> tuple[int, ...]:
    return tuple(chance.randrange(TOKENS) for _ in range(count))
