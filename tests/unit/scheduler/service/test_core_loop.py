"""The loop around the core, step by step: what is pending is handled, and all that waits is planned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKind, ActionState
from callsheet.scheduler.core.words.records import Record
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.planner.elastic import ElasticPlanner
from callsheet.scheduler.service.loop import MAX_PENDING_BYTES, PROOF_S, Clock, CoreLoop
from callsheet.scheduler.store.journal_errors import JournalBackloggedError

from tests.support.core_requests import action_request, job_request
from tests.support.core_world import CoreWorld, service
from tests.support.peers import Peer
from tests.support.unattached import NoBackground, NoWriter

SANDBOX = service("sandbox", [ActionKind.ENV_RESET, ActionKind.ENV_STEP], shared={"cpu": 2})


class Unattached(NoWriter):
    """Takes what the loop hands on, where nobody waits for it."""

    def attempts_ended(self, state: SchedulerState, ends: Sequence[events.AttemptEnded]) -> None:
        """Learns nothing."""


def loop_of(world: CoreWorld, around: Unattached | None = None, max_pending_bytes: int = MAX_PENDING_BYTES) -> CoreLoop:
    """A loop around the state of a world."""
    around = around or Unattached()
    return CoreLoop(
        world.state,
        world.planner,
        around,
        NoBackground(),
        around.attempts_ended,
        heartbeat_interval=3.0,
        max_journal_backlog=1000,
        max_pending_bytes=max_pending_bytes,
    )


def end_of(action: Action) -> events.AttemptEnded:
    """The good end of an action's attempt."""
    attempt = action.attempt
    assert attempt is not None, f"{action.key} runs nowhere"
    done = events.AttemptSucceeded(b"done")
    return events.AttemptEnded("m", attempt.token, action.key, 1, done, True, 0.5, action.request.body_hash)


def test_a_steady_stream_of_pinned_actions_holds_up_nobody() -> None:
    world = CoreWorld(planner=ElasticPlanner(), now=Clock().now())
    manager = world.manager("m", SANDBOX, service("tests", [ActionKind.REWARD]), cores=4)
    world.job()
    world.trajectory("t")
    world.reset("reset")
    while world.plan().truncated:
        pass
    manager.run("reset")
    loop = loop_of(world)
    world.submit(action_request("reward", ActionKind.REWARD))
    world.step("s0")
    for number in range(5):
        loop.step()
        reply = events.ReplyTo(Peer("client"), 0)
        following = action_request(f"s{number + 1}", ActionKind.ENV_STEP, "t")
        # In every step one command has just ended and the next one has come.
        loop.post([end_of(world.live(f"s{number}")), events.SubmitRequested(reply, following, None)])
    assert world.state_of("reward") is ActionState.DISPATCHED


class SetClock(Clock):
    """A clock that tests set."""

    def __init__(self, now: float) -> None:
        self.set_to = now

    def now(self) -> float:
        """See `Clock.now`."""
        return self.set_to


def stalling_loop() -> tuple[CoreWorld, CoreLoop, SetClock]:
    """A loop with one manager that has a lease of ten seconds."""
    world = CoreWorld()
    world.manager()
    loop = loop_of(world)
    clock = loop.clock = SetClock(world.now)
    loop.step()
    return world, loop, clock


def test_silence_that_the_loop_slept_through_ends_no_lease() -> None:
    world, loop, clock = stalling_loop()
    clock.set_to += 60.0
    loop.step()
    assert "m" in world.state.managers, "what it said meanwhile has not been read yet"
    for _ in range(9):
        clock.set_to += 1.0
        loop.step()
    assert "m" in world.state.managers
    clock.set_to += 1.0
    loop.step()
    assert "m" not in world.state.managers, "it had another lease to say something in"


def test_silence_that_the_loop_heard_ends_a_lease() -> None:
    world, loop, clock = stalling_loop()
    for _ in range(11):
        clock.set_to += 1.0
        loop.step()
    assert "m" not in world.state.managers


async def test_a_timer_stays_while_later_deadlines_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    world = CoreWorld(now=Clock().now())
    world.manager()
    world.job()
    world.submit(action_request("lasts", ActionKind.REWARD))
    loop, on_loop, timers = loop_of(world), asyncio.get_running_loop(), list[float]()
    call_later = on_loop.call_later

    def noting(delay: float, *call: Any) -> asyncio.TimerHandle:
        timers.append(delay)
        return call_later(delay, *call)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loop.run)
        await anyio.wait_all_tasks_blocked()
        monkeypatch.setattr(on_loop, "call_later", noting)
        for _ in range(5):
            loop.post([events.ManagerHeartbeat("m", world.state.managers["m"].session, ())])
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert max(timers, default=0.0) < 1.0, "the lease was renewed, and is looked at when it would have been over"


class Answered(Peer):
    """A client's session that keeps its answers."""

    def __init__(self, name: str) -> None:
        self.answered = list[int]()

    def put_result(self, sequence: int, refusal: RefusedError | None) -> None:
        """See `ClientSession`."""
        self.answered.append(sequence)


def refused_submit(client: Answered, sequence: int) -> events.SubmitRequested:
    """An action of a job that is not open."""
    return events.SubmitRequested(events.ReplyTo(client, sequence), action_request("a", job_id="unknown"), None)


