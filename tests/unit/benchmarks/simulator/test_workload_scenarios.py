"""Scenarios: what is drawn, from which seed, on which machines."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from itertools import islice

import pytest
from callsheet.benchmarks.simulator import workloads
from callsheet.benchmarks.simulator.scenario import Mode, Rollout, Work
from callsheet.benchmarks.simulator.validation import InputError
from callsheet.benchmarks.simulator.workloads.parameters import Distribution, Geometric, LogNormal, Quantiles, Uniform
from callsheet.benchmarks.simulator.workloads.scenarios import draw_rollouts
from callsheet.scheduler.core.words.model import ActionKind, PriorityClass


def _actions(rollouts: tuple[Rollout, ...]) -> list[Work]:
    return [work for rollout in rollouts for turn in rollout.turns for work in turn.actions]


@pytest.mark.parametrize("name", workloads.names())
@pytest.mark.parametrize("mode", list(Mode))
def test_every_workload_makes_scenarios_in_both_modes(name: str, mode: Mode) -> None:
    scenario = workloads.scenario(name, mode=mode, trajectories=24, seed=3, cores=8, horizon_s=100.0)
    assert (scenario.live, len({rollout.name for rollout in scenario.rollouts})) == (24, len(scenario.rollouts))
    assert {rollout.job for rollout in scenario.rollouts} == {job.name for job in scenario.jobs}
    models = {model.name for model in scenario.cluster.models}
    quotas = {quota.name for quota in scenario.cluster.quotas}
    for rollout in scenario.rollouts:
        works = [*_actions((rollout,)), *rollout.rewards, *([rollout.reset] if rollout.reset else [])]
        assert all(work.service in models | {""} and work.quota in quotas | {""} for work in works)
        assert all(bool(work.cpu_s) != bool(work.service_s) for work in works)
        assert bool(rollout.reset) == bool(rollout.image)
    assert sum(nodes.count * nodes.cores for nodes in scenario.cluster.cpu) == 8


def test_same_seed_same_trajectories_whatever_the_machines_and_the_number() -> None:
    few = workloads.scenario("mixed", trajectories=20, seed=7, cores=8, nodes=2, gpus=8)
    many = workloads.scenario("mixed", trajectories=50, seed=7)
    other = workloads.scenario("mixed", trajectories=20, seed=8)
    assert few.rollouts == many.rollouts[:20]
    assert few.rollouts != other.rollouts


def test_sustained_mode_never_runs_out_of_trajectories() -> None:
    scenario = workloads.scenario("games", mode=Mode.SUSTAINED, trajectories=10, seed=1, horizon_s=200.0)
    assert scenario.horizon_s == 200.0
    replaced = scenario.rollouts[: -scenario.live]
    assert sum(workloads.alone_s(rollout) for rollout in replaced) >= 10 * 200.0
    assert len(scenario.rollouts) < 400


@pytest.fixture(scope="module")
def coding() -> tuple[Rollout, ...]:
    """Enough of them for a statistic."""
    return workloads.scenario("coding", trajectories=1600, seed=5, reward_mix="full_suite").rollouts


def test_siblings_share_task_image_and_a_part_of_their_durations(coding: tuple[Rollout, ...]) -> None:
    rollouts = coding
    groups: dict[str, list[float]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(math.log(rollout.rewards[0].alone_s()))
    assert all(len({r.task for r in rollouts if r.group == group}) == 1 for group in list(groups)[:5])
    within = statistics.fmean(statistics.variance(logs) for logs in groups.values())
    total = statistics.variance([log for logs in groups.values() for log in logs])
    assert 1.0 - within / total == pytest.approx(0.73, abs=0.08)
    fractions = {rollout.task: rollout.rewards[0].parallel_fraction for rollout in rollouts}
    assert all(0.90 <= fraction <= 0.95 for fraction in fractions.values())


def test_coding_is_like_the_traces_it_was_fitted_from(coding: tuple[Rollout, ...]) -> None:
    rollouts = coding
    steps = sorted(work.alone_s() for work in _actions(rollouts))
    # Clean coding traces: p50 0.13, p90 2.1, p95 3.4, p99 17, mean 1.36.
    assert statistics.fmean(steps) == pytest.approx(1.36, rel=0.2)
    assert steps[len(steps) // 2] == pytest.approx(0.126, rel=0.25)
    assert steps[len(steps) * 9 // 10] == pytest.approx(2.1, rel=0.2)
    labels = Counter(work.label for work in _actions(rollouts))
    assert labels["test"] / labels.total() == pytest.approx(0.177, abs=0.01)
    assert statistics.median(len(rollout.turns) for rollout in rollouts) == pytest.approx(47, rel=0.1)


def test_reward_mix_chooses_and_leaves_out() -> None:
    none = workloads.scenario("coding", trajectories=16, reward_mix="none")
    quick = workloads.scenario("coding", trajectories=16)
    full = workloads.scenario("coding", trajectories=16, reward_mix="full_suite")
    assert all(not rollout.rewards for rollout in none.rollouts)
    assert [rollout.turns for rollout in none.rollouts] == [rollout.turns for rollout in full.rollouts]
    assert sum(r.rewards[0].cpu_s for r in full.rollouts) > sum(r.rewards[0].cpu_s for r in quick.rollouts)
    assert all(rollout.rewards[0].max_width == 16 for rollout in quick.rollouts)
    with pytest.raises(InputError, match=r"reward_mix: 'all': must be one of full_suite, none, quick_suite"):
        workloads.scenario("coding", trajectories=1, reward_mix="all")


def test_mixed_keeps_the_weights_and_priority_classes_of_its_parts() -> None:
    shares = {job.name: (job.weight, job.priority) for job in workloads.scenario("mixed", trajectories=1).jobs}
    assert shares == {
        "coding": (1.0, PriorityClass.TRAIN),
        "deepsearch": (1.0, PriorityClass.TRAIN),
        "mopd": (2.0, PriorityClass.EVAL),
    }


def test_mixed_keeps_its_shares_from_the_start() -> None:
    rollouts = list(islice(draw_rollouts(workloads.load("mixed"), 1), 400))
    jobs = Counter(rollout.job for rollout in rollouts)
    assert jobs["coding"] == pytest.approx(200, abs=8)
    assert jobs["mopd"] == pytest.approx(80, abs=8)


def test_teachers_of_one_trajectory_differ_and_popular_ones_are_called_more() -> None:
    rollouts = workloads.scenario("mopd", trajectories=800, seed=2).rollouts
    called = [[work.service for work in rollout.rewards] for rollout in rollouts]
    assert all(len(set(services)) == len(services) for services in called)
    assert max(len(services) for services in called) >= 5
    counts = Counter(service for services in called for service in services)
    assert counts["teacher-1"] > 2 * counts["teacher-9"]
    assert all(rollout.rewards[0].kind is ActionKind.REWARD for rollout in rollouts)


def test_generation_scale_slows_down_drawn_times() -> None:
    slow = workloads.scenario("math", trajectories=4, generation_scale=2.0)
    usual = workloads.scenario("math", trajectories=4)
    assert slow.rollouts[0].turns[0].generation.seconds == 2.0 * usual.rollouts[0].turns[0].generation.seconds


def test_machines() -> None:
    uneven = workloads.scenario("coding", trajectories=1, cores=50, nodes=4).cluster
    assert [(nodes.count, nodes.cores) for nodes in uneven.cpu] == [(2, 13), (2, 12)]
    published = workloads.scenario("coding", trajectories=1).cluster
    assert {nodes.memory_mb for nodes in published.cpu} == {256 * 9_600}
    small = workloads.scenario("coding", trajectories=1, cores=50, nodes=4, gb_per_core=2.5).cluster
    assert [nodes.memory_mb for nodes in small.cpu] == [13 * 2_500, 12 * 2_500]
    assert [(nodes.count, nodes.cores, nodes.numa_nodes) for nodes in published.cpu] == [(15, 256, 2)]
    assert [(n.count, n.gpus) for n in workloads.scenario("mopd", trajectories=1, gpus=10).cluster.gpu] == [
        (1, 8),
        (1, 2),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trajectories": 0}, "trajectories: 0: must be at least 1"),
        ({"cores": 0}, "cores: 0: must be at least 1"),
        ({"cores": 4, "nodes": 5}, "nodes: 5: must not exceed cores, 4"),
        ({"gb_per_core": 0.0}, "gb_per_core: 0.0: must be above 0"),
        ({"gpus": 2}, "gpus: 2: must be at least 4"),
        ({"generation_scale": 0.0}, "generation_scale: 0.0: must be above 0"),
        ({"horizon_s": 0.0}, "horizon_s: 0.0: must be above 0"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        workloads.scenario("mopd", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("distribution", "values"),
    [
        (LogNormal(1.0, 2.0), {0.0: math.e}),
        (LogNormal(1.0, 2.0, high=1.5), {0.0: 1.5}),
        (Uniform(20.0, 100.0), {0.0: 60.0}),
        (Geometric(3.0, high=5.0), {-3.0: 1.0, 0.0: 2.0, 3.0: 5.0}),
        (Quantiles(((0.1, 1.0), (0.5, 4.0), (0.9, 16.0))), {-5.0: 1.0, 0.0: 4.0, -0.64078: 2.0, 5.0: 16.0}),
    ],
)
def test_distributions_at_known_scores(distribution: Distribution, values: dict[float, float]) -> None:
    assert {score: distribution.at(score) for score in values} == pytest.approx(values, rel=1e-4)
