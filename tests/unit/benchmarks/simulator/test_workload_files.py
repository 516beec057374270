"""The workload files that come with Callsheet are right: what they name is there, and numbers are within bounds."""

from __future__ import annotations

import pytest
from callsheet.benchmarks.simulator import workloads
from callsheet.benchmarks.simulator.validation import InputError, validated
from callsheet.benchmarks.simulator.workloads.parameters import (
    ActionParameters,
    Constant,
    Geometric,
    JobParameters,
    LogNormal,
    Quantiles,
    Uniform,
    Workload,
    read_distribution,
)
from callsheet.scheduler.core.words.model import ActionKind, PriorityClass


def test_all_that_are_described_are_there() -> None:
    assert workloads.names() == ("coding", "deepsearch", "games", "math", "mixed", "mopd")


def _actions(job: JobParameters) -> list[ActionParameters]:
    of_turns = [action for profile in job.profiles for action in profile.actions]
    return [*of_turns, *(action for mix in job.reward_mixes.values() for action in mix)]


@pytest.mark.parametrize("name", workloads.names())
def test_every_file_is_right(name: str) -> None:
    workload = workloads.load(name)
    assert workload.name == name
    models = {model.name: model for model in workload.cluster.models}
    quotas = {quota.name for quota in workload.cluster.quotas}
    assert len(models) == len(workload.cluster.models)
    assert workload.cluster.gpus >= max((model.gpus for model in models.values()), default=0)
    assert all(model.gpus in (1, 2, 4, 8) for model in models.values())
    assert len({job.name for job in workload.jobs}) == len(workload.jobs) > 0
    for job in workload.jobs:
        assert job.reward_mix in {"none", *job.reward_mixes}
        assert (job.image == "none") == (job.reset is None)
        assert job.reset is None or (job.reset.kind is ActionKind.ENV_RESET and 0 < job.reset.use <= 1)
        assert all(action.kind is ActionKind.REWARD for mix in job.reward_mixes.values() for action in mix)
        for action in _actions(job):
            assert set(action.services) <= set(models)
            assert action.quota in {"", *quotas}
            called = bool(action.services) + bool(action.quota)
            assert called <= 1
            assert (action.use == 0) == bool(called)
            assert 0 <= action.use <= 1
            assert job.reset is not None or action.kind is not ActionKind.ENV_STEP


def test_mixed_takes_jobs_with_their_weights_and_priorities() -> None:
    jobs = {job.name: job for job in workloads.load("mixed").jobs}
    assert (jobs["mopd"].weight, jobs["mopd"].priority) == (2.0, PriorityClass.EVAL)
    assert jobs["coding"].priority == PriorityClass.TRAIN
    assert jobs["coding"].share == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (3, Constant(3.0)),
        ({"uniform": [1, 3]}, Uniform(1, 3)),
        ({"log_normal": [0.0, 0.5], "high": 9}, LogNormal(0.0, 0.5, high=9)),
        ({"geometric": 2.0, "high": 9}, Geometric(2.0, 9)),
        ({"quantiles": [[0.1, 1], [0.9, 10]]}, Quantiles(((0.1, 1.0), (0.9, 10.0)))),
    ],
)
def test_a_distribution_is_read_as_it_is_written(given: object, meant: object) -> None:
    assert read_distribution(given) == meant


def test_what_is_no_distribution_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a number or a table with one of log_normal, "):
        read_distribution({"poisson": 3})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"horizon_s": "long"}, r"file\.horizon_s: 'long': Input should be a valid number"),
        ({"trajectories": 8.5}, r"file\.trajectories: 8\.5: Input should be a valid integer"),
        ({"horizons": 3}, r"file\.horizons: 3: Unexpected keyword argument"),
        ({"cluster": 3}, r"file\.cluster: 3: Input should be a dictionary"),
    ],
)
def test_a_bad_table_is_refused_by_place_value_and_rule(values: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"name": "file", "trajectories": 8, "horizon_s": 60, "cluster": {}}
    assert validated(Workload, good, "file").jobs == ()
    with pytest.raises(InputError, match=message):
        validated(Workload, good | values, "file")


def test_unknown_workload_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"workload: 'codding': must be one of coding, deepsearch"):
        workloads.load("codding")
