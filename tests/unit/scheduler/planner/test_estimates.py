"""What the planner expects of single actions follows what predictors learn, at once."""

from __future__ import annotations

from dataclasses import replace

from callsheet.scheduler.core.words.model import CPU, ActionKind, Demand, ResourceDemand, SpeedUp
from callsheet.scheduler.planner.predictors import ObservedRun, Predictors
from callsheet.scheduler.planner.predictors.requests import key_of, predict
from callsheet.scheduler.planner.round.estimates import Estimates

from tests.support.core_requests import action_request


def test_each_action_is_expected_to_take_what_predictors_say_of_it() -> None:
    predictors = Predictors()
    estimates = Estimates(predictors)
    one = action_request("one", kind=ActionKind.REWARD)
    cores = ResourceDemand(CPU, 1, 8, SpeedUp(0.5))
    unlike = [
        one,
        replace(one, label="pytest"),
        replace(one, task="task-1"),
        replace(one, expected_duration=4000.0),
        replace(one, demand=Demand((cores,))),
        replace(one, timeouts=replace(one.timeouts, start_to_close=2.0)),
        replace(one, kind=ActionKind.TOOL_CALL),
    ]
    predictors.observe(ObservedRun(key_of(unlike[1]), 3.0))
    predictors.observe(ObservedRun(key_of(unlike[2]), 500.0))
    for request in (*unlike, *unlike):
        assert estimates.of_request(request) == predict(predictors, request)
    assert len({estimates.of_request(request) for request in unlike}) == len(unlike)


def test_what_was_answered_is_forgotten_when_something_is_learned() -> None:
    predictors = Predictors()
    estimates = Estimates(predictors)
    request = action_request("one", kind=ActionKind.REWARD)
    before = estimates.duration(request)
    for _ in range(20):
        predictors.observe(ObservedRun(key_of(request), 20.0 * before))
    assert estimates.duration(request) == predict(predictors, request).duration_s
    assert estimates.duration(request) > 2.0 * before


def test_a_fraction_of_a_core_bounds_the_use_that_is_expected() -> None:
    predictors = Predictors()
    whole = action_request("whole", kind=ActionKind.REWARD)
    for _ in range(50):
        predictors.observe(ObservedRun(key_of(whole), 10.0, cpu_s=9.5))
    half = replace(whole, demand=Demand((ResourceDemand(CPU, 1, 1, most_milli_units=500),)))
    estimates = Estimates(predictors)
    expected = [estimates.of_grant(request, {CPU: 1}) for request in (whole, half)]
    assert expected[0] is not None
    assert expected[1] is not None
    assert expected[0].use > 0.8
    assert expected[1] == replace(expected[0], use=0.5)
