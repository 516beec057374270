"""What `callsheet status` shows of engines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.cli.inspect_commands import attempts_of, engine_rows, sandboxes_of, troubles
from callsheet.client import ActionKind, EngineState, JobDescription, JobStatus, RolloutEngine, RolloutStatus
from callsheet.client.admin_values import (
    EngineWeights,
    ManagerStatus,
    SchedulerStatus,
    ServiceStatus,
    WeightsStanding,
)

_KINDS = (ActionKind.GENERATE,)


def _manager(name: str, service: ServiceStatus) -> ManagerStatus:
    return ManagerStatus(name, "node", True, False, (service,), 0, 0, {})


def _engine(standing: WeightsStanding, version: int, reason: str = "", problem: str = "") -> ServiceStatus:
    weights = EngineWeights(standing, version, reason)
    return ServiceStatus("policy", _KINDS, 8, {}, version, weights=weights, problem=problem)


def _status(*managers: ManagerStatus, rollout: RolloutStatus | None = None) -> SchedulerStatus:
    rollouts = () if rollout is None else (rollout,)
    return SchedulerStatus(1, 0.0, (JobStatus(JobDescription("j"), rollouts=rollouts),), managers, ())


@pytest.mark.parametrize(
    ("service", "row"),
    [
        (_engine(WeightsStanding.INITIAL, 0), ["initial", "0", "-", "yes"]),
        (_engine(WeightsStanding.UPDATING, 2), ["updating", "2", "-", "no"]),
        (_engine(WeightsStanding.PROVED, 3, problem="its server is starting"), ["proved", "3", "-", "no"]),
    ],
)
def test_an_engine_shows_its_weights_and_whether_it_takes_work(service: ServiceStatus, row: list[str]) -> None:
    scorer = ServiceStatus("scorer", (ActionKind.REWARD,), 8, {}, 0)
    assert engine_rows(_status(_manager("m", service), _manager("r", scorer))) == [["m", "policy", *row]]


def test_a_service_on_which_nothing_can_begin_says_why() -> None:
    unproved = _engine(WeightsStanding.UNPROVED, 4, reason="its canary was wrong")
    search = ServiceStatus("search", (ActionKind.TOOL_CALL,), 64, {}, 0, problem="quota 'k' allows no call")
    fine = ServiceStatus("fetch", (ActionKind.TOOL_CALL,), 64, {}, 0)
    assert troubles(_status(_manager("m", unproved), _manager("t", search), _manager("u", fine))) == [
        "m: policy: its canary was wrong",
        "t: search: quota 'k' allows no call",
    ]


def test_a_manager_shows_what_its_sandboxes_hold() -> None:
    manager = _manager("m", ServiceStatus("sandbox", (ActionKind.ENV_RESET,), 0, {}, 0))
    assert sandboxes_of(manager) == "0"
    memory = {"demand": 1200, "booked": 480, "held": 336}
    told = replace(manager, sandboxes=2, sandbox_memory_mib=memory)
    assert sandboxes_of(told) == "2 (336 held, 480 booked of 1200 MiB)"


def test_a_manager_shows_how_many_of_its_attempts_wait_for_memory() -> None:
    manager = replace(_manager("m", ServiceStatus("sandbox", (ActionKind.ENV_STEP,), 0, {}, 0)), attempts=7)
    assert attempts_of(manager) == "7"
    assert attempts_of(replace(manager, waiting_for_memory=3)) == "7 (3 for memory)"


def test_a_rollout_shows_where_each_engine_is() -> None:
    engines = (RolloutEngine("a", EngineState.PROVED), RolloutEngine("b", EngineState.QUARANTINED))
    rollout = RolloutStatus("policy", 5, engines=engines)
    proved = _manager("a", _engine(WeightsStanding.PROVED, 5))
    failed = _manager("b", _engine(WeightsStanding.UNPROVED, 4, reason="its canary was wrong"))
    assert engine_rows(_status(proved, failed, rollout=rollout)) == [
        ["a", "policy", "proved", "5", "proved (version 5)", "yes"],
        ["b", "policy", "unproved", "4", "quarantined (version 5)", "no"],
    ]
