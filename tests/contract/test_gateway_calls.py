"""Calls of a gateway before a client in memory: retries, seats, and what survives a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from callsheet.client import FinishReason, Generate, GenerateResult, Job, Succeeded
from callsheet.client.errors import RefusalCode, refused
from callsheet.client.testing import FakeClient
from callsheet.gateway.chat import AskedSampling, ChatReply, ChatRequest, ReplyEnd, Tool
from callsheet.gateway.conversations.renderer import ParsedReply, WrittenCall
from callsheet.gateway.renderers.byte_renderer import ByteRenderer
from callsheet.gateway.server.call_store import CallRow, CallStore, JobLife
from callsheet.gateway.server.callers import Caller
from callsheet.gateway.server.calls import Calls
from callsheet.gateway.server.engine_parser import EngineParser
from callsheet.gateway.server.faults import NoReplyError
from callsheet.gateway.server.live_trajectories import LiveTrajectories, LiveTrajectory
from callsheet.gateway.server.retention import Retention
from callsheet.gateway.server.retries import CallMark, RememberedCalls
from callsheet.gateway.server.settings import GatewaySettings

pytestmark = pytest.mark.anyio
_CALLER = Caller(JobLife("j"), "t")
_ASKED = ChatRequest([{"role": "user", "content": "a"}], sampling=AskedSampling(log_probs=False))
_FIRST, _AGAIN = CallMark("d"), CallMark("d", 1)


class KnownContext:
    """What engines tell of their context."""

    def __init__(self) -> None:
        self.length: int | None = None

    async def context_length(self) -> int | None:
        return self.length


class World:
    """A gateway's calls; `sampled` counts generations, each of which has a reply of its own once `go` is set."""

    def __init__(self, data_dir: Path) -> None:
        self.client = FakeClient()
        self.client.on_generate(self._generate)
        self.store = CallStore.open(data_dir, None)
        self.settings = GatewaySettings(data_dir=data_dir, disconnect_grace_s=0.0)
        self.models = KnownContext()
        self.parser: EngineParser | None = None
        self.sampled: list[Generate] = []
        self.go = anyio.Event()
        self.go.set()
        self.job: Job

    async def _generate(self, action: Generate) -> Succeeded[GenerateResult]:
        self.sampled.append(action)
        number = len(self.sampled)
        await self.go.wait()
        return Succeeded(GenerateResult((64 + number, 257), (-1.0, 0.0), FinishReason.STOP))

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[tuple[Calls, LiveTrajectories]]:
        live = LiveTrajectories(self.store, ByteRenderer(), 2, 1 << 20)
        async with anyio.create_task_group() as tasks:
            models = self.models
            given = {"settings": self.settings, "tasks": tasks, "parser": self.parser}
            yield Calls(self.client, self.store, live, models, **given), live  # type: ignore[arg-type]
            tasks.cancel_scope.cancel()

    async def wait_for(self, sampled: int) -> None:
        with anyio.fail_after(10.0):
            while len(self.sampled) < sampled:
                await anyio.lowlevel.checkpoint()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    found = World(tmp_path)
    found.job = await found.client.open_job("j")
    await found.job.trajectory("t").open()
    yield found
    found.store.close()


Reply = Callable[[CallMark], Coroutine[Any, Any, ChatReply]]


def replying(calls: Calls) -> Reply:
    return lambda mark: calls.reply(_CALLER, _ASKED, mark)


async def test_a_retry_of_a_refused_call_gets_a_reply_of_its_own(world: World) -> None:
    world.settings = replace(world.settings, max_trajectory_calls=1)
    world.go = anyio.Event()
    ids: list[str] = []
    async with world.gateway() as (calls, _), anyio.create_task_group() as tasks:
        ask = replying(calls)

        async def first() -> None:
            ids.append((await ask(_FIRST)).call_id)

        tasks.start_soon(first)
        await world.wait_for(1)
        with pytest.raises(NoReplyError, match="the trajectory has 1 calls"):
            await ask(_FIRST)
        # Refused again: an equal call is under way, and it is not the one that is repeated.
        with pytest.raises(NoReplyError, match="the trajectory has 1 calls"):
            await ask(_AGAIN)
        world.go.set()
        while not ids:
            await anyio.lowlevel.checkpoint()
        ids.append((await ask(CallMark("d", 2))).call_id)
        # The first one's answer was lost: its client has not asked again before.
        ids.append((await ask(_AGAIN)).call_id)
    assert (ids[0] == ids[2], ids[0] == ids[1], len(world.sampled)) == (True, False, 2)


async def test_equal_calls_at_once_have_each_its_own_reply_again(world: World) -> None:
    async with world.gateway() as (calls, _):
        ask = replying(calls)
        first = {(await ask(_FIRST)).call_id for _ in range(3)}
        again = {(await ask(_AGAIN)).call_id for _ in range(3)}
        assert (len(first), first == again) == (3, True)
        # There is a fourth one whose first request never came.
        assert (await ask(_AGAIN)).call_id not in first
        named = [(await ask(CallMark("e", retries, is_named=True))).call_id for retries in (0, 0, 1)]
        assert len(set(named)) == 1


