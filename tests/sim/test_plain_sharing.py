"""Plain sharing in the simulated world: it finishes everything, and lets nothing wait but for memory."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from callsheet.benchmarks.simulator.policies.os_sharing import OS_SHARING, OsSharing
from callsheet.benchmarks.simulator.policy import Task, World
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
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.scheduler.core.words.model import ActionKind

from tests.support.simulated import one_node, random_scenario, step, sustained, trajectory

GROUP_SIZE = 4
CLUSTER = Cluster(
    cpu=(CpuNodes(2, 8, memory_mb=6_000), CpuNodes(1, 4, memory_mb=4_000)),
    gpu=(GpuNodes(1, 4), GpuNodes(1, 2)),
    models=(Model("judge", 1, 0.5, 3.0, slots=2), Model("teacher", 2, 1.0, 5.0)),
    quotas=(Quota("web", concurrency=6, per_second=3.0, burst=4.0, tokens_per_minute=60_000.0),),
    pull_s=0.5,
    pulls_at_once=2,
)


def mixed_scenario(seed: int, *, trajectories: int = 32) -> Scenario:
    """Sandboxes with tight memory, wide commands, parallel actions, GPU models, an API, failures and timeouts."""
    draw = random.Random(seed)
    return Scenario(
        workload="mixed",
        mode=Mode.ONESHOT,
        seed=seed,
        cluster=CLUSTER,
        jobs=(ScenarioJob("job"),),
        rollouts=tuple(_rollout(draw, index) for index in range(trajectories)),
        live=trajectories,
    )


def _rollout(draw: random.Random, index: int) -> Rollout:
    group = f"group-{index // GROUP_SIZE}"
    has_sandbox = index % 5 != 4
    return Rollout(
        name=f"t{index}",
        job="job",
        group=group,
        task=group,
        image=group if has_sandbox else "",
        memory_mb=400 if has_sandbox else 0,
        arrives=draw.uniform(0.0, 5.0),
        reset=_command(draw, ActionKind.ENV_RESET, "reset") if has_sandbox else None,
        turns=tuple(_turn(draw, has_sandbox) for _ in range(draw.randint(1, 6))),
        rewards=_rewards(draw),
    )


def _turn(draw: random.Random, has_sandbox: bool) -> Turn:
    generation = Generation(draw.expovariate(0.5))
    if has_sandbox and draw.random() < 0.7:
        label = draw.choice(("git", "test"))
        return Turn(generation, tuple(_command(draw, ActionKind.ENV_STEP, label) for _ in range(draw.randint(1, 2))))
    return Turn(generation, tuple(_search(draw) for _ in range(draw.randint(1, 3))))


def _command(draw: random.Random, kind: ActionKind, label: str) -> Work:
    width = draw.choice((1, 1, 1, 4)) if label == "test" else 1
    return Work(
        kind,
        label,
        cpu_s=draw.expovariate(0.5),
        use=draw.uniform(0.2, 1.0),
        parallel_fraction=0.8 if width > 1 else 0.0,
        max_width=width,
        in_sandbox=True,
        peak_memory_mb=draw.choice((0, 100, 1_500)),
        service_s=draw.choice((0.0, 0.0, 0.3)),
        timeout_s=8.0,
        fails=int(draw.random() < 0.1),
    )


def _search(draw: random.Random) -> Work:
    return Work(
        ActionKind.TOOL_CALL, "search", quota="web", service_s=draw.expovariate(1.0), tokens=draw.randint(0, 3_000)
    )


def _rewards(draw: random.Random) -> tuple[Work, ...]:
    suite = Work(
        ActionKind.REWARD,
        "suite",
        cpu_s=draw.expovariate(0.1),
        use=0.9,
        parallel_fraction=0.9,
        max_width=16,
        peak_memory_mb=500,
        fails=int(draw.random() < 0.1),
    )
    name = draw.choice(("judge", "judge", "teacher"))
    call = Work(ActionKind.REWARD, name, service=name, service_s=draw.expovariate(1.0), fails=int(draw.random() < 0.1))
    return (suite, call)


SEEDS = (1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_is_finished(seed: int) -> None:
    measured = simulate(mixed_scenario(seed), OS_SHARING)
    assert measured.rollouts.finished.all()
    # Times of a sum are no finer than a nanosecond.
    assert (measured.actions.execution_s >= measured.actions.alone_s - 1e-9).all()


def test_the_same_scenario_gives_the_same_numbers() -> None:
    first, second = (simulate(mixed_scenario(5), OS_SHARING).actions.ended_at for _ in range(2))
    assert np.array_equal(first, second)


def test_a_sustained_run_goes_on() -> None:
    assert simulate(sustained(mixed_scenario(6), live=12, horizon_s=200.0), OS_SHARING).trajectories_per_hour > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_operating_system_lets_nothing_wait(seed: int) -> None:
    measured = simulate(random_scenario(seed, trajectories=60, cores=6, turns=12), OS_SHARING)
    assert measured.actions.queue_s.max() == 0.0
    assert measured.start_wait_mean_s == 0.0


def test_commands_wait_for_memory_if_there_is_too_little() -> None:
    big = replace(step(4.0), peak_memory_mb=600)
    scenario = one_node([trajectory(f"t{index}", (big,)) for index in range(2)], 8)
    tight = replace(scenario, cluster=Cluster(cpu=(CpuNodes(1, 8, memory_mb=1_000),)))
    measured = simulate(tight, OS_SHARING)
    assert sorted(measured.actions.act_s.tolist()) == pytest.approx([0.5, 0.5, 4.0, 8.0])


def test_a_small_trajectory_passes_one_that_does_not_fit_yet() -> None:
    sizes = {"first": 600, "large": 700, "small": 100}
    rollouts = [replace(trajectory(name, (step(4.0),)), memory_mb=size) for name, size in sizes.items()]
    tight = replace(one_node(rollouts, 8), cluster=Cluster(cpu=(CpuNodes(1, 8, memory_mb=1_000),)))
    assert simulate(tight, OS_SHARING).rollouts.began_at.tolist() == pytest.approx([0.0, 5.5, 0.0])


class Homed(OsSharing):
    """Notes where each trajectory lives."""

    def __init__(self, world: World, found: list[str]) -> None:
        super().__init__(world)
        self.found = found

    def ready(self, task: Task) -> None:
        """Starts a reset, and notes its node."""
        super().ready(task)
        self.found.append(task.node)


def test_trajectories_live_apart_and_with_their_image() -> None:
    rollouts = [replace(trajectory(name, ()), group="g", image="i") for name in "abc"]
    stranger = replace(trajectory("stranger", ()), group="other")
    for cores, homes in (((8, 4, 4), ["cpu-0", "cpu-1", "cpu-2", "cpu-0"]), ((60, 60), ["cpu-0"] * 3 + ["cpu-1"])):
        nodes = tuple(CpuNodes(1, each) for each in cores)
        scenario = replace(one_node([*rollouts, stranger], 1), cluster=Cluster(cpu=nodes))
        found: list[str] = []
        simulate(scenario, partial(Homed, found=found))
        assert found == homes


def test_backing_off_gets_everything_through() -> None:
    measured = simulate(mixed_scenario(1), OS_SHARING)
    assert measured.counts["refusals"] > 0
    assert measured.rollouts.finished.all()


def test_memory_that_no_node_has_is_refused() -> None:
    # The largest sandbox and the largest peak fit by themselves, not together.
    hungry = trajectory("hungry", (replace(step(1.0), peak_memory_mb=700),))
    scenario = one_node([hungry, replace(trajectory("large", (step(1.0),)), memory_mb=700)], 4)
    tight = replace(scenario, cluster=Cluster(cpu=(CpuNodes(1, 4, memory_mb=1_000),)))
    with pytest.raises(ValueError, match=r"large: 700 MB is more than any CPU node has for it: 300 MB"):
        simulate(tight, OS_SHARING)
