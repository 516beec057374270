"""Viewers share answers: each question is asked at most once in a while."""

from __future__ import annotations

import weakref

import anyio
import pytest
from callsheet.client.errors import NotFoundError, QueueFullError, RefusalCode, refused
from callsheet.dashboard.shared_answers import SharedAnswers

pytestmark = pytest.mark.anyio


class Asking:
    """A clock, and something to ask that counts."""

    def __init__(self, most: int = 8) -> None:
        self.now, self.asked = 0.0, 0
        self.gate = anyio.Event()
        self.answers = SharedAnswers(lambda: self.now, most)

    async def answer(self) -> int:
        self.asked += 1
        await self.gate.wait()
        return self.asked

    async def ask(self, question: str = "q") -> int:
        return await self.answers.of(question, 1.0, self.answer)


async def test_many_viewers_at_once_ask_once() -> None:
    asking, found = Asking(), []

    async def view() -> None:
        found.append(await asking.ask())

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(view)
        await anyio.wait_all_tasks_blocked()
        asking.gate.set()
    assert found == [1] * 20


async def test_an_answer_is_kept_for_a_while_and_not_longer() -> None:
    asking = Asking()
    asking.gate.set()
    assert [await asking.ask(), await asking.ask()] == [1, 1]
    asking.now = 0.99
    assert await asking.ask() == 1
    asking.now = 1.0
    assert await asking.ask() == 2
    assert await asking.ask("another") == 3
    asking.answers.forget()
    assert await asking.ask() == 4


async def test_an_answer_that_is_old_takes_no_memory_once_another_is_asked_for() -> None:
    class Answer:
        """Something large."""

    async def make() -> Answer:
        return Answer()

    asking = Asking()
    old = weakref.ref(await asking.answers.of("a page of outputs", 1.0, make))
    assert old() is not None
    asking.now = 1.0
    await asking.answers.of("something else", 1.0, make)
    assert old() is None


async def test_a_viewer_who_leaves_takes_nothing_from_the_others() -> None:
    asking, found = Asking(), []

    async def view() -> None:
        found.append(await asking.ask())

    async with anyio.create_task_group() as tasks:
        with anyio.move_on_after(0):
            await asking.ask()
        tasks.start_soon(view)
        await anyio.wait_all_tasks_blocked()
        asking.gate.set()
    assert found == [1]


async def test_a_refusal_is_shared_like_an_answer() -> None:
    asked = 0

    async def refuse() -> int:
        nonlocal asked
        asked += 1
        raise refused(RefusalCode.NOT_FOUND, field="job", rule="is not open")

    answers = SharedAnswers(lambda: 0.0)
    for _ in range(3):
        with pytest.raises(NotFoundError):
            await answers.of("q", 1.0, refuse)
    assert asked == 1


async def test_too_many_questions_are_refused_until_older_ones_may_go() -> None:
    asking = Asking(most=3)
    asking.gate.set()
    for question in "abc":
        await asking.ask(question)
    with pytest.raises(QueueFullError):
        await asking.ask("d")
    assert await asking.ask("a") == 1
    asking.now = 2.0
    assert await asking.ask("d") == 4
