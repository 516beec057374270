"""The benchmark of policy versions on a small load: a client, a scheduler, and two engines whose updates go wrong."""

from __future__ import annotations

import json

import pytest
from callsheet.benchmarks.weights.run import run_weights_bench
from callsheet.benchmarks.weights.settings import WeightsBenchSettings

pytestmark = pytest.mark.anyio


async def test_nothing_unproved_is_served_under_load() -> None:
    settings = WeightsBenchSettings(
        trajectories=4, turns=2, tokens=16, publishes=1, interval_s=0.1, modes=("keep",), faults=("half",)
    )
    report = await run_weights_bench(settings)
    # How often weights changed under so small a load is chance.
    assert [each for each in report.findings if "publish more often" not in each] == []
    assert report.faults[0].recovered
    assert report.faults[0].checked.actions == 32
    assert set(report.as_json()["modes"]) == {"keep"}
    json.dumps(report.as_json())


@pytest.mark.parametrize(("name", "value"), [("modes", ("swap",)), ("modes", ()), ("faults", ("flood",))])
def test_words_that_are_not_known_are_named(name: str, value: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=name):
        WeightsBenchSettings(**{name: value})  # type: ignore[arg-type]
