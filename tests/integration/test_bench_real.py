"""A small real run is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from callsheet.benchmarks.real import run
from callsheet.benchmarks.real.settings import RealSettings
from callsheet.benchmarks.simulator.traces import recorded_acts


@pytest.mark.nightly
@pytest.mark.anyio
async def test_the_first_policys_run_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "real.jsonl"
    settings = RealSettings(trajectories=2, turns=2, cores=1, longest_s=0.2, generation_scale=0.01, trace=path)
    report = await run.run_real(settings)
    acts = recorded_acts(path)
    assert {kind: len(each) for kind, each in acts.items()} == {"env_reset": 2, "env_step": 4}
    recorded_s = sum(map(sum, acts.values())) / 6
    # By the client's clock it is a little more.
    assert 0.0 < recorded_s <= report.policies["callsheet"].measured.act_mean_s
