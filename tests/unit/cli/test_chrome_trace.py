"""A job's history in Chrome's trace format."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from callsheet.cli.chrome_trace import TRAJECTORIES, WAITING, lanes, trace_events
from callsheet.v1 import action_pb2, admin_service_pb2, job_pb2, outcome_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chrome_traces import faults_of, place_of, slices_named

Action = admin_service_pb2.ActionHistory
Trajectory = admin_service_pb2.TrajectoryHistory
GENERATE, RESET = action_pb2.ACTION_KIND_GENERATE, action_pb2.ACTION_KIND_ENV_RESET
STEP, REWARD = action_pb2.ACTION_KIND_ENV_STEP, action_pb2.ACTION_KIND_REWARD
SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda span: (span[0], span[0] + span[1])))


def action(action_id: str, kind: int, *times: float, trajectory_id: str = "t", manager_id: str = "m") -> Action:
    """An action with the times of its submit, first dispatch, start and end, as far as it came."""
    told = Action(trajectory_id=trajectory_id, kind=kind, manager_id=manager_id)  # type: ignore[arg-type]
    told.node_id = f"node of {manager_id}" if manager_id else ""
    told.key.action_id = action_id
    for name, time in zip(("submitted", "first_dispatched", "started", "ended"), times, strict=False):
        getattr(told.timeline, name).FromMicroseconds(int(time * 1e6))
    if len(times) > 1:
        told.timeline.dispatched.CopyFrom(told.timeline.first_dispatched)
    return told


def trajectory(trajectory_id: str, opened: float, closed: float = 0.0) -> Trajectory:
    told = Trajectory(trajectory_id=trajectory_id, group_id="g")
    told.opened.FromMicroseconds(int(opened * 1e6))
    if closed:
        told.closed.FromMicroseconds(int(closed * 1e6))
        told.end = job_pb2.TRAJECTORY_END_COMPLETED
    return told


def events_of(trajectories: list[Trajectory], *actions: Action, now: float = 100.0) -> list[dict[str, Any]]:
    events = list(trace_events(trajectories, actions, now))
    assert list(faults_of(events)) == []
    assert json.loads(json.dumps(events)) == events
    return events


def test_arrows_lead_from_generate_to_env_to_reward() -> None:
    events = events_of(
        [trajectory("t", 0.0, 50.0)],
        action("r", REWARD, 31.0, 31.0, 31.0, 40.0),
        action("g", GENERATE, 0.0, 1.0, 1.0, 10.0, manager_id="e"),
        action("s", STEP, 10.0, 12.0, 13.0, 30.0),
    )
    arrows = [(each["ph"], place_of(events, each), each["ts"]) for each in events if each["ph"] in "sf"]
    assert [place for _, place, _ in arrows] == ["engine e", "node node of m", "node node of m", "node node of m"]
    assert [at for phase, _, at in arrows if phase == "f"] == [13_000_000, 31_000_000]
    (waited,) = [each for each in slices_named(events, "env_step") if place_of(events, each) == WAITING]
    assert (waited["ts"], waited["dur"]) == (10_000_000, 2_000_000)


def test_an_action_tells_its_ids_versions_tokens_and_cost() -> None:
    told = action("g", GENERATE, 0.0, 0.0, 1.0, 10.0)
    told.label, told.output_tokens, told.cached_tokens, told.state = (
        "short",
        7,
        3,
        admin_service_pb2.ACTION_STATE_FAILED,
    )
    told.failure, told.reason = outcome_pb2.FAILURE_KIND_RESOURCE_LIMIT, "out_of_memory"
    told.policy_versions.add(version=4, begin=0, end=7)
    told.usage.cost.used["tokens_out"] = 7.0
    told.usage.peak_memory_bytes = 1 << 40
    told.timeline.waited_s["memory"] = 0.5
    (found,) = slices_named(events_of([trajectory("t", 0.0)], told), "generate short")
    args = found["args"]
    assert (args["action"], args["trajectory"], args["group"]) == ("g", "t", "g")
    assert (args["state"], args["failure"], args["reason"]) == ("failed", "resource_limit", "out_of_memory")
    assert (args["policy_versions"], args["output_tokens"], args["cached_tokens"]) == ([4], 7, 3)
    assert (args["usage"]["cost"], args["waited_s"]) == ({"used": {"tokens_out": 7.0}}, {"memory": 0.5})
    assert args["usage"]["peak_memory_bytes"] == 1 << 40
    assert "score" not in args


def test_what_is_open_lasts_until_now_and_what_never_ran_only_waited() -> None:
    events = events_of(
        [trajectory("t", 1.0)],
        action("runs", STEP, 2.0, 3.0, 4.0),
        action("sent", STEP, 2.0, 3.0),
        action("queued", STEP, 5.0, manager_id=""),
        action("expired", STEP, 6.0, manager_id="", trajectory_id=""),
        now=20.0,
    )
    (whole,) = [each for each in slices_named(events, "t") if place_of(events, each) == TRAJECTORIES]
    assert (whole["ts"], whole["dur"]) == (1_000_000, 19_000_000)
    ran = [each for each in slices_named(events, "env_step") if place_of(events, each) != WAITING]
    assert [(each["args"]["action"], each["ts"], each["dur"]) for each in ran] == [
        ("runs", 4_000_000, 16_000_000),
        ("sent", 3_000_000, 17_000_000),
    ]


def test_actions_at_one_time_have_lanes_of_their_own() -> None:
    many = [action(f"a{number}", STEP, 0.0, 1.0, 1.0, 1.0 + number / 4) for number in range(9)]
    events = events_of([], *many)
    assert len({each["tid"] for each in slices_named(events, "env_step") if place_of(events, each) != WAITING}) == 9


def test_a_job_without_any_work_is_an_empty_trace() -> None:
    assert events_of([]) == []


@pytest.mark.parametrize("clock_back", [0.5, 5.0])
def test_an_end_before_its_start_is_no_fault(clock_back: float) -> None:
    # Of two clocks, or of a scheduler whose clock was set back between two starts.
    events_of([trajectory("t", 10.0, 10.0 - clock_back)], action("a", STEP, 10.0, 9.0, 8.0, 10.0 - clock_back))


@given(SPANS)
def test_lanes_are_as_few_as_can_be_and_nothing_in_one_overlaps(spans: list[tuple[int, int]]) -> None:
    found = lanes(spans)
    for lane in set(found):
        of_lane = sorted(span for span, own in zip(spans, found, strict=True) if own == lane)
        assert all(before[1] <= after[0] for before, after in pairwise(of_lane))
    most = max((sum(begin <= at < end for begin, end in spans) for at, _ in spans), default=0)
    assert len(set(found)) == most
