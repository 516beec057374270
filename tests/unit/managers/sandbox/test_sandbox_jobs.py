"""What is changed while a job is being started counts for it, too, and so it does for what was being forked."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio.abc import TaskGroup
from callsheet.managers.sandbox.agent_client import jobs as jobs_module
from callsheet.managers.sandbox.agent_client.client import AgentConnection, AgentJob
from callsheet.managers.sandbox.agent_client.jobs import ForkWindow, Process, SandboxJobs
from callsheet.managers.sandbox.errors import SandboxLostError
from callsheet.managers.sandbox.node_sharing import Lane
from callsheet.managers.sandbox.node_sharing.lanes import LaneMethod, SandboxLanes

pytestmark = pytest.mark.anyio

_PROCESS = Process(("true",), {}, "", {})
_BOTH, _ONE = frozenset({0, 1}), frozenset({0})


class _Agent:
    """Stands where the connection is, so that the moment of the fork is the test's to choose."""

    pid = 4711
    runs_commands = False

    def __init__(self) -> None:
        self.job: AgentJob | None = None
        self.loss: str | None = None

    async def start(
        self, operation: str, details: Mapping[str, object], descriptors: Sequence[int], *, tell_start: bool
    ) -> AgentJob:
        del operation, details, descriptors, tell_start
        self.job = AgentJob(1)
        return self.job


class _Group:
    """Stands where control groups are, so that the moment of a write is the test's to choose."""

    pins_cores = True
    weight_file = None

    def __init__(self) -> None:
        self.written: list[frozenset[int]] = []
        self.frozen: list[bool] = []
        self.leaves, self.leaves_at_end = 0, -1
        self.entered, self.go_on = threading.Event(), threading.Event()

    def set_cores(self, cores: Collection[int]) -> None:
        """Holds the first one up."""
        if not self.entered.is_set():
            self.entered.set()
            assert self.go_on.wait(60)
        self.written.append(frozenset(cores))

    def prepare_leaf(self) -> None:
        """Counts it."""
        self.leaves += 1

    def freeze(self, frozen: bool) -> None:
        """Notes it."""
        self.frozen.append(frozen)

    def held_mib(self, *, empty: bool = False) -> int | None:
        """It is not counted."""
        del empty
        return None

    def is_empty(self) -> bool:
        """Something is inside."""
        return False

    def is_ready(self, cores: frozenset[int] | None) -> bool:
        """Something is to be written."""
        del cores
        return False

    def close(self) -> None:
        """Nothing is open."""

    def remove(self) -> None:
        """Notes what had been made before."""
        self.leaves_at_end = self.leaves


def _jobs(
    agent: _Agent,
    pin: Callable[[frozenset[int]], None],
    *,
    group: _Group | None = None,
    by_process: bool = True,
) -> SandboxJobs:
    async def give_up() -> None:
        raise AssertionError("nothing has to be killed here")

    connection: Any = agent
    parts: Any = SimpleNamespace(
        group=group,
        limits={},
        threads=anyio.CapacityLimiter(4),
        copying=anyio.CapacityLimiter(4),
        pin=lambda _, cores: pin(cores),
        by_process=by_process,
    )
    return SandboxJobs(cast("AgentConnection", connection), parts, give_up)


@asynccontextmanager
async def _while_a_write_is_held_up(
    group: _Group, write: Callable[[], Coroutine[Any, Any, None]]
) -> AsyncIterator[TaskGroup]:
    """Begins a change of a group, and carries it out after what the block starts has come to wait."""
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            await anyio.to_thread.run_sync(group.entered.wait)
            yield tasks
            await anyio.wait_all_tasks_blocked()
            group.go_on.set()


async def _start_beside_a_grant(jobs: SandboxJobs, agent: _Agent) -> None:
    """Grants one core between the fork of a job and the word of it."""
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(jobs.start, _PROCESS, None)
            while agent.job is None:
                await anyio.lowlevel.checkpoint()
            await jobs.put_on_cores(_ONE)
            agent.job.started.set()


async def test_a_process_forked_before_a_grant_and_seen_after_it_is_on_the_granted_cores() -> None:
    agent, pinned = _Agent(), list[frozenset[int]]()
    jobs = _jobs(agent, pinned.append)
    await jobs.put_on_cores(_BOTH)
    await _start_beside_a_grant(jobs, agent)
    assert pinned == [_BOTH, _ONE, _ONE]


async def test_a_process_forked_while_a_grant_is_carried_out_is_on_the_granted_cores() -> None:
    agent, pinned = _Agent(), list[frozenset[int]]()
    entered, go_on = threading.Event(), threading.Event()

    def pin(cores: frozenset[int]) -> None:
        entered.set()
        assert go_on.wait(60)
        pinned.append(cores)

    jobs = _jobs(agent, pin)
    granted = anyio.Event()

    async def grant() -> None:
        await jobs.put_on_cores(_ONE)
        granted.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(grant)
            await anyio.to_thread.run_sync(entered.wait)
            # Its request comes after that of the grant, and its fork before the grant has come to the agent.
            tasks.start_soon(jobs.start, _PROCESS, None)
            while agent.job is None:
                await anyio.lowlevel.checkpoint()
            go_on.set()
            await granted.wait()
            agent.job.started.set()
    assert pinned == [_ONE, _ONE]


