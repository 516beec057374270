"""A manager that does nothing, for benchmarks and fault tests: it measures everything around the work."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import anyio
from callsheet.managers.ends import infra_failure
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Executor, Stopped
from callsheet.managers.kind import ManagerKind, ServedActions
from callsheet.managers.sandbox_memory import runs_in_sandbox
from callsheet.options.declaration import Setting, check_least
from callsheet.v1 import action_pb2, common_pb2, manager_service_pb2, outcome_pb2
from typing_extensions import override

ALL_KINDS = tuple(kind for kind in action_pb2.ActionKind.values() if kind)


@dataclass(frozen=True, slots=True)
class NoopService:
    """A service to register; `slots` 0 means no limit."""

    name: str = "noop"
    kinds: tuple[action_pb2.ActionKind.ValueType, ...] = ALL_KINDS
    slots: int = 0


@dataclass(frozen=True, slots=True)
class NoopSettings:
    """Settings of the no-op manager.

    Attributes:
        services: What it registers.
        follow_expected_duration: An action with an `expected_duration` takes that long instead.
    """

    services: Sequence[NoopService] = (NoopService(),)
    execution_s: Annotated[float, Setting("Seconds that each attempt takes.", least=0)] = 0.0
    follow_expected_duration: bool = True
    echo: Annotated[bool, Setting("Answer a tool call with its inline arguments.")] = False
    start_log: Annotated[
        Path | None, Setting("File that gets one line of JSON for every start, before anything else happens.")
    ] = None

    def __post_init__(self) -> None:
        if not self.services:
            raise ValueError("services: () is empty; at least one must be given")
        check_least(self)


class NoopExecutor(Executor):
    """Serves all kinds; its sandboxes are names."""

    def __init__(self, settings: NoopSettings) -> None:
        self._settings = settings
        self._sandboxes: dict[tuple[str, str], manager_service_pb2.SandboxState] = {}
        self._log_file = None if settings.start_log is None else _open_log(settings.start_log)

    @override
    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """The services to register."""
        return [
            manager_service_pb2.HostedService(
                name=service.name, kinds=service.kinds, slots=service.slots, copies_sandboxes=True
            )
            for service in self._settings.services
        ]

    @override
    def capabilities(self) -> Mapping[str, str]:
        """Returns that it does nothing."""
        return {"executor": "noop"}

    @override
    def sandboxes(self) -> Sequence[manager_service_pb2.SandboxState]:
        """The sandboxes it pretends to hold."""
        return list(self._sandboxes.values())

    @override
    def run_inline(self, dispatch: manager_service_pb2.Dispatch) -> Completed | Broken | None:
        """Ends an attempt on the spot if it takes no time."""
        if self._duration_s(dispatch.action) > 0:
            return None
        self._log_start(dispatch.grant, dispatch.action)
        return self._lost_state(dispatch.grant, dispatch.action) or self._result(dispatch.action)

    @override
    async def run(self, attempt: Attempt) -> AttemptResult:
        """Lets the attempt's time pass."""
        self._log_start(attempt.grant, attempt.action)
        lost = self._lost_state(attempt.grant, attempt.action)
        if lost is not None:
            return lost
        with anyio.move_on_after(self._duration_s(attempt.action)):
            await attempt.stop_requested.wait()
        if attempt.stop_requested.is_set():
            return Stopped()
        return self._lost_state(attempt.grant, attempt.action) or self._result(attempt.action)

    @override
    async def release_sandbox(self, sandbox: manager_service_pb2.SandboxState) -> None:
        """Forgets a sandbox."""
        place = (sandbox.job_id, sandbox.trajectory_id)
        held = self._sandboxes.get(place)
        if held is not None and held.sandbox_id == sandbox.sandbox_id:
            del self._sandboxes[place]

    @override
    async def close(self) -> None:
        """Forgets everything."""
        self._sandboxes.clear()
        if self._log_file is not None:
            os.close(self._log_file)
            self._log_file = None

    def _duration_s(self, action: action_pb2.ActionSpec) -> float:
        if self._settings.follow_expected_duration and action.HasField("expected_duration"):
            return action.expected_duration.ToTimedelta().total_seconds()
        return self._settings.execution_s

    def _log_start(self, grant: manager_service_pb2.Grant, action: action_pb2.ActionSpec) -> None:
        if self._log_file is None:
            return
        line = {
            "kind": action.WhichOneof("payload"),
            "job": action.job_id,
            "action": action.action_id,
            "attempt": grant.attempt,
            "sandbox": grant.sandbox_id,
        }
        os.write(self._log_file, json.dumps(line).encode() + b"\n")

    def _lost_state(self, grant: manager_service_pb2.Grant, action: action_pb2.ActionSpec) -> Broken | None:
        if not runs_in_sandbox(action) and not grant.sandbox_id:
            return None
        held = self._sandboxes.get((action.job_id, action.trajectory_id))
        if held is not None and held.sandbox_id == grant.sandbox_id:
            return None
        return Broken(infra_failure("state_lost", f"sandbox {grant.sandbox_id!r} is not here"))

    def _result(self, action: action_pb2.ActionSpec) -> Completed:
        kind = action.WhichOneof("payload")
        if kind == "env_reset":
            return self._new_sandbox(action)
        if self._settings.echo and kind == "tool_call" and action.tool_call.arguments.inline:
            response = common_pb2.Blob(inline=action.tool_call.arguments.inline)
            return Completed(outcome_pb2.Succeeded(tool_call=outcome_pb2.ToolCallResult(response=response)))
        return RESULTS[kind or ""]

    def _new_sandbox(self, action: action_pb2.ActionSpec) -> Completed:
        sandbox_id = uuid.uuid4().hex
        self._sandboxes[action.job_id, action.trajectory_id] = manager_service_pb2.SandboxState(
            job_id=action.job_id, trajectory_id=action.trajectory_id, sandbox_id=sandbox_id
        )
        made = outcome_pb2.EnvResetResult(sandbox_id=sandbox_id, trajectory_id=action.trajectory_id)
        return Completed(outcome_pb2.Succeeded(env_reset=made))


def _open_log(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def _one_token() -> outcome_pb2.GenerateResult:
    return outcome_pb2.GenerateResult(
        token_ids=[0],
        log_probs=[0.0],
        finish_reason=outcome_pb2.FINISH_REASON_LENGTH,
        log_probs_mode=action_pb2.LOG_PROBS_MODE_SAMPLED,
        policy_versions=[outcome_pb2.PolicyVersionSpan(begin=0, end=1)],
    )


def _least_result(kind: str) -> Completed:
    succeeded = outcome_pb2.Succeeded()
    result = getattr(succeeded, kind)
    result.SetInParent()
    if kind == "generate":
        result.CopyFrom(_one_token())
    return Completed(succeeded)


RESULTS: Mapping[str, Completed] = {
    field.name: _least_result(field.name) for field in outcome_pb2.Succeeded.DESCRIPTOR.oneofs_by_name["result"].fields
}
"""The least result of each kind; env_reset makes its own. Shared: the runtime copies what it reports."""


KIND = ManagerKind(
    name="noop",
    summary="Serve actions of all kinds by doing nothing.",
    settings=NoopSettings,
    build=lambda settings, _: NoopExecutor(settings),
    serves=(ServedActions("noop", ALL_KINDS),),
    extra="sandbox",
    hidden=True,
)
