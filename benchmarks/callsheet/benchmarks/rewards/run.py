"""Runs the rewards benchmark from beginning to end."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import anyio
import anyio.to_process
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.measuring.statistics import percentile
from callsheet.benchmarks.rewards.models import (
    ARCHITECTURES,
    FirstCome,
    ResidentFirst,
    make_models,
    scores_alone,
    vocabulary,
)
from callsheet.benchmarks.rewards.report import (
    OURS,
    RESTORE_SHARE,
    STATIC,
    OverheadResult,
    RewardsReport,
    SwappingResult,
)
from callsheet.benchmarks.rewards.settings import RewardsBenchSettings
from callsheet.client import Client, Job, Outcome, RewardResult, Succeeded
from callsheet.client.admin import AdminClient
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.node import describe_node
from callsheet.managers.reward.hosted.executor import HostedModelsExecutor
from callsheet.managers.reward.hosted.model_spec import ModelSpec
from callsheet.managers.reward.hosted.places import aligned
from callsheet.managers.reward.hosted.roster import HostCounts
from callsheet.managers.reward.hosted.settings import HostedSettings
from callsheet.managers.reward.hosted.turns import ModelTurns, PatientTurns
from callsheet.managers.reward.hosted.weights_layout import read_layout
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings
from callsheet.options.temporary_directories import temporary_directory


# What is asked, of whom and when. Pure.
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


_EVERY_S = 0.05
_log = logging.getLogger(__name__)


def resident_bytes(pids: Iterable[int], *, shared_memory: bool = True) -> int:
    """Memory of some processes together; what several share counts once.

    Args:
        pids: The processes.
        shared_memory: Whether to count shared memory, where the weights lie.
    """
    return sum(_proportional_bytes(pid, shared_memory=shared_memory) for pid in pids)


def _proportional_bytes(pid: int, *, shared_memory: bool) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        _log.info("process %d is gone", pid)
        return 0
    counted = ("Pss_Anon:", "Pss_File:", *(("Pss_Shmem:",) if shared_memory else ()))
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(counted))


class MemorySampler:
    """Samples for as long as it runs.

    Attributes:
        peak: The most bytes of any sample.
        samples: How many.
    """

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """Takes what names the processes."""
        self.peak = 0
        self.samples = 0
        self._pids = pids

    async def run(self) -> None:
        """Samples until it is cancelled."""
        while True:
            found = await anyio.to_thread.run_sync(resident_bytes, list(self._pids()))
            self.peak = max(self.peak, found)
            self.samples += 1
            await anyio.sleep(_EVERY_S)


MIB = 1 << 20
_DEADLINE_S = 3600.0
_START_S = 300.0
_PROBES = 8
_TRIES = 4
_FULL_TRIES = 2
# A try at the length of inputs has so many fewer scorings than the run that counts.
_TRY_PART = 5
_MOST_TOKENS = 900
# The light run asks for so much of a worker's time: what waits then waits for its model.
_LIGHT_LOAD = 0.25

Questions = Sequence[Sequence[Sequence[int]]]


class ScoringFailedError(Exception):
    """A scoring of the benchmark did not succeed, so that there is nothing to measure."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a run happens.

    Attributes:
        models: Hosted ones.
        room_mib: The memory budget for `room` of them.
        questions: What each is asked.
        alone: The scores of each alone.
    """

    settings: RewardsBenchSettings
    models: tuple[ModelSpec, ...]
    room_mib: int
    questions: Questions
    alone: Sequence[Sequence[float]]

    def hosted(self, *, all_resident: bool = False) -> HostedSettings:
        """Settings of the manager."""
        room = -(-self.room_mib * len(self.models) // self.settings.room) if all_resident else self.room_mib
        return HostedSettings(models=self.models, memory_budget_mib=room, slots=1024)


@dataclass(slots=True)
class _Run:
    """A running manager behind a scheduler.

    Attributes:
        job: Asks it.
        executor: What it runs.
        base: Memory of the workers once all models are open, without the weights.
    """

    job: Job
    executor: HostedModelsExecutor
    base: int = 0

    def pids(self) -> list[int]:
        """Its workers."""
        slots = self.executor.host.workers.values()
        return [slot.process.pid for slot in slots if slot.process is not None and slot.process.pid is not None]


async def run_rewards(settings: RewardsBenchSettings, progress: Progress = lambda _: None) -> RewardsReport:
    """Measures every policy, one after another, with the same requests.

    Args:
        settings: How much to run.
        progress: Told, as a sentence, what is being measured.

    Raises:
        ScoringFailedError: A scoring failed (inside an exception group).
    """
    with temporary_directory("callsheet-rewards-") as directory:
        progress(f"making {settings.models} models")
        size = (settings.models, settings.model_mib, settings.seed)
        await anyio.to_process.run_sync(make_models, directory, *size)
        models = tuple(ModelSpec(name=each, directory=directory / each) for each in ARCHITECTURES[: settings.models])
        largest = max(aligned(read_layout(each.directory).size) for each in models)
        questions = _questions(settings)
        progress("each model alone")
        alone = [
            await anyio.to_process.run_sync(scores_alone, model.directory, asked)
            for model, asked in zip(models, questions, strict=True)
        ]
        place = _Place(settings, models, -(-settings.room * largest // MIB), questions, alone)
        return await _measure(place, progress)


async def _measure(place: _Place, progress: Progress) -> RewardsReport:
    settings = place.settings
    async with _running(place.hosted(all_resident=True), None) as run:
        await _open_all(run, place, place.questions)
        base_mib = run.base / MIB
        execution_s = await _execution_s(run, place, place.questions)
        light_s = await _execution_s(run, place, _questions(settings, tokens=(64, 64)))
    between_s = execution_s / settings.load
    progress(f"a scoring takes {1000 * execution_s:.1f} ms; one comes every {1000 * between_s:.1f} ms")
    scorings = draw_scorings(settings.scorings, settings.models, settings.questions, settings.zipf, settings.seed)
    policies: dict[str, tuple[ModelTurns, bool]] = {
        OURS: (PatientTurns(), False),
        "first come": (FirstCome(), False),
        "resident first": (ResidentFirst(), False),
        STATIC: (PatientTurns(), True),
    }
    found = await _race(place, policies, scorings, between_s, progress)
    for name, each in found.items():
        progress(f"{name}: mean {each.mean_s:.3f} s, p99 {each.p99_s:.3f} s, {each.restores} restores")
    overhead = None
    if settings.light_scorings:
        progress("few at once, with long inputs")
        restore_s = found[OURS].restore_s
        overhead = await _overhead(place, restore_s, light_s / 64, progress)
    return RewardsReport(settings, describe_machine(), base_mib, between_s, found, overhead)


@asynccontextmanager
async def _running(hosted: HostedSettings, turns: ModelTurns | None) -> AsyncIterator[_Run]:
    """A scheduler in a process of its own, and a reward manager in this one."""
    executor = HostedModelsExecutor(hosted, turns)
    with temporary_directory("callsheet-rewards-") as directory:
        async with local_stack(StackSettings(data_dir=directory, managers=())) as stack:
            manager = ManagerSettings(stack.address, "rewards", describe_node(), handle_signals=False)
            async with Client(stack.address) as client, anyio.create_task_group() as tasks:
                tasks.start_soon(partial(run_manager, manager, executor))
                with anyio.fail_after(_START_S):
                    while any(slot.process is None for slot in executor.host.workers.values()):  # noqa: ASYNC110 - nobody is told of it
                        await anyio.sleep(0.05)
                    await _registered(stack.address)
                yield _Run(await client.open_job("rewards"), executor)
                tasks.cancel_scope.cancel()


async def _registered(address: str) -> None:
    """Waits for the manager: actions that nobody can serve are refused."""
    async with AdminClient(address) as admin:
        while not (await admin.status()).managers:  # noqa: ASYNC110 - nobody is told of it
            await anyio.sleep(0.05)


async def _open_all(run: _Run, place: _Place, questions: Questions) -> None:
    """Asks each model once: it is opened with that, which is no part of what is measured."""
    for model, asked in zip(place.models, questions, strict=True):
        await _score(run, model, asked[0][:4])
    run.executor.host.counts = HostCounts()
    run.base = resident_bytes(run.pids(), shared_memory=False)


async def _score(run: _Run, model: ModelSpec, tokens: Sequence[int]) -> Succeeded[RewardResult]:
    outcome: Outcome[RewardResult] = await run.job.reward_model(tokens, model=model.name)
    if not isinstance(outcome, Succeeded):
        raise ScoringFailedError(f"a scoring by {model.name} did not succeed: {outcome}")
    return outcome


async def _execution_s(run: _Run, place: _Place, questions: Questions) -> float:
    """Mean execution of a scoring alone, over all models, once each is there."""
    took = []
    for model, asked in zip(place.models, questions, strict=True):
        await _score(run, model, asked[0])
        took += [(await _score(run, model, tokens)).timeline.execution_s for tokens in asked[:_PROBES]]
    return fmean(took)


async def _ask_all(
    run: _Run, place: _Place, scorings: Sequence[ScoringRequest], questions: Questions, between_s: float
) -> tuple[list[Succeeded[RewardResult]], float]:
    """Asks everything at its time; returns the outcomes and the seconds that all took."""
    outcomes: list[Succeeded[RewardResult] | None] = [None] * len(scorings)

    async def ask(number: int, scoring: ScoringRequest) -> None:
        tokens = questions[scoring.model][scoring.question]
        outcomes[number] = await _score(run, place.models[scoring.model], tokens)

    began = time.monotonic()
    with anyio.fail_after(_DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for number, scoring in enumerate(scorings):
                await anyio.sleep(max(0.0, began + scoring.at * between_s - time.monotonic()))
                tasks.start_soon(ask, number, scoring)
    return [each for each in outcomes if each is not None], time.monotonic() - began


async def _race(
    place: _Place,
    policies: Mapping[str, tuple[ModelTurns, bool]],
    scorings: Sequence[ScoringRequest],
    between_s: float,
    progress: Progress,
) -> dict[str, SwappingResult]:
    """Runs all policies, in blocks one after another: what else the machine does then falls on all of them alike."""
    async with AsyncExitStack() as stack:
        races = {}
        for name, (turns, all_resident) in policies.items():
            progress(f"{name}: opening {len(place.models)} models")
            run = await stack.enter_async_context(_running(place.hosted(all_resident=all_resident), turns))
            await _open_all(run, place, place.questions)
            races[name] = _Race(run)
        blocks = place.settings.blocks
        size = -(-len(scorings) // blocks)
        for number in range(0, len(scorings), size):
            part = scorings[number : number + size]
            block = [replace(each, at=each.at - part[0].at) for each in part]
            progress(f"scorings {number + 1:,} to {number + len(block):,} by each policy")
            for race in races.values():
                await race.go(place, block, between_s)
        expected = [place.alone[each.model][each.question] for each in scorings]
        return {name: race.result(expected) for name, race in races.items()}


class _Race:
    """One policy's blocks."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._sampler = MemorySampler(run.pids)
        self._outcomes: list[Succeeded[RewardResult]] = []
        self._wall_s = 0.0

    async def go(self, place: _Place, block: Sequence[ScoringRequest], between_s: float) -> None:
        """Asks the requests of a block, each at its time."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._sampler.run)
            outcomes, wall_s = await _ask_all(self._run, place, block, place.questions, between_s)
            tasks.cancel_scope.cancel()
        self._outcomes += outcomes
        self._wall_s += wall_s

    def result(self, expected: Sequence[float]) -> SwappingResult:
        """What all blocks say together."""
        acts = [_act_s(each) for each in self._outcomes]
        host = self._run.executor.host
        return SwappingResult(
            budget_mib=host.residency.devices.budget_bytes / MIB,
            mean_s=fmean(acts),
            p50_s=percentile(acts, 50),
            p99_s=percentile(acts, 99),
            longest_s=max(acts),
            restores=host.counts.restores,
            hit_rate=host.counts.hits / max(host.counts.asked, 1),
            per_batch=host.counts.answered / max(host.counts.batches, 1),
            execution_s=fmean(each.timeline.execution_s for each in self._outcomes),
            restore_s=host.counts.restore_s / max(host.counts.restores, 1),
            wall_s=self._wall_s,
            memory_mib=max(self._sampler.peak - self._run.base, 0) / MIB,
            worst_difference=differences([each.value.score for each in self._outcomes], expected),
        )


async def _overhead(place: _Place, restore_s: float, token_s: float, progress: Progress) -> OverheadResult:
    """Runs few at once, with inputs as long as it takes for a restore to be about half of an execution.

    Short runs find that length; only full ones count.
    """
    wanted = fmean(RESTORE_SHARE)
    tokens = restore_s / wanted / max(token_s, 1e-9)
    full = place.settings.light_scorings

    async def run(scorings: int, tries: int) -> OverheadResult:
        nonlocal tokens
        found = []
        for _ in range(tries):
            length = min(max(int(tokens), 4), _MOST_TOKENS)
            result = await _light_run(place, length, restore_s / wanted / _LIGHT_LOAD, scorings)
            found.append(result)
            shares = f"restore {result.restore_share:.2f} and overhead {result.overhead_share:.2f} of an execution"
            progress(f"  {scorings} of {length} tokens: {shares}")
            if RESTORE_SHARE[0] <= result.restore_share <= RESTORE_SHARE[1]:
                break
            tokens = length * result.restore_share / wanted
        return min(found, key=lambda each: abs(each.restore_share - wanted))

    await run(-(-full // _TRY_PART), _TRIES)
    return await run(full, _FULL_TRIES)


async def _light_run(place: _Place, tokens: int, between_s: float, count: int) -> OverheadResult:
    settings = place.settings
    questions = _questions(settings, tokens=(tokens, tokens))
    scorings = draw_scorings(count, settings.models, settings.questions, settings.zipf, settings.seed)
    async with _running(place.hosted(), None) as run:
        await _open_all(run, place, questions)
        outcomes, _ = await _ask_all(run, place, scorings, questions, between_s)
        counts = run.executor.host.counts
    execution_s = fmean(each.timeline.execution_s for each in outcomes)
    overhead_s = fmean(map(_overhead_s, outcomes))
    return OverheadResult(
        len(outcomes),
        tokens,
        counts.restore_s / max(counts.restores, 1) / execution_s,
        overhead_s / execution_s,
        execution_s,
        counts.hits / max(counts.asked, 1),
    )


def _act_s(outcome: Succeeded[RewardResult]) -> float:
    timeline = outcome.timeline
    assert timeline.submitted_at is not None
    assert timeline.ended_at is not None
    return timeline.ended_at - timeline.submitted_at


def _overhead_s(outcome: Succeeded[RewardResult]) -> float:
    """Overhead as outcomes tell it, and what was waited for a restore."""
    return outcome.timeline.overhead_s + outcome.value.restore_s


def _questions(settings: RewardsBenchSettings, tokens: tuple[int, int] | None = None) -> list[list[list[int]]]:
    known = vocabulary(settings.model_mib)
    return [
        draw_questions(settings.questions, tokens or settings.tokens, known, settings.seed + number)
        for number in range(settings.models)
    ]
