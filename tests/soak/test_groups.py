"""Groups whose environments hang and crash, and trainers that are killed with a batch in hand."""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import fmean

import anyio
import pytest
from callsheet.client import Client, TrajectoryEnd
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.scheduler.core.work.trajectories import REDUNDANT

from tests.soak import mortal_trainer
from tests.soak.group_load import REPLACED, SIZE, Fault, Faults, GroupLoad, as_many_as_seats, by_chance
from tests.support.measurements import Measured

QUORUM = 6
GROUPS_OF_BATCH = 4
MOST_COST = 1.25
"""What faults may make of the time of a batch."""
_LEASE_S = 1.0
_DEADLINE_S = 200.0


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A scheduler and a manager whose environments take time and do nothing."""
    async with local_stack(StackSettings(tmp_path_factory.mktemp("stack"), managers=(Role.NOOP,))) as stack:
        yield stack.address


async def test_a_quorum_outlasts_what_hangs_and_crashes(address: str, nightly: bool, measured: Measured) -> None:
    """As many members of each group hang as it can do without, and they hang for longer than the test may take."""
    async with Client(address) as client, await client.open_job("hangs", failure_policy=REPLACED) as job:
        load = GroupLoad(job, QUORUM, step_s=0.02, faults=as_many_as_seats(SIZE - QUORUM))
        with anyio.fail_after(_DEADLINE_S):
            await load.run(iter(range(100 if nightly else 10)))
        hung, crashed = load.met[Fault.HANG], load.met[Fault.CRASH]
        groups = await job.groups()
        measured(f"{len(groups)} groups have their quorum, {len(hung)} members hung and {len(crashed)} crashed")
        assert {(len(each.completed), len(each.open), each.has_quorum) for each in groups} == {(QUORUM, 0, True)}
        assert hung
        assert crashed
        assert {name for each in groups for name in each.lost} == crashed
        assert {name for each in groups for name in each.abandoned} >= hung
        reasons = {each.reason for each in await job.trajectories(closed=True) if each.end is TrajectoryEnd.ABANDONED}
        assert reasons == {REDUNDANT}


async def test_each_trajectory_is_trained_on_once_though_trainers_are_killed(
    address: str, nightly: bool, measured: Measured, tmp_path: Path
) -> None:
    log, kills = tmp_path / "acknowledged", 6 if nightly else 2
    log.touch()
    async with Client(address) as client, await client.open_job("killed trainers", failure_policy=REPLACED) as job:

        async def trainer(*kill: str) -> int | None:
            arguments = (address, job.job_id, str(2 * QUORUM), str(_LEASE_S), str(log), *kill)
            command = [sys.executable, "-m", mortal_trainer.__name__, *arguments]
            return (await anyio.run_process(command, check=False, stdout=None, stderr=None)).returncode

        with anyio.fail_after(_DEADLINE_S):
            async with anyio.create_task_group() as tasks:
                load = GroupLoad(job, QUORUM, step_s=0.02, faults=as_many_as_seats(SIZE - QUORUM))
                tasks.start_soon(load.run, iter(range(4 * kills)))
                assert [await trainer("kill") for _ in range(kills)] == [-signal.SIGKILL] * kills
            # Again and again: the last one that was killed has a batch until its lease has ended.
            while (buffer := (await job.status()).buffer).ready or buffer.leased or buffer.incomplete:
                assert await trainer() == 0
        finished = [name for group in await job.groups() for name in group.completed]
    acknowledged = log.read_text(encoding="utf-8").splitlines()
    measured(f"{kills} trainers killed with a batch in hand, {len(finished)} trajectories trained on, each once")
    assert Counter(acknowledged) == Counter(finished)


async def test_faults_cost_little_with_a_quorum(address: str, nightly: bool, measured: Measured) -> None:
    """Some groups have more members that hang than they may do without, and wait for their timeouts."""
    ratios = {}
    for quorum in (QUORUM, SIZE):
        calm, faulty = [await batch_s(address, quorum, faults, nightly) for faults in (lambda _: None, by_chance)]
        ratios[quorum] = faulty / calm
        measured(f"quorum {quorum}: {calm:.2f} s a batch, {faulty:.2f} with faults, ratio {ratios[quorum]:.2f}")
    # A ratio within one run. The small form is too short for one.
    if nightly:
        assert ratios[QUORUM] <= MOST_COST < ratios[SIZE]


async def batch_s(address: str, quorum: int, faults: Faults, nightly: bool) -> float:
    """Seconds from batch to batch of a trainer, beside which rollouts go on; the first does not count."""
    batches, step_s, hang_s, train_s = (8, 0.25, 10.0, 0.8) if nightly else (2, 0.02, 0.5, 0.05)
    size, ended = GROUPS_OF_BATCH * quorum, []
    name = f"{quorum} {faults is by_chance}"
    async with Client(address) as client, await client.open_job(name, failure_policy=REPLACED) as job:
        load = GroupLoad(job, quorum, step_s, faults, hang_s)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.run, itertools.count())
            for _ in range(batches + 1):
                batch = await job.take_batch(at_least=size, at_most=size, wait_s=_DEADLINE_S)
                assert batch
                await anyio.sleep(train_s)
                await batch.acknowledge()
                ended.append(time.monotonic())
            tasks.cancel_scope.cancel()
    return fmean(after - before for before, after in itertools.pairwise(ended))
