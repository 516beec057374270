"""The closed loop of trajectories: order, retries, timeouts and replacement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
from callsheet.benchmarks.simulator.measurements import Measurements
from callsheet.benchmarks.simulator.policy import EndFacts, Lane, LiveRollout, Policy, Task, World
from callsheet.benchmarks.simulator.scenario import Generation, Scenario, Turn, Work
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.scheduler.core.words.model import ActionKind

from tests.support.simulated import StartAtOnce, one_node, step, sustained, trajectory


def run(scenario: Scenario, make: Callable[[World], StartAtOnce] = StartAtOnce) -> tuple[Measurements, StartAtOnce]:
    """The measurements, and the policy as it was at the end."""
    made: list[StartAtOnce] = []

    def make_and_keep(world: World) -> Policy:
        made.append(make(world))
        return made[0]

    return simulate(scenario, make_and_keep), made[0]


def test_generation_actions_and_rewards_take_turns() -> None:
    rewards = [Work(ActionKind.REWARD, "judge", cpu_s=1.0), Work(ActionKind.REWARD, "judge", cpu_s=2.0)]
    rollout = trajectory("a", [step(2.0), step(3.0)], generation_s=10.0, arrives=1.0, rewards=rewards)
    measured, policy = run(one_node([rollout], 4))
    told = [(what, at) for what, _, at in policy.told]
    assert told == [
        ("arrived", 1.0),
        ("ready", 1.0),  # the reset, half a second
        ("ended", 1.5),
        ("ready", 11.5),
        ("ended", 13.5),
        ("ready", 23.5),
        ("ended", 26.5),
        ("ready", 26.5),
        ("ready", 26.5),
        ("ended", 27.5),
        ("ended", 28.5),
        ("finished", 28.5),
    ]
    assert measured.step_s == 28.5


def test_a_turn_is_over_when_all_its_actions_are() -> None:
    turn = Turn(Generation(1.0), (step(2.0), step(5.0)))
    rollout = replace(trajectory("a", []), turns=(turn, Turn(Generation(1.0), ())))
    measured, _ = run(one_node([rollout], 4))
    assert measured.step_s == pytest.approx(0.5 + 1.0 + 5.0 + 1.0)


def test_a_command_that_waits_uses_less_than_a_core() -> None:
    measured, policy = run(one_node([trajectory("a", [step(1.0, use=0.25)])], 1))
    assert measured.actions.act_s[1] == pytest.approx(4.0)
    assert policy.facts[1][1] == EndFacts(cpu_s=1.0, execution_s=4.0)


def test_a_timeout_counts_time_at_full_speed_only() -> None:
    work = step(10.0, timeout_s=3.0)
    alone, _ = run(one_node([trajectory("a", [work])], 1))
    assert alone.actions.act_s[1] == pytest.approx(3.0)
    crowded, policy = run(one_node([trajectory("a", [work]), trajectory("b", [work])], 1))
    assert crowded.counts["timeouts"] == 2
    assert crowded.actions.act_s[2:] == pytest.approx([6.0, 6.0])
    assert policy.facts[-1][1] == EndFacts(timed_out=True, cpu_s=3.0, execution_s=3.0)


def test_a_failure_comes_back_with_the_next_attempt() -> None:
    flaky = Work(ActionKind.REWARD, "suite", cpu_s=2.0, fails=2)
    measured, policy = run(one_node([trajectory("a", [], rewards=[flaky])], 1))
    attempts = [(task.attempt, facts.failed) for task, facts in policy.facts]
    assert [failed for _, failed in attempts] == [False, True, True, False]
    assert policy.facts[-1][0].attempt == 3
    assert measured.actions.act_s[-1] == pytest.approx(6.0)
    assert measured.actions.wait_s[-1] == pytest.approx(4.0)  # what the failures cost
    assert measured.counts["failures"] == 2


def test_a_failed_reset_gives_its_sandbox_back() -> None:
    rollout = trajectory("a", [step(1.0)])
    assert rollout.reset is not None
    # Beside a sandbox that was left behind there would be no memory for the next one.
    scenario = one_node([replace(rollout, reset=replace(rollout.reset, fails=1), memory_mb=2_000_000)], 1)

    class Watching(StartAtOnce):
        def ready(self, task: Task) -> None:
            if task.work.kind is ActionKind.ENV_RESET:
                assert task.live.node == ""
            super().ready(task)

    measured, _ = run(scenario, Watching)
    assert measured.step_s == pytest.approx(0.5 + 0.5 + 1.0 + 1.0)


def test_queue_execution_and_overhead_make_up_the_act() -> None:
    class Late(StartAtOnce):
        def ready(self, task: Task) -> None:
            self.late = task
            self.world.wake_at(self.world.now + 2.0)

        def woken(self) -> None:
            self.world.start(self.late, node="cpu-0", delay=0.25)

    measured, _ = run(one_node([trajectory("a", [step(1.0)])], 1), Late)
    actions = measured.actions
    assert actions.queue_s.tolist() == pytest.approx([2.0, 2.0])
    assert actions.overhead_s.tolist() == pytest.approx([0.25, 0.25])
    assert actions.execution_s.tolist() == pytest.approx([0.5, 1.0])
    assert actions.act_s.tolist() == pytest.approx([2.75, 3.25])
    assert measured.wait_max_s == pytest.approx(2.25)


def test_the_wait_to_begin_is_no_part_of_act() -> None:
    class Patient(StartAtOnce):
        def arrived(self, live: LiveRollout) -> None:
            self.live = live
            self.world.wake_at(7.0)

        def woken(self) -> None:
            self.world.begin(self.live)

    measured, _ = run(one_node([trajectory("a", [step(1.0)])], 1), Patient)
    assert measured.start_wait_mean_s == pytest.approx(7.0)
    assert measured.actions.act_s.tolist() == pytest.approx([0.5, 1.0])


def test_lanes_and_widths_change_a_running_command() -> None:
    wide = replace(step(8.0), parallel_fraction=1.0, max_width=4, adaptive=True)

    class Changing(StartAtOnce):
        def ready(self, task: Task) -> None:
            super().ready(task)
            self.task = task
            if task.work.kind is ActionKind.ENV_STEP:
                self.world.wake_at(self.world.now + 2.0)

        def woken(self) -> None:
            assert self.world.cpu_attained(self.task) == pytest.approx(2.0)
            self.world.set_lane(self.task, Lane.BACKGROUND)
            self.world.set_width(self.task, 3)

    measured, policy = run(one_node([trajectory("a", [wide])], 4), Changing)
    assert policy.facts[1][0].lane is Lane.BACKGROUND
    assert measured.actions.act_s[1] == pytest.approx(2.0 + 2.0)
    assert policy.facts[1][1].execution_s == pytest.approx(2.0 + 2.0)


def test_a_command_that_does_not_adapt_keeps_the_width_of_its_start() -> None:
    class Widening(StartAtOnce):
        def ready(self, task: Task) -> None:
            super().ready(task)
            self.world.set_width(task, 4)

    rigid = replace(step(4.0), parallel_fraction=1.0, max_width=4)
    measured, _ = run(one_node([trajectory("a", [rigid])], 4), Widening)
    assert measured.actions.act_s[1] == pytest.approx(4.0)


def test_a_sustained_run_replaces_what_finishes_and_starts_again_after_the_last() -> None:
    rollouts = [trajectory(f"t{index}", [step(1.0)], generation_s=8.5) for index in range(3)]
    measured, policy = run(sustained(one_node(rollouts, 4), live=2, horizon_s=100.0))
    assert measured.ended_at == 100.0
    assert measured.trajectories_per_hour == pytest.approx(2 * 360, rel=0.1)
    arrived = [name for what, name, _ in policy.told if what == "arrived"]
    assert arrived[:5] == ["t0", "t1", "t2", "t0/1", "t1/1"]


def test_a_policy_that_forgets_an_action_is_told_so() -> None:
    class Forgetful(StartAtOnce):
        def ready(self, task: Task) -> None:
            """Does nothing."""

    with pytest.raises(RuntimeError, match=r"start_at_once left 1 trajectories unfinished \(a, \.\.\.\)"):
        run(one_node([trajectory("a", [step(1.0)])], 1), Forgetful)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node": "cpu-1"}, "a has its sandbox on 'cpu-0', not on 'cpu-1'"),
        ({"node": "cpu-9"}, "'cpu-9' is no CPU node"),
        ({"node": "cpu-0", "width": 0}, "width: must be at least 1, not 0"),
    ],
)
def test_a_start_that_cannot_be_is_refused(change: dict[str, str | int], message: str) -> None:
    class Wrong(StartAtOnce):
        def ready(self, task: Task) -> None:
            if task.work.kind is ActionKind.ENV_RESET:
                super().ready(task)
            else:
                self.world.start(task, **change)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match=message):
        run(one_node([trajectory("a", [step(1.0)])], 1, nodes=2), Wrong)


def test_a_task_starts_once() -> None:
    class Twice(StartAtOnce):
        def ready(self, task: Task) -> None:
            super().ready(task)
            super().ready(task)

    with pytest.raises(ValueError, match="ENV_RESET of a runs already, or has ended"):
        run(one_node([trajectory("a", [])], 1), Twice)


def test_memory_is_taken_by_sandboxes_and_by_peaks() -> None:
    greedy = replace(step(1.0), peak_memory_mb=1_500_000)
    rollouts = [trajectory("a", [greedy]), trajectory("b", [greedy])]
    with pytest.raises(ValueError, match="b: needs 1500000 MB of memory; cpu-0 has 899800 MB free"):
        run(one_node(rollouts, 4))


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        (one_node([trajectory("a", []), trajectory("a", [])], 1), "1 names occur more than once"),
        (sustained(one_node([trajectory("a", [])], 1), live=1, horizon_s=inf), "horizon_s: inf; a sustained run"),
        (sustained(one_node([trajectory("a", [])], 1), live=2, horizon_s=1.0), "live: 2; must be 1 to 1"),
        (one_node([replace(trajectory("a", []), job="other")], 1), r"a\.job: 'other'; must be a job"),
        (one_node([replace(trajectory("a", [step(1.0)]), reset=None)], 1), "must have a reset"),
        (one_node([trajectory("a", [step(1.0, use=2.0)])], 1), r"use: 2\.0; must be in \(0, 1\]"),
        (one_node([trajectory("a", [Work(ActionKind.REWARD, "judge", service="judge")])], 1), "a model of the cluster"),
        (one_node([trajectory("a", [Work(ActionKind.TOOL_CALL, "web", quota="web")])], 1), "a quota of the cluster"),
        (one_node([trajectory("a", [replace(step(1.0), peak_memory_mb=10**7)])], 1), "10000100 MB of memory"),
    ],
)
def test_a_scenario_that_cannot_be_is_refused(scenario: Scenario, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(scenario, StartAtOnce)
