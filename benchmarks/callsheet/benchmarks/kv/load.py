"""Runs trajectories on an engine for some time, each in the place of the one before it, and takes note of turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio
from callsheet.benchmarks.kv.settings import KvBenchSettings
from callsheet.benchmarks.kv.trajectories import DrawnTrajectory, trajectories_of
from callsheet.benchmarks.kv.ways import ActionFailedError, OpenRollout, Way

GENERATION_S = 600.0
"""A generation that takes longer has failed."""


class MeasuredTurn(NamedTuple):
    """A generation that ended.

    Attributes:
        prompt_tokens: Of its prompt.
        known_tokens: Those of them whose KV the trajectory's last generation left on the engine.
        cached_tokens: Those that were found there.
        new_tokens: Those that it wrote.
        act_s: Seconds from asking for it to its end.
        last: Whether it is the last one of its trajectory.
    """

    prompt_tokens: int
    known_tokens: int
    cached_tokens: int
    new_tokens: int
    act_s: float
    last: bool

    @property
    def recomputed_tokens(self) -> int:
        """Tokens that had been computed for this trajectory before and were computed anew."""
        return max(self.known_tokens - self.cached_tokens, 0)


@dataclass(slots=True)
class LoadTally:
    """What ended in the seconds that count, of one run or of several.

    Attributes:
        turns: Generations that ended.
        seconds: How long that was.
        engine_cpu_s: CPU seconds that the engine used meanwhile; 0 where that is not known.
        failures: Why trajectories ended early, in all seconds.
    """

    turns: list[MeasuredTurn] = field(default_factory=list)
    seconds: float = 0.0
    engine_cpu_s: float = 0.0
    failures: list[str] = field(default_factory=list)


async def run_load(
    way: Way, settings: KvBenchSettings, live: int, name: str, into: LoadTally, *, cpu_s: Callable[[], float]
) -> None:
    """Runs `live` trajectories at once; those that end are replaced.

    Args:
        way: How they get to the engine.
        settings: What they do, and for how long.
        live: Trajectories at once.
        name: Distinguishes them from those of other runs.
        into: Gets what ends after the warm-up.
        cpu_s: CPU seconds that the engine has used.
    """
    run = LoadTally(failures=into.failures)
    async with anyio.create_task_group() as tasks:
        for place in range(live):
            tasks.start_soon(_fill, way, settings, (name, place), run)
        await anyio.sleep(settings.warm_up_s)
        run.turns.clear()
        began, cpu_before = time.monotonic(), cpu_s()
        await anyio.sleep(settings.measure_s)
        into.turns += run.turns
        into.seconds += time.monotonic() - began
        into.engine_cpu_s += cpu_s() - cpu_before
        tasks.cancel_scope.cancel()


async def _fill(way: Way, settings: KvBenchSettings, where: tuple[str, int], into: LoadTally) -> None:
    name, place = where
    for number, drawn in enumerate(trajectories_of(settings, place)):
        try:
            async with way.rollout(f"{name}-{place}-{number}") as rollout:
                await _run(rollout, drawn, settings.tokens, into)
        except ActionFailedError as error:
            into.failures.append(f"{name}-{place}-{number}: {error}")


async def _run(rollout: OpenRollout, drawn: DrawnTrajectory, tokens: int, into: LoadTally) -> None:
    prompt, known = drawn.prompt, 0
    for index in range(len(drawn.turns) + 1):
        asked_at = time.monotonic()
        with anyio.fail_after(GENERATION_S):
            generated = await rollout.generate(prompt, tokens)
        act_s, last = time.monotonic() - asked_at, index == len(drawn.turns)
        into.turns.append(MeasuredTurn(len(prompt), known, generated.cached_tokens, tokens, act_s, last))
        if last:
            return
        # What the last token stands for is computed with the one after it.
        known = len(prompt) + len(generated.token_ids) - 1
        turn = drawn.turns[index]
        await rollout.act(turn.tool_s)
        prompt = (*prompt, *generated.token_ids, *turn.observed)
