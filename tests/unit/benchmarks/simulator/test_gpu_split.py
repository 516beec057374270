"""Which GPUs belong to which model, where each has its own."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from callsheet.benchmarks.simulator.policies.parts.gpu_calls import expected_load, place_instances, split_gpus
from callsheet.benchmarks.simulator.scenario import Cluster, GpuNodes, Model, Scenario, Work
from callsheet.scheduler.core.words.model import ActionKind
from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulated import one_node, trajectory

SIZES = st.sampled_from((1, 2, 4))


def models_of(sizes: list[int]) -> tuple[Model, ...]:
    return tuple(Model(f"m{index}", size, 1.0, 1.0) for index, size in enumerate(sizes))


def busiest(load: dict[str, float], models: tuple[Model, ...], counts: dict[str, int]) -> float:
    return max(load[model.name] / model.gpus / counts[model.name] for model in models)


def calls(cluster: Cluster, *works: Work) -> Scenario:
    return replace(one_node([replace(trajectory("t", ()), reset=None, rewards=works)], 1), cluster=cluster)


def call(model: str, seconds: float) -> Work:
    return Work(ActionKind.REWARD, model, service=model, service_s=seconds)


@given(st.lists(st.tuples(SIZES, st.floats(0.1, 10.0)), min_size=1, max_size=3), st.integers(1, 12))
def test_no_split_leaves_the_busiest_less_busy(drawn: list[tuple[int, float]], gpus: int) -> None:
    models = models_of([size for size, _ in drawn])
    load = {f"m{index}": seconds for index, (_, seconds) in enumerate(drawn)}
    counts = split_gpus(models, load, gpus)
    splits = (
        dict(zip(load, split, strict=True))
        for split in product(range(1, gpus + 1), repeat=len(models))
        if sum(model.gpus * count for model, count in zip(models, split, strict=True)) <= gpus
    )
    best = min((busiest(load, models, split) for split in splits), default=None)
    assert (None if counts is None else busiest(load, models, counts)) == best


def test_load_is_gpu_seconds_of_instances() -> None:
    models = (Model("judge", 1, 1.0, 1.0, slots=4), Model("teacher", 4, 1.0, 1.0))
    scenario = calls(Cluster(gpu=(GpuNodes(1, 8),), models=models), call("judge", 2.0), call("teacher", 3.0))
    assert expected_load(scenario) == {"judge": 0.5, "teacher": 12.0}


def test_large_instances_find_whole_chunks() -> None:
    models = models_of([1, 2, 4])
    scenario = calls(Cluster(gpu=(GpuNodes(1, 4), GpuNodes(1, 4)), models=models), *(call(m.name, 1.0) for m in models))
    placed = place_instances(scenario)
    assert placed is not None
    assert placed["m2"] == ["gpu-0"]
    assert set(placed["m0"] + placed["m1"]) == {"gpu-1"}


def test_what_does_not_fit_the_nodes_is_cut_back_to_one_each() -> None:
    models = models_of([2, 1])
    cluster = Cluster(gpu=(GpuNodes(2, 3),), models=models)
    placed = place_instances(calls(cluster, call("m0", 100.0), call("m1", 1.0)))
    # By load alone m0 would get 2 of the 6 GPUs once more, but no node has a chunk of two left.
    assert placed == {"m0": ["gpu-0", "gpu-1"], "m1": ["gpu-0"]}
    assert place_instances(calls(replace(cluster, gpu=(GpuNodes(1, 2),)), call("m0", 1.0))) is None
