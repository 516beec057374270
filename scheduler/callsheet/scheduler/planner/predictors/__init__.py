"""Predictors of service time, CPU use, peak memory and speed-up."""

from callsheet.scheduler.planner.predictors.nodes import ObservedRun, Prediction, PredictionKey
from callsheet.scheduler.planner.predictors.predictors import Predictors

__all__ = [
    "ObservedRun",
    "Prediction",
    "PredictionKey",
    "Predictors",
]
