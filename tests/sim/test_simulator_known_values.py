"""The simulator against queues whose mean sojourn time is known."""

from __future__ import annotations

import random
from math import factorial

import pytest
from callsheet.benchmarks.simulator.scenario import Generation, Rollout, Turn, Work
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.scheduler.core.words.model import ActionKind

from tests.support.simulated import StartAtOnce, one_node, sustained

ARRIVALS = 30_000


def call(cpu_s: float) -> Work:
    """A command that needs no sandbox."""
    return Work(ActionKind.TOOL_CALL, "call", cpu_s=cpu_s)


def poisson_calls(rate: float, sizes: list[float], seed: int) -> list[Rollout]:
    """One command a trajectory, arriving in a Poisson stream."""
    draw = random.Random(seed)
    arrives, rollouts = 0.0, []
    for index, size in enumerate(sizes):
        arrives += draw.expovariate(rate)
        turns = (Turn(Generation(0.0), (call(size),)),)
        rollouts.append(Rollout(f"r{index}", "job", "", "", "", 0, arrives, None, turns, ()))
    return rollouts


def erlang_sojourn(rate: float, servers: int) -> float:
    """Mean time in an M/M/c queue with unit service times; Erlang's formula C."""
    busy = rate / servers
    full = rate**servers / factorial(servers) / (1 - busy)
    return 1.0 + (full / (sum(rate**n / factorial(n) for n in range(servers)) + full)) / (servers - rate)


@pytest.mark.parametrize(("cores", "rate"), [(1, 0.6), (4, 3.2), (16, 12.0)])
def test_shared_cores_with_random_work_are_an_mmc_queue(cores: int, rate: float) -> None:
    draw = random.Random(11)
    sizes = [draw.expovariate(1.0) for _ in range(ARRIVALS)]
    measured = simulate(one_node(poisson_calls(rate, sizes, seed=12), cores), StartAtOnce)
    assert measured.act_mean_s == pytest.approx(erlang_sojourn(rate, cores), rel=0.06)
    assert measured.used == pytest.approx(rate / cores, rel=0.03)


def test_processor_sharing_does_not_care_about_the_distribution() -> None:
    measured = simulate(one_node(poisson_calls(0.6, [1.0] * ARRIVALS, seed=13), 1), StartAtOnce)
    assert measured.act_mean_s == pytest.approx(1.0 / (1.0 - 0.6), rel=0.06)


def test_a_closed_loop_obeys_the_response_time_law() -> None:
    """N live trajectories with think time Z: throughput of turns times (ACT + Z) is N (no reset: it is left out)."""
    draw = random.Random(16)
    rollouts = []
    for index in range(400):
        turns = tuple(Turn(Generation(draw.expovariate(0.2)), (call(draw.expovariate(1.0)),)) for _ in range(50))
        rollouts.append(Rollout(f"r{index}", "job", "", "", "", 0, 0.0, None, turns, ()))
    measured = simulate(sustained(one_node(rollouts, 4), live=30, horizon_s=6_000.0), StartAtOnce)
    ended = int((measured.actions.ended_at >= measured.warm_up_s).sum())
    turns_per_s = ended / (measured.ended_at - measured.warm_up_s)
    assert turns_per_s * (measured.act_mean_s + 5.0) == pytest.approx(30.0, rel=0.03)
    assert turns_per_s == pytest.approx(4.0, rel=0.03)  # saturated: the cores bound it
