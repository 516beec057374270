"""What work costs: sums of actions, trajectories, groups and jobs, over repeats, losses and restarts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.commands import Dispatch
from callsheet.scheduler.core.words.costs import MAX_RESOURCES, Account, Cost, read_price
from callsheet.scheduler.core.words.model import ActionKind, GroupRequest, SandboxCopy, TrajectoryEnd
from callsheet.scheduler.core.words.records import JobClosed, Record
from callsheet.scheduler.core.words.registration import SandboxRef
from callsheet.scheduler.core.work.costs import group_cost
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core_requests import action_request, fixed, kept, key_of, trajectory_request
from tests.support.core_world import SETTINGS, CoreWorld, FakeManager, Stream, world_with_job, world_with_trajectory

GIB = 1024


def costs(world: CoreWorld, trajectory_id: str = "t") -> tuple[Cost, Cost]:
    """What the job costs, and a trajectory of it."""
    job = world.state.jobs["job"]
    trajectory = job.trajectories.get(trajectory_id)
    own = trajectory.account.until(world.now) if trajectory is not None else job.closed_trajectories[trajectory_id].cost
    return job.account.until(world.now), own


def _services(world: CoreWorld) -> list[Service]:
    return [each for manager in world.state.managers.values() for each in manager.services.values()]


def end(manager: FakeManager, action: str, cost: Cost, result: events.AttemptResult | None = None) -> None:
    """Ends an attempt that cost so much."""
    grant = manager.start(action)
    manager.end(grant, result, cost=cost)


def world_with_kept_sandbox(*, memory: int = 2 * GIB, start_cpu: int = 1) -> tuple[CoreWorld, FakeManager]:
    """A trajectory whose sandbox has a demand that it keeps; the reset itself cost nothing."""
    world, manager = world_with_trajectory()
    demand = kept(start_cpu=start_cpu, memory=memory)
    world.submit(action_request("reset", ActionKind.ENV_RESET, "t", demand=demand), plan=True)
    end(manager, "reset", Cost())
    return world, manager


def test_an_account_grows_by_its_rate_and_a_clock_that_goes_back_takes_nothing() -> None:
    account = Account(Cost({"cpu": 1.0}), Cost({"cpu": 2.0}, {"memory": 0.5}), 10.0)
    assert account.until(14.0) == Cost({"cpu": 9.0}, {"memory": 2.0})
    assert account.until(4.0) == Cost({"cpu": 1.0})
    account.change_rate(Cost({"cpu": 2.0}), Cost(), 12.0)
    assert (account.spent, account.rate) == (Cost({"cpu": 5.0}, {"memory": 1.0}), Cost({}, {"memory": 0.5}))
    account.settle(11.0)
    assert account.since == 12.0


def test_a_price_is_a_resource_and_an_amount() -> None:
    assert read_price("cpu=0.25") == ("cpu", 0.25)
    assert read_price("calls:web:search=1e-3") == ("calls:web:search", 0.001)


def test_nobody_can_make_a_sum_grow_without_bound() -> None:
    cost = Cost()
    for number in range(2 * MAX_RESOURCES):
        cost.add(Cost({}, {f"calls:{number}": 1.0}))
    assert len(cost.used) == MAX_RESOURCES
    cost.add(Cost({}, {"calls:0": 1.0}))
    assert cost.used["calls:0"] == 2.0


def test_an_attempt_is_charged_to_its_action_its_trajectory_and_its_job() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("inside", trajectory_id="t"), action_request("alone"), plan=True)
    end(manager, "inside", Cost({"cpu": 2.0}, {"cpu": 1.5, "calls:search": 1.0}))
    end(manager, "alone", Cost({"cpu": 4.0}, {"tokens_in": 7.0}))
    of_job, of_trajectory = costs(world)
    assert of_trajectory == Cost({"cpu": 2.0}, {"cpu": 1.5, "calls:search": 1.0})
    assert of_job == Cost({"cpu": 6.0}, {"cpu": 1.5, "calls:search": 1.0, "tokens_in": 7.0})
    assert world.outcomes[key_of("inside")].cost == of_trajectory
    summary = world.state.summaries.of_open_job(key_of("inside"))
    assert summary is not None
    assert (summary.held, summary.used) == (of_trajectory.held, of_trajectory.used)
    assert world.state.spent[ActionKind.TOOL_CALL].held == {"cpu": 6.0}
    assert sum(each.cost.held.get("cpu", 0.0) for each in _services(world)) == 6.0


def test_an_attempt_that_outlives_its_action_is_charged_when_it_ends() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a", trajectory_id="t"), plan=True)
    grant = manager.start("a")
    world.cancel("a")
    manager.live(SETTINGS.cancel_grace + 1.0)
    world.plan()
    assert world.outcomes[key_of("a")].cost == Cost()
    world.close_trajectory("t", TrajectoryEnd.ABANDONED)
    manager.end(grant, events.AttemptCancelled(), cost=Cost({"cpu": 9.0}))
    assert costs(world) == (Cost({"cpu": 9.0}), Cost({"cpu": 9.0}))
    assert costs(world.restart()) == (Cost({"cpu": 9.0}), Cost({"cpu": 9.0}))


def test_an_attempt_that_outlives_what_is_kept_of_its_trajectory_is_charged_to_its_job() -> None:
    world = world_with_job(settings=replace(SETTINGS, finished_actions_s=10.0))
    manager = world.manager()
    world.trajectory("t")
    world.submit(action_request("a", trajectory_id="t"), plan=True)
    grant = manager.start("a")
    world.cancel("a")
    manager.live(SETTINGS.cancel_grace + 1.0)
    world.close_trajectory("t", TrajectoryEnd.ABANDONED)
    manager.live(30.0)
    assert "t" not in world.state.jobs["job"].closed_trajectories
    manager.end(grant, events.AttemptCancelled(), cost=Cost({"cpu": 9.0}))
    for each in (world, world.restart()):
        assert each.state.jobs["job"].account.until(world.now) == Cost({"cpu": 9.0})


def test_a_lost_manager_tells_nothing_so_its_grants_count_until_it_is_given_up() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a", trajectory_id="t", called_once=True, demand=fixed(cpu=2)), plan=True)
    grant = manager.start("a")
    began = world.now
    world.wait(SETTINGS.manager_lease + 1.0)
    ended = world.outcomes[key_of("a")].ended
    held = grant.resources["cpu"] * (ended - began)
    assert costs(world) == (Cost({"cpu": held}), Cost({"cpu": held}))
    assert ended - began >= SETTINGS.manager_lease
    # Its end comes too late to count twice.
    manager.join()
    manager.end(grant, cost=Cost({"cpu": 100.0}))
    assert costs(world)[0] == Cost({"cpu": held})


def test_one_that_never_began_costs_nothing() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a", trajectory_id="t"), plan=True)
    world.now += 50.0
    manager.join()
    assert costs(world) == (Cost(), Cost())


def test_a_sandbox_holds_its_demand_between_commands_until_its_end() -> None:
    world, manager = world_with_kept_sandbox()
    world.now += 10.0
    assert costs(world) == (Cost({"memory": 20.0}), Cost({"memory": 20.0}))
    world.step("step", plan=True)
    end(manager, "step", Cost({"cpu": 3.0}))
    world.now += 5.0
    world.close_trajectory("t", TrajectoryEnd.COMPLETED)
    world.now += 100.0
    assert costs(world) == (Cost({"memory": 30.0, "cpu": 3.0}), Cost({"memory": 30.0, "cpu": 3.0}))
    assert world.state.resting.until(world.now) == Cost({"memory": 30.0})


def test_one_that_gives_memory_back_holds_and_uses_what_is_measured() -> None:
    world, manager = world_with_kept_sandbox(memory=4 * GIB)
    world.now += 1.0
    world.step("step", plan=True)
    manager.end(manager.start("step"), held_mib=GIB // 2, cost=Cost())
    world.now += 8.0
    assert costs(world)[1] == Cost({"memory": 4.0 + 4.0}, {"memory": 4.0})


def test_a_lost_sandbox_and_one_that_is_made_anew_hold_while_they_live() -> None:
    world, manager = world_with_kept_sandbox()
    world.now += 10.0
    world.handle(events.SandboxLost("m", SandboxRef("job", "t", "reset#1"), "gone"))
    world.now += 50.0
    world.submit(action_request("again", ActionKind.ENV_RESET, "t", demand=kept(start_cpu=1, memory=GIB)), plan=True)
    end(manager, "again", Cost())
    world.now += 4.0
    assert costs(world)[1] == Cost({"memory": 20.0 + 4.0})


def test_a_copy_of_a_sandbox_costs_its_action_and_the_sandbox_goes_on() -> None:
    world, manager = world_with_kept_sandbox()
    world.submit(action_request("score", ActionKind.REWARD, "t", copy=SandboxCopy.ALWAYS), plan=True)
    world.now += 6.0
    end(manager, "score", Cost({"cpu": 6.0, "memory": 12.0}, {"cpu": 5.0}))
    assert costs(world)[1] == Cost({"cpu": 6.0, "memory": 12.0 + 12.0}, {"cpu": 5.0})


@pytest.mark.parametrize("back", [True, False])
def test_a_restart_loses_nothing_and_a_sandbox_holds_on_meanwhile(back: bool) -> None:
    world, manager = world_with_kept_sandbox()
    world.submit(action_request("a", trajectory_id="t"), plan=True)
    end(manager, "a", Cost({"cpu": 3.0}, {"calls:search": 2.0}))
    world.now += 10.0
    before = costs(world)
    world.now += 100.0
    after = world.restart()
    assert before[0] == before[1] == Cost({"memory": 20.0, "cpu": 3.0}, {"calls:search": 2.0})
    whole = Cost({"memory": 220.0, "cpu": 3.0}, {"calls:search": 2.0})
    assert costs(after) == (whole, whole)
    manager.world, manager.stream = after, Stream()
    manager.join(sandboxes=[SandboxRef("job", "t", "reset#1")] if back else [])
    after.now += 10.0
    assert costs(after)[0].held["memory"] == (240.0 if back else 220.0)
    assert costs(after)[0] == costs(after)[1]
    assert costs(after.restart()) == costs(after)


def test_a_group_costs_what_its_members_do_open_closed_or_lost() -> None:
    world, manager = CoreWorld(), None
    manager = world.manager()
    world.job()
    spent: Mapping[str, float] = {"one": 1.0, "two": 2.0, "three": 4.0}
    for name, amount in spent.items():
        world.trajectory(trajectory_request(name, group=GroupRequest("g", 3, 3)))
        world.submit(action_request(f"a-{name}", trajectory_id=name), plan=True)
        end(manager, f"a-{name}", Cost({"cpu": amount}))
    world.close_trajectory("one", TrajectoryEnd.COMPLETED)
    world.close_trajectory("two", TrajectoryEnd.LOST)
    for each in (world, world.restart()):
        job = each.state.jobs["job"]
        assert group_cost(job, job.groups["g"], each.now) == Cost({"cpu": 7.0})


def test_a_job_that_has_the_id_of_a_closed_one_begins_at_nothing() -> None:
    world, manager = world_with_kept_sandbox()
    world.submit(action_request("a", trajectory_id="t"), plan=True)
    grant = manager.start("a")
    world.now += 10.0
    world.close_job()
    world.job()
    assert world.state.jobs["job"].account.until(world.now) == Cost()
    assert world.state.resting.rate == Cost()
    manager.end(grant, events.AttemptCancelled(), cost=Cost({"cpu": 5.0}))
    assert world.state.jobs["job"].account.until(world.now) == Cost()
    assert world.restart().state.jobs["job"].account.until(world.now) == Cost()
    # What was spent was spent.
    assert world.state.spent[ActionKind.TOOL_CALL] == Cost({"cpu": 5.0})


def closed_cost(world: CoreWorld) -> Cost:
    """What the journal has of the one job that was closed."""
    (cost,) = world.journal.closed_jobs.values()
    return cost


def test_an_attempt_that_outlives_its_job_counts_when_it_ends() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a", trajectory_id="t"), plan=True)
    grant = manager.start("a")
    world.close_job()
    assert closed_cost(world) == Cost()
    world.job()
    world.now += 1.0
    manager.end(grant, events.AttemptCancelled(), cost=Cost({"cpu": 5.0}, {"tokens_out": 7.0}))
    assert closed_cost(world) == Cost({"cpu": 5.0}, {"tokens_out": 7.0})
    assert world.state.jobs["job"].account.until(world.now) == Cost()


def test_rows_of_trajectories_are_whole_when_their_job_is_closed() -> None:
    world, _ = world_with_kept_sandbox()
    world.now += 10.0
    kept: list[Cost] = []
    commit = world.journal.commit

    def before_the_close(batch: Iterable[Record]) -> None:
        for record in batch:
            if isinstance(record, JobClosed):
                account = world.journal.trajectories["job", "t"].cost
                assert account is not None
                kept.append(account.spent.copy())
            commit([record])

    world.journal.commit = before_the_close  # type: ignore[method-assign]
    world.close_job()
    assert kept == [closed_cost(world)] == [Cost({"memory": 20.0})]


@given(st.randoms(use_true_random=False), st.integers(5, 40))
def test_a_closed_job_costs_what_was_told_before_and_what_its_attempts_told_after(
    draw: random.Random, steps: int
) -> None:
    world, manager = world_with_kept_sandbox()
    running: list[Dispatch] = []
    for number in range(steps):
        match draw.choice(["step", "alone", "end", "wait", "restart"]):
            case "step" | "alone" as kind:
                world.submit(action_request(f"{kind}{number}", trajectory_id="t" if kind == "step" else ""), plan=True)
                if manager.has(f"{kind}{number}"):
                    running.append(manager.start(f"{kind}{number}"))
            case "end" if running:
                cost = Cost({"cpu": draw.random()}, {"tokens_out": float(number)})
                manager.end(running.pop(draw.randrange(len(running))), cost=cost)
            case "restart" if not running:
                manager.world = world = world.restart()
                manager.stream = Stream()
                manager.join(sandboxes=[SandboxRef("job", "t", "reset#1")])
            case _:
                world.now += draw.random() * 10.0
                manager.heartbeat()
    told = world.state.jobs["job"].account.until(world.now)
    world.close_job()
    for number, grant in enumerate(running, 1):
        manager.end(grant, events.AttemptCancelled(), cost=Cost({"cpu": float(number)}))
        told.add(Cost({"cpu": float(number)}))
    closed = closed_cost(world)
    assert closed.held == pytest.approx(told.held)
    assert closed.used == pytest.approx(told.used)
