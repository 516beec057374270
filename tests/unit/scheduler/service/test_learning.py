"""What the ends of attempts teach, and how what was learned is saved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from callsheet.scheduler.core.state.entities import Attempt
from callsheet.scheduler.core.state.held_memory import LEAST_LIVES, MOST_LABELS, HeldMemory
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.events import AttemptEnded, AttemptResult
from callsheet.scheduler.core.words.model import ActionKey, ActionKind, FailureKind, TimeoutKind
from callsheet.scheduler.planner.engines.knowledge import EngineKnowledge
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.predictors.requests import observation_of
from callsheet.scheduler.service.learning import (
    ALIKE_ENDS,
    ENDS_PER_TURN,
    MAX_WAITING_ENDS,
    Learning,
    load_learned,
)
from callsheet.scheduler.store.journal import Journal
from callsheet.v1 import outcome_pb2

from tests.support.core_requests import JOB, action_request, elastic, kept
from tests.support.core_world import CoreWorld
from tests.support.journals import JournalPlace
from tests.support.synthetic_commands import saved_nodes

SUCCEEDED = events.AttemptSucceeded(b"")


@pytest.fixture
def place(tmp_path: Path) -> JournalPlace:
    """A place for a journal on SQLite."""
    return JournalPlace(tmp_path, None)


@pytest.fixture
def journal(place: JournalPlace) -> Iterator[Journal]:
    """A journal in an epoch of its own."""
    with place.begun() as begun:
        yield begun


def world_running(given: int = 4) -> tuple[CoreWorld, Attempt]:
    world = CoreWorld()
    manager = world.manager(cores=8)
    world.job()
    world.submit(action_request("a", ActionKind.REWARD, demand=elastic(2, 8)))
    world.propose("a", "m", cpu=given)
    manager.start("a")
    (attempt,) = world.state.managers["m"].attempts.values()
    return world, attempt


def end(
    attempt: Attempt,
    result: AttemptResult = SUCCEEDED,
    *,
    started: bool = True,
    execution_s: float = 3.0,
    cpu_s: float = 2.0,
    peak: int = 256 << 20,
) -> AttemptEnded:
    usage = outcome_pb2.Usage(cpu_s=cpu_s, peak_memory_bytes=peak)
    key = ActionKey(JOB, "a")
    return AttemptEnded("m", attempt.token, key, 1, result, started, execution_s, b"", usage)


def seen(learning: Learning) -> int:
    return learning.predictors.revision


def test_an_end_is_an_observation_of_its_action_at_its_width() -> None:
    _, attempt = world_running()
    observation = observation_of(attempt, end(attempt))
    assert observation is not None
    request = attempt.action.request
    assert observation.key == (JOB, ActionKind.REWARD, request.label, request.task)
    assert (observation.units, observation.execution_s) == (2.0, 3.0)
    assert (observation.cpu_s, observation.peak_memory_mb) == (2.0, 256.0)
    assert not observation.censored


@pytest.mark.parametrize(
    ("result", "failed", "timed_out"),
    [
        (events.AttemptFailed(FailureKind.POLICY, "exit"), False, False),
        (events.AttemptFailed(FailureKind.INFRA, "lost"), True, False),
        (events.AttemptFailed(FailureKind.RESOURCE_LIMIT, "memory"), True, False),
        (events.AttemptFailed(FailureKind.TIMEOUT, "t", timeout=TimeoutKind.START_TO_CLOSE), False, True),
        (events.AttemptFailed(FailureKind.TIMEOUT, "t", timeout=TimeoutKind.HEARTBEAT), True, False),
        (events.AttemptCancelled(), True, False),
    ],
)
def test_what_was_cut_off_is_known_to_be(result: AttemptResult, failed: bool, timed_out: bool) -> None:
    _, attempt = world_running()
    observation = observation_of(attempt, end(attempt, result))
    assert observation is not None
    assert (observation.failed, observation.timed_out) == (failed, timed_out)


def test_an_attempt_that_never_ran_says_nothing() -> None:
    _, attempt = world_running()
    assert observation_of(attempt, end(attempt, started=False)) is None
    assert observation_of(attempt, end(attempt, execution_s=0.0)) is None


@pytest.mark.parametrize("odd", [math.nan, math.inf, -1.0])
def test_odd_measurements_count_as_none(odd: float) -> None:
    _, attempt = world_running()
    observation = observation_of(attempt, end(attempt, cpu_s=odd, peak=-5))
    assert observation is not None
    assert (observation.cpu_s, observation.peak_memory_mb) == (0.0, 0.0)
    Predictors().observe(observation)


def test_no_run_is_taken_to_be_longer_than_its_timeout() -> None:
    _, attempt = world_running()
    observation = observation_of(attempt, end(attempt, execution_s=1e18))
    assert observation is not None
    assert observation.execution_s == attempt.action.request.timeouts.start_to_close


def test_an_end_that_cannot_be_learned_from_is_passed_over(journal: Journal) -> None:
    world, attempt = world_running()
    learning = Learning(Predictors(), EngineKnowledge(), journal, 1.0, HeldMemory())
    learning.attempts_ended(world.state, [end(attempt, execution_s=math.nan), end(attempt)])
    learning.learn(2)
    assert seen(learning) == 1


@pytest.mark.anyio
async def test_of_a_flood_of_alike_ends_the_first_are_learned_and_others_not_missed(journal: Journal) -> None:
    world, attempt = world_running()
    world.submit(replace(action_request("b", ActionKind.REWARD, demand=elastic(2, 8)), label="rare"))
    world.propose("b", "m", cpu=4)
    rare = next(each for each in world.state.managers["m"].attempts.values() if each is not attempt)
    learning = Learning(Predictors(), EngineKnowledge(), journal, 1000.0, HeldMemory())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(learning.run)
        for turn in range(2):
            learning.attempts_ended(world.state, [*[end(attempt)] * MAX_WAITING_ENDS, end(rare)])
            with anyio.fail_after(60):
                while seen(learning) < (turn + 1) * (ALIKE_ENDS + 1):
                    await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert seen(learning) == 2 * (ALIKE_ENDS + 1)


@pytest.mark.anyio
async def test_ends_are_learned_from_beside_the_loop(journal: Journal) -> None:
    world, attempt = world_running()
    learning = Learning(Predictors(), EngineKnowledge(), journal, 1000.0, HeldMemory())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(learning.run)
        for turn in range(3):
            learning.attempts_ended(world.state, [end(attempt)] * ENDS_PER_TURN)
            with anyio.fail_after(60):
                while seen(learning) < (turn + 1) * ENDS_PER_TURN:
                    await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


def test_an_end_nobody_knows_of_is_passed_over(journal: Journal) -> None:
    world, attempt = world_running()
    learning = Learning(Predictors(), EngineKnowledge(), journal, 1.0, HeldMemory())
    stray = end(attempt)
    stray.manager_id = "other"
    learning.attempts_ended(world.state, [stray])
    learning.learn(MAX_WAITING_ENDS)
    assert seen(learning) == 0


@pytest.mark.anyio
async def test_what_sandboxes_held_is_loaded_again(journal: Journal) -> None:
    held, demand = HeldMemory(), kept(memory=256)
    learning = Learning(Predictors(), EngineKnowledge(), journal, 1.0, held)
    for label in ("build", "test", "rare"):
        for mib in range(1, LEAST_LIVES + (label != "rare")):
            held.learn("job", label, 10 * mib)
        await learning.save()
    load_learned(journal, again := HeldMemory())
    expected = [held.of_new("job", label, demand) for label in ("build", "rare")]
    assert [again.of_new("job", label, demand) for label in ("build", "rare")] == expected
    assert [bool(each) for each in expected] == [True, False]
    for number in range(MOST_LABELS):
        held.learn("job", f"other {number}", 1)
    await learning.save()
    assert not any('"test"' in path for path, _ in journal.load_predictors())


@pytest.mark.anyio
async def test_a_save_that_fails_is_logged_and_the_next_one_goes_on(
    place: JournalPlace, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    world, attempt = world_running()
    learning = Learning(Predictors(), EngineKnowledge(), journal, 1.0, HeldMemory())
    learning.attempts_ended(world.state, [end(attempt)])
    with place.outside() as connection:
        connection.execute("ALTER TABLE predictor_nodes RENAME TO elsewhere")
    await learning.close()
    assert "predictors_not_saved" in capsys.readouterr().out
    with place.outside() as connection:
        connection.execute("ALTER TABLE elsewhere RENAME TO predictor_nodes")
    learning.attempts_ended(world.state, [end(attempt)])
    await learning.close()
    assert len(journal.load_predictors()) >= 3


def test_saved_rows_of_another_form_are_left_out(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    journal.save_predictors([("[3]", "[1.0, 2.0]"), ('[77, "label"]', "[]")], [])
    journal.save_predictors([('["held memory", "job", "a"]', "[0.5]"), ('["held memory", "job"]', "[1]")], [])
    assert saved_nodes(load_learned(journal, HeldMemory())) == []
    assert "left_out=4" in capsys.readouterr().out
