"""Dispatches as a scheduler would send them."""

from __future__ import annotations

from callsheet.v1 import action_pb2, common_pb2, manager_service_pb2


def make_dispatch(
    action_id: str,
    sequence: int,
    *,
    epoch: int = 1,
    attempt: int = 1,
    kind: str = "tool_call",
    script: str = "",
    sandbox_id: str = "",
    trajectory_id: str = "t",
    start_to_close_s: float | None = None,
    heartbeat_s: float | None = None,
    expected_s: float | None = None,
    cpu: int = 1,
) -> manager_service_pb2.Dispatch:
    """Returns a dispatch of an action of job "j"; `script` becomes its label, see ScriptedExecutor."""
    action = action_pb2.ActionSpec(job_id="j", action_id=action_id, trajectory_id=trajectory_id, label=script)
    if kind == "tool_call":
        action.tool_call.SetInParent()
    elif kind == "test_suite":
        place = action_pb2.REWARD_PLACE_IN_SANDBOX if sandbox_id else action_pb2.REWARD_PLACE_FRESH
        action.reward.test_suite.where = place
    else:
        getattr(action, kind).SetInParent()
    grant = manager_service_pb2.Grant(
        token=manager_service_pb2.FencingToken(epoch=epoch, sequence=sequence),
        key=common_pb2.ActionKey(job_id="j", action_id=action_id),
        attempt=attempt,
        resources={"cpu": cpu},
        cores=range(cpu),
        service="noop",
        body_hash=b"hash",
        sandbox_id=sandbox_id,
    )
    if expected_s is not None:
        action.expected_duration.FromMilliseconds(round(expected_s * 1000))
    if start_to_close_s is not None:
        grant.start_to_close.FromMilliseconds(round(start_to_close_s * 1000))
    if heartbeat_s is not None:
        grant.heartbeat.FromMilliseconds(round(heartbeat_s * 1000))
    return manager_service_pb2.Dispatch(grant=grant, action=action)
