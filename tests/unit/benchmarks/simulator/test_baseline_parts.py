"""The parts that baseline policies are put together from."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from callsheet.benchmarks.simulator.policies.parts.api_calls import BackOff, Planned
from callsheet.benchmarks.simulator.policies.parts.places import (
    IMAGE_BONUS,
    Footprint,
    Line,
    Places,
    largest_peak_mb,
    pod_memory_mb,
)
from callsheet.benchmarks.simulator.policy import LiveRollout, Task
from callsheet.benchmarks.simulator.quota_books import QuotaBooks
from callsheet.benchmarks.simulator.scenario import Cluster, CpuNodes, Quota, Rollout, Work
from callsheet.scheduler.core.words.model import ActionKind
from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulated import one_node, step, trajectory

CALL = Work(ActionKind.TOOL_CALL, "search", quota="web", tokens=30)


def task_of(rollout: Rollout, sequence: int = 1, work: Work = CALL) -> Task:
    return Task(sequence, LiveRollout(rollout, 0.0), work, 0.0)


def member(name: str, group: str = "g", image: str = "") -> Rollout:
    return replace(trajectory(name, ()), group=group, image=image)


class TestLine:
    def test_first_come_first_served_and_anyone_may_leave(self) -> None:
        line = Line()
        first, second, third = (task_of(trajectory(name, ())) for name in "abc")
        for task in (first, second, third):
            line.add(task)
        line.remove(first)
        assert line.first() is second
        assert list(line) == [second, third]


class TestQuotaBooks:
    @given(st.floats(0.1, 100.0), st.integers(1, 50), st.lists(st.floats(0.0, 3.0), min_size=1, max_size=50))
    def test_what_waits_as_told_never_exceeds_the_quota(self, rate: float, burst: int, gaps: list[float]) -> None:
        books = QuotaBooks(Quota("web", 10, rate, burst))
        now = 0.0
        for sent, gap in enumerate(gaps):
            now += gap
            now += books.wait_s(0, now)
            books.wait_s(0, now)
            books.take(0)
            assert sent + 1 <= burst + rate * now + 1e-6

    def test_more_than_is_kept_at_most_needs_and_takes_all_of_it(self) -> None:
        books = QuotaBooks(Quota("web", 10, per_second=inf, burst=1.0, tokens_per_minute=60.0))
        assert books.wait_s(80, 0.0) == 0.0
        books.take(80)
        assert books.wait_s(80, 0.0) == pytest.approx(60.0)
        assert books.wait_s(4, 0.0) == pytest.approx(4.0)


class TestPace:
    def test_a_plan_keeps_to_calls_and_tokens(self) -> None:
        pace = Planned(Quota("web", 10, per_second=2.0, burst=2.0, tokens_per_minute=60.0))
        pace.sent(CALL, 0.0)
        pace.sent(CALL, 0.0)
        # Half a second for a call, but 30 s for its 30 tokens of one a second.
        assert pace.wait_s(CALL, 0.0) == pytest.approx(30.0)

    def test_without_a_limit_tokens_cost_nothing(self) -> None:
        assert Planned(Quota("web", 10, per_second=2.0, burst=2.0)).wait_s(CALL, 0.0) == 0.0

    def test_a_refusal_makes_all_wait(self) -> None:
        pace = BackOff(Quota("web", 10, per_second=2.0, burst=2.0))
        assert pace.wait_s(CALL, 0.0) == 0.0
        pace.refused(1.0, 5.0)
        assert pace.wait_s(CALL, 5.25) == pytest.approx(0.75)


class TestPlaces:
    def test_the_emptiest_node_for_its_cores_then_siblings_apart(self) -> None:
        places = Places(Cluster(cpu=(CpuNodes(1, 8), CpuNodes(2, 4))))
        rollouts = [member(f"t{index}") for index in range(4)]
        for rollout in rollouts:
            assert places.take(rollout, Footprint(100))
        homes = [places.home(task_of(rollout)) for rollout in rollouts]
        assert homes == ["cpu-0", "cpu-1", "cpu-2", "cpu-0"]
        stranger = member("stranger", group="other")
        assert places.take(stranger, Footprint(100))
        assert places.home(task_of(stranger)) == "cpu-0"  # 2 of 8 as on the others, and tied with them on strangers

    def test_on_large_nodes_the_one_with_the_image(self) -> None:
        cores = int(3 / IMAGE_BONUS)
        places = Places(Cluster(cpu=(CpuNodes(2, cores),)))
        for index in range(4):
            places.take(member(f"t{index}", image="repo"), Footprint(100))
        homes = [places.home(task_of(member(f"t{index}"))) for index in range(4)]
        assert homes == ["cpu-0", "cpu-0", "cpu-0", "cpu-1"]

    def test_room_is_taken_and_given_back(self) -> None:
        places = Places(Cluster(cpu=(CpuNodes(1, 4, memory_mb=1_000),)), headroom_mb=300)
        first, second = member("a"), member("b")
        assert places.take(first, Footprint(600, cores=4))
        assert not places.take(second, Footprint(100, cores=1))
        assert not places.has_cores(1)
        places.leave(LiveRollout(first, 0.0))
        places.leave(LiveRollout(first, 0.0))
        assert not places.take(second, Footprint(800))
        assert places.take(second, Footprint(700, cores=4))

    def test_commands_take_memory_while_they_run(self) -> None:
        places = Places(Cluster(cpu=(CpuNodes(1, 4, memory_mb=1_000),)))
        command = task_of(trajectory("t", ()), work=replace(step(1.0), peak_memory_mb=600))
        places.enter(command, "cpu-0")
        assert not places.welcomes(command, "cpu-0")
        places.exit(command, "cpu-0")
        assert places.welcomes(command, "cpu-0")


def test_a_pod_has_memory_for_all_that_runs_at_one_time() -> None:
    rollout = trajectory(
        "t", (replace(step(1.0), peak_memory_mb=50),), rewards=(replace(step(1.0), peak_memory_mb=70),) * 2
    )
    assert pod_memory_mb(rollout) == 100 + 140
    assert largest_peak_mb(one_node([rollout], 1)) == 70