async def leave_before_the_lookup(trajectory: LiveTrajectory, reply: Reply, mark: CallMark) -> None:
    """A request whose client leaves while a call is prepared, as the scheduler does not tell the context's length."""
    async with trajectory.lock, anyio.create_task_group() as tasks:
        tasks.start_soon(reply, mark)
        while not trajectory.lock.statistics().tasks_waiting:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("is_named", [False, True])
async def test_a_retry_whose_client_left_before_it_was_looked_up_is_no_first_call(world: World, is_named: bool) -> None:
    async with world.gateway() as (calls, live):
        marks = [replace(mark, is_named=is_named) for mark in (_FIRST, _AGAIN, CallMark("d", 2))]
        first = (await calls.reply(_CALLER, _ASKED, marks[0])).call_id
        trajectory = await live.get(JobLife("j"), "t")
        await leave_before_the_lookup(trajectory, replying(calls), marks[1])
        assert (await calls.reply(_CALLER, _ASKED, marks[2])).call_id == first
        assert len(trajectory.conversation.turns) == 1


@pytest.mark.parametrize("trajectory_id", ["t", ""])
async def test_a_key_is_looked_up_in_the_database_once_memory_has_forgotten_it(
    world: World, trajectory_id: str
) -> None:
    caller, named = Caller(JobLife("j"), trajectory_id), CallMark("d", is_named=True)
    async with world.gateway() as (calls, live):
        trajectory = await live.get(JobLife("j"), trajectory_id)
        trajectory.calls = RememberedCalls(2)
        first = (await calls.reply(caller, _ASKED, named)).call_id
        for number in range(3):
            await calls.reply(caller, _ASKED, CallMark(f"other{number}"))
        assert trajectory.calls.of("d") == ()
        assert (await calls.reply(caller, _ASKED, named)).call_id == first
        # Outside of trajectories the scheduler has the outcome; a fake script runs again for who asks again.
        assert len(world.client.submitted) == 4


@pytest.mark.parametrize("code", [RefusalCode.UNAVAILABLE, RefusalCode.RESOURCE_EXHAUSTED, RefusalCode.UNAUTHENTICATED])
async def test_a_call_that_the_scheduler_refused_for_now_is_the_same_action_later(
    world: World, code: RefusalCode
) -> None:
    async def refuse(_: Generate) -> Succeeded[GenerateResult]:
        raise refused(code, field="queue", value="1", rule="is full")

    world.client.on_generate(refuse)
    async with world.gateway() as (calls, _):
        for number in range(2):
            with pytest.raises(NoReplyError, match="is full"):
                await calls.reply(_CALLER, _ASKED, CallMark("d", number, is_named=True))
    (row,) = (await world.store.load(JobLife("j"), "t")).calls
    assert [each.action_id for each in world.client.submitted] == [row.action_id]


async def test_a_retry_of_a_call_that_is_being_given_up_is_another_call(world: World) -> None:
    world.go = anyio.Event()
    async with world.gateway() as (calls, _):
        ask = replying(calls)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, _FIRST)
            await world.wait_for(1)
            tasks.cancel_scope.cancel()
        while not world.client.cancelled:
            await anyio.lowlevel.checkpoint()
        world.go.set()
        assert (await ask(_AGAIN)).message["content"] == "B"


@pytest.mark.parametrize("trajectory_id", ["t", ""])
async def test_a_call_that_survives_a_restart_submits_the_same_action(world: World, trajectory_id: str) -> None:
    caller = Caller(JobLife("j"), trajectory_id)

    async def cut(calls: Calls) -> None:
        with pytest.raises(NoReplyError, match="the gateway is ending"):
            await calls.reply(caller, _ASKED, _FIRST)

    world.models.length = 100
    world.go = anyio.Event()
    async with anyio.create_task_group() as waiting, world.gateway() as (calls, _):
        waiting.start_soon(cut, calls)
        await world.wait_for(1)
    # Another context gives another bound of new tokens. A fake script runs again for who waits again.
    world.models.length = 50
    world.go.set()
    async with world.gateway() as (calls, live):
        assert (await calls.reply(caller, _ASKED, _AGAIN)).completion_tokens == 2
        assert len((await live.get(JobLife("j"), trajectory_id)).conversation.turns) == bool(trajectory_id)
    assert len(world.client.submitted) == 1


async def test_a_failed_commit_is_continued_by_no_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.gateway() as (calls, live):
        ask = replying(calls)
        with monkeypatch.context() as patch:

            async def broken(*_: object, **__: object) -> int:
                raise ValueError("no JSON")

            patch.setattr(world.store, "finish", broken)
            with pytest.raises(NoReplyError, match="the gateway failed"):
                await ask(_FIRST)
        assert (await ask(_AGAIN)).message["content"] == "B"
        trajectory = await live.get(JobLife("j"), "t")
        assert [turn.number for turn in trajectory.conversation.turns] == [0]
        live.release(trajectory)
    async with world.gateway() as (_, live):
        assert len((await live.get(JobLife("j"), "t")).conversation.turns) == 1


