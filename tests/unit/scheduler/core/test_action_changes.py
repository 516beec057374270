"""The table of an action's states: each of its changes happens in the core, and the core makes no other one."""

from __future__ import annotations

from copy import deepcopy

import pytest
from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.state.transitions import CHANGES, FAILED, SUBMITTED, Change, ImpossibleChangeError
from callsheet.scheduler.core.words.events import AttemptCancelled, SandboxLost, TimerFired
from callsheet.scheduler.core.words.model import ActionKey, ActionKind, ActionState, FailureKind, Timeouts
from callsheet.scheduler.core.words.registration import SandboxRef

from scripts.action_states import PAGE, drawn_on
from tests.support.core_requests import action_request, key_of
from tests.support.core_world import CoreWorld, FakeManager, Stream, world_with_sandbox

QUEUED, DISPATCHED, RUNNING = ActionState.QUEUED, ActionState.DISPATCHED, ActionState.RUNNING
IN_TABLE = [(source, change) for change in CHANGES for source in sorted(change.sources, key=lambda each: each.value)]
NOT_IN_TABLE = [(state, change) for change in CHANGES for state in ActionState if state not in change.sources]


def an_action(state: ActionState, kind: ActionKind = ActionKind.GENERATE) -> tuple[CoreWorld, FakeManager]:
    """A world whose action "a" is in a state without an outcome."""
    world, manager = world_with_sandbox()
    world.submit(action_request("a", kind, "t", timeouts=Timeouts(60.0, 60.0, 60.0)))
    if state is not QUEUED:
        world.propose("a", "m")
    if state is RUNNING:
        manager.start("a")
    assert world.state_of("a") is state
    return world, manager


def happen(change: Change, world: CoreWorld, manager: FakeManager) -> CoreWorld:
    """Has a change happen to "a", and returns the world of the scheduler that made it."""
    has_attempt = world.state_of("a") is not QUEUED
    match change.name:
        case "dispatched":
            world.propose("a", "m")
        case "started":
            manager.start("a")
        case "requeued":
            manager.fail("a", started=world.state_of("a") is RUNNING)
        case "succeeded":
            manager.end("a")
        case "failed" if has_attempt:
            manager.fail("a", FailureKind.ENV)
        case "failed":
            world.handle(SandboxLost("m", SandboxRef("job", "t", "reset#1"), "killed"))
        case "cancelled":
            world.cancel("a")
            if has_attempt:
                manager.end("a", AttemptCancelled())
        case "expired" if has_attempt:
            manager.live(70.0)
        case "expired":
            world.now += 61.0
            world.handle(TimerFired())
        case "recovered":
            world.propose("a", "m")
            return world.restart()
        case "adopted":
            saved = deepcopy(world.journal)
            world.propose("a", "m")
            grant = manager.grant("a")
            manager.world, manager.stream = world.restart(saved), Stream()
            manager.join([manager.running(grant, started=False)], [SandboxRef("job", "t", "reset#1")])
            return manager.world
    return world


@pytest.mark.parametrize(("source", "change"), IN_TABLE, ids=lambda each: getattr(each, "name", None))
def test_each_change_happens(source: ActionState, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    waits_for_sandbox = change is FAILED and source is QUEUED
    world, manager = an_action(source, ActionKind.ENV_STEP if waits_for_sandbox else ActionKind.GENERATE)
    seen: list[tuple[ActionKey, ActionState, Change]] = []
    make = Action.change

    def note(action: Action, by: Change) -> None:
        seen.append((action.key, action.state, by))
        make(action, by)

    monkeypatch.setattr(Action, "change", note)
    after = happen(change, world, manager)
    assert (key_of("a"), source, change) in seen
    assert after.state_of("a") is change.target


def test_an_action_begins_as_the_table_has_it() -> None:
    world, _ = an_action(SUBMITTED.target)
    assert world.state.jobs["job"].state_counts[SUBMITTED.target] == 1


@pytest.mark.parametrize(("state", "change"), NOT_IN_TABLE, ids=lambda each: getattr(each, "name", None))
def test_every_other_change_is_refused_and_changes_nothing(state: ActionState, change: Change) -> None:
    world, _ = an_action(RUNNING)
    action = world.live("a")
    action.state = state
    counts = dict(action.job.state_counts)
    with pytest.raises(ImpossibleChangeError, match=rf"'job'.*'a'.* is {state.value} and cannot be {change.name}: sub"):
        action.change(change)
    assert (action.state, action.job.state_counts) == (state, counts)


def test_the_picture_is_that_of_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == drawn_on(page), "run .venv/bin/python scripts/action_states.py"
