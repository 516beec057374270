"""Real runs, small: commands as Ray's tasks, each counted once, and a run that is recorded and replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from callsheet.benchmarks.real import run
from callsheet.benchmarks.real.ray_tasks import run_ray
from callsheet.benchmarks.real.settings import RealSettings
from callsheet.benchmarks.real.workload import Costs, real_scenario
from callsheet.benchmarks.simulator.traces import recorded_acts


@pytest.mark.nightly
@pytest.mark.anyio
async def test_commands_run_as_tasks_of_ray() -> None:
    scenario = real_scenario(RealSettings(trajectories=2, turns=2, longest_s=0.2, generation_scale=0.01), 2, Costs())
    works = [work for rollout in scenario.rollouts[:2] for turn in rollout.turns for work in turn.actions]
    measured = await run_ray(scenario, cores=2)
    assert sorted(each.alone_s for each in measured.actions) == pytest.approx(sorted(work.alone_s() for work in works))
    assert sum(each.cpu_s for each in measured.actions) >= 0.9 * sum(work.cpu_s for work in works)
    assert len(measured.held) == len(works)


@pytest.mark.nightly
@pytest.mark.anyio
async def test_the_first_policys_run_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ray_is_here", lambda: False)
    path = tmp_path / "real.jsonl"
    settings = RealSettings(trajectories=2, turns=2, cores=1, longest_s=0.2, generation_scale=0.01, trace=path)
    report = await run.run_real(settings)
    acts = recorded_acts(path)
    assert {kind: len(each) for kind, each in acts.items()} == {"env_reset": 2, "env_step": 4}
    recorded_s = sum(map(sum, acts.values())) / 6
    # By the client's clock it is a little more.
    assert 0.0 < recorded_s <= report.policies["callsheet"].measured.act_mean_s
