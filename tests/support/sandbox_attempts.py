"""Attempts for sandbox executors, without a scheduler."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from callsheet.managers.executor import Attempt, PayloadMissingError
from callsheet.v1 import action_pb2, common_pb2, manager_service_pb2

_INLINE_BYTES = 65536
_numbers = itertools.count(1)


class MemoryPayloads:
    """Payloads in a dictionary; follows the rule of what is inline."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    async def read(self, blob: common_pb2.Blob) -> bytes:
        """Returns a blob's bytes."""
        if blob.WhichOneof("content") != "reference":
            return blob.inline
        content = self.stored.get(blob.reference.sha256)
        if content is None:
            raise PayloadMissingError(blob.reference.sha256)
        return content

    async def write(self, content: bytes) -> common_pb2.Blob:
        """Returns a blob for some bytes."""
        if len(content) <= _INLINE_BYTES:
            return common_pb2.Blob(inline=content)
        digest = hashlib.sha256(content).hexdigest()
        self.stored[digest] = content
        return common_pb2.Blob(reference=common_pb2.PayloadReference(sha256=digest, size=len(content)))


def attempt_of(
    action: action_pb2.ActionSpec,
    *,
    sandbox_id: str = "",
    cores: Iterable[int] = (),
    resources: Mapping[str, int] | None = None,
    expected_execution_s: float = 0.0,
) -> Attempt:
    """Returns an attempt with a grant."""
    number = next(_numbers)
    action.job_id = action.job_id or "job"
    action.action_id = action.action_id or f"action-{number}"
    granted = list(cores)
    grant = manager_service_pb2.Grant(
        token=manager_service_pb2.FencingToken(epoch=1, sequence=number),
        key=common_pb2.ActionKey(job_id=action.job_id, action_id=action.action_id),
        attempt=1,
        resources={"cpu": len(granted), **(resources or {})},
        cores=granted,
        sandbox_id=sandbox_id,
        expected_execution_s=expected_execution_s,
    )
    return Attempt(grant=grant, action=action, payloads=MemoryPayloads())


def sh(script: str) -> action_pb2.Command:
    """Returns a shell command."""
    return action_pb2.Command(shell=script)


def inline_file(path: str, content: bytes) -> action_pb2.SandboxFile:
    """Returns a file with its content inline."""
    return action_pb2.SandboxFile(path=path, content=common_pb2.Blob(inline=content))


def reset(
    *files: action_pb2.SandboxFile, set_up: str | None = None, trajectory: str = "trajectory"
) -> action_pb2.ActionSpec:
    """Returns an env_reset."""
    action = action_pb2.ActionSpec(trajectory_id=trajectory, env_reset=action_pb2.EnvResetInput(files=files))
    if set_up is not None:
        action.env_reset.set_up.CopyFrom(sh(set_up))
    return action


def step(script: str, *files: action_pb2.SandboxFile, trajectory: str = "trajectory") -> action_pb2.ActionSpec:
    """Returns an env_step that runs a shell script."""
    return action_pb2.ActionSpec(
        trajectory_id=trajectory, env_step=action_pb2.EnvStepInput(files=files, command=sh(script))
    )


@dataclass(frozen=True)
class Judge:
    """A test suite that scores a trajectory.

    Attributes:
        command: The runner.
        files: Its own.
        in_sandbox: Whether it runs beside the policy's files, and not in a copy.
        tests: As many as there are; 0 does not say.
    """

    command: action_pb2.Command
    files: tuple[action_pb2.SandboxFile, ...] = ()
    in_sandbox: bool = False
    tests: int = 0

    def action(self) -> action_pb2.ActionSpec:
        """Returns the reward."""
        where = action_pb2.REWARD_PLACE_IN_SANDBOX if self.in_sandbox else action_pb2.REWARD_PLACE_FRESH
        tests = action_pb2.TestSuiteInput(where=where, files=self.files, command=self.command, tests=self.tests)
        return action_pb2.ActionSpec(trajectory_id="trajectory", reward=action_pb2.RewardInput(test_suite=tests))


def suite(script: str, *files: action_pb2.SandboxFile, in_sandbox: bool = False) -> action_pb2.ActionSpec:
    """Returns a test-suite reward."""
    return Judge(sh(script), files, in_sandbox).action()
