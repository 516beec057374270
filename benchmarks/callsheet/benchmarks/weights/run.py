"""Publishes weights while trajectories run, in each mode and with each fault, and checks all that was generated."""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.weights.checks import CheckedTokens, WhatHolds, check
from callsheet.benchmarks.weights.engines import RunningEngine, WeightsFleet, running_fleet
from callsheet.benchmarks.weights.faulty_engine import Fault
from callsheet.benchmarks.weights.load import LoadResult, run_load
from callsheet.benchmarks.weights.publishing import Publisher
from callsheet.benchmarks.weights.report import FaultResult, ModeResult, WeightsReport
from callsheet.benchmarks.weights.settings import NO_FAULT, WeightsBenchSettings
from callsheet.benchmarks.weights.versions import ModelVersions
from callsheet.client import Client, Job, NotFoundError, RolloutStatus
from callsheet.managers.inference.proof import CANARY_TOKENS, USUAL_PROMPT

LEAST_CHANGE: Final = 1e-2
ROLLOUT_S: Final = 60.0
SERVER_ROLLOUT_S: Final = 600.0
"""A server that was killed takes minutes to start on a busy machine."""
FAULT_TRAJECTORIES: Final = 16
KILLED: Final = "killed"
_FAULTS: Final = {"half": Fault.HALF, "ignored": Fault.IGNORED, "mislabelled": Fault.MISLABELLED, "old": Fault.DEAD}
_QUARANTINE_LOOK_S: Final = 0.05


