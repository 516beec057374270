"""What ends thousands of things takes many steps, and all else goes on between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import pytest
from callsheet.scheduler.core import machine, step, timers
from callsheet.scheduler.core.machine import next_deadline
from callsheet.scheduler.core.state.chores import Chores
from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.step import STEP_S, Stepper
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.commands import CoreCommand, Persist
from callsheet.scheduler.core.words.model import ActionState, GroupRequest, Timeouts, TrajectoryEnd
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.core.words.refusals import RefusalCode

from tests.support.core_invariants import check_invariants
from tests.support.core_requests import JOB, action_request, job_request, key_of, trajectory_request
from tests.support.core_world import SETTINGS, CoreWorld, FakeManager, world_with_job
from tests.support.peers import Peer

PARTS, LEAST = 32, 4
MANY = 3 * PARTS


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of fewer parts, so that fewer things make many."""
    monkeypatch.setattr(step, "MAX_PARTS_PER_STEP", PARTS)
    monkeypatch.setattr(timers, "MAX_DUE", PARTS)
    monkeypatch.setattr(machine, "LEAST_PARTS", LEAST)


class SteppedWorld(CoreWorld):
    """A world whose core steps as the service's does; nothing is planned but by tests.

    Attributes:
        stepper: Its steps.
        ended: How many outcomes, ends of trajectories and lost sandboxes each step since the last `forget` wrote.
    """

    def __init__(self, stopwatch: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(settings=replace(SETTINGS, max_buffered=MANY), checked=False)
        self.stepper = Stepper(self.state, lambda state, now: Plan(), stopwatch=stopwatch)
        self.ended: list[int] = []

    def go_on(self, *happened: events.Event) -> list[CoreCommand]:
        """One step with what happens now; the invariants hold after each."""
        self.stepper.post(happened)
        todo = self.stepper.step(self.now).commands
        check_invariants(self.state)
        records = [each.record for each in todo if isinstance(each, Persist)]
        self.journal.commit(records)
        names = ("ActionFinished", "TrajectoryClosed", "TrajectoryPlaced")
        self.ended.append(sum(type(each).__name__ in names for each in records))
        for command in todo:
            self._carry_out(command)
        return todo

    def finish_all(self, *happened: events.Event) -> None:
        """Steps until all that came of it is done."""
        self.ended.clear()
        self.go_on(*happened)
        while self.stepper.has_more or (next_deadline(self.state) or inf) <= self.now:
            self.go_on()

    def asked(self, make: Callable[[events.ReplyTo], events.Event]) -> tuple[int, events.Event]:
        """What a client asks for, and the number of its answer."""
        reply = self._reply()
        event = make(reply)
        if isinstance(event, events.SubmitRequested):
            self.journal.learn(event.request)
        if isinstance(event, events.TrajectoryOpenRequested):
            self.journal.learn(event.trajectory)
        return reply.sequence, event


def with_actions(world: SteppedWorld) -> None:
    world.manager()
    world.job()
    world.submit(*(action_request(f"a{number}") for number in range(MANY)))


def with_group(world: SteppedWorld) -> None:
    world.manager()
    world.job()
    group = GroupRequest("g", MANY, 1)
    for number in range(MANY):
        world.trajectory(trajectory_request(f"t{number:04}", group=group))


def with_sandboxes(world: SteppedWorld) -> FakeManager:
    """One manager that has them all."""
    manager = world.manager(cores=4, memory=MANY * 256)
    world.job()
    for number in range(MANY):
        world.trajectory(f"t{number:04}")
        world.reset(f"reset{number}", f"t{number:04}")
    return manager


def closes_job(world: SteppedWorld) -> list[events.Event]:
    with_actions(world)
    return [world.asked(lambda reply: events.JobCloseRequested(reply, JOB))[1]]


def cancels_work(world: SteppedWorld) -> list[events.Event]:
    with_actions(world)
    return [world.asked(lambda reply: events.WorkCancelRequested(reply, JOB, "", "", ""))[1]]


def cancels_trajectories(world: SteppedWorld) -> list[events.Event]:
    with_group(world)
    return [world.asked(lambda reply: events.WorkCancelRequested(reply, JOB, "", "", ""))[1]]


def cancels_group(world: SteppedWorld) -> list[events.Event]:
    with_group(world)
    return [world.asked(lambda reply: events.WorkCancelRequested(reply, JOB, "g", "", ""))[1]]


def reaches_quorum(world: SteppedWorld) -> list[events.Event]:
    with_group(world)
    end = TrajectoryEnd.COMPLETED
    return [world.asked(lambda reply: events.TrajectoryCloseRequested(reply, JOB, "t0000", end, None))[1]]


def publishes(world: SteppedWorld) -> list[events.Event]:
    world.manager()
    world.job(job_request(max_staleness=1))
    for number in range(MANY):
        world.trajectory(f"t{number}")
    return [world.asked(lambda reply: events.PolicyPublished(reply, JOB, 9))[1]]


def deadlines_come(world: SteppedWorld) -> list[events.Event]:
    world.manager()
    world.job()
    soon = Timeouts(schedule_to_start=5.0, start_to_close=10.0, schedule_to_close=10.0)
    world.submit(*(action_request(f"a{number}", timeouts=soon) for number in range(MANY)))
    world.state.managers["m"].last_seen = world.now = world.now + 6.0
    return []


def job_expires(world: SteppedWorld) -> list[events.Event]:
    world.manager()
    world.job(job_request(grace=5.0))
    world.submit(*(action_request(f"a{number}") for number in range(MANY)))
    world.end_session()
    world.state.managers["m"].last_seen = world.now = world.now + 6.0
    return []


ENDING = [
    closes_job,
    cancels_work,
    cancels_trajectories,
    cancels_group,
    reaches_quorum,
    publishes,
    deadlines_come,
    job_expires,
]


@pytest.mark.parametrize("ending", ENDING, ids=[each.__name__ for each in ENDING])
def test_no_step_ends_more_than_a_part(ending: Callable[[SteppedWorld], list[events.Event]]) -> None:
    world = SteppedWorld()
    world.finish_all(*ending(world))
    assert sum(world.ended) >= MANY - 1
    assert max(world.ended) <= PARTS
    assert all(refusal is None for refusal in world.answers.values())


def test_others_are_served_while_much_ends() -> None:
    world = SteppedWorld()
    (closes,) = closes_job(world)
    world.job(job_request("other"))
    sequence, submits = world.asked(
        lambda reply: events.SubmitRequested(reply, action_request("b", job_id="other"), None)
    )
    world.go_on(closes)
    assert world.stepper.has_more
    world.go_on(submits)
    assert world.answers[sequence] is None
    assert world.stepper.has_more, "the first has not ended yet"


def test_a_job_is_answered_for_once_it_is_closed_and_can_be_opened_then() -> None:
    world = SteppedWorld()
    with_actions(world)
    closing, closes = world.asked(lambda reply: events.JobCloseRequested(reply, JOB))
    world.go_on(closes)
    assert closing not in world.answers
    early, submits = world.asked(lambda reply: events.SubmitRequested(reply, action_request("late"), None))
    again, opens = world.asked(lambda reply: events.JobOpenRequested(reply, job_request()))
    world.go_on(submits, opens)
    refused = world.answers[early], world.answers[again]
    assert [each.code for each in refused if each is not None] == [
        RefusalCode.NOT_FOUND,
        RefusalCode.RESOURCE_EXHAUSTED,
    ]
    assert refused[1] is not None
    assert refused[1].retry_after
    world.finish_all()
    assert world.answers[closing] is None
    assert JOB not in world.state.jobs
    world.job()
    assert not world.state.jobs[JOB].actions


def test_what_comes_after_a_cancel_of_all_work_is_not_cancelled() -> None:
    world = SteppedWorld()
    (cancels,) = cancels_work(world)
    world.go_on(cancels)
    _, submits = world.asked(lambda reply: events.SubmitRequested(reply, action_request("new"), None))
    world.finish_all(submits)
    assert (world.state_of("new"), world.state.open_actions) == (ActionState.QUEUED, 1)


def test_work_that_is_being_given_up_is_not_given_up_twice() -> None:
    world = SteppedWorld()
    (cancels,) = cancels_work(world)
    again, second = world.asked(lambda reply: events.WorkCancelRequested(reply, JOB, "", "", ""))
    world.go_on(cancels, second)
    refusal = world.answers[again]
    assert refusal is not None
    assert (refusal.code, bool(refusal.retry_after)) == (RefusalCode.RESOURCE_EXHAUSTED, True)
    world.finish_all()
    world.cancel_work()


def test_a_newer_version_ends_what_it_makes_stale_though_an_older_one_is_at_it() -> None:
    world = SteppedWorld()
    (publishes_9,) = publishes(world)
    _, publishes_10 = world.asked(lambda reply: events.PolicyPublished(reply, JOB, 10))
    opened = world.asked(lambda reply: events.TrajectoryOpenRequested(reply, trajectory_request("of 9")))[1]
    _, publishes_12 = world.asked(lambda reply: events.PolicyPublished(reply, JOB, 12))
    world.go_on(publishes_9, opened, publishes_10)
    world.go_on(publishes_12)
    world.finish_all()
    assert not world.state.jobs[JOB].trajectories


def test_a_scheduler_that_dies_while_it_closes_a_job_leaves_one_that_can_be_closed() -> None:
    world = SteppedWorld()
    (closes,) = closes_job(world)
    world.go_on(closes)
    after = world.restart()
    assert JOB in after.state.jobs
    after.manager()
    after.close_job()
    assert JOB not in after.state.jobs


# Managers.


def test_a_node_that_is_lost_loses_its_sandboxes_in_parts() -> None:
    world = SteppedWorld()
    manager = sandboxes_made(world)
    manager.disconnect()
    world.now += SETTINGS.manager_lease + 1.0
    world.finish_all()
    assert sum(world.ended) >= MANY
    assert max(world.ended) <= PARTS
    assert not world.state.managers
    assert not world.state.nodes
    assert world.state.lost_managers["m"].sandboxes == MANY


def test_a_deadline_that_was_set_anew_is_not_over_by_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines wait for their turn; a cancel meanwhile gives its attempt time to stop."""
    monkeypatch.setattr(timers, "MAX_DUE", 2 * MANY)
    world = SteppedWorld()
    manager = world.manager()
    world.job()
    soon = Timeouts(schedule_to_start=60.0, start_to_close=10.0, schedule_to_close=60.0)
    for number in range(MANY):
        world.submit(action_request(f"a{number}", timeouts=soon))
        world.propose(f"a{number}", "m")
        manager.start(f"a{number}")
    world.state.managers["m"].last_seen = world.now = world.now + 11.0 + SETTINGS.timeout_grace
    world.go_on()
    last = f"a{MANY - 1}"
    _, cancel = world.asked(lambda reply: events.CancelRequested(reply, key_of(last), "enough"))
    world.finish_all(cancel)
    action = world.state.find_action(key_of(last))
    assert isinstance(action, Action)
    assert action.state is ActionState.RUNNING
    world.state.managers["m"].last_seen = world.now = world.now + SETTINGS.cancel_grace + 1.0
    world.finish_all()
    assert not isinstance(world.state.find_action(key_of(last)), Action)


def test_a_new_process_of_a_manager_registers_once_all_of_the_former_one_has_ended() -> None:
    world = SteppedWorld()
    manager = sandboxes_made(world)
    manager.disconnect()
    joined = events.ManagerJoined(Peer("m"), "m", "second", manager.node, manager.services)
    beat = events.ManagerHeartbeat("m", joined.session)
    world.go_on(joined, beat)
    assert world.state.managers["m"].incarnation == "first"
    todo: list[CoreCommand] = []
    while world.stepper.has_more:
        todo += world.go_on()
    assert [type(each) for each in todo if isinstance(each, commands.AcceptManager | commands.RefuseManager)] == [
        commands.AcceptManager
    ]
    registered = world.state.managers["m"]
    assert (registered.incarnation, registered.reconciled, len(registered.sandboxes)) == ("second", True, 0)
    assert world.state.nodes["node-m"].granted.get("memory", 0) == 0


def sandboxes_made(world: SteppedWorld) -> FakeManager:
    manager = with_sandboxes(world)
    for number in range(MANY):
        world.handle(events.PlanReady(Plan(admitted=((JOB, f"t{number:04}"),))))
        world.propose(f"reset{number}", "m", cpu=1, memory=256)
        manager.run(f"reset{number}")
    return manager


def test_what_was_on_managers_before_a_restart_is_found_without_a_search() -> None:
    world = SteppedWorld()
    sandboxes_made(world)
    after = world.restart(world.journal)
    assert len(after.state.awaited["m"].trajectories) == MANY
    after.wait(2 * SETTINGS.manager_lease)
    assert not after.state.awaited
    assert all(each.lost for each in after.state.jobs[JOB].trajectories.values())


# Steps that somebody measures.


class Watch:
    """A stopwatch that goes on by so much with each look."""

    def __init__(self, by: float) -> None:
        self.at, self.by = 0.0, by

    def __call__(self) -> float:
        self.at += self.by
        return self.at


def test_events_that_there_is_no_time_for_come_back_in_order() -> None:
    watch = Watch(0.0)
    world = SteppedWorld(watch)
    world.manager()
    world.job()
    asked = [
        world.asked(lambda reply, name=name: events.SubmitRequested(reply, action_request(name), None))  # type: ignore[misc]
        for name in ("a", "b", "c", "d")
    ]
    watch.by = STEP_S / 2
    answered = []
    world.go_on(*(event for _, event in asked))
    answered.append(len([sequence for sequence, _ in asked if sequence in world.answers]))
    while world.stepper.has_more:
        world.go_on()
        answered.append(len([sequence for sequence, _ in asked if sequence in world.answers]))
    assert answered[0] < 4
    assert answered[-1] == 4
    assert (list(world.state.jobs[JOB].actions), world.stepper.pending_bytes) == (["a", "b", "c", "d"], 0)


def test_ends_that_come_back_are_looked_at_once() -> None:
    seen: list[events.Event] = []
    world = SteppedWorld()
    world.manager(cores=4)
    world.job()
    for name in ("a", "b", "c"):
        world.submit(action_request(name))
        world.propose(name, "m")
    watch = Watch(STEP_S)
    stepper = Stepper(world.state, lambda state, now: Plan(), lambda state, ends: seen.extend(ends), watch)
    ends = [end_of(world, name) for name in ("a", "b", "c")]
    stepper.post(ends)
    steps = 0
    while stepper.has_more:
        stepper.step(world.now)
        steps += 1
    assert steps == 3
    assert seen == ends


def end_of(world: CoreWorld, name: str) -> events.AttemptEnded:
    attempt = world.live(name).attempt
    assert attempt is not None
    done = events.AttemptSucceeded(b"done")
    return events.AttemptEnded("m", attempt.token, key_of(name), 1, done, True, 0.5, attempt.action.request.body_hash)


def test_rounds_that_there_is_no_time_for_are_planned_in_the_next_step() -> None:
    rounds: list[float] = []

    def plan(state: SchedulerState, now: float) -> Plan:
        rounds.append(now)
        return Plan(truncated=len(rounds) < 3)

    world = world_with_job()
    world.submit(action_request("a", wait=True))
    stepper = Stepper(world.state, plan, stopwatch=Watch(STEP_S))
    stepper.post([events.SessionEnded(Peer("nobody"))])
    per_step = []
    while stepper.has_more:
        before = len(rounds)
        stepper.step(world.now)
        per_step.append(len(rounds) - before)
    assert per_step == [1, 1, 1]


def test_chores_go_on_however_many_events_there_are() -> None:
    world = SteppedWorld(Watch(STEP_S))
    (cancels,) = cancels_work(world)
    world.finish_all(cancels, *(events.SessionEnded(Peer("nobody")) for _ in range(MANY // LEAST + 2)))
    assert world.state.open_actions == 0
    assert len(world.ended) <= MANY // LEAST + 4


def test_chores_take_turns_and_follow_each_other_under_one_key() -> None:
    chores, done = Chores(), list[str]()

    def parts(name: str, count: int) -> Sequence[Callable[[float], None]]:
        return [lambda _: done.append(name) for _ in range(count)]

    chores.add("long", parts("long", 100))
    chores.add("short", parts("short", 3))
    chores.add("short", parts("then", 2))
    chores.work_off(0.0, 40)
    assert (done.count("short"), done.count("then")) == (3, 2)
    assert done.index("then") > done.index("short")
    assert chores.work_off(0.0) == 65
    assert not chores
