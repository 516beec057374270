"""Reads what an env_reset asks for, and tells how it went in the words of the contract."""

from __future__ import annotations

from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Stopped
from callsheet.managers.sandbox.backend import CommandOutcome, FileSpec, SandboxSpec
from callsheet.managers.sandbox.command_defaults import CommandDefaults
from callsheet.managers.sandbox.images.source import PreparedImage
from callsheet.managers.sandbox.provisioning.provisioner import Provided, Wanted
from callsheet.managers.sandbox.provisioning.snapshots import SetUp
from callsheet.managers.sandbox.requests import read_command, read_files
from callsheet.managers.sandbox.results import command_result, limit_failure, usage_of
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.v1 import outcome_pb2
from callsheet.v1.set_ups import set_up_name

BUILT_IMAGE = "@build"
"""In the place of the name of an image that is built. No image has it."""


async def read_env_reset(
    attempt: Attempt,
    specification: SandboxSpec,
    image: PreparedImage,
    settings: SandboxSettings,
    defaults: CommandDefaults,
) -> Wanted:
    """Returns what an attempt at an env_reset asks for; raises what the readers of `requests` raise."""
    reset, payloads = attempt.action.env_reset, attempt.payloads
    files = await read_files(reset.files, payloads, defaults)
    # An image has its own, if it names one.
    if reset.defaults.working_directory:
        files.insert(0, FileSpec(defaults.directory, directory=True))
    command = await read_command(reset.set_up, payloads, settings, defaults) if reset.HasField("set_up") else None
    set_up = SetUp(tuple(files), command)
    name = BUILT_IMAGE if reset.HasField("build") else reset.image
    return Wanted(specification, image, name, set_up, set_up_name(reset), reset.repeat_set_up)


async def completed_reset(provided: Provided, image: PreparedImage, attempt: Attempt) -> Completed:
    """Returns the result of a reset that made a sandbox; raises PayloadError if its output cannot be stored."""
    result = outcome_pb2.EnvResetResult(
        sandbox_id=provided.sandbox.spec.sandbox_id,
        trajectory_id=attempt.action.trajectory_id,
        set_up_reused=provided.reused,
        image_digest=image.registry_digest,
    )
    if provided.outcome is not None:
        result.set_up.CopyFrom(await command_result(provided.outcome, attempt.payloads))
    # What an earlier run used was charged to that one.
    usage = usage_of(provided.outcome) if provided.outcome is not None and not provided.reused else outcome_pb2.Usage()
    return Completed(outcome_pb2.Succeeded(env_reset=result), usage)


async def failed_reset(outcome: CommandOutcome, attempt: Attempt) -> AttemptResult:
    """Returns the result of a reset whose set-up command did not succeed."""
    result = outcome_pb2.EnvResetResult(trajectory_id=attempt.action.trajectory_id)
    result.set_up.CopyFrom(await command_result(outcome, attempt.payloads))
    partial, usage = outcome_pb2.Succeeded(env_reset=result), usage_of(outcome)
    if outcome.stopped:
        return Stopped(partial, usage)
    ended = f"signal {outcome.signal}" if outcome.signal else f"exit code {outcome.exit_code}"
    failed = limit_failure(outcome, partial) or outcome_pb2.Failed(
        kind=outcome_pb2.FAILURE_KIND_ENV,
        reason="set_up_failed",
        message=f"the set-up command ended with {ended}",
        partial=partial,
    )
    return Broken(failed, usage)
