"""Publishes weights while trajectories run, in each mode and with each fault, and checks all that was generated."""

from __future__ import annotations

import itertools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.weights.checks import CheckedTokens, check
from callsheet.benchmarks.weights.engines import RunningEngine, WeightsFleet, running_fleet
from callsheet.benchmarks.weights.faulty_engine import Fault
from callsheet.benchmarks.weights.load import LoadResult, run_load
from callsheet.benchmarks.weights.models import greedy_answer, save_version
from callsheet.benchmarks.weights.report import FaultResult, ModeResult, WeightsReport
from callsheet.benchmarks.weights.settings import WeightsBenchSettings
from callsheet.client import Canary, Client, Job, NotFoundError, RolloutStatus
from callsheet.managers.inference.proof import CANARY_TOKENS, USUAL_PROMPT

LEAST_CHANGE: Final = 1e-2
ROLLOUT_S: Final = 60.0
FAULT_TRAJECTORIES: Final = 16
KILLED: Final = "killed"
NO_FAULT: Final = "none"
_FAULTS: Final = {"half": Fault.HALF, "ignored": Fault.IGNORED, "mislabelled": Fault.MISLABELLED, "old": Fault.DEAD}
_QUARANTINE_LOOK_S: Final = 0.05


@dataclass(slots=True)
class _Versions:
    """Numbers of versions, one after another over all loads."""

    newest: int = 0

    def next(self) -> int:
        self.newest += 1
        return self.newest


async def run_weights_bench(settings: WeightsBenchSettings, progress: Progress = lambda _: None) -> WeightsReport:
    """Runs all modes, then all faults, on two embedded engines.

    Args:
        settings: How much load, and how many publishes.
        progress: Told, as a sentence, how it goes.

    Raises:
        ProcessFailedError: The scheduler did not start.
    """
    with tempfile.TemporaryDirectory(prefix="callsheet-weights-bench-") as directory:
        async with running_fleet(Path(directory)) as fleet, Client(fleet.address) as client:
            versions = _Versions()
            wrong = [name for name in settings.faults if name != NO_FAULT]
            async with await client.open_job("bench") as job:
                modes = [await _mode(job, fleet, settings, (mode, versions), progress) for mode in settings.modes]
                faults = [await _fault(job, fleet, settings, (name, versions), progress) for name in wrong]
    return WeightsReport(tuple(modes), tuple(faults), describe_machine())


async def _mode(
    job: Job, fleet: WeightsFleet, settings: WeightsBenchSettings, what: tuple[str, _Versions], progress: Progress
) -> ModeResult:
    mode, versions = what
    progress(f"{mode}: {settings.trajectories} trajectories of {settings.turns} turns")
    first, before = versions.newest, await _exposed(job)
    began, loads = time.monotonic(), []
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            loads.append(await run_load(job, settings, mode, lambda: versions.newest))
            tasks.cancel_scope.cancel()

        tasks.start_soon(run)
        for _ in range(settings.publishes):
            await anyio.sleep(settings.interval_s)
            with anyio.CancelScope(shield=True):
                await _publish(job, fleet, versions.next(), mode)
                progress(f"{mode}: version {versions.newest} published")
    wall_s = time.monotonic() - began
    status = await job.rollout(wait_s=ROLLOUT_S) if versions.newest else None
    published = range(first, versions.newest + 1)
    checked = await _checked(loads[0], versions, mode)
    if status is not None and not status.done:
        checked.findings.append("not all engines proved the newest weights")
    if len(checked.versions) < min(3, len(published)):
        checked.findings.append(f"only {len(checked.versions)} versions made tokens; publish more often")
    smallest_change = min((_change(*pair) for pair in itertools.pairwise(published)), default=0.0)
    if smallest_change < LEAST_CHANGE:
        checked.findings.append(f"two versions in a row differ by {smallest_change:.3g} in the canary alone")
    return ModeResult(
        mode=mode,
        published=versions.newest - first,
        smallest_change=smallest_change,
        checked=checked,
        failures=tuple(loads[0].failures),
        wall_s=wall_s,
        exposed_s=tuple(each.last_exposed_s for each in status.engines) if status is not None else (),
        exposed_total_s=tuple(now - then for now, then in zip(await _exposed(job), before, strict=True)),
    )


async def _fault(
    job: Job, fleet: WeightsFleet, settings: WeightsBenchSettings, what: tuple[str, _Versions], progress: Progress
) -> FaultResult:
    """The first engine fails in its update, while both have work. A trainer's answer to the canary is published too."""
    name, versions = what
    progress(f"an update that goes wrong: {name}")
    victim = fleet.engines[0]
    loads: list[LoadResult] = []
    seen: list[str] = []
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            loads.append(await run_load(job, settings, name, lambda: versions.newest, FAULT_TRAJECTORIES))

        tasks.start_soon(run)
        await anyio.sleep(settings.interval_s / 4)
        fault = _FAULTS.get(name)
        victim.driver.faults = [fault] if fault is not None else []
        victim.driver.updating = anyio.Event()
        await _publish(job, fleet, versions.next(), "keep", expected=True)
        if name == KILLED:
            await _kill_in_update(job, victim)
            seen.append("its manager was killed and started again")
        else:
            seen.append(await _quarantine(job, victim))
        status = await job.rollout(wait_s=ROLLOUT_S)
    checked = await _checked(loads[0], versions, "keep")
    return FaultResult(name, seen[0], status.done, checked, tuple(loads[0].failures))


async def _kill_in_update(job: Job, victim: RunningEngine) -> None:
    """Ends a manager and its engine once it is updating, and starts another with its first weights."""
    with anyio.fail_after(ROLLOUT_S):
        await victim.driver.updating.wait()
    await victim.kill()
    await victim.start()


async def _quarantine(job: Job, victim: RunningEngine) -> str:
    """Returns why an engine is quarantined, once it is; empty if it never was."""
    with anyio.move_on_after(ROLLOUT_S):
        while True:
            for engine in (await job.rollout()).engines:
                if engine.manager_id == victim.name and engine.failures:
                    return engine.reason
            await anyio.sleep(_QUARANTINE_LOOK_S)
    return ""


async def _publish(job: Job, fleet: WeightsFleet, version: int, mode: str, *, expected: bool = False) -> None:
    place = await anyio.to_thread.run_sync(save_version, version, fleet.weights)
    canary = Canary()
    if expected:
        tokens, log_probs = await anyio.to_thread.run_sync(greedy_answer, version, USUAL_PROMPT, CANARY_TOKENS)
        canary = Canary(USUAL_PROMPT, tokens, log_probs)
    await job.publish(version, place, mode=mode, canary=canary)  # type: ignore[arg-type]


async def _checked(load: LoadResult, versions: _Versions, mode: str) -> CheckedTokens:
    published = frozenset(range(versions.newest + 1))
    return await anyio.to_thread.run_sync(lambda: check(load.generated, published, mode=mode))


async def _exposed(job: Job) -> tuple[float, ...]:
    """By engine, seconds in which it could begin nothing so far."""
    try:
        status: RolloutStatus = await job.rollout()
    except NotFoundError:
        return (0.0, 0.0)
    return tuple(each.exposed_s for each in status.engines)


def _change(one: int, other: int) -> float:
    """By how much the canaries of two versions differ in a log-probability."""
    answers = (greedy_answer(version, USUAL_PROMPT, CANARY_TOKENS) for version in (one, other))
    (_, first), (_, second) = answers
    return max(abs(a - b) for a, b in zip(first, second, strict=True))
