"""Sandboxes that share one core: lanes, clocks, resizes and pauses of real processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from callsheet.managers.executor import Attempt, AttemptResult, Completed
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.cgroups import probe_layout
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.node_sharing import Lane, NodeSharingSettings
from callsheet.managers.sandbox.node_sharing.lanes import LaneMethod, process_lane_method
from callsheet.managers.sandbox.process_tree import threads_below
from callsheet.managers.sandbox.settings import CoreSharing, Isolation, SandboxSettings
from callsheet.v1 import action_pb2

from tests.support.executor_runs import completed
from tests.support.expected import expect
from tests.support.sandbox_attempts import attempt_of, reset, step, suite
from tests.support.sandboxes import (
    Variant,
    open_sandboxes,
    run,
    settings_for,
    until_sleepers_are,
    variants,
    wake_sleepers,
)
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
# Use is not learned: what else the machine does would make it small.
_EXACT = NodeSharingSettings(quantum_s=0.1, use_memory_s=1e6)
# Run until a file appears.
_BUSY = "while [ ! -e stop ]; do :; done"
_FORKING = "f() { while [ ! -e stop ]; do /bin/true; done; }; f & f & wait"


_VARIANTS = variants(Isolation.BUBBLEWRAP, Isolation.NONE, others_by_night=True)
if probe_layout() is not None:
    # Without groups that the manager may write, containers have no lanes.
    _VARIANTS.append(pytest.param(Variant(Isolation.DOCKER, groups=True), marks=pytest.mark.docker))


@pytest.fixture(params=_VARIANTS, ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSettings:
    variant: Variant = request.param
    made = settings_for(variant, tmp_path)
    return replace(
        made,
        core_sharing=CoreSharing.RANKED,
        cores=frozenset([min(made.cores)]),
        node_sharing=_EXACT,
    )


@asynccontextmanager
async def _serving(settings: SandboxSettings) -> AsyncIterator[tuple[SandboxExecutor, TaskGroup]]:
    executor = build_sandbox_executor(settings)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(executor.serve)
            yield executor, tasks
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await executor.close()


async def _until_attained(more_s: float, *sandboxes: AgentSandbox) -> list[float]:
    """Waits until sandboxes have had so much more CPU together; returns what each has had meanwhile."""
    before = [await sandbox.attained_s() for sandbox in sandboxes]
    with anyio.fail_after(WAIT_S):
        while True:
            gained = [await sandbox.attained_s() - old for sandbox, old in zip(sandboxes, before, strict=True)]
            if sum(gained) >= more_s:
                return gained
            await anyio.sleep(0.01)


async def _make(executor: SandboxExecutor, trajectory: str) -> str:
    result = await completed(executor, reset(trajectory=trajectory), resources={"memory": 256})
    return result.env_reset.sandbox_id


class _Step:
    """An attempt at a step that runs beside the test."""

    def __init__(self, executor: SandboxExecutor, tasks: TaskGroup, attempt: Attempt) -> None:
        self.attempt = attempt
        self.result: AttemptResult | None = None
        self._executor = executor
        tasks.start_soon(self._run)

    async def _run(self) -> None:
        self.result = await self._executor.run(self.attempt)

    @property
    def lane(self) -> Lane | None:
        """Its lane as node sharing wants it."""
        shared, name = self._executor.shared_cores, id(self.attempt)
        return None if shared is None or name not in shared._commands else shared._sharing.lane(name)

    @property
    def clock_s(self) -> float:
        """Its execution clock."""
        assert self.attempt.execution_clock is not None
        return self.attempt.execution_clock(monotonic())

    async def end(self) -> None:
        """Stops it and waits until it has returned."""
        self.attempt.stop_requested.set()
        await until(lambda: self.result is not None)


async def _step(
    executor: SandboxExecutor,
    tasks: TaskGroup,
    trajectory: str,
    script: str,
    action: action_pb2.ActionSpec | None = None,
) -> _Step:
    sandbox_id = await _make(executor, trajectory)
    attempt = attempt_of(action or step(script, trajectory=trajectory), sandbox_id=sandbox_id, resources={"cpu": 1})
    started = _Step(executor, tasks, attempt)
    await until(lambda: started.lane is not None)
    return started


async def test_a_demoted_busy_loop_yields_to_one_in_the_foreground(settings: SandboxSettings) -> None:
    async with open_sandboxes(settings, "one", "two") as (one, two), anyio.create_task_group() as tasks:
        await one.set_lane(Lane.BACKGROUND)
        for sandbox in (one, two):
            tasks.start_soon(run, sandbox, "/bin/sh", "-c", _BUSY)
        await _until_attained(0.1, two)
        background, foreground = await _until_attained(0.4, one, two)
        assert foreground > 5 * background
        await two.set_lane(Lane.BACKGROUND)
        await one.set_lane(Lane.FOREGROUND)
        foreground, background = await _until_attained(0.4, one, two)
        assert foreground > 5 * background
        await two.set_lane(Lane.FOREGROUND)
        for sandbox in (one, two):
            await run(sandbox, "touch", "stop")


@pytest.mark.parametrize(
    "settings",
    [Variant(isolation, groups=False) for isolation in (Isolation.BUBBLEWRAP, Isolation.NONE)],
    ids=str,
    indirect=True,
)
async def test_processes_that_fork_meanwhile_do_not_escape(settings: SandboxSettings) -> None:
    if process_lane_method() is not LaneMethod.NICE_PROCESSES:
        # Sessions have lanes then, and a fork is in its parent's.
        assert os.geteuid() != 0
        return
    async with open_sandboxes(settings, "one") as (one,), anyio.create_task_group() as tasks:
        tasks.start_soon(run, one, "/bin/sh", "-c", _FORKING)
        await _until_attained(0.2, one)
        for lane, niceness in ((Lane.BACKGROUND, 13), (Lane.FOREGROUND, 0)) * 3:
            await one.set_lane(lane)
            await _until_attained(0.01, one)
            # A fork that had begun before the change is found by following.
            with anyio.fail_after(WAIT_S):
                while _niceness(one) != {niceness}:
                    await one.follow()
        await run(one, "touch", "stop")


def _niceness(sandbox: AgentSandbox) -> set[int]:
    found = set()
    for thread in threads_below(sandbox.agent_pid, include_root=False):
        try:
            found.add(os.getpriority(os.PRIO_PROCESS, thread))
        except ProcessLookupError:
            continue
    return found


def _affinities(root: int) -> set[tuple[int, ...]]:
    found = set()
    for thread in threads_below(root, include_root=False):
        try:
            found.add(tuple(sorted(os.sched_getaffinity(thread))))
        except ProcessLookupError:
            continue
    return found


async def test_a_long_command_makes_way_for_a_new_one_and_is_charged_what_it_got(settings: SandboxSettings) -> None:
    async with _serving(settings) as (executor, tasks):
        began = monotonic()
        long = await _step(executor, tasks, "long", _BUSY)
        await until(lambda: long.clock_s > 0.3)
        new = await _step(executor, tasks, "new", _BUSY)
        await until(lambda: (long.lane, new.lane) == (Lane.BACKGROUND, Lane.FOREGROUND))
        await until(lambda: long.lane is Lane.FOREGROUND)
        assert long.clock_s <= monotonic() - began
        await new.end()
        await long.end()


async def test_the_clock_of_a_demoted_command_stands_still(settings: SandboxSettings) -> None:
    # No claim and no turn brings it back during the test.
    settings = replace(settings, node_sharing=replace(_EXACT, beta=0.0, max_stall_s=600.0))
    async with _serving(settings) as (executor, tasks):
        long = await _step(executor, tasks, "long", _BUSY)
        await until(lambda: long.clock_s > 0.3)
        reward = await _step(executor, tasks, "reward", "", suite_in_sandbox("reward", _BUSY))
        assert reward.lane is Lane.FOREGROUND
        await until(lambda: long.lane is Lane.BACKGROUND)
        charged, since = long.clock_s, monotonic()
        # Not at once: what it got while it was being moved is measured, and charged, later.
        await until(lambda: 0.25 < (monotonic() - since) / 2 > long.clock_s - charged)
        # A reward keeps its place whatever it has attained.
        assert reward.lane is Lane.FOREGROUND
        await reward.end()
        await until(lambda: long.lane is Lane.FOREGROUND)
        await long.end()


def suite_in_sandbox(trajectory: str, script: str) -> action_pb2.ActionSpec:
    action = suite(script, in_sandbox=True)
    action.trajectory_id = trajectory
    return action


async def test_a_resize_confines_a_running_command_at_once(settings: SandboxSettings) -> None:
    cores = frozenset(sorted(os.sched_getaffinity(0))[:2])
    if len(cores) < 2:
        pytest.skip("a second core is missing")
    async with _serving(replace(settings, cores=cores)) as (executor, tasks):
        assert {dict(service.shared).get("cpu") for service in executor.services()} == {2}
        wide = await _step(executor, tasks, "wide", "nproc; sleep 1000; nproc")
        await until_sleepers_are([["sleep", "1000"]])
        wide.attempt.grant.resources["cpu"] = 1
        await executor.resize(wide.attempt)
        wake_sleepers()
        await until(lambda: wide.result is not None)
        assert isinstance(wide.result, Completed), wide.result
        assert wide.result.succeeded.env_step.stdout.inline == b"2\n1\n"


async def test_a_resize_before_its_command_begins_confines_it_too(settings: SandboxSettings) -> None:
    cores = frozenset(sorted(os.sched_getaffinity(0))[:2])
    if len(cores) < 2:
        pytest.skip("a second core is missing")
    async with _serving(replace(settings, cores=cores)) as (executor, tasks):
        sandbox_id = await _make(executor, "early")
        script = step("sleep 1000; nproc", trajectory="early")
        attempt = attempt_of(script, sandbox_id=sandbox_id, resources={"cpu": 2})
        early = _Step(executor, tasks, attempt)
        # Long enough for it to begin, and not for anything that it waits for.
        await anyio.lowlevel.checkpoint()
        assert attempt.execution_clock is not None
        assert early.lane is None or settings.use_control_groups, "with groups a command is begun in one go"
        attempt.grant.resources["cpu"] = 1
        await executor.resize(attempt)
        await until_sleepers_are([["sleep", "1000"]])
        wake_sleepers()
        await until(lambda: early.result is not None)
        assert isinstance(early.result, Completed), early.result
        assert early.result.succeeded.env_step.stdout.inline == b"1\n"


async def test_other_cores_are_taken_over_by_what_runs(settings: SandboxSettings) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("a second core is missing")
    async with _serving(replace(settings, cores=frozenset(cores))) as (executor, tasks):
        executor.use_shared_cores(cores[:1])
        one = await _step(executor, tasks, "one", "sleep 1000; taskset -cp $$ | sed 's/.*: //'")
        await until_sleepers_are([["sleep", "1000"]])
        sandbox = expect(AgentSandbox, executor.find_sandbox(executor.sandboxes()[0]))
        executor.use_shared_cores(cores[1:])
        await until(lambda: _affinities(sandbox.agent_pid) == {(cores[1],)})
        wake_sleepers()
        await until(lambda: one.result is not None)
        assert isinstance(one.result, Completed), one.result
        assert one.result.succeeded.env_step.stdout.inline == b"%d\n" % cores[1]


async def test_an_error_of_the_loop_leaves_everything_runnable(
    settings: SandboxSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _serving(settings) as (executor, tasks):
        long = await _step(executor, tasks, "long", _BUSY)
        await until(lambda: long.clock_s > 0.3)
        charged = long.clock_s
        healthy = AgentSandbox.set_lane
        # Only the loop moves it from now on; where the machine is busy, the new command begins in the background.
        moved = executor.find_sandbox(executor.sandboxes()[0])
        failed = anyio.Event()

        async def broken(self: AgentSandbox, lane: Lane) -> None:
            if self is moved and lane is Lane.BACKGROUND and not failed.is_set():
                failed.set()
                raise RuntimeError("an error of the loop")
            await healthy(self, lane)

        monkeypatch.setattr(AgentSandbox, "set_lane", broken)
        new = await _step(executor, tasks, "new", _BUSY)
        with anyio.fail_after(WAIT_S):
            await failed.wait()
        assert long.clock_s >= charged
        await until(lambda: {long.lane, new.lane} == {Lane.FOREGROUND, Lane.BACKGROUND})
        for each in (long, new):
            at = each.clock_s
            await until(lambda each=each, at=at: each.clock_s > at + 0.1)  # type: ignore[misc]
        await new.end()
        await long.end()


async def test_nothing_stays_demoted_when_the_loop_ends(settings: SandboxSettings) -> None:
    executor = build_sandbox_executor(settings)
    try:
        async with anyio.create_task_group() as attempts:
            async with anyio.create_task_group() as loop:
                loop.start_soon(executor.serve)
                long = await _step(executor, attempts, "long", _BUSY)
                await until(lambda: long.clock_s > 0.3)
                new = await _step(executor, attempts, "new", _BUSY)
                sandboxes = [executor.find_sandbox(state) for state in executor.sandboxes()]
                await until(lambda: any(each is not None and each.lane is Lane.BACKGROUND for each in sandboxes))
                loop.cancel_scope.cancel()
            assert [each.lane for each in sandboxes if each is not None] == [Lane.FOREGROUND] * 2
            await new.end()
            await long.end()
    finally:
        await executor.close()


async def test_plain_sharing_demotes_nobody(settings: SandboxSettings) -> None:
    async with _serving(replace(settings, core_sharing=CoreSharing.PLAIN)) as (executor, tasks):
        assert executor.capabilities()["lanes"] == "none: commands are not ranked"
        first = await _step(executor, tasks, "first", _BUSY)
        await until(lambda: first.clock_s > 0.2)
        second = await _step(executor, tasks, "second", _BUSY)
        assert first.lane is second.lane is Lane.FOREGROUND
        # Each is charged its share of the core.
        since, before = monotonic(), first.clock_s + second.clock_s
        await until(lambda: monotonic() - since > 0.3)
        assert first.clock_s + second.clock_s - before < 1.5 * (monotonic() - since)
        await first.end()
        await second.end()