async def run_weights_bench(settings: WeightsBenchSettings, progress: Progress = lambda _: None) -> WeightsReport:
    """Runs all modes, then all faults, on two embedded engines or on servers.

    Args:
        settings: Which engines, how much load, and how many publishes.
        progress: Told, as a sentence, how it goes.

    Raises:
        ProcessFailedError: The scheduler did not start.
        EngineError: A server is not ready in time.
        ValueError: The engine's options, or the model's directory, cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="callsheet-weights-bench-") as directory:
        async with (
            running_fleet(Path(directory), settings) as fleet,
            Client(fleet.address) as client,
            await client.open_job("bench") as job,
        ):
            bench = _Bench(settings, fleet, Publisher(job, fleet, settings.sources, fleet.newest), progress)
            if settings.model is not None:
                await bench.begin()
            modes = [await bench.mode(mode) for mode in settings.modes]
            faults = [await bench.fault(name) for name in settings.faults if name != NO_FAULT]
    return WeightsReport(tuple(modes), tuple(faults), settings.engine, describe_machine())


class _Bench:
    """Modes and faults, one after another, with versions that go on from each to the next."""

    def __init__(
        self, settings: WeightsBenchSettings, fleet: WeightsFleet, publisher: Publisher, progress: Progress
    ) -> None:
        self._settings, self._fleet, self._publisher, self._progress = settings, fleet, publisher, progress
        self._job = publisher.job
        self._rollout_s = ROLLOUT_S if settings.model is None else SERVER_ROLLOUT_S
        self._first = 0
        self._begun: dict[tuple[int, ...], set[int]] = {}

    async def begin(self) -> None:
        """Gives servers weights that are known: nobody knows what they served before."""
        await self._publisher.publish("drain", expected=True)
        await self._job.rollout(wait_s=self._rollout_s)
        self._first = self._publisher.newest

    async def mode(self, mode: str) -> ModeResult:
        """Versions follow each other while all trajectories run."""
        settings, publisher = self._settings, self._publisher
        self._progress(f"{mode}: {settings.trajectories} trajectories of {settings.turns} turns")
        first, before = publisher.newest, await _exposed(self._job, self._fleet)
        began, loads = time.monotonic(), []
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                loads.append(await run_load(self._job, settings, mode, lambda: publisher.newest))
                tasks.cancel_scope.cancel()

            tasks.start_soon(run)
            for _ in range(settings.publishes):
                await anyio.sleep(settings.interval_s)
                with anyio.CancelScope(shield=True):
                    await publisher.publish(mode)
                    self._progress(f"{mode}: version {publisher.newest} published")
        wall_s = time.monotonic() - began
        status = await self._job.rollout(wait_s=self._rollout_s) if publisher.newest else None
        checked = await self._checked(loads[0], mode)
        if status is not None and not status.done:
            checked.findings.append("not all engines proved the newest weights")
        published = range(first, publisher.newest + 1)
        smallest_change = _judge_versions(checked, published, self._fleet.versions)
        after = await _exposed(self._job, self._fleet)
        return ModeResult(
            mode=mode,
            published=publisher.newest - first,
            smallest_change=smallest_change,
            checked=checked,
            failures=tuple(loads[0].failures),
            wall_s=wall_s,
            exposed_s=tuple(each.last_exposed_s for each in status.engines) if status is not None else (),
            exposed_total_s=tuple(now - then for now, then in zip(after, before, strict=True)),
        )

    async def fault(self, name: str) -> FaultResult:
        """The first engine fails in its update, while all have work. A trainer's answer to the canary goes with it."""
        self._progress(f"an update that goes wrong: {name}")
        victim, publisher = self._fleet.engines[0], self._publisher
        loads: list[LoadResult] = []
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                load = run_load(self._job, self._settings, name, lambda: publisher.newest, FAULT_TRAJECTORIES)
                loads.append(await load)

            tasks.start_soon(run)
            await anyio.sleep(self._settings.interval_s / 4)
            fault = _FAULTS.get(name)
            victim.driver.faults = [fault] if fault is not None else []
            victim.driver.updating = anyio.Event()
            await publisher.publish("keep", expected=True)
            if name == KILLED:
                await self._kill_in_update(victim)
                seen = "it was killed and started again"
            else:
                seen = await self._quarantine(victim)
            status = await self._job.rollout(wait_s=self._rollout_s)
        checked = await self._checked(loads[0], "keep")
        return FaultResult(name, seen, status.done, checked, tuple(loads[0].failures))

    async def _kill_in_update(self, victim: RunningEngine) -> None:
        """Ends a manager and its engine once it is updating, and starts another with its first weights."""
        with anyio.fail_after(self._rollout_s):
            await victim.driver.updating.wait()
        await victim.kill()
        await victim.start()

    async def _quarantine(self, victim: RunningEngine) -> str:
        """Returns why an engine is quarantined, once it is; empty if it never was."""
        with anyio.move_on_after(self._rollout_s):
            while True:
                for engine in (await self._job.rollout()).engines:
                    if engine.manager_id == victim.name and engine.failures:
                        return engine.reason
                await anyio.sleep(_QUARANTINE_LOOK_S)
        return ""

    async def _checked(self, load: LoadResult, mode: str) -> CheckedTokens:
        fleet = self._fleet
        published = frozenset(range(self._first, self._publisher.newest + 1))
        holds = WhatHolds(mode, fleet.versions, fleet.kept_kv, fleet.tolerance, self._begun)
        return await anyio.to_thread.run_sync(lambda: check(load.generated, published, holds))


def _judge_versions(checked: CheckedTokens, published: range, versions: ModelVersions) -> float:
    """Returns the smallest difference between the canaries of two versions in a row, and notes what is too little."""
    if len(checked.versions) < min(3, len(published)) or len(published) < 2:
        checked.findings.append(f"only {len(checked.versions)} versions made tokens; publish more often")
    changes = [_change(versions, *pair) for pair in itertools.pairwise(published)]
    smallest = min(changes, default=0.0)
    if changes and smallest < LEAST_CHANGE:
        checked.findings.append(f"two versions in a row differ by {smallest:.3g} in the canary alone")
    return smallest


async def _exposed(job: Job, fleet: WeightsFleet) -> tuple[float, ...]:
    """By engine, seconds in which it could begin nothing so far."""
    try:
        status: RolloutStatus = await job.rollout()
    except NotFoundError:
        return (0.0,) * fleet.size
    return tuple(each.exposed_s for each in status.engines)


def _change(versions: ModelVersions, one: int, other: int) -> float:
    """By how much the canaries of two versions differ in a log-probability."""
    answers = (versions.greedy_answer(version, USUAL_PROMPT, CANARY_TOKENS) for version in (one, other))
    (_, first), (_, second) = answers
    return max(abs(a - b) for a, b in zip(first, second, strict=True))
