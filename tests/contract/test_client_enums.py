"""The client's enums are the contract's, name by name."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from callsheet.client import (
    ActionKind,
    BackgroundProcesses,
    FailureKind,
    FinishReason,
    Hold,
    LogProbsMode,
    OnInfra,
    Opening,
    PriorityClass,
    TimeoutKind,
    TrajectoryEnd,
    Unservable,
    Where,
)
from callsheet.client.admin_values import ActionState, WaitReason
from callsheet.v1 import action_pb2, admin_service_pb2, job_pb2, outcome_pb2
from callsheet.v1.names import MAX_INLINE_BYTES


@pytest.mark.parametrize(
    ("ours", "theirs", "prefix"),
    [
        (ActionKind, action_pb2.ActionKind, "ACTION_KIND_"),
        (Hold, action_pb2.Hold, "HOLD_"),
        (Unservable, action_pb2.Unservable, "UNSERVABLE_"),
        (PriorityClass, job_pb2.PriorityClass, "PRIORITY_CLASS_"),
        (TrajectoryEnd, job_pb2.TrajectoryEnd, "TRAJECTORY_END_"),
        (Opening, job_pb2.Opening, "OPENING_"),
        (OnInfra, job_pb2.OnInfra, "ON_INFRA_"),
        (Where, action_pb2.RewardPlace, "REWARD_PLACE_"),
        (BackgroundProcesses, action_pb2.RewardBackground, "REWARD_BACKGROUND_"),
        (LogProbsMode, action_pb2.LogProbsMode, "LOG_PROBS_MODE_"),
        (FailureKind, outcome_pb2.FailureKind, "FAILURE_KIND_"),
        (TimeoutKind, outcome_pb2.TimeoutKind, "TIMEOUT_KIND_"),
        (FinishReason, outcome_pb2.FinishReason, "FINISH_REASON_"),
        (ActionState, admin_service_pb2.ActionState, "ACTION_STATE_"),
        (WaitReason, admin_service_pb2.WaitReason, "WAIT_REASON_"),
    ],
)
def test_every_value_of_the_contract_has_a_member(ours: type[Enum], theirs: Any, prefix: str) -> None:
    names = {name.removeprefix(prefix) for name in theirs.keys()}  # noqa: SIM118 - an enum wrapper is no mapping
    assert {member.name for member in ours} | {"UNSPECIFIED"} == names
    assert all(member.value == member.name.lower() for member in ours)


def test_the_limit_for_inline_bytes_is_the_contracts() -> None:
    assert MAX_INLINE_BYTES == 65_536
