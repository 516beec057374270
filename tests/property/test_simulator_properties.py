"""The simulator under policies that decide at random: the loop's order, the accounts, and the same numbers by seed."""

from __future__ import annotations

import random

import pytest
from callsheet.benchmarks.simulator.comparison.run import figures_of
from callsheet.benchmarks.simulator.measurements import Measurements
from callsheet.benchmarks.simulator.policy import EndFacts, Lane, Task, World
from callsheet.benchmarks.simulator.scenario import Scenario, Work
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.scheduler.core.words.model import ActionKind
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simulated import StartAtOnce, random_scenario, sustained


class Erratic(StartAtOnce):
    """Starts late or at once, in any lane and width, and changes its mind now and then."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world)
        self.order: dict[str, list[Work]] = {}
        self._draw = random.Random(seed)
        self._waiting: list[Task] = []
        self._running: list[Task] = []

    def ready(self, task: Task) -> None:
        """Queues it or starts it."""
        self.order.setdefault(task.rollout.name, []).append(task.work)
        self._waiting.append(task)
        self.world.wake_at(self.world.now + self._draw.choice((0.0, 0.0, 0.5)))

    def woken(self) -> None:
        """Starts what waits, and moves something that runs."""
        for task in self._waiting:
            self.world.start(
                task,
                node=self._node(task),
                width=self._draw.choice((1, 2, 4)),
                lane=self._draw.choice((Lane.FOREGROUND, Lane.BACKGROUND)),
                delay=self._draw.choice((0.0, 0.1)),
            )
        self._running += self._waiting
        self._waiting = []
        if self._running:
            task = self._draw.choice(self._running)
            self.world.set_lane(task, self._draw.choice((Lane.FOREGROUND, Lane.BACKGROUND)))
            self.world.set_width(task, self._draw.choice((1, 2, 4)))

    def ended(self, task: Task, facts: EndFacts) -> None:
        """Checks what it is told of the work."""
        super().ended(task, facts)
        self._running.remove(task)
        assert facts.cpu_s == pytest.approx(task.work.cpu_s)
        assert facts.execution_s <= task.execution_s + 1e-6


def run(scenario: Scenario, seed: int) -> tuple[Measurements, Erratic]:
    """One run, and its policy."""
    made: list[Erratic] = []

    def make(world: World) -> Erratic:
        made.append(Erratic(world, seed))
        return made[0]

    return simulate(scenario, make), made[0]


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_accounts_add_up_whatever_a_policy_does(seed: int) -> None:
    scenario = random_scenario(seed, trajectories=15)
    measured, policy = run(scenario, seed)
    works = [work for rollout in scenario.rollouts for work in policy.order[rollout.name]]
    actions = measured.actions
    assert len(actions) == len(works)
    assert actions.act_s == pytest.approx(actions.queue_s + actions.waited_s + actions.execution_s + actions.overhead_s)
    assert measured.cores_used_s == pytest.approx(sum(work.cpu_s for work in works))
    assert measured.cores_used_s <= measured.cores_held_s * (1 + 1e-9)
    assert measured.cores_held_s <= measured.cores * measured.ended_at * (1 + 1e-9)


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_every_trajectory_keeps_its_order(seed: int) -> None:
    scenario = random_scenario(seed, trajectories=15)
    _, policy = run(scenario, seed)
    for rollout in scenario.rollouts:
        steps = [action for turn in rollout.turns for action in turn.actions]
        assert policy.order[rollout.name] == [rollout.reset, *steps, *rollout.rewards]
        ready = [what for what, name, _ in policy.told if name == rollout.name]
        assert ready[0] == "arrived"
        assert ready[-1] == "finished"
    for task, _ in policy.facts:
        if task.work.kind is ActionKind.ENV_STEP:
            assert task.node == task.live.node


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_the_same_seed_gives_the_same_numbers(seed: int) -> None:
    scenario = sustained(random_scenario(seed, trajectories=15), live=10, horizon_s=60.0)
    (first, _), (second, _) = run(scenario, seed), run(scenario, seed)
    assert figures_of(first) == figures_of(second)
    assert first.cores_used_s == second.cores_used_s
