"""Foreseeable errors in a sandbox, or on the way to one."""

from __future__ import annotations

from typing import ClassVar

from callsheet.v1 import outcome_pb2


class SandboxError(Exception):
    """Fails an attempt, as `results.describe_error` says.

    Attributes:
        kind: Whose fault it usually is.
        reason: The word for it.
    """

    kind: ClassVar[outcome_pb2.FailureKind.ValueType] = outcome_pb2.FAILURE_KIND_ENV
    reason = ""


class ReasonedError(SandboxError):
    """One of several reasons."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SandboxCreateError(SandboxError):
    """A sandbox could not be made here; the message says why."""

    kind = outcome_pb2.FAILURE_KIND_INFRA
    reason = "sandbox_not_created"


class SandboxLostError(SandboxError):
    """The sandbox is gone: its first process died or was destroyed."""

    kind = outcome_pb2.FAILURE_KIND_INFRA
    reason = "state_lost"


class SandboxDiedError(SandboxLostError):
    """The sandbox is gone, and it died while a command ran in it: nothing outside is known to have ended it.

    Code that wants its own failure to be dropped would bring this about, so it is no failure of the service.
    """

    kind = outcome_pb2.FAILURE_KIND_ENV


class SandboxOutOfMemoryError(SandboxLostError):
    """The sandbox is gone because the kernel, to keep its memory limit, killed everything inside: files count too."""

    reason = "out_of_memory"


class NoRoomInKernelError(SandboxError):
    """The kernel had no room for a message to the sandbox, for seconds: it lives, and was not asked for anything."""

    kind = outcome_pb2.FAILURE_KIND_INFRA
    reason = "no_room"


class CopyRefusedError(ReasonedError):
    """The files of a sandbox cannot be copied as they are, so that nothing can be scored by them.

    Attributes:
        reason: "copy_too_large", or "not_copied" for what no copy can have, such as a name that is too long.
    """


class CopyLostError(ReasonedError):
    """A sandbox that was made for a reward is gone; the one that it was a copy of is not.

    Attributes:
        reason: "copy_lost" or "out_of_memory".
    """

    kind = outcome_pb2.FAILURE_KIND_INFRA


class CopyDiedError(CopyLostError):
    """It died while a command ran in it; see `SandboxDiedError`."""

    kind = outcome_pb2.FAILURE_KIND_ENV


class CannotExecuteError(ReasonedError):
    """A command could not be started: no such program, no such directory, or no process left for it.

    Attributes:
        reason: "no_such_program", "cannot_execute", "bad_working_directory", "too_many_sessions" or "pids".
    """


class FileRefusedError(ReasonedError):
    """A file could not be written or read.

    Attributes:
        reason: To write: "bad_path", "not_writable", "bad_archive", "disk_full" or "pids". To read: "missing",
            "not_a_file", "too_large", "unreadable" or "pids". Without isolation also "outside_sandbox".
    """


class InputRefusedError(ReasonedError, ValueError):
    """An action's request breaks a rule; the message names field, value and rule.

    Attributes:
        reason: "bad_command", "bad_environment" (a variable that no process can have), "bad_path" (which no sandbox can
            have), "network_refused" (not what the manager's sandboxes may reach), "too_little_memory" (less than it
            takes to start a sandbox), "too_many_processes" (more than the manager allows) or "user_refused" (the
            sandbox cannot change to that user).
    """


class StoppedError(Exception):
    """Stopped on request before there was a result."""