async def test_a_process_that_a_grant_still_under_way_missed_is_on_the_granted_cores() -> None:
    agent, pinned = _Agent(), list[frozenset[int]]()
    looked, go_on = threading.Event(), threading.Event()

    def pin(cores: frozenset[int]) -> None:
        pinned.append(cores)
        if len(pinned) == 1:
            # It has seen all there was, and its end is not known on the event loop yet.
            looked.set()
            assert go_on.wait(60)

    jobs = _jobs(agent, pin)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(jobs.start, _PROCESS, None)
            while agent.job is None:
                await anyio.lowlevel.checkpoint()
            tasks.start_soon(jobs.put_on_cores, _ONE)
            await anyio.to_thread.run_sync(looked.wait)
            agent.job.started.set()
            await anyio.wait_all_tasks_blocked()
            go_on.set()
    assert pinned == [_ONE, _ONE]


async def test_the_newest_of_two_grants_is_the_last_that_is_written() -> None:
    group = _Group()
    jobs = _jobs(_Agent(), lambda _: None, group=group)
    async with _while_a_write_is_held_up(group, lambda: jobs.put_on_cores(_BOTH)) as tasks:
        tasks.start_soon(jobs.put_on_cores, _ONE)
    assert (group.written[-1], len(group.written)) == (_ONE, 2)


async def test_a_freeze_that_comes_while_a_thaw_is_carried_out_is_the_last_that_is_written() -> None:
    group = _Group()
    jobs = _jobs(_Agent(), lambda _: None, group=group)
    async with _while_a_write_is_held_up(group, lambda: jobs.thaw(_BOTH)) as tasks:
        tasks.start_soon(jobs.freeze)
    assert (group.frozen, jobs.frozen) == ([False, True], True)


async def test_a_thaw_that_is_carried_out_while_a_sandbox_ends_makes_no_leaf_behind_its_removal() -> None:
    group, agent = _Group(), _Agent()
    jobs = _jobs(agent, lambda _: None, group=group)
    async with _while_a_write_is_held_up(group, lambda: jobs.thaw(_BOTH)) as tasks:
        agent.loss = "it was destroyed"
        tasks.start_soon(jobs.remove_groups)
    assert (group.leaves, group.leaves_at_end) == (1, 1)


async def test_cores_that_were_set_process_by_process_are_set_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(jobs_module, "time", SimpleNamespace(monotonic=lambda: now))
    pinned = list[frozenset[int]]()
    jobs = _jobs(_Agent(), pinned.append)
    await jobs.follow()
    assert pinned == []
    await jobs.put_on_cores(_ONE)
    await jobs.follow()
    assert pinned == [_ONE] * 2
    now += 10
    for _ in range(3):
        await jobs.follow()
    assert pinned == [_ONE] * 3


async def test_in_the_groups_of_an_engine_cores_are_set_once_and_lanes_are_not_told_apart() -> None:
    agent, pinned = _Agent(), list[frozenset[int]]()
    jobs = _jobs(agent, pinned.append, by_process=False)
    await jobs.put_on_cores(_BOTH)
    await _start_beside_a_grant(jobs, agent)
    await jobs.set_lane(Lane.BACKGROUND)
    await jobs.follow()
    assert jobs.lanes.method is LaneMethod.NONE
    assert pinned == [_BOTH, _ONE]


async def test_a_process_that_a_change_missed_is_followed_into_the_foreground(monkeypatch: pytest.MonkeyPatch) -> None:
    put = list[Lane]()

    def refuse_once(self: SandboxLanes, lane: Lane) -> None:
        put.append(lane)
        if len(put) == 1:
            # Some of its processes are in the background by now.
            raise PermissionError(lane)
        self.lane = lane

    monkeypatch.setattr(SandboxLanes, "method", LaneMethod.NICE_PROCESSES)
    monkeypatch.setattr(SandboxLanes, "put", refuse_once)
    jobs = _jobs(_Agent(), lambda _: None)
    with pytest.raises(PermissionError):
        await jobs.set_lane(Lane.BACKGROUND)
    await jobs.set_lane(Lane.FOREGROUND)
    await jobs.follow()
    assert put == [Lane.BACKGROUND, Lane.FOREGROUND]


async def test_nothing_is_changed_of_a_sandbox_that_is_gone() -> None:
    agent, pinned = _Agent(), list[frozenset[int]]()
    jobs = _jobs(agent, pinned.append)
    await jobs.put_on_cores(_ONE)
    agent.loss = "it was destroyed"
    for change in (partial(jobs.put_on_cores, _BOTH), partial(jobs.set_lane, Lane.BACKGROUND), jobs.follow):
        with pytest.raises(SandboxLostError, match="it was destroyed"):
            await change()
    assert pinned == [_ONE]


async def test_a_first_process_that_is_gone_is_a_lost_sandbox() -> None:
    agent: Any = _Agent()
    agent.until_lost = AsyncMock()  # returns at once, without a reason
    with pytest.raises(SandboxLostError, match="its first process is gone"):
        await _jobs(agent, Mock(side_effect=ProcessLookupError(3, os.strerror(3)))).put_on_cores(_ONE)


def test_a_look_that_began_too_early_does_not_close_the_window() -> None:
    window = ForkWindow()
    assert not window.open
    window.changed(10.0)
    window.looked(10.1)
    assert window.open
    window.changed(10.4)
    window.looked(10.6)
    assert window.open
    window.looked(11.0)
    assert not window.open
