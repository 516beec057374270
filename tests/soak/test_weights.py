"""Engines serve what was published, and nothing else, while weights change under load and updates go wrong.

Trajectories of several turns run all the time. Every token and every log-probability is computed anew by a plain model
of the version that the token is marked with.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
import torch
from callsheet.client import FinishReason, GenerateResult, LogProbsMode, Sampling, Succeeded
from callsheet.client.words.weights import UpdateModeName

from tests.soak.weights_fleet import SERVER_COMMAND, UPDATED_S, WeightsFleet, embedded_fleet, server_fleet
from tests.support.faulty_engine import Fault
from tests.support.measurements import Measured
from tests.support.samples import sampled

pytestmark = pytest.mark.anyio
KILLED = "killed"
"""The engine is killed in mid-update, with its server if it has one, and started again with its first weights."""
MODES: tuple[UpdateModeName, ...] = ("drain", "abort", "keep")
FAULTS = (Fault.HALF, Fault.IGNORED, Fault.MISLABELLED, Fault.DEAD, KILLED)
OBSERVED_TOKENS = 8
PROMPT_TOKENS = 48
TOLERANCE = 1e-3
"""Kernels and batches round differently."""
LEAST_CHANGE = 1e-2
"""By how much a log-probability of two versions in a row must differ, so that one is not taken for the other."""
SEED = 0
_OUTCOME_S = 300.0


@dataclass(frozen=True)
class Size:
    """How large the load is, with a pause between two publishes.

    Attributes:
        at_once: Trajectories that run at once.
        turns: Generations of each.
        tokens: New tokens of each generation.
    """

    at_once: int
    turns: int
    tokens: int
    publishes: int
    interval_s: float


@dataclass(frozen=True)
class GeneratedTurn:
    """One generate action and what came of it.

    Attributes:
        slot: Which of the trajectories that run at once; all of a slot, and no others, begin with its number.
        turn: Which turn of which trajectory; a turn that was cut short has several actions.
        wanted: New tokens that were asked for.
    """

    slot: int
    turn: int
    prompt: tuple[int, ...]
    wanted: int
    result: GenerateResult


@dataclass
class Load:
    """Trajectories of several turns, `at_once` at a time, each followed by another one until there are `enough`.

    Attributes:
        generated: In the order of outcomes.
    """

    fleet: WeightsFleet
    name: str
    size: Size
    generated: list[GeneratedTurn] = field(default_factory=list)
    started: anyio.Event = field(default_factory=anyio.Event)
    enough: anyio.Event = field(default_factory=anyio.Event)
    _turns: Iterator[int] = field(default_factory=itertools.count)

    async def run(self, slot: int) -> None:
        """Runs the trajectories of a slot. The last one has a turn after there were enough."""
        chance = random.Random(f"{SEED} {self.name} {slot}")
        for number in itertools.count():
            last = self.enough.is_set()
            await self._trajectory(slot, f"{self.name}-{slot}-{number}", 1 if last else self.size.turns, chance)
            if last:
                return

    async def _trajectory(self, slot: int, name: str, turns: int, chance: random.Random) -> None:
        known = [slot, *(chance.randrange(256) for _ in range(PROMPT_TOKENS))]
        async with self.fleet.job.trajectory(name) as trajectory:
            for turn in itertools.islice(self._turns, turns):
                left = self.size.tokens
                while left:
                    prompt = tuple(known)
                    sampling = Sampling(left, temperature=0.0, ignore_eos=True, log_probs_mode=LogProbsMode.RAW)
                    with anyio.fail_after(_OUTCOME_S):
                        outcome = await trajectory.generate(prompt, sampling=sampling)
                    assert isinstance(outcome, Succeeded), (name, outcome)
                    self.generated.append(GeneratedTurn(slot, turn, prompt, left, outcome.value))
                    self.started.set()
                    known += outcome.value.token_ids
                    left -= len(outcome.value.token_ids)
                known += [chance.randrange(256) for _ in range(OBSERVED_TOKENS)]


@asynccontextmanager
async def under_load(fleet: WeightsFleet, name: str, size: Size) -> AsyncIterator[Load]:
    """Has trajectories run during the block, which begins when the first turn is over."""
    load = Load(fleet, name, size)
    async with anyio.create_task_group() as tasks:
        for slot in range(size.at_once):
            tasks.start_soon(load.run, slot)
        await load.started.wait()
        yield load
        load.enough.set()


def check(load: Load, mode: UpdateModeName) -> Counter[str]:
    """All that was generated under updates of a mode is what the published versions make of it, and whole.

    Returns:
        Counts of what there was.
    """
    found: Counter[str] = Counter()
    last: dict[int, GeneratedTurn] = {}
    for each in load.generated:
        result, spans = each.result, each.result.policy_versions
        found["actions"] += 1
        found["tokens"] += len(result.token_ids)
        assert len(result.log_probs) == len(result.token_ids), each
        # Nothing is cut short but by an abort, and what was is resumed where it ended.
        cut_short = result.finish_reason is FinishReason.ABORT
        found["ended early"] += cut_short
        assert len(result.token_ids) <= each.wanted, each
        assert len(result.token_ids) == each.wanted or (cut_short and mode == "abort"), each
        if (former := last.get(each.turn)) is not None:
            assert each.prompt == (*former.prompt, *former.result.token_ids), each
        last[each.turn] = each
        # Its versions cover it, one after another, and were published.
        assert [0, *(span.end for span in spans)] == [*(span.begin for span in spans), len(result.token_ids)], each
        assert all(span.begin < span.end for span in spans), each
        numbers = [span.version for span in spans]
        assert numbers == sorted(set(numbers)), each
        assert set(numbers) <= set(range(load.fleet.newest + 1)), each
        assert len(spans) <= 1 or mode == "keep", each
        found["of several versions"] += len(spans) > 1
        found.update(f"version {span.version}" for span in spans)
        # Only what began under the same version can have left a prefix that is found in a cache.
        begun = load.fleet.begun.setdefault(each.slot, set())
        assert not result.cached_tokens or result.begun_version in begun, each
        begun.add(result.begun_version)
        found["recomputed"] += _recompute(load.fleet, each, mode)
    assert all(len(each.result.token_ids) == each.wanted for each in last.values()), "tokens are lost"
    return found


def _recompute(fleet: WeightsFleet, each: GeneratedTurn, mode: UpdateModeName) -> int:
    """Compares greedy output with what its versions compute from nothing but the tokens before; returns how many."""
    result, spans, recomputed = each.result, each.result.policy_versions, 0
    if fleet.kept_kv and mode == "keep":
        # What follows a switch has KV of older weights before it; the switch may have come while a prompt was computed.
        spans = tuple(span for span in spans[:1] if span.version == result.begun_version)
    for span in spans:
        output, given = result.token_ids[span.begin : span.end], result.log_probs[span.begin : span.end]
        known = (*each.prompt, *result.token_ids[: span.begin])
        table = fleet.versions.table(span.version, (*known, *output))[len(known) - 1 : -1]
        chosen = table[torch.arange(len(output)), torch.tensor(output)]
        error = float((chosen - torch.tensor(given, dtype=torch.float64)).abs().max())
        behind = float((table.max(dim=-1).values - chosen).max())
        assert error <= TOLERANCE, (each, span, error)
        assert behind <= TOLERANCE, (each, span, behind)
        recomputed += len(output)
    return recomputed


def figures(found: Counter[str]) -> str:
    """Returns the counts as a line."""
    counts = [f"{count} {name}" for name, count in found.items() if not name.startswith("version")]
    return ", ".join([*counts, f"{len(found) - len(counts)} versions"])


FLEETS: dict[str, Callable[[Path], AbstractAsyncContextManager[WeightsFleet]]] = {"embedded": embedded_fleet}
if SERVER_COMMAND:
    FLEETS = {"servers": server_fleet}
elif os.environ.get("CALLSHEET_NIGHTLY") == "1":
    # Processes take seconds to start, and so does the trainer of each transfer group.
    FLEETS["processes"] = partial(embedded_fleet, apart=True)
# Nobody can make an update fail in another process.
WITH_FAULTS = [name for name in FLEETS if name != "processes"]


@pytest.fixture(scope="module", params=FLEETS)
async def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[WeightsFleet]:
    """Engines whose versions go on from each test to the next."""
    async with FLEETS[request.param](tmp_path_factory.mktemp("weights")) as running:
        yield running


@pytest.fixture
def size(nightly: bool) -> Size:
    """How large the load is while updates go well; a quarter of the trajectories run while one goes wrong."""
    if SERVER_COMMAND:
        return Size(64, 6, 64, 6, 2.5)
    return Size(64, 8, 96, 6, 2.5) if nightly else Size(8, 2, 24, 2, 0.2)


@pytest.mark.parametrize("mode", sampled(MODES, by_day=["keep"]))
async def test_tokens_are_those_of_their_versions(
    fleet: WeightsFleet, size: Size, mode: UpdateModeName, measured: Measured
) -> None:
    first = fleet.newest
    async with under_load(fleet, mode, size) as load:
        for _ in range(size.publishes):
            await anyio.sleep(size.interval_s)
            await fleet.publish(mode)
        status = await fleet.updated()
    assert status.done, status
    found = await anyio.to_thread.run_sync(check, load, mode)
    exposed = ", ".join(f"{each.exposed_s:.1f}" for each in status.engines)
    measured(f"{figures(found)}, engines exposed for {exposed} s since the start")
    assert found[f"version {first}"]
    assert found[f"version {fleet.newest}"]
    canaries = [fleet.versions.canary(version).log_probs for version in range(first, fleet.newest + 1)]
    changes = [max(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in itertools.pairwise(canaries)]
    assert min(changes) > LEAST_CHANGE


@pytest.mark.parametrize("fleet", WITH_FAULTS, indirect=True)
@pytest.mark.parametrize(
    "fault",
    sampled(FAULTS, by_day=[Fault.HALF, KILLED]),
    ids=lambda each: each if isinstance(each, str) else each.name.lower(),
)
async def test_nothing_unproved_is_served(
    fleet: WeightsFleet, size: Size, fault: Fault | str, measured: Measured
) -> None:
    victim = fleet.engines[0]
    async with under_load(fleet, str(fault), Size(max(8, size.at_once // 4), size.turns, size.tokens, 1, 0.0)) as load:
        victim.driver.faults = [fault] if isinstance(fault, Fault) else []
        victim.driver.updating = anyio.Event()
        await fleet.publish("keep", "disk", expected=True)
        with anyio.fail_after(UPDATED_S):
            await victim.driver.updating.wait()
        if fault == KILLED:
            await victim.kill_and_start()
        status = await fleet.updated()
    assert status.done, status
    assert not victim.driver.faults
    found = await anyio.to_thread.run_sync(check, load, "keep")
    measured(figures(found))
    assert found[f"version {fleet.newest}"]
