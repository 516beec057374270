"""Answers of the admin service that come from predictions, as messages."""

from __future__ import annotations

from callsheet.scheduler.planner.answers.what_if import Comparison, Outlook
from callsheet.scheduler.planner.predictors import Prediction
from callsheet.scheduler.planner.predictors.log_normal import quantile
from callsheet.v1 import admin_service_pb2

# Of the standard normal distribution: nine in ten are below.
NINE_IN_TEN = 1.2816


def fill_expected(message: admin_service_pb2.ExpectedRun, prediction: Prediction, timeout_s: float) -> None:
    """Writes a prediction; no execution takes longer than its timeout."""
    message.mean_s = prediction.duration_s
    message.low_s = min(quantile(prediction.log_mean, prediction.log_sd, -NINE_IN_TEN), timeout_s)
    message.high_s = min(quantile(prediction.log_mean, prediction.log_sd, NINE_IN_TEN), timeout_s)
    message.use = prediction.use
    message.peak_memory_mb = prediction.peak_memory_mb
    message.amdahl_fraction = prediction.amdahl_fraction
    message.observations = prediction.observations


def what_if_response(comparison: Comparison) -> admin_service_pb2.WhatIfResponse:
    """The answer to a what-if question."""
    response = admin_service_pb2.WhatIfResponse(pool=comparison.pool, nodes=comparison.nodes, summary=str(comparison))
    _fill_outlook(response.before, comparison.before)
    _fill_outlook(response.after, comparison.after)
    return response


def _fill_outlook(message: admin_service_pb2.Outlook, outlook: Outlook) -> None:
    message.mean_act_s = outlook.mean_act_s
    message.start_now = outlook.waiting.start_now
    for each in outlook.waiting.classes:
        message.classes.add(
            name=each.key,
            waiting=each.waiting,
            mean_wait_s=each.mean_wait_s,
            mean_end_s=each.mean_end_s,
            stuck=each.stuck,
            waited_s=each.waited_s,
        )
    shared = outlook.shared
    message.shared.cores, message.shared.running = shared.cores, shared.running
    message.shared.use, message.shared.mean_act_s = shared.use, shared.mean_act_s
