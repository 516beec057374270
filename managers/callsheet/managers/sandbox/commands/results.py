"""Reports events in a sandbox in the words of the contract."""

from __future__ import annotations

from collections.abc import Sequence

from callsheet.managers.executor import PayloadAccess
from callsheet.managers.sandbox.backend import CommandOutcome
from callsheet.managers.sandbox.commands.env_step import Download
from callsheet.managers.sandbox.errors import SandboxDiedError, SandboxError, SandboxLostError
from callsheet.v1 import action_pb2, outcome_pb2

_MODEL_REASONS = frozenset({"bad_command", "too_many_sessions"})
_LIMIT_REASONS = frozenset({"pids", "disk_full", "out_of_memory", "copy_too_large"})


async def command_result(
    outcome: CommandOutcome, payloads: PayloadAccess, downloads: Sequence[Download] = ()
) -> outcome_pb2.CommandResult:
    """Returns a command's result; what is long goes to the payload store (PayloadError if that fails)."""
    result = outcome_pb2.CommandResult(
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        stdout=await payloads.write(outcome.stdout),
        stderr=await payloads.write(outcome.stderr),
        stdout_dropped_bytes=outcome.stdout_dropped,
        stderr_dropped_bytes=outcome.stderr_dropped,
        wall_s=outcome.wall_s,
    )
    if outcome.session is not None:
        result.session.started, result.session.ended = outcome.session.started, outcome.session.ended
        result.session.SetInParent()
    for download in downloads:
        content = await payloads.write(download.content) if download.content is not None else None
        result.downloads.add(path=download.path, content=content, refusal=download.refusal or None)
    return result


def usage_of(outcome: CommandOutcome) -> outcome_pb2.Usage:
    """Returns what a command used."""
    return outcome_pb2.Usage(cpu_s=outcome.cpu_s, peak_memory_bytes=outcome.peak_memory_bytes)


def limit_failure(outcome: CommandOutcome, partial: outcome_pb2.Succeeded) -> outcome_pb2.Failed | None:
    """Returns the failure of a command that failed while its sandbox met a limit; None if that was not so.

    A command that ends with exit code 0 although one of its processes met a limit has dealt with it.
    """
    if not outcome.failed or not (outcome.out_of_memory or outcome.process_limit):
        return None
    if outcome.out_of_memory:
        reason, message = "out_of_memory", "a process was killed for the sandbox's memory limit"
    else:
        reason, message = "pids", "a fork was refused for the sandbox's limit of processes"
    return outcome_pb2.Failed(
        kind=outcome_pb2.FAILURE_KIND_RESOURCE_LIMIT, reason=reason, message=message, partial=partial
    )


def describe_error(error: SandboxError, action: action_pb2.ActionSpec) -> outcome_pb2.Failed:
    """Returns the failure that an error means for an action.

    What a model writes is the text of an env_step's command and its use of sessions. All else, such as files, paths and
    programs that an image lacks, comes from whoever set the task and is the environment's.
    """
    kind, reason = error.kind, error.reason
    if reason in _LIMIT_REASONS:
        kind = outcome_pb2.FAILURE_KIND_RESOURCE_LIMIT
    elif isinstance(error, SandboxDiedError) and action.WhichOneof("payload") == "env_reset":
        # What runs there is the job's own, and worth another try.
        kind = SandboxLostError.kind
    elif action.WhichOneof("payload") == "env_step" and reason in _MODEL_REASONS:
        kind = outcome_pb2.FAILURE_KIND_POLICY
    return outcome_pb2.Failed(kind=kind, reason=reason, message=str(error))
