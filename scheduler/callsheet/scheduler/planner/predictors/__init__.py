"""Predictors of service time, CPU use, peak memory and speed-up."""

from callsheet.scheduler.planner.predictors.predictors import Predictors
from callsheet.scheduler.planner.predictors.values import ObservedRun, Prediction, PredictionKey

__all__ = [
    "ObservedRun",
    "Prediction",
    "PredictionKey",
    "Predictors",
]
