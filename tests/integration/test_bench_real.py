"""Commands as Ray's tasks: each is a real process that uses its CPU, and is counted once."""

from __future__ import annotations

import pytest
from callsheet.benchmarks.real.ray_tasks import RAY_POLICIES, run_ray
from callsheet.benchmarks.real.settings import RealSettings
from callsheet.benchmarks.real.workload import Costs, real_scenario


@pytest.mark.nightly
@pytest.mark.anyio
async def test_commands_run_as_tasks_of_ray() -> None:
    scenario = real_scenario(RealSettings(trajectories=2, turns=2, longest_s=0.2, generation_scale=0.01), 2, Costs())
    works = [work for rollout in scenario.rollouts[:2] for turn in rollout.turns for work in turn.actions]
    (policy,) = [each for each in RAY_POLICIES if each.name == "ray_shared"]
    measured = await run_ray(scenario, policy, cores=2)
    assert sorted(each.alone_s for each in measured.actions) == pytest.approx(sorted(work.alone_s() for work in works))
    assert sum(each.cpu_s for each in measured.actions) >= 0.9 * sum(work.cpu_s for work in works)
    assert len(measured.held) == len(works)
