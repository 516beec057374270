"""Items of a client's session: fine ones, and ones of which a test spoils a field."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from callsheet.v1 import action_pb2, client_service_pb2, common_pb2, job_pb2
from google.protobuf import duration_pb2

Item = client_service_pb2.ClientItem


def job(**fields: object) -> Item:
    return Item(open_job=job_pb2.JobSpec(**{"job_id": "other", **fields}))  # type: ignore[arg-type]


def trajectory(**fields: object) -> Item:
    given = {"job_id": "job", "trajectory_id": "t", **fields}
    return Item(open_trajectory=job_pb2.TrajectorySpec(**given))  # type: ignore[arg-type]


def spec(change: Callable[[action_pb2.ActionSpec], object] | None = None, **fields: object) -> Item:
    """A submit that is fine (a generate) but for some fields and a change."""
    generate = action_pb2.GenerateInput(prompt_token_ids=[1], sampling=action_pb2.SamplingParameters(max_new_tokens=1))
    given = {"job_id": "job", "action_id": uuid.uuid4().hex, "generate": generate, **fields}
    action = action_pb2.ActionSpec(**given)  # type: ignore[arg-type]
    if change is not None:
        change(action)
    return Item(submit=action)


def step(command: action_pb2.Command | None = None, **fields: object) -> Item:
    """A submit of an env_step in a trajectory that has no sandbox."""
    run = command or action_pb2.Command(shell="true")
    given: dict[str, Any] = {"trajectory_id": "open", "env_step": action_pb2.EnvStepInput(command=run), **fields}
    return spec(**given)


def in_session(session: str, **command: Any) -> Item:
    """A submit of an env_step in a session."""
    return step(env_step=action_pb2.EnvStepInput(command=action_pb2.Command(**command), session=session))


def need(**fields: object) -> Item:
    """A submit whose demand has one entry."""
    entry = action_pb2.ResourceDemand(**{"resource": "cpu", "min_milli_units": 1000, **fields})  # type: ignore[arg-type]
    return spec(demand=action_pb2.Demand(resources=[entry]))


def times(**milliseconds: int) -> Item:
    """A submit with timeouts."""
    return spec(timeouts=action_pb2.Timeouts(**{name: after(value) for name, value in milliseconds.items()}))


def after(milliseconds: int) -> duration_pb2.Duration:
    duration = duration_pb2.Duration()
    duration.FromMilliseconds(milliseconds)
    return duration


def file(path: str = "a", content: common_pb2.Blob | None = None, mode: int = 0) -> Item:
    given = action_pb2.SandboxFile(path=path, content=content or common_pb2.Blob(inline=b""), mode=mode)
    return spec(trajectory_id="open", env_reset=action_pb2.EnvResetInput(files=[given]))


def reference(sha256: str, size: int = 70_000) -> common_pb2.Blob:
    return common_pb2.Blob(reference=common_pb2.PayloadReference(sha256=sha256, size=size))


def key(job_id: str, action_id: str) -> common_pb2.ActionKey:
    return common_pb2.ActionKey(job_id=job_id, action_id=action_id)
