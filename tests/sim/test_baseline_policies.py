"""Every baseline policy in the real simulated world: what it must get right, and what it is known for."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from callsheet.benchmarks.simulator.bounds import bounds_of
from callsheet.benchmarks.simulator.measurements import Measurements
from callsheet.benchmarks.simulator.policies.oracle_srpt import ORACLE_SRPT
from callsheet.benchmarks.simulator.policies.os_sharing import OS_SHARING, STATIC_SERVICES
from callsheet.benchmarks.simulator.policies.pods import POD_LATENCY_S, fixed_size, reservation
from callsheet.benchmarks.simulator.policies.tangram import TangramSettings, tangram
from callsheet.benchmarks.simulator.policy import PolicyFactory
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

from tests.support.expected import present
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


BASELINES = (
    reservation(1),
    reservation(2),
    reservation(4),
    fixed_size(1),
    fixed_size(4),
    fixed_size(16),
    fixed_size(4, 0.0),
    OS_SHARING,
    STATIC_SERVICES,
    tangram(),
    tangram(TangramSettings(resident_first=True)),
    ORACLE_SRPT,
)
EXCLUSIVE = (fixed_size(1, 0.0), fixed_size(4, 0.0), tangram(TangramSettings(overhead_s=0.0)))
SEEDS = (1, 2, 3)


# Virtual times are no finer.
CLOCK_S = 1e-9


def named(factory: PolicyFactory) -> str:
    return factory.name


def many(seed: int, trajectories: int = 60) -> Scenario:
    """A contended step: more work at once than cores."""
    return random_scenario(seed, trajectories=trajectories, cores=6, turns=12)


def most_at_once(measured: Measurements) -> int:
    """Most trajectories that were live at one time."""
    began, ended = measured.rollouts.began_at, measured.rollouts.ended_at
    changes = sorted([(at, 1) for at in began.tolist()] + [(at, -1) for at in ended.tolist()])
    return max(accumulate(change for _, change in changes))


@pytest.mark.parametrize("factory", BASELINES, ids=named)
class TestEveryBaseline:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_finishes_a_scenario_with_everything_and_beats_no_bound(self, factory: PolicyFactory, seed: int) -> None:
        scenario = mixed_scenario(seed)
        assert factory.applies(scenario)
        measured = simulate(scenario, factory)
        bounds = bounds_of(scenario)
        assert measured.rollouts.finished.all()
        assert bounds.step_s is not None
        assert measured.step_s >= bounds.step_s * (1 - 1e-9)
        assert np.all(measured.actions.act_s >= measured.actions.best_s - CLOCK_S)

    def test_the_same_scenario_gives_the_same_numbers(self, factory: PolicyFactory) -> None:
        first, second = (simulate(mixed_scenario(5), factory).actions.ended_at for _ in range(2))
        assert np.array_equal(first, second)

    def test_keeps_a_sustained_run_going_and_beats_no_bound(self, factory: PolicyFactory) -> None:
        scenario = sustained(mixed_scenario(6), live=12, horizon_s=200.0)
        measured = simulate(scenario, factory)
        assert 0 < measured.trajectories_per_hour <= present(bounds_of(scenario).trajectories_per_hour)
        assert np.all(measured.actions.act_s >= measured.actions.best_s - CLOCK_S)


class TestReservation:
    def test_with_cores_for_all_nobody_waits(self) -> None:
        measured = simulate(random_scenario(1, trajectories=20, cores=10), reservation(1))
        assert measured.start_wait_mean_s == 0.0
        assert measured.actions.queue_s.max() == 0.0

    @pytest.mark.parametrize("cores", [1, 2, 4])
    def test_only_so_many_live_at_once_and_their_cores_are_held(self, cores: int) -> None:
        measured = simulate(many(2), reservation(cores))
        assert most_at_once(measured) == 12 // cores if cores < 4 else 2
        assert measured.start_wait_mean_s > 0.0

    def test_commands_of_a_pod_share_its_cores_in_order(self) -> None:
        works = (step(4.0), step(4.0))
        rollout = trajectory("t", ())
        turn = replace(trajectory("u", (step(1.0),)).turns[0], actions=works)
        measured = simulate(one_node([replace(rollout, turns=(turn,))], 8), reservation(1))
        assert measured.actions.act_s.tolist() == pytest.approx([0.5, 4.0, 8.0])


class TestExclusiveCores:
    @pytest.mark.parametrize("factory", EXCLUSIVE, ids=named)
    @pytest.mark.parametrize("seed", SEEDS)
    def test_nobody_is_slowed_down_by_others(self, factory: PolicyFactory, seed: int) -> None:
        measured = simulate(many(seed), factory)
        assert measured.actions.execution_s == pytest.approx(measured.actions.alone_s)
        assert measured.actions.queue_s.max() > 1.0

    def test_a_pod_takes_its_time_once_for_each_attempt(self) -> None:
        failing = replace(step(2.0), fails=1)
        measured = simulate(one_node([trajectory("t", (failing, step(1.0)))], 4), fixed_size(1))
        assert measured.actions.overhead_s.tolist() == pytest.approx([POD_LATENCY_S, 2 * POD_LATENCY_S, POD_LATENCY_S])

    def test_small_commands_pass_a_wide_one_that_does_not_fit(self) -> None:
        wide = Work(ActionKind.ENV_STEP, "test", cpu_s=40.0, parallel_fraction=1.0, max_width=4, in_sandbox=True)
        # A long serial command leaves 3 of 4 cores; then the wide one is ready, then a small one.
        rollouts = [trajectory("long", (step(30.0),)), trajectory("wide", (wide,)), trajectory("small", (step(1.0),))]
        timed = [replace(rollout, arrives=float(index)) for index, rollout in enumerate(rollouts)]
        measured = simulate(one_node(timed, 4), fixed_size(4, 0.0))
        assert measured.rollouts.ended_at.tolist() == pytest.approx([31.5, 41.5, 4.5])


class TestTangram:
    def test_a_lone_wide_command_gets_all_it_can_use(self) -> None:
        suite = Work(ActionKind.REWARD, "suite", cpu_s=80.0, parallel_fraction=1.0, max_width=8)
        measured = simulate(one_node([trajectory("t", (), rewards=(suite,))], 16), tangram())
        assert measured.actions.execution_s[-1] == pytest.approx(10.0)

    def test_commands_of_one_instant_are_sized_together(self) -> None:
        suite = Work(ActionKind.REWARD, "suite", cpu_s=80.0, parallel_fraction=1.0, max_width=16)
        measured = simulate(one_node([trajectory("t", (), rewards=(suite, suite))], 16), tangram())
        assert measured.actions.execution_s[1:].tolist() == pytest.approx([10.0, 10.0])

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_deeper_search_changes_nothing_that_matters(self, seed: int) -> None:
        scenario = many(seed, trajectories=120)
        shallow, deep = (simulate(scenario, tangram(TangramSettings(depth=depth))) for depth in (64, 1_024))
        assert shallow.act_mean_s == pytest.approx(deep.act_mean_s, rel=0.01)


class TestSharing:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_the_operating_system_lets_nothing_wait(self, seed: int) -> None:
        measured = simulate(many(seed), OS_SHARING)
        assert measured.actions.queue_s.max() == 0.0
        assert measured.start_wait_mean_s == 0.0

    def test_commands_wait_for_memory_where_there_is_too_little(self) -> None:
        big = replace(step(4.0), peak_memory_mb=600)
        scenario = one_node([trajectory(f"t{index}", (big,)) for index in range(2)], 8)
        tight = replace(scenario, cluster=Cluster(cpu=(CpuNodes(1, 8, memory_mb=1_000),)))
        measured = simulate(tight, OS_SHARING)
        assert sorted(measured.actions.act_s.tolist()) == pytest.approx([0.5, 0.5, 4.0, 8.0])


class TestOracle:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_on_one_node_its_mean_is_less_than_that_of_other_rules(self, seed: int) -> None:
        scenario = many(seed)
        oracle = simulate(scenario, ORACLE_SRPT).act_mean_s
        for factory in (*EXCLUSIVE, OS_SHARING, tangram()):
            assert oracle <= simulate(scenario, factory).act_mean_s

    def test_a_short_command_pauses_a_long_one(self) -> None:
        rollouts = [trajectory("long", (step(10.0),)), replace(trajectory("short", (step(2.0),)), arrives=3.0)]
        measured = simulate(one_node(rollouts, 1), ORACLE_SRPT)
        # The long one runs from 1.5, stands still for the short one's reset (3.0 to 3.5) and step (4.5 to 6.5).
        assert measured.rollouts.ended_at.tolist() == pytest.approx([14.0, 6.5])


class TestOrder:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_contended_steps_come_out_in_the_known_order(self, seed: int) -> None:
        """Exclusive cores waste what commands do not use, so sharing beats them; knowing durations beats sharing."""
        means = [simulate(many(seed), factory).act_mean_s for factory in (tangram(), OS_SHARING, ORACLE_SRPT)]
        assert means == sorted(means, reverse=True)


class TestQuotas:
    def test_plans_are_never_refused(self) -> None:
        for factory in (tangram(), ORACLE_SRPT):
            assert simulate(mixed_scenario(1), factory).counts["refusals"] == 0

    def test_backing_off_gets_everything_through(self) -> None:
        measured = simulate(mixed_scenario(1), OS_SHARING)
        assert measured.counts["refusals"] > 0
        assert measured.rollouts.finished.all()


class TestApplicability:
    def test_a_pod_must_fit(self) -> None:
        scenario = mixed_scenario(1)
        small = replace(scenario.cluster, cpu=(CpuNodes(1, 2, memory_mb=3_000),))
        assert [factory.applies(scenario) for factory in BASELINES[:3]] == [True, True, True]
        assert not reservation(1).applies(replace(scenario, cluster=small))  # two commands with 1,500 MB at one time
        assert not reservation(4).applies(one_node([trajectory("t", (step(1.0),))], 2))

    def test_memory_that_no_node_has_is_refused(self) -> None:
        # The largest sandbox and the largest peak fit by themselves, not together.
        hungry = trajectory("hungry", (replace(step(1.0), peak_memory_mb=700),))
        scenario = one_node([hungry, replace(trajectory("large", (step(1.0),)), memory_mb=700)], 4)
        tight = replace(scenario, cluster=Cluster(cpu=(CpuNodes(1, 4, memory_mb=1_000),)))
        with pytest.raises(ValueError, match=r"large: .* is more than any CPU node has"):
            simulate(tight, OS_SHARING)

    def test_policies_of_cores_mean_nothing_without_commands(self) -> None:
        scenario = mixed_scenario(1)
        alone = tuple(replace(r, reset=None, turns=(), rewards=r.rewards[1:]) for r in scenario.rollouts)
        calls = replace(scenario, rollouts=alone)
        applying = [factory.name for factory in BASELINES if factory.applies(calls)]
        assert applying == ["static_services", "tangram", "tangram_resident_first", "oracle_srpt"]

    def test_static_services_need_gpus_for_every_model(self) -> None:
        scenario = mixed_scenario(1)
        assert not STATIC_SERVICES.applies(replace(scenario, cluster=replace(scenario.cluster, gpu=())))
        assert scenario.mode is Mode.ONESHOT
