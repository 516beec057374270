"""A job's history in Chrome's trace format, which Perfetto opens. Pure.

Processes are the engines and nodes that actions ran on, and two more: what waited, and trajectories as a whole. Threads
are lanes, in which no slice overlaps another. Arrows lead from each action of a trajectory to the next.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from callsheet.v1 import action_pb2, admin_service_pb2, job_pb2, outcome_pb2
from google.protobuf.json_format import MessageToDict

Event = dict[str, Any]
WAITING: Final = "waiting"
TRAJECTORIES: Final = "trajectories"


class Slice(NamedTuple):
    """A slice of a process, in microseconds since the epoch; arrows join those of a trajectory, where it names one."""

    process: str
    name: str
    begin: int
    end: int
    args: Event
    trajectory_id: str = ""


def lanes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """A lane for each span (begin, end), so that no two in a lane overlap; as few lanes as can be, from 0."""
    taken: list[tuple[int, int]] = []
    free: list[int] = []
    found = [0] * len(spans)
    for index in sorted(range(len(spans)), key=spans.__getitem__):
        begin, end = spans[index]
        while taken and taken[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(taken)[1])
        found[index] = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (end, found[index]))
    return found


def trace_events(
    trajectories: Iterable[admin_service_pb2.TrajectoryHistory],
    actions: Iterable[admin_service_pb2.ActionHistory],
    now: float,
) -> Iterator[Event]:
    """The events of a job.

    Args:
        trajectories: What became of its trajectories.
        actions: What became of its actions.
        now: Until then what is open has lasted, in seconds since the epoch.
    """
    until, slices, groups = int(now * 1e6), defaultdict[str, list[Slice]](list), dict[str, str]()
    for trajectory in trajectories:
        groups[trajectory.trajectory_id] = trajectory.group_id
        slices[TRAJECTORIES].append(_whole(trajectory, until))
    for action in actions:
        for each in _parts(action, groups.get(action.trajectory_id, ""), until):
            slices[each.process].append(each)
    joined = defaultdict[str, list[tuple[Slice, Event]]](list)
    # The first lane has the number of its process, as a main thread has. Thread 0 is the idle task to Perfetto: one for
    # all processes, so that it drops slices which overlap in it.
    pid = 1
    for name, of_process in slices.items():
        found = lanes([(each.begin, each.end) for each in of_process])
        told = {"ph": "M", "ts": 0, "pid": pid}
        yield {**told, "tid": pid, "name": "process_name", "args": {"name": name}}
        for lane in range(max(found) + 1):
            yield {**told, "tid": pid + lane, "name": "thread_name", "args": {"name": f"lane {lane}"}}
        for each, lane in zip(of_process, found, strict=True):
            place = {"pid": pid, "tid": pid + lane}
            yield {
                "ph": "X",
                "name": each.name,
                **place,
                "ts": each.begin,
                "dur": each.end - each.begin,
                "args": each.args,
            }
            if each.trajectory_id:
                joined[each.trajectory_id].append((each, place))
        pid += max(found) + 1
    yield from _arrows(joined)


def _whole(trajectory: admin_service_pb2.TrajectoryHistory, until: int) -> Slice:
    args = _filled(
        group=trajectory.group_id,
        task=trajectory.task,
        policy_version=trajectory.policy_version,
        end=_name(job_pb2.TrajectoryEnd, trajectory.end),
        reason=trajectory.reason,
        scores=list(trajectory.scores),
        reward=trajectory.reward if trajectory.HasField("reward") else None,
        cost=_dict(trajectory.cost),
    )
    begin = trajectory.opened.ToMicroseconds()
    end = trajectory.closed.ToMicroseconds() if trajectory.HasField("closed") else until
    return Slice(TRAJECTORIES, trajectory.trajectory_id, begin, max(end, begin + 1), args)


def _parts(action: admin_service_pb2.ActionHistory, group_id: str, until: int) -> Iterator[Slice]:
    """Yields the slice in which an action waited for its first dispatch, and the slice of its last attempt."""
    kind, timeline = _name(action_pb2.ActionKind, action.kind), action.timeline
    name, args = f"{kind} {action.label}".rstrip(), _about(action, group_id)
    times = {
        each.name: time.ToMicroseconds() for each, time in timeline.ListFields() if hasattr(time, "ToMicroseconds")
    }
    ended = times.get("ended", until)
    submitted, dispatched = times["submitted"], times.get("first_dispatched", ended)
    if dispatched > submitted:
        yield Slice(WAITING, name, submitted, dispatched, args)
    begin = times.get("started") or times.get("dispatched")
    if begin is not None and action.manager_id:
        is_engine = action.kind == action_pb2.ACTION_KIND_GENERATE
        place = f"engine {action.manager_id}" if is_engine else f"node {action.node_id or action.manager_id}"
        yield Slice(place, name, begin, max(ended, begin + 1), args, action.trajectory_id)


def _about(action: admin_service_pb2.ActionHistory, group_id: str) -> Event:
    return _filled(
        action=action.key.action_id,
        trajectory=action.trajectory_id,
        group=group_id,
        state=_name(admin_service_pb2.ActionState, action.state),
        failure=_name(outcome_pb2.FailureKind, action.failure),
        reason=action.reason,
        task=action.task,
        service=action.service,
        manager=action.manager_id,
        node=action.node_id,
        attempts=action.attempts,
        queue_s=action.timeline.queue_s,
        execution_s=action.timeline.execution_s,
        waited_s=dict(action.timeline.waited_s),
        usage=_dict(action.usage),
        policy_versions=[span.version for span in action.policy_versions],
        output_tokens=action.output_tokens,
        cached_tokens=action.cached_tokens,
        score=action.score if action.HasField("score") else None,
    )


def _arrows(joined: Mapping[str, Sequence[tuple[Slice, Event]]]) -> Iterator[Event]:
    """From each slice of a trajectory to the one that began next."""
    found = (
        (name, pair)
        for name, of_one in joined.items()
        for pair in pairwise(sorted(of_one, key=lambda each: each[0][2:4]))
    )
    for number, (name, ((before, begin), (after, end))) in enumerate(found):
        arrow = {"name": name, "cat": "trajectory", "id": number}
        # Both times lie within their slices, which is how arrows find them.
        yield {"ph": "s", **arrow, **begin, "ts": min(before.end - 1, after.begin)}
        yield {"ph": "f", "bp": "e", **arrow, **end, "ts": after.begin}


def _filled(**args: Any) -> Event:
    return {name: value for name, value in args.items() if value not in ("", None, [], {})}


def _name(of: Any, number: int) -> str:
    """The name of a value of an enumeration, in lower case and without its prefix; empty for the first one."""
    return "" if not number else of.Name(number).split("_", 2)[2].lower()


def _dict(message: Any) -> Event:
    # JSON of protobuf has integers of 64 bits as texts, which no query adds up.
    told = MessageToDict(message, preserving_proto_field_name=True)
    return {name: int(value) if isinstance(value, str) else value for name, value in told.items()}
