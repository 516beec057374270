"""Work that many want at the same time: done once, and its failures told as they should be."""

from __future__ import annotations

from time import monotonic

import anyio
import pytest
from anyio.abc import TaskGroup
from callsheet.managers.clock import Waits, note_waits
from callsheet.managers.sandbox.errors import StoppedError
from callsheet.managers.sandbox.files.images.shared_work import SharedWork, Turns, work_for
from callsheet.timing.waits import Cause

from tests.support.waiting import until

pytestmark = pytest.mark.anyio


class Work:
    """Waits until it may go on, and fails as told."""

    def __init__(self, *problems: Exception | None) -> None:
        self.begun = 0
        self.go = anyio.Event()
        self._problems = list(problems)

    async def __call__(self) -> None:
        self.begun += 1
        problem = self._problems.pop(0) if self._problems else None
        await self.go.wait()
        if problem is not None:
            raise problem


async def ask(shared: SharedWork, work: Work, answers: list[Exception | None], stop: anyio.Event) -> None:
    try:
        await shared.do("name", work, stop)
        answers.append(None)
    except Exception as error:
        answers.append(error)


async def all_at_once(shared: SharedWork, work: Work, count: int) -> list[Exception | None]:
    answers: list[Exception | None] = []
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(ask, shared, work, answers, anyio.Event())
        await anyio.wait_all_tasks_blocked()
        work.go.set()
    return answers


async def test_a_storm_works_once() -> None:
    shared, work = SharedWork((KeyError,)), Work()
    assert await all_at_once(shared, work, 100) == [None] * 100
    assert work.begun == 1
    await shared.do("name", work, anyio.Event())
    assert work.begun == 2, "what is done is asked for again once nobody is at it"


async def test_some_failures_are_for_all_and_others_for_one() -> None:
    problem = KeyError("for all")
    assert await all_at_once(SharedWork((KeyError,)), Work(problem), 3) == [problem] * 3
    own = ValueError("for one")
    # The others look again whether all is there, and may work then.
    assert await all_at_once(SharedWork((KeyError,)), Work(own), 3) == [own, None, None]


async def test_a_cancelled_worker_and_a_stopped_waiter_leave_the_others_alone() -> None:
    shared, work, stop = SharedWork((KeyError,)), Work(), anyio.Event()
    answers: list[Exception | None] = []
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as working:
            async with anyio.create_task_group() as inner:
                inner.start_soon(ask, shared, work, [], anyio.Event())
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(ask, shared, work, answers, anyio.Event())
                await anyio.wait_all_tasks_blocked()
                stopped: list[Exception | None] = []
                tasks.start_soon(ask, shared, work, stopped, stop)
                await anyio.wait_all_tasks_blocked()
                stop.set()
                await anyio.wait_all_tasks_blocked()
                assert isinstance(stopped[0], StoppedError)
                working.cancel()
    assert answers == [None]
    work.go.set()
    await shared.do("name", work, anyio.Event())
    assert work.begun == 2


async def test_who_waits_for_somebody_else_is_told_so() -> None:
    shared, work, waits = SharedWork(()), Work(), [Waits(), Waits()]

    async def ask_as(own: Waits) -> None:
        note_waits(own)
        await shared.do("name", work, anyio.Event())

    async with anyio.create_task_group() as tasks:
        for own in waits:
            tasks.start_soon(ask_as, own)
        await anyio.wait_all_tasks_blocked()
        began = monotonic()
        await until(lambda: monotonic() - began > 0.02)
        work.go.set()
    assert sorted(map(len, (own.seconds for own in waits))) == [0, 1]
    assert {cause for own in waits for cause in own.seconds} == {Cause.SET_UP}


class Line:
    """Work of jobs that takes turns: each is at it until it is let go."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.at_it: list[str] = []
        self.go: dict[str, anyio.Event] = {}

    async def work(self, name: str) -> None:
        """Of the job that is the first letter of the name."""
        work_for(name[0])
        await self.turn(name)

    async def turn(self, name: str) -> None:
        self.go[name] = anyio.Event()
        async with self.turns.turn():
            self.at_it.append(name)
            try:
                await self.go[name].wait()
            finally:
                self.at_it.remove(name)


async def begin(tasks: TaskGroup, line: Line, *names: str) -> None:
    """Has each come to its turn, or to its place in the queue, before the next."""
    for name in names:
        tasks.start_soon(line.work, name)
        await anyio.wait_all_tasks_blocked()


async def test_the_queue_of_one_job_holds_up_no_other() -> None:
    line = Line(Turns(1, 3))
    async with anyio.create_task_group() as tasks:
        await begin(tasks, line, *(f"a{number}" for number in range(50)), "b1", "b2", "c1", "d1")
        assert line.at_it == ["a0", "b1", "c1"]
        line.go["b1"].set()
        await anyio.wait_all_tasks_blocked()
        assert line.at_it == ["a0", "c1", "d1"], "who had no turn yet comes before those who had one"
        line.go["a0"].set()
        await anyio.wait_all_tasks_blocked()
        assert line.at_it == ["c1", "d1", "a1"], "a had its turn before b"
        tasks.cancel_scope.cancel()
    assert line.turns.taken == 0


async def test_a_job_has_more_places_and_never_all() -> None:
    line = Line(Turns(2, 3))
    async with anyio.create_task_group() as tasks:
        await begin(tasks, line, "a1", "a2", "a3", "b1")
        assert line.at_it == ["a1", "a2", "b1"]
        tasks.cancel_scope.cancel()


async def test_who_waits_for_work_of_another_job_lends_it_a_turn() -> None:
    """An image that a job wants as the last of a hundred is not the last for everybody who wants it."""
    line, shared, stop, came = Line(Turns(1, 2)), SharedWork(()), anyio.Event(), list[str]()

    async def want(job: str) -> None:
        work_for(job)

        async def inner() -> None:
            await SharedWork(()).do("layer", lambda: line.turn("a-image"), stop)

        await shared.do("image", inner, stop)
        came.append(job)

    async with anyio.create_task_group() as tasks:
        await begin(tasks, line, "a1", "a2")
        tasks.start_soon(want, "a")
        await anyio.wait_all_tasks_blocked()
        assert line.at_it == ["a1"]
        tasks.start_soon(want, "b")
        await anyio.wait_all_tasks_blocked()
        assert line.at_it == ["a1", "a-image"]
        line.go["a-image"].set()
        await anyio.wait_all_tasks_blocked()
        assert sorted(came) == ["a", "b"]
        tasks.cancel_scope.cancel()


async def test_turns_of_those_who_give_up_go_to_others() -> None:
    line, scope = Line(Turns(1, 2)), anyio.CancelScope()

    async def given_up() -> None:
        with scope:
            await line.work("a1")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(given_up)
        await anyio.wait_all_tasks_blocked()
        await begin(tasks, line, "b1", "a2", "c1")
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert line.at_it == ["b1", "c1"]
        tasks.cancel_scope.cancel()
    assert line.turns.taken == 0