async def test_a_number_is_given_once_even_if_its_begin_was_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = world.store.begin

    async def lost(*arguments: object) -> None:
        await kept(*arguments)  # type: ignore[arg-type]
        raise OSError("the answer was lost")

    async with world.gateway() as (calls, _):
        ask = replying(calls)
        with monkeypatch.context() as patch:
            patch.setattr(world.store, "begin", lost)
            with pytest.raises(OSError, match="lost"):
                await ask(_FIRST)
        assert (await ask(_FIRST)).message["content"] == "A"


async def test_seats_are_taken_before_anything_is_waited_for(world: World) -> None:
    world.settings = replace(world.settings, max_calls=2)
    world.go = anyio.Event()
    statuses: list[int] = []
    async with world.gateway() as (calls, _), anyio.create_task_group() as tasks:

        async def ask(number: int) -> None:
            try:
                await calls.reply(Caller(JobLife("j"), f"t{number}", is_trainer=True), _ASKED, _FIRST)
                statuses.append(200)
            except NoReplyError as fault:
                statuses.append(fault.status)

        for number in range(6):
            tasks.start_soon(ask, number)
        while len(statuses) < 4:
            await anyio.lowlevel.checkpoint()
        assert statuses == [429] * 4
        world.go.set()
    assert statuses == [429] * 4 + [200] * 2


async def test_a_parser_beside_the_gateway_says_what_a_reply_is(world: World) -> None:
    class Parser(EngineParser):
        found: ParsedReply | None = ParsedReply("said", "thought", (WrittenCall("look", "{}"),))

        async def parse(self, text: str, tools: Sequence[Tool]) -> ParsedReply | None:
            assert text in ("A", "B")
            return self.found

    world.parser = Parser("http://unused", tool_parser="a", reasoning_parser=None)
    async with world.gateway() as (calls, _):
        ask = replying(calls)
        reply = await ask(_FIRST)
        assert (reply.message["content"], reply.message["reasoning_content"]) == ("said", "thought")
        assert reply.end is ReplyEnd.TOOL_CALLS
        Parser.found = None
        assert (await ask(_FIRST)).message["content"] == "B"


async def test_failing_calls_leave_nothing(world: World) -> None:
    world.models.length = 3
    async with world.gateway() as (calls, live):
        for number in range(5):
            with pytest.raises(NoReplyError, match="maximum context length"):
                await calls.reply(_CALLER, _ASKED, CallMark(f"d{number}"))
        trajectory = await live.get(JobLife("j"), "t")
        assert (len(trajectory.calls), trajectory.in_flight) == (0, 0)
    assert (await world.store.load(JobLife("j"), "t")).calls == []


async def test_memory_is_given_up_by_count_and_bytes(world: World) -> None:
    async with world.gateway() as (calls, live):
        for number in range(4):
            await calls.reply(Caller(JobLife("j"), f"t{number}", is_trainer=True), _ASKED, _FIRST)
        assert len(live) == 2
        live._most_bytes = 1
        await calls.reply(Caller(JobLife("j"), "t", is_trainer=True), _ASKED, _FIRST)
        assert len(live) == 0


async def test_room_is_made_by_forgetting_what_was_closed_first(world: World) -> None:
    async with world.gateway() as (calls, live):
        for name in ("a", "b", "c"):
            await calls.reply(Caller(JobLife("j"), name, is_trainer=True), _ASKED, _FIRST)
        size = (await world.store.kept())[0].size
        retention = Retention(world.client, world.store, live, retention_s=1e6, most_bytes=2 * size)
        await retention.sweep(1.0)
        assert retention.is_full
        for now, name in ((1.0, "b"), (2.0, "a")):
            await world.job.trajectory(name).close()
            await world.store.note_closed(JobLife("j"), [name], now)
        await retention.sweep(3.0)
        assert not retention.is_full
        assert sorted(each.trajectory_id for each in await world.store.kept()) == ["a", "c"]
        # One that was taken for closed is open again.
        await world.store.note_closed(JobLife("j"), ["c"], 4.0)
        await retention.sweep(5.0)
        assert {each.closed_at for each in await world.store.kept() if each.trajectory_id == "c"} == {None}


async def test_trajectories_of_a_former_job_are_closed_whatever_the_present_one_has_open(world: World) -> None:
    former = JobLife("j", "0")
    async with world.gateway() as (calls, live):
        await calls.reply(Caller(JobLife("j"), "t", is_trainer=True), _ASKED, _FIRST)
        await world.store.begin(former, "t", CallRow(0, "d", "a-0"), 1.0, {})
        retention = Retention(world.client, world.store, live, retention_s=10.0, most_bytes=1 << 20)
        await retention.sweep(2.0)
        assert {each.job: each.closed_at for each in await world.store.kept()} == {JobLife("j"): None, former: 2.0}
        await retention.sweep(13.0)
        assert [each.job for each in await world.store.kept()] == [JobLife("j")]
