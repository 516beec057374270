"""Callsheet in the simulator: the core's own invariants, one outcome per action, and the same numbers by seed."""

from __future__ import annotations

import random

import pytest
from callsheet.benchmarks.simulator.policies.callsheet import Callsheet
from callsheet.benchmarks.simulator.policy import World
from callsheet.benchmarks.simulator.scenario import (
    Cluster,
    CpuNodes,
    Generation,
    GpuNodes,
    Mode,
    Model,
    Quota,
    Rollout,
    Scenario,
    ScenarioJob,
    Turn,
    Work,
)
from callsheet.benchmarks.simulator.shell.settings import CallsheetSettings
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.managers.sandbox.settings import CoreSharing
from callsheet.scheduler.core.step import Step, Stepper
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.service.settings import PlannerChoice

from tests.support.core_invariants import check_invariants

RESET = Work(ActionKind.ENV_RESET, "reset", cpu_s=0.5, use=0.5, in_sandbox=True)
CLUSTER = Cluster(
    cpu=(CpuNodes(2, 4, memory_mb=8_192),),
    gpu=(GpuNodes(1, 4),),
    models=(Model("judge", 1, restore_s=0.5, load_s=2.0), Model("teacher", 2, restore_s=0.5, load_s=2.0)),
    quotas=(Quota("search", concurrency=4, per_second=8.0, burst=4.0),),
)
ABLATIONS = {
    "first come": CallsheetSettings(planner=PlannerChoice.FIRST_COME),
    "greedy": CallsheetSettings(solver=False),
    "elastic": CallsheetSettings(),
    "no node sharing": CallsheetSettings(core_sharing=CoreSharing.PLAIN),
    "whole cores": CallsheetSettings(core_sharing=CoreSharing.RESERVED),
    "no admission": CallsheetSettings(admission=False),
}


def draw_work(random_: random.Random) -> Work:
    """A command, a call of an API, or a failing API call."""
    label = random_.choice(["git", "test", "search"])
    if label == "search":
        fails = random_.random() < 0.1
        return Work(ActionKind.TOOL_CALL, label, quota="search", service_s=random_.expovariate(2.0), fails=int(fails))
    cpu_s = random_.lognormvariate(-1.0, 1.5)
    if label == "git":
        return Work(ActionKind.ENV_STEP, label, cpu_s, use=0.6, in_sandbox=True, timeout_s=20.0)
    return Work(
        ActionKind.ENV_STEP, label, cpu_s, parallel_fraction=0.9, max_width=4, in_sandbox=True, peak_memory_mb=128
    )


def draw_rollout(random_: random.Random, index: int, arrives: float) -> Rollout:
    """A coding trajectory; its rewards are a test suite in a fresh place and a model."""
    turns = tuple(
        Turn(Generation(random_.expovariate(0.5)), tuple(draw_work(random_) for _ in range(random_.choice([1, 1, 2]))))
        for _ in range(random_.randint(1, 5))
    )
    rewards = (
        Work(ActionKind.REWARD, "suite", random_.lognormvariate(0.5, 1.0), parallel_fraction=0.95, max_width=4),
        Work(
            ActionKind.REWARD, "model", service=random_.choice(["judge", "teacher"]), service_s=random_.uniform(0.1, 1)
        ),
    )
    job, group = ("light", f"g{index // 4}") if index % 2 else ("heavy", f"h{index // 8}")
    return Rollout(f"t{index}", job, group, f"task{index // 4}", "image", 512, arrives, RESET, turns, rewards)


def draw_scenario(seed: int, trajectories: int = 20) -> Scenario:
    """A small scenario with something of everything."""
    random_ = random.Random(seed)
    rollouts = tuple(draw_rollout(random_, index, 0.1 * index) for index in range(trajectories))
    jobs = (ScenarioJob("light"), ScenarioJob("heavy", weight=2.0))
    return Scenario("drawn", Mode.ONESHOT, seed, CLUSTER, jobs, rollouts, live=trajectories)


class Runs:
    """Runs a scenario and keeps the policy, to look at what became of it."""

    def __init__(self, settings: CallsheetSettings) -> None:
        self.settings = settings
        self.policy: Callsheet | None = None

    def __call__(self, world: World) -> Callsheet:
        self.policy = Callsheet(world, self.settings)
        _check_every_step(self.policy._loop.stepper)
        return self.policy


def _check_every_step(stepper: Stepper) -> None:
    """Has the core's invariants checked after each of its steps that did something."""
    unchecked = stepper.step

    def step(now: float, *, timers_from: float = 0.0) -> Step:
        done = unchecked(now, timers_from=timers_from)
        if done.commands:
            check_invariants(stepper.state)
        return done

    stepper.step = step  # type: ignore[method-assign]


# One seed for each ablation, three for what is used.
@pytest.mark.parametrize(("name", "seed"), [*((name, 1) for name in ABLATIONS), ("elastic", 2), ("elastic", 3)])
def test_every_action_gets_one_outcome(name: str, seed: int) -> None:
    runs = Runs(ABLATIONS[name])
    simulate(draw_scenario(seed), runs)
    assert runs.policy is not None
    counts = runs.policy.counts()
    assert counts.submitted > 100
    assert counts.outcomes == counts.submitted


def test_a_failed_call_is_retried_though_nothing_else_happens() -> None:
    call = Work(ActionKind.REWARD, "judge", service="judge", service_s=1.0, fails=1)
    rollout = Rollout("t", "job", "g", "task", "", 0, 0.0, None, (Turn(Generation(0.1), ()),), (call,))
    cluster = Cluster(gpu=(GpuNodes(1, 2),), models=(Model("judge", 1, 0.0, 0.0),))
    measured = simulate(
        Scenario("one call", Mode.ONESHOT, 1, cluster, (ScenarioJob("job"),), (rollout,), live=1), Callsheet
    )
    assert measured.actions.ended_at.max() < 10.0


def test_same_seed_same_numbers() -> None:
    first, second = (simulate(draw_scenario(7), Runs(CallsheetSettings())) for _ in range(2))
    assert len(first.actions) > 100
    assert first.actions.ended_at.tolist() == second.actions.ended_at.tolist()
    assert first.counts == second.counts
