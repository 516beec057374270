"""Predictors of service time, CPU use, peak memory and speed-up."""

from callsheet.scheduler.planner.predictors.log_normal import expected_remaining, remaining_life
from callsheet.scheduler.planner.predictors.predictors import Predictors
from callsheet.scheduler.planner.predictors.settings import PredictorSettings
from callsheet.scheduler.planner.predictors.values import ObservedRun, Prediction, PredictionKey

__all__ = [
    "ObservedRun",
    "Prediction",
    "PredictionKey",
    "PredictorSettings",
    "Predictors",
    "expected_remaining",
    "remaining_life",
]
