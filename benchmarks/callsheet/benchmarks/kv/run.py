"""Runs the same trajectories with KV admission and without, in turn, on one engine."""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from callsheet.benchmarks.kv.load import LoadTally, run_load
from callsheet.benchmarks.kv.report import DemandFigures, KvBenchReport, bound_name, figures_of
from callsheet.benchmarks.kv.settings import THROUGH_CALLSHEET, KvBenchSettings
from callsheet.benchmarks.kv.stack import MeasuredEngine, loaded_driver, measured_engine, through_callsheet
from callsheet.benchmarks.kv.trajectories import TOKENS
from callsheet.benchmarks.kv.ways import StraightWay
from callsheet.benchmarks.measuring.clock import Progress, timed
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.managers.inference.driver import EngineDriver, EngineError

_TIMED_PROMPT: Final = 2048
_TIMED_PROMPTS: Final = 3
_WITH_ADMISSION: Final = None


class UnusableEngineError(Exception):
    """The engine cannot be measured: it is not there, or its KV cache is too small or of unknown size."""


async def run_kv_bench(settings: KvBenchSettings, progress: Progress = lambda _: None) -> KvBenchReport:
    """Measures all demands, one after another.

    Args:
        settings: Which engine, and the load.
        progress: Told, as a sentence, how it goes.

    Raises:
        UnusableEngineError: The server is not ready in time, fails, or has a KV cache that is too small for the load.
        ProcessFailedError: The scheduler did not start.
    """
    try:
        return await _measured(settings, progress)
    except EngineError as error:
        raise UnusableEngineError(str(error)) from error


async def _measured(settings: KvBenchSettings, progress: Progress) -> KvBenchReport:
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="callsheet-kv-bench-") as made:
        directory = Path(made)
        async with measured_engine(settings, directory) as measured, loaded_driver(measured) as driver:
            kv_tokens = _room(driver, settings)
            prompt, prefill_s = await _prefill(driver, settings.seed)
            progress(f"{kv_tokens} tokens of KV; a prompt of {prompt} tokens takes {prefill_s:.2f} s")
            bench = _Bench(settings, measured, driver, directory, progress)
            demands = [await bench.at(demand, settings.live(demand, kv_tokens)) for demand in settings.demands]
    workload = asdict(settings)
    return KvBenchReport(settings.engine, kv_tokens, prompt, prefill_s, tuple(demands), workload, machine)


class _Bench:
    """Runs of one policy after another on one engine."""

    def __init__(
        self,
        settings: KvBenchSettings,
        measured: MeasuredEngine,
        driver: EngineDriver,
        directory: Path,
        progress: Progress,
    ) -> None:
        self._settings, self._measured, self._driver = settings, measured, driver
        self._directory, self._progress = directory, progress
        self._runs = 0

    async def at(self, demand: float, live: int) -> DemandFigures:
        """All policies at one demand."""
        policies: Sequence[int | None] = (_WITH_ADMISSION, *self._settings.bounds)
        tallies = {policy: LoadTally() for policy in policies}
        for number in range(self._settings.rounds):
            for policy in policies if number % 2 == 0 else reversed(policies):
                told = "callsheet" if policy is _WITH_ADMISSION else f"plain, {bound_name(policy)}"
                before = len(tallies[policy].turns)
                await self._run(policy, live, tallies[policy])
                turns = len(tallies[policy].turns) - before
                self._progress(f"demand {demand:g}, {live} trajectories, {told}: {turns} turns")
        return DemandFigures(
            demand=demand,
            live=live,
            callsheet=figures_of(tallies[_WITH_ADMISSION]),
            plain={bound: figures_of(tallies[bound]) for bound in self._settings.bounds},
            failures=[each for tally in tallies.values() for each in tally.failures],
        )

    async def _run(self, policy: int | None, live: int, into: LoadTally) -> None:
        """One run, on an engine that has nothing of the one before."""
        self._runs += 1
        await self._driver.flush()
        name = f"run-{self._runs}"
        if policy not in (_WITH_ADMISSION, THROUGH_CALLSHEET):
            await run_load(
                StraightWay(self._driver, policy), self._settings, live, name, into, cpu_s=self._measured.cpu_s
            )
            return
        directory = self._directory / name
        directory.mkdir()
        async with through_callsheet(self._measured, directory, admission=policy is _WITH_ADMISSION) as way:
            await run_load(way, self._settings, live, name, into, cpu_s=self._measured.cpu_s)


def _room(driver: EngineDriver, settings: KvBenchSettings) -> int:
    """Tokens that the engine's KV cache holds."""
    kv_tokens = driver.limits.kv_tokens or driver.load.kv_tokens_total
    if not kv_tokens:
        raise UnusableEngineError("the engine does not tell how many tokens its KV cache holds")
    most = min(kv_tokens, driver.limits.context_length or kv_tokens)
    if settings.longest_context >= most:
        longest = f"trajectories may come to {settings.longest_context} tokens"
        raise UnusableEngineError(f"{longest}, and the engine takes less than {most}: give less --context or --turns")
    return kv_tokens


async def _prefill(driver: EngineDriver, seed: int) -> tuple[int, float]:
    """(tokens, seconds) of a prompt on the idle engine, the median of some."""
    way, seconds = StraightWay(driver, 0), list[float]()
    size = min(_TIMED_PROMPT, (driver.limits.context_length or _TIMED_PROMPT + 2) - 2)
    for number in range(_TIMED_PROMPTS):
        chance = random.Random(f"prefill {seed} {number}")
        prompt = tuple(chance.randrange(TOKENS) for _ in range(size))
        with timed(seconds):
            await way.generate(prompt, 1)
    return size, statistics.median(seconds)
