"""Trajectories of several turns. Each resumes what an update cut short, as its trainer would."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import anyio
from callsheet.benchmarks.weights.settings import WeightsBenchSettings
from callsheet.client import Failed, GenerateResult, Job, LogProbsMode, Sampling, Succeeded

OBSERVED_TOKENS = 8
PROMPT_TOKENS = 48
BEGINNING_TOKENS = 2
"""A prompt begins with as many that tell its trajectory's number."""
_OUTCOME_S = 300.0


@dataclass(frozen=True, slots=True)
class GeneratedTurn:
    """One generate action and what came of it.

    Attributes:
        trajectory: Whose it was.
        turn: Which turn; a turn that was cut short has several.
        wanted: New tokens that were asked for.
        newest: The newest published version when it was submitted.
    """

    trajectory: int
    turn: int
    prompt: tuple[int, ...]
    wanted: int
    newest: int
    result: GenerateResult


@dataclass(frozen=True, slots=True)
class LoadResult:
    """All that was generated, in the order of its outcomes, and the failures that came through to a client."""

    generated: list[GeneratedTurn]
    failures: list[str]


async def run_load(
    job: Job, settings: WeightsBenchSettings, name: str, newest: Callable[[], int], trajectories: int | None = None
) -> LoadResult:
    """Runs all trajectories at once, to their ends.

    Args:
        job: Whose they are.
        settings: How many, and how long.
        name: Distinguishes their ids from those of other loads.
        newest: Tells the newest published version.
        trajectories: How many, where it is not what the settings say.
    """
    result = LoadResult([], [])
    count = settings.trajectories if trajectories is None else trajectories
    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(_run_one, job, settings, (name, number), newest, result)
    return result


async def _run_one(
    job: Job, settings: WeightsBenchSettings, which: tuple[str, int], newest: Callable[[], int], into: LoadResult
) -> None:
    name, number = which
    chance = random.Random(f"{settings.seed} {name} {number}")
    # No two trajectories of a load begin alike: a prefix in a cache is a trajectory's own, or of an earlier load.
    known = [number % 256, number // 256, *(chance.randrange(256) for _ in range(PROMPT_TOKENS))]
    async with job.trajectory(f"{name}-{number}") as trajectory:
        for turn in range(settings.turns):
            left = settings.tokens
            while left:
                prompt, version = tuple(known), newest()
                sampling = Sampling(left, temperature=0.0, ignore_eos=True, log_probs_mode=LogProbsMode.RAW)
                with anyio.fail_after(_OUTCOME_S):
                    outcome = await trajectory.generate(prompt, sampling=sampling)
                if not isinstance(outcome, Succeeded):
                    reason = outcome.reason if isinstance(outcome, Failed) else type(outcome).__name__
                    into.failures.append(f"{name}-{number}, turn {turn}: {reason}")
                    return
                into.generated.append(GeneratedTurn(number, turn, prompt, left, version, outcome.value))
                known += outcome.value.token_ids
                left -= len(outcome.value.token_ids)
            known += [chance.randrange(256) for _ in range(OBSERVED_TOKENS)]
