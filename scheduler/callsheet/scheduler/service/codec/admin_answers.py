"""Predictions and the answers to what-if questions, as messages of the admin service."""

from __future__ import annotations

from callsheet.scheduler.planner.answers.what_if import Comparison, Outlook
from callsheet.scheduler.planner.predictors import Prediction
from callsheet.scheduler.planner.predictors.log_normal import quantile
from callsheet.v1 import admin_service_pb2

# Of the standard normal distribution: nine in ten are below.
NINE_IN_TEN = 1.2816


def expected_run(prediction: Prediction, timeout_s: float) -> admin_service_pb2.ExpectedRun:
    """Returns a prediction as a message; no execution takes longer than its timeout."""
    return admin_service_pb2.ExpectedRun(
        mean_s=prediction.duration_s,
        low_s=min(quantile(prediction.log_mean, prediction.log_sd, -NINE_IN_TEN), timeout_s),
        high_s=min(quantile(prediction.log_mean, prediction.log_sd, NINE_IN_TEN), timeout_s),
        use=prediction.use,
        peak_memory_mb=prediction.peak_memory_mb,
        amdahl_fraction=prediction.amdahl_fraction,
        observations=prediction.observations,
    )


def what_if_response(comparison: Comparison) -> admin_service_pb2.WhatIfResponse:
    """Returns the answer to a what-if question."""
    return admin_service_pb2.WhatIfResponse(
        pool=comparison.pool,
        nodes=comparison.nodes,
        before=_outlook(comparison.before),
        after=_outlook(comparison.after),
        summary=str(comparison),
    )


def _outlook(outlook: Outlook) -> admin_service_pb2.Outlook:
    shared = outlook.shared
    return admin_service_pb2.Outlook(
        mean_act_s=outlook.mean_act_s,
        classes=(
            admin_service_pb2.ClassOutlook(
                name=each.key,
                waiting=each.waiting,
                mean_wait_s=each.mean_wait_s,
                mean_end_s=each.mean_end_s,
                stuck=each.stuck,
                waited_s=each.waited_s,
            )
            for each in outlook.waiting.classes
        ),
        start_now=outlook.waiting.start_now,
        shared=admin_service_pb2.SharedCores(
            cores=shared.cores, running=shared.running, use=shared.use, mean_act_s=shared.mean_act_s
        ),
    )
