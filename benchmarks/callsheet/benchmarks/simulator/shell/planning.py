"""The planner of a simulation."""

from __future__ import annotations

from callsheet.benchmarks.simulator.shell.settings import CallsheetSettings
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.protocol import Planner


def make_planner(settings: CallsheetSettings, predictors: Predictors) -> Planner:
    """The planner that the settings choose."""
    return FirstComePlanner()