class HandedOver(Unattached):
    """A journal whose commits end when a test has them end."""

    def __init__(self) -> None:
        self.commits = list[Callable[[], None]]()

    def submit(self, records: Sequence[Record], on_committed: Callable[[], None]) -> None:
        """Begins a commit."""
        self.commits.append(on_committed)


@pytest.mark.parametrize("commit_s", [0.1, 5.0], ids=["a commit is quick", "a commit is slow"])
async def test_nothing_is_sent_by_a_scheduler_that_may_have_been_stopped(
    commit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, journal, now = CoreWorld(now=Clock().now()), HandedOver(), [100.0]
    monkeypatch.setattr("time.clock_gettime", lambda _: now[0])
    loop, client = loop_of(world, journal), Answered("client")

    async def ask(sequence: int) -> None:
        loop.post([refused_submit(client, sequence)])
        await anyio.wait_all_tasks_blocked()

    async def end_commit() -> list[int]:
        now[0] += commit_s
        journal.commits.pop(0)()
        await anyio.wait_all_tasks_blocked()
        return client.answered

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loop.run)
        await ask(1)
        assert not client.answered, "it has not proved that it leads"
        assert await end_commit() == [1]
        await ask(2)
        assert (2 in client.answered) == (commit_s < PROOF_S)
        now[0] += PROOF_S
        await ask(3)
        assert 3 not in client.answered, "it may have been stopped since its last commit began"
        while journal.commits:
            await end_commit()
        assert client.answered == [1, 2, 3]
        tasks.cancel_scope.cancel()


class FullJournal(Unattached):
    """A journal that takes nothing more."""

    def submit(self, records: Sequence[Record], on_committed: Callable[[], None]) -> None:
        """Refuses."""
        raise JournalBackloggedError(1, 1)


@pytest.mark.parametrize("patient", [False, True], ids=["handed over at once", "may wait"])
async def test_records_that_the_journal_does_not_take_end_the_loop(patient: bool) -> None:
    world, journal = CoreWorld(), FullJournal()
    world.job()
    reply_to, request = events.ReplyTo(Peer("client"), 1), action_request("a", ActionKind.REWARD, wait=True)
    submitted = events.SubmitRequested(reply_to, request, None)
    loop = loop_of(world, journal)
    loop.post([submitted if patient else events.JobOpenRequested(reply_to, job_request("another"))])
    with anyio.fail_after(20.0), pytest.raises(JournalBackloggedError):
        await loop.run()


class Watched(Unattached):
    """Notes when the journal is handed an end, and when others had their turn on the event loop after its step."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.listens = False
        self.both = anyio.Event()

    def note(self, who: str) -> None:
        """One of the two has come."""
        self.order.append(who)
        if len(self.order) == 2:
            self.both.set()

    def attempts_ended(self, state: SchedulerState, ends: Sequence[events.AttemptEnded]) -> None:
        """Lets others come as soon as the loop gives way."""
        asyncio.get_running_loop().call_soon(self.note, "others")

    def submit(self, records: Sequence[Record], on_committed: Callable[[], None]) -> None:
        """Takes the end."""
        if self.listens:
            self.note("journal")
        else:
            on_committed()


@pytest.mark.parametrize("dispatches", [False, True], ids=["nothing is dispatched", "something is dispatched"])
async def test_an_end_is_handed_to_the_journal_at_once_but_after_what_is_dispatched(dispatches: bool) -> None:
    world, watched = CoreWorld(now=Clock().now()), Watched()
    world.manager("m", service("tests", [ActionKind.REWARD], slots=1))
    world.job()
    world.submit(action_request("a", ActionKind.REWARD))
    if dispatches:
        world.submit(action_request("b", ActionKind.REWARD))
    world.plan()
    loop = loop_of(world, watched)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loop.run)
        # The answer needs a proof that this scheduler leads.
        loop.post([refused_submit(Answered("client"), 1)])
        await anyio.wait_all_tasks_blocked()
        watched.listens = True
        loop.post([end_of(world.live("a"))])
        with anyio.fail_after(20.0):
            await watched.both.wait()
        tasks.cancel_scope.cancel()
    assert watched.order == (["others", "journal"] if dispatches else ["journal", "others"])


class LargeBacklog(Unattached):
    """A journal that has so many bytes to commit."""

    waiting = 0

    @property
    def backlog_bytes(self) -> int:
        """See `GroupCommitWriter.backlog_bytes`."""
        return self.waiting


async def test_streams_are_not_read_while_too_many_bytes_wait_for_the_core_or_the_journal() -> None:
    world = CoreWorld(now=Clock().now())
    world.job()
    around = LargeBacklog()
    loop = loop_of(world, around, max_pending_bytes=1000)
    reply = events.ReplyTo(Peer("client"), 0)
    large = replace(action_request("large", wait=True), spec=bytes(600))

    async def has_room() -> bool:
        with anyio.move_on_after(0.0) as scope:
            await loop.wait_for_room()
        return not scope.cancelled_caught

    loop.post([events.SubmitRequested(reply, large, None)])
    assert await has_room()
    around.waiting = 500
    assert not await has_room()
    loop.step()
    assert await has_room()
    around.waiting = 1001
    assert not await has_room()
