"""Finished actions of an open job: kept for a while and within bounds, then forgotten, and never run again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.scheduler.core.jobs import retention
from callsheet.scheduler.core.state.forgotten_ids import ENTRY_BYTES, ForgottenWork, entry
from callsheet.scheduler.core.words import events, records
from callsheet.scheduler.core.words.commands import CoreCommand, Persist
from callsheet.scheduler.core.words.model import ActionKind, ActionState
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError

from tests.support.core_requests import action_request, fixed, job_request, key_of
from tests.support.core_world import SETTINGS, CoreWorld, FakeManager, Stream, world_with_job
from tests.support.refusals import refusal

KEPT_S = 1_600.0


def world_with_finished(*actions: str, kept: int = 1_000, kept_bytes: int = 1 << 20) -> tuple[CoreWorld, FakeManager]:
    """A world whose job has these actions, all succeeded."""
    settings = replace(SETTINGS, finished_actions=kept, finished_actions_bytes=kept_bytes, finished_actions_s=KEPT_S)
    world = world_with_job(settings=settings)
    manager = world.manager()
    for action in actions:
        run(world, manager, action)
    return world, manager


def run(world: CoreWorld, manager: FakeManager, action: str) -> None:
    """Runs an action to its good end."""
    world.submit(action_request(action, demand=fixed(cpu=1)), plan=True)
    manager.run(action)


def settle(world: CoreWorld) -> None:
    """Lets what is due be forgotten."""
    world.wait(0.0)


def refusal_of(world: CoreWorld, action: str, body: str = "") -> RefusedError:
    """What a resubmit is refused with."""
    with pytest.raises(RefusedError) as refused:
        world.submit(action_request(action, demand=fixed(cpu=1), body=body))
    return refused.value


def test_an_action_is_kept_for_its_time_and_then_forgotten() -> None:
    world, manager = world_with_finished("a")
    manager.live(KEPT_S - 10.0)
    world.submit(action_request("a", demand=fixed(cpu=1)), watcher="late")
    assert world.delivered[-1] == ("late", key_of("a"))
    manager.live(120.0)
    refusal = refusal_of(world, "a")
    assert (refusal.code, refusal.field, refusal.forgotten) == (RefusalCode.ALREADY_EXISTS, "action_id", True)
    assert "succeeded" in refusal.rule
    assert world.state.summaries.of_open_job(key_of("a")) is None
    assert not world.journal.actions
    assert not world.journal.outcomes


def test_another_body_is_told_from_a_forgotten_one() -> None:
    world, _ = world_with_finished("a", "b", kept=1)
    settle(world)
    assert refusal_of(world, "a").forgotten
    other = refusal_of(world, "a", body="other")
    assert (other.code, other.forgotten) == (RefusalCode.ALREADY_EXISTS, False)
    assert "another body" in other.rule


def test_who_asks_for_a_forgotten_outcome_is_told() -> None:
    world, _ = world_with_finished("a", "b", kept=1)
    settle(world)
    assert refusal(lambda: world.watch("a", "late"), RefusalCode.NOT_FOUND, "is forgotten").forgotten
    world.cancel("a")
    with pytest.raises(RefusedError, match="names no action"):
        world.watch("never", "late")


def test_the_oldest_outcomes_go_first_and_the_number_is_bounded() -> None:
    world, manager = world_with_finished(*(f"a{number}" for number in range(40)), kept=32)
    settle(world)
    assert refusal_of(world, "a0").forgotten
    world.submit(action_request("a39", demand=fixed(cpu=1)), watcher="late")
    for number in range(200):
        run(world, manager, f"b{number}")
        settle(world)
        assert world.state.finished_actions <= 32
    assert len(world.journal.actions) <= 32
    assert len(world.state.jobs["job"].forgotten) == 240 - world.state.finished_actions


def test_bytes_of_outcomes_are_bounded() -> None:
    world, manager = world_with_finished("a")
    size = world.state.finished_bytes
    world, manager = world_with_finished(kept_bytes=10 * size)
    for number in range(50):
        run(world, manager, f"b{number}")
        settle(world)
        assert world.state.finished_bytes <= 10 * size


def test_the_job_that_keeps_the_most_gives_way() -> None:
    world, manager = world_with_finished(*(f"a{number}" for number in range(20)), kept=25)
    world.job(job_request("quiet"))
    for number in range(3):
        world.submit(action_request(f"q{number}", job_id="quiet"), plan=True)
        world.wait(0.0)
    for number in range(20, 40):
        run(world, manager, f"a{number}")
        settle(world)
    assert not world.state.jobs["quiet"].forgotten
    assert len(world.state.jobs["job"].forgotten) > 10


def test_the_time_that_actions_are_kept_stands_still_while_no_scheduler_runs() -> None:
    world, manager = world_with_finished("a")
    manager.live(1_000.0)
    world.now += 100_000.0
    after = world.restart()
    after.wait(500.0)
    assert after.state_of("a") is ActionState.SUCCEEDED
    after.wait(300.0)
    assert after.state.jobs["job"].forgotten


def test_an_attempt_of_a_forgotten_action_is_stopped() -> None:
    world, manager = world_with_finished()
    world.submit(action_request("a", demand=fixed(cpu=1)), plan=True)
    grant = manager.start("a")
    manager.disconnect()
    world.cancel("a")
    world.wait(11.0)
    for each in ("b", "c"):
        world.submit(action_request(each, wait=True))
        world.cancel(each)
    world.wait(2 * KEPT_S)
    assert "a" in world.state.jobs["job"].forgotten
    after = world.restart()
    manager.world, manager.stream = after, Stream()
    manager.join([manager.running(grant)])
    assert not after.state.orphans
    manager.end(grant)
    assert manager.free["cpu"] == 4
    assert refusal_of(after, "a").forgotten


def test_a_step_forgets_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MAX_PER_STEP", 20)
    world, _ = world_with_finished()
    world.submit(*(action_request(f"a{number}", ActionKind.GENERATE, wait=True) for number in range(60)))
    world.cancel_work()
    world.now += 2 * KEPT_S
    sizes = []
    while world.state.jobs["job"].finished:
        sizes.append(_forgotten_in(world.handle(events.TimerFired())))
    assert sizes == [20, 20, 20]


def _forgotten_in(todo: list[CoreCommand]) -> int:
    records_ = [each.record for each in todo if isinstance(each, Persist)]
    return sum(len(each.action_ids) for each in records_ if isinstance(each, records.WorkForgotten))


def test_a_closed_job_forgets_that_it_forgot() -> None:
    world, manager = world_with_finished("a", "b", kept=1)
    settle(world)
    world.close_job()
    assert world.state.finished_actions == 0
    world.outcomes.clear()
    world.job()
    run(world, manager, "a")
    assert world.state_of("a") is ActionState.SUCCEEDED


def test_entries_are_compact_and_told_apart() -> None:
    forgotten = ForgottenWork()
    states = (ActionState.SUCCEEDED, ActionState.FAILED, ActionState.CANCELLED, ActionState.EXPIRED)
    for number in range(20_000):
        forgotten.add(entry(f"a{number}", b"body %d" % number, states[number % 4]))
    assert len(forgotten) == 20_000
    for number in range(0, 20_000, 7):
        assert forgotten.recall(f"a{number}", b"body %d" % number) == (states[number % 4], True)
        assert forgotten.recall(f"a{number}", b"other") == (states[number % 4], False)
    assert not any(f"b{number}" in forgotten for number in range(20_000))
    assert len(entry("a", b"", ActionState.FAILED)) == ENTRY_BYTES == 32
