"""GPU models, APIs and images of the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.benchmarks.simulator.physics.gpu_nodes import GpuNode
from callsheet.benchmarks.simulator.policy import Task, World
from callsheet.benchmarks.simulator.scenario import (
    Cluster,
    CpuNodes,
    Generation,
    GpuNodes,
    Model,
    Quota,
    Rollout,
    Scenario,
    Turn,
    Work,
)
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.scheduler.core.words.model import ActionKind

from tests.support.simulated import StartAtOnce, one_node, trajectory

SMALL = Model("small", gpus=1, restore_s=2.0, load_s=10.0, slots=2)
LARGE = Model("large", gpus=4, restore_s=4.0, load_s=20.0)


def calling(name: str, arrives: float, *works: Work) -> Rollout:
    """A trajectory without a sandbox that makes its calls at once."""
    turns = (Turn(Generation(0.0), works),)
    return Rollout(name, "job", name, "", "", 0, arrives, None, turns, ())


def judge(model: str, seconds: float, timeout_s: float = float("inf")) -> Work:
    """A call of a model."""
    return Work(ActionKind.REWARD, model, service=model, service_s=seconds, timeout_s=timeout_s)


def on_gpus(gpus: int, *rollouts: Rollout) -> Scenario:
    """A scenario on one GPU node."""
    return replace(one_node(rollouts, 1), cluster=Cluster(gpu=(GpuNodes(1, gpus),), models=(SMALL, LARGE)))


def on_api(quota: Quota, *rollouts: Rollout) -> Scenario:
    """A scenario with an API."""
    return replace(one_node(rollouts, 1), cluster=Cluster(quotas=(quota,)))


def search(seconds: float = 1.0, tokens: int = 0) -> Work:
    """A call of an API."""
    return Work(ActionKind.TOOL_CALL, "search", quota="web", service_s=seconds, tokens=tokens)


class TestGpus:
    def test_the_first_call_loads_and_later_ones_find_the_model_there(self) -> None:
        calls = [calling("a", 0.0, judge("small", 1.0)), calling("b", 20.0, judge("small", 1.0))]
        measured = simulate(on_gpus(1, *calls), StartAtOnce)
        assert measured.actions.act_s.tolist() == pytest.approx([13.0, 1.0])
        assert measured.gpus_held_s == pytest.approx(14.0)
        assert measured.gpus_used_s == pytest.approx(2.0)

    def test_a_call_that_comes_during_the_load_takes_the_next_slot(self) -> None:
        calls = [calling("a", 0.0, judge("small", 1.0)), calling("b", 5.0, judge("small", 2.0))]
        measured = simulate(on_gpus(1, *calls), StartAtOnce)
        assert measured.actions.act_s.tolist() == pytest.approx([13.0, 9.0])

    def test_an_idle_model_gives_way_and_is_restored_without_its_disk(self) -> None:
        calls = [
            calling("a", 0.0, judge("small", 1.0)),
            calling("b", 20.0, judge("large", 1.0)),
            calling("c", 60.0, judge("small", 1.0)),
        ]
        measured = simulate(on_gpus(4, *calls), StartAtOnce)
        assert measured.actions.act_s.tolist() == pytest.approx([13.0, 25.0, 3.0])

    def test_what_is_deployed_before_the_run_is_there(self) -> None:
        class Deploying(StartAtOnce):
            def __init__(self, world: World) -> None:
                super().__init__(world)
                world.deploy("gpu-0", "small")
                assert world.resident("gpu-0") == {"small": 1}
                assert world.set_up_s("gpu-0", "small") == 0.0
                assert world.set_up_s("gpu-0", "large") == 24.0

            def ready(self, task: Task) -> None:
                super().ready(task)
                with pytest.raises(ValueError, match="only before the run begins"):
                    self.world.deploy("gpu-0", "small")

        measured = simulate(on_gpus(4, calling("a", 0.0, judge("small", 1.0))), Deploying)
        assert measured.actions.act_s.tolist() == pytest.approx([1.0])

    def test_what_is_kept_in_host_memory_before_the_run_needs_no_disk(self) -> None:
        class Keeping(StartAtOnce):
            def __init__(self, world: World) -> None:
                super().__init__(world)
                world.keep_in_host_memory("gpu-0", "small")

            def ready(self, task: Task) -> None:
                super().ready(task)
                with pytest.raises(ValueError, match="only before the run begins"):
                    self.world.keep_in_host_memory("gpu-0", "large")

        measured = simulate(on_gpus(4, calling("a", 0.0, judge("small", 1.0))), Keeping)
        assert measured.actions.act_s.tolist() == pytest.approx([3.0])

    def test_busy_gpus_are_refused(self) -> None:
        class Pushing(StartAtOnce):
            def ready(self, task: Task) -> None:
                self.world.start(task, node="gpu-0")

        both = calling("a", 0.0, judge("large", 1.0), judge("large", 1.0))
        with pytest.raises(ValueError, match="gpu-0 has no 4 idle GPUs in one chunk for large"):
            simulate(on_gpus(4, both), Pushing)

    def test_a_timeout_does_not_count_the_load(self) -> None:
        measured = simulate(on_gpus(1, calling("a", 0.0, judge("small", 9.0, timeout_s=5.0))), StartAtOnce)
        assert measured.actions.act_s.tolist() == pytest.approx([12.0 + 5.0])
        assert measured.counts["timeouts"] == 1

    def test_small_models_leave_large_chunks_whole(self) -> None:
        node = GpuNode("gpu-0", 8)
        pair = Model("pair", 2, 1.0, 0.0)
        assert [node.take_slot(one, 0.0).offset for one in (SMALL, pair, LARGE)] == [0, 2, 4]
        assert node.take_slot(replace(SMALL, name="other"), 0.0).offset == 1
        assert node.set_up_s(pair, 0.0) is None

    def test_the_least_recently_used_goes_first(self) -> None:
        node = GpuNode("gpu-0", 2)
        models = [Model(name, 1, 1.0, 0.0) for name in ("first", "second", "third")]
        for at, model in enumerate(models[:2]):
            node.take_slot(model, float(at)).calls = 0
        node.take_slot(models[0], 5.0).calls = 0
        node.take_slot(models[2], 6.0)
        assert node.resident() == {"first": 1, "third": 1}


class TestApis:
    def test_calls_beyond_the_concurrency_are_refused_and_come_back(self) -> None:
        class BackingOff(StartAtOnce):
            def ready(self, task: Task) -> None:
                if task.attempt == 1:
                    super().ready(task)
                else:
                    self.again = task
                    self.world.wake_at(self.world.now + self.facts[-1][1].retry_after_s)

            def woken(self) -> None:
                self.world.start(self.again, node="")

        quota = Quota("web", concurrency=1, per_second=100.0, burst=100.0, retry_after_s=3.0, refusal_s=0.5)
        measured = simulate(on_api(quota, calling("a", 0.0, search(), search())), BackingOff)
        assert measured.counts["refusals"] == 1
        assert measured.actions.act_s.tolist() == pytest.approx([1.0, 0.5 + 3.0 + 1.0])
        assert measured.actions.queue_s.tolist() == pytest.approx([0.0, 3.0])

    def test_a_burst_is_let_through_and_refilled_at_its_rate(self) -> None:
        quota = Quota("web", concurrency=100, per_second=0.5, burst=2.0, refusal_s=1.0)
        measured = simulate(on_api(quota, calling("a", 0.0, *[search(0.5)] * 4)), StartAtOnce)
        assert sorted(measured.actions.act_s.tolist()) == pytest.approx([0.5, 0.5, 2.5, 4.5])

    def test_tokens_have_a_quota_of_their_own(self) -> None:
        quota = Quota("web", 100, per_second=100.0, burst=100.0, refusal_s=10.0, tokens_per_minute=600.0)
        measured = simulate(on_api(quota, calling("a", 0.0, *[search(0.5, tokens=500)] * 2)), StartAtOnce)
        assert sorted(measured.actions.act_s.tolist()) == pytest.approx([0.5, 40.5])


class TestImages:
    def test_an_image_comes_once_to_a_node_and_pulls_wait_in_line(self) -> None:
        images = ["x", "x", "y", "z"]
        rollouts = [replace(trajectory(f"t{index}", []), image=image) for index, image in enumerate(images)]
        scenario = one_node([*rollouts, replace(trajectory("late", []), image="y", arrives=100.0)], 8)
        cluster = Cluster(cpu=(CpuNodes(1, 8),), pull_s=10.0, pulls_at_once=2)
        measured = simulate(replace(scenario, cluster=cluster), StartAtOnce)
        by_rollout = measured.actions.act_s[measured.actions.rollout.argsort()]
        assert by_rollout.tolist() == pytest.approx([10.5, 10.5, 10.5, 20.5, 0.5])


def test_an_unknown_node_is_refused() -> None:
    class Lost(StartAtOnce):
        def ready(self, task: Task) -> None:
            self.world.start(task, node="gpu-7")

    with pytest.raises(ValueError, match="'gpu-7' is no GPU node"):
        simulate(on_gpus(1, calling("a", 0.0, judge("small", 1.0))), Lost)
