"""Viewers share answers: each question is asked at most once in a while."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from callsheet.client.errors import ConnectionLostError, NotFoundError, QueueFullError, RefusalCode, refused
from callsheet.dashboard.shared_answers import SharedAnswers

pytestmark = pytest.mark.anyio


class Asking:
    """A clock, and something to ask that counts."""

    def __init__(self, tasks: anyio.abc.TaskGroup, most: int = 8) -> None:
        self.now, self.asked = 0.0, 0
        self.gate = anyio.Event()
        self.answers = SharedAnswers(tasks, lambda: self.now, most)

    async def answer(self) -> int:
        self.asked += 1
        await self.gate.wait()
        return self.asked

    async def ask(self, question: str = "q") -> int:
        return await self.answers.of(question, 1.0, self.answer)


@pytest.fixture
async def tasks() -> AsyncIterator[anyio.abc.TaskGroup]:
    """Where questions are asked."""
    async with anyio.create_task_group() as group:
        yield group


async def test_many_viewers_at_once_ask_once(tasks: anyio.abc.TaskGroup) -> None:
    asking, found = Asking(tasks), []

    async def view() -> None:
        found.append(await asking.ask())

    async with anyio.create_task_group() as viewers:
        for _ in range(20):
            viewers.start_soon(view)
        await anyio.wait_all_tasks_blocked()
        asking.gate.set()
    assert found == [1] * 20


async def test_an_answer_is_kept_for_a_while_and_not_longer(tasks: anyio.abc.TaskGroup) -> None:
    asking = Asking(tasks)
    asking.gate.set()
    assert [await asking.ask(), await asking.ask()] == [1, 1]
    asking.now = 0.99
    assert await asking.ask() == 1
    asking.now = 1.0
    assert await asking.ask() == 2
    assert await asking.ask("another") == 3
    asking.answers.forget()
    assert await asking.ask() == 4


async def test_an_answer_that_is_old_takes_no_memory_once_another_is_asked_for(tasks: anyio.abc.TaskGroup) -> None:
    class Answer:
        """Something large."""

    async def make() -> Answer:
        return Answer()

    asking = Asking(tasks)
    old = weakref.ref(await asking.answers.of("a page of outputs", 1.0, make))
    assert old() is not None
    asking.now = 1.0
    await asking.answers.of("something else", 1.0, make)
    assert old() is None


async def test_a_viewer_who_leaves_takes_nothing_from_the_others(tasks: anyio.abc.TaskGroup) -> None:
    asking, found = Asking(tasks), []

    async def view() -> None:
        found.append(await asking.ask())

    async with anyio.create_task_group() as viewers:
        with anyio.move_on_after(0):
            await asking.ask()
        viewers.start_soon(view)
        await anyio.wait_all_tasks_blocked()
        asking.gate.set()
    assert found == [1]


async def test_a_refusal_is_shared_like_an_answer(tasks: anyio.abc.TaskGroup) -> None:
    asked = 0

    async def refuse() -> int:
        nonlocal asked
        asked += 1
        raise refused(RefusalCode.NOT_FOUND, field="job", rule="is not open")

    answers = SharedAnswers(tasks, lambda: 0.0)
    for _ in range(3):
        with pytest.raises(NotFoundError):
            await answers.of("q", 1.0, refuse)
    assert asked == 1


async def test_what_nobody_waits_for_any_more_may_fail() -> None:
    async def fail() -> int:
        await anyio.lowlevel.checkpoint()
        raise ValueError("a bug")

    async with anyio.create_task_group() as tasks:
        answers = SharedAnswers(tasks, lambda: 0.0)
        with anyio.move_on_after(0):
            await answers.of("q", 1.0, fail)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ValueError, match="a bug"):
            await answers.of("q", 1.0, fail)


async def test_a_dashboard_that_ends_leaves_nobody_waiting() -> None:
    failed: list[Exception] = []
    async with anyio.create_task_group() as viewers, anyio.create_task_group() as tasks:
        answers = SharedAnswers(tasks, lambda: 0.0)

        async def view() -> None:
            try:
                await answers.of("q", 1.0, anyio.sleep_forever)
            except ConnectionLostError as error:
                failed.append(error)

        viewers.start_soon(view)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert len(failed) == 1


async def test_too_many_questions_are_refused_until_older_ones_may_go(tasks: anyio.abc.TaskGroup) -> None:
    asking = Asking(tasks, most=3)
    asking.gate.set()
    for question in "abc":
        await asking.ask(question)
    with pytest.raises(QueueFullError):
        await asking.ask("d")
    assert await asking.ask("a") == 1
    asking.now = 2.0
    assert await asking.ask("d") == 4
