"""Calibration experiments that are cheap enough for a test, as a whole."""

from __future__ import annotations

import pytest
from callsheet.benchmarks.simulator.calibration import rollart


@pytest.mark.nightly
def test_latency_ladder_is_predicted_from_one_rung() -> None:
    experiment = rollart.slow_environments()
    assert [parameter.name for parameter in experiment.fitted] == ["generation_s"]
    assert all(figure.hit for figure in experiment.rows)


def test_redundancy_is_predicted_from_one_cell() -> None:
    experiment = rollart.redundancy()
    assert [parameter.name for parameter in experiment.fitted] == ["sd_of_log_length"]
    assert all(figure.hit for figure in experiment.rows)
