"""From what became of a real trajectory to a line of a trace file; see docs/reference/trace-format.md. No contents."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import AsyncIterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from callsheet.client.admin import AdminClient
from callsheet.v1 import action_pb2, admin_service_pb2
from google.protobuf.timestamp_pb2 import Timestamp

# A command whose CPU time is less than so many times its time has one core, and clocks that are not quite alike.
_ONE_CORE: Final = 1.1
_MOST_FAILS: Final = 100
_DEFAULTS: Final = {"peak_memory_mb": 0, "max_width": 1, "parallel_fraction": 0.0, "fails": 0}
# Trajectories whose actions are asked for together.
_AT_ONCE: Final = 32


async def write_trace(admin: AdminClient, job_id: str, path: Path) -> int:
    """Writes a job's trajectories that ended to a file, packed if its name ends in .gz; returns how many.

    The file at `path` stays unless all went well. What is there and no file, such as a pipe, is written to.

    Raises:
        NotFoundError: The job is neither open nor kept.
        OSError: The file cannot be written.
    """
    (whole, part), count = _places(path), 0
    try:
        with gzip.open(part, "wt", encoding="utf-8") if path.suffix == ".gz" else part.open("w") as file:
            async for line in _lines_of(admin, job_id):
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
                count += 1
        part.replace(whole)
    finally:
        if part != whole:
            part.unlink(missing_ok=True)
    return count


def _places(path: Path) -> tuple[Path, Path]:
    """Where a whole file is to be, and where it is written; the same for what is no file, whose place none takes."""
    if path.exists() and not path.is_file():
        return path, path
    # What a link leads to, which may be /dev/stdout.
    whole = path.resolve()
    return whole, whole.with_name(f"{whole.name}.part")


async def _lines_of(admin: AdminClient, job_id: str) -> AsyncIterator[dict[str, Any]]:
    """Yields the lines of a job's trajectories that ended; a few of them are in memory at a time."""
    every = [each async for each in admin.trajectory_history(job_id)]
    began = min((_seconds(each.opened) for each in every), default=0.0)
    ended = [each for each in every if each.end]
    for first in range(0, len(ended), _AT_ONCE):
        chosen = {each.trajectory_id: each for each in ended[first : first + _AT_ONCE]}
        actions: dict[str, list[admin_service_pb2.ActionHistory]] = {name: [] for name in chosen}
        async for action in admin.action_history(job_id, list(chosen)):
            actions[action.trajectory_id].append(action)
        for line in (recorded_trajectory(chosen[name], actions[name], job_id, began) for name in chosen):
            if line is not None:
                yield line


def recorded_trajectory(
    trajectory: admin_service_pb2.TrajectoryHistory,
    actions: Sequence[admin_service_pb2.ActionHistory],
    job_id: str,
    began: float,
) -> dict[str, Any] | None:
    """The line of a trajectory that ended; None if none of its actions executed.

    Args:
        trajectory: What became of it.
        actions: What became of its actions, in the order of their submits.
        job_id: Its job.
        began: When the recording begins, in seconds since the epoch.
    """
    succeeded = admin_service_pb2.ACTION_STATE_SUCCEEDED
    ran = [each for each in actions if each.timeline.execution_s or each.state == succeeded]
    if not ran:
        return None
    arrives_s = round(max(_seconds(ran[0].timeline.submitted) - began, 0.0), 6)
    reset = ran.pop(0) if ran[0].kind == action_pb2.ACTION_KIND_ENV_RESET else None
    rewards = [*takewhile(lambda each: each.kind == action_pb2.ACTION_KIND_REWARD, reversed(ran))][::-1]
    line = {
        "id": trajectory.trajectory_id,
        "job": job_id,
        "group": trajectory.group_id,
        "task": trajectory.task,
        "policy_version": trajectory.policy_version,
        "arrives_s": arrives_s,
        "reset": _action(reset) if reset is not None else None,
        "turns": _turns(ran, len(ran) - len(rewards), reset),
        "rewards": [_action(each) for each in rewards],
    }
    return {name: value for name, value in line.items() if value not in ("", None, [])}


def _turns(
    actions: Sequence[admin_service_pb2.ActionHistory], steps: int, reset: admin_service_pb2.ActionHistory | None
) -> list[dict[str, Any]]:
    """Turns of the first `steps` actions, each with what it took until its own were submitted; rewards come after.

    That is the execution of its generate actions, and all time in which no action was open: the client's own.
    """
    turns = [_new_turn()]
    idle_from = _seconds(reset.timeline.ended) if reset is not None else math.inf
    for number, each in enumerate(actions[: steps + 1]):
        idle_s = max(_seconds(each.timeline.submitted) - idle_from, 0.0)
        generates = each.kind == action_pb2.ACTION_KIND_GENERATE
        if turns[-1]["actions"] and (idle_s or generates):
            turns.append(_new_turn())
        generation, ended = turns[-1]["generation"], _seconds(each.timeline.ended)
        idle_from = max(idle_from, ended) if idle_from < math.inf else ended
        seconds = generation["seconds"] + idle_s + (each.timeline.execution_s if generates else 0.0)
        generation["seconds"] = round(seconds, 6)
        # What is no generate has none of these.
        computed = round(each.usage.cost.used.get("tokens_in", 0.0))
        generation["prompt_tokens"] = max(generation["prompt_tokens"], computed + each.cached_tokens)
        generation["output_tokens"] += each.output_tokens
        generation["cached_tokens"] += each.cached_tokens
        generation["policy_versions"] += [[span.version, span.end - span.begin] for span in each.policy_versions]
        if not generates and number < steps:
            turns[-1]["actions"].append(_step(each, in_sandbox=reset is not None))
    return turns


def _new_turn() -> dict[str, Any]:
    tokens: dict[str, Any] = dict.fromkeys(("prompt_tokens", "output_tokens", "cached_tokens"), 0)
    return {"generation": {"seconds": 0.0, **tokens, "policy_versions": []}, "actions": []}


def _step(action: admin_service_pb2.ActionHistory, *, in_sandbox: bool) -> dict[str, Any]:
    if action.kind == action_pb2.ACTION_KIND_TOOL_CALL:
        return {"kind": "tool_call", **_action(action)}
    inside = in_sandbox and action.kind != action_pb2.ACTION_KIND_REWARD
    return {"kind": "env_step", **_action(action), **({} if inside else {"in_sandbox": False})}


def _action(action: admin_service_pb2.ActionHistory) -> dict[str, Any]:
    timeline, cpu_s = action.timeline, action.usage.cpu_s
    act_s = _seconds(timeline.ended) - _seconds(timeline.submitted) - timeline.start_wait_s
    # Several cores made it as much faster: Amdahl's fraction of as many as that takes.
    speed_up = cpu_s / timeline.execution_s if timeline.execution_s else 1.0
    width = math.ceil(speed_up) if speed_up > _ONE_CORE else 1
    line = {
        "label": action.label or action_pb2.ActionKind.Name(action.kind).removeprefix("ACTION_KIND_").lower(),
        "duration_s": round(max(timeline.execution_s, cpu_s), 6),
        "cpu_s": round(cpu_s, 6),
        "peak_memory_mb": math.ceil(action.usage.peak_memory_bytes / 1e6),
        "act_s": round(max(act_s, 0.0), 6),
        "max_width": width,
        "parallel_fraction": round((1 - 1 / speed_up) / (1 - 1 / width), 6) if width > 1 else 0.0,
        "fails": min(max(action.attempts - 1, 0), _MOST_FAILS),
    }
    return {name: value for name, value in line.items() if value != _DEFAULTS.get(name)}


def _seconds(time: Timestamp) -> float:
    return time.ToNanoseconds() / 1e9
