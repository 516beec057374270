"""Errors that an agent's refusal of a job means."""

from __future__ import annotations

import errno
import os

from callsheet.managers.sandbox.backend import CommandSpec, FileSpec, StepSpec
from callsheet.managers.sandbox.errors import CannotExecuteError, FileRefusedError

# What is at a path, where that is no regular file that can be reached without following a link.
_NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR})
_NOT_A_FILE = frozenset({errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO})


def cannot_execute(command: CommandSpec, stage: str, number: int) -> CannotExecuteError:
    """Returns why a command did not start, given the stage and the errno."""
    what = f"{command.arguments[0][:200]!r}"
    return _cannot_start(what, command.working_directory, stage, number)


def cannot_begin_session(step: StepSpec, stage: str, number: int) -> CannotExecuteError:
    """Returns why a session did not begin, given the stage and the errno."""
    what = f"session {step.session!r}: no {step.language.value}"
    return _cannot_start(what, step.directory, stage, number)


def _cannot_start(what: str, directory: str, stage: str, number: int) -> CannotExecuteError:
    why = os.strerror(number)
    if stage == "fork":
        return CannotExecuteError("pids", f"no process could be started: {why}")
    if stage in {"cwd", "path"}:
        return CannotExecuteError("bad_working_directory", f"working directory {directory[:200]!r}: {why}")
    return CannotExecuteError("no_such_program" if number in _NOT_THERE else "cannot_execute", f"{what}: {why}")


def file_unreadable(path: str, stage: str, number: int) -> FileRefusedError:
    """Returns why a file was not read, given the stage and the errno."""
    if stage == "fork":
        reason = "pids"
    elif number == errno.ENOENT:
        reason = "missing"
    else:
        reason = "not_a_file" if number in _NOT_A_FILE else "unreadable"
    return FileRefusedError(reason, f"file {path[:200]!r}: {os.strerror(number)}")


def file_refused(file: FileSpec, stage: str, number: int) -> FileRefusedError:
    """Returns why a file was not written, given the stage and the errno."""
    why = os.strerror(number)
    if stage == "fork":
        return FileRefusedError("pids", f"no process could be started: {why}")
    if number in {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM}:
        return FileRefusedError("disk_full", f"file {file.path[:200]!r}: {why}")
    if stage == "archive":
        return FileRefusedError("bad_archive", f"archive for {file.path[:200]!r}: refused or not a tar archive: {why}")
    if number in _NOT_WRITABLE:
        return FileRefusedError("not_writable", f"file {file.path[:200]!r}: {why}")
    return FileRefusedError("bad_path", f"file {file.path[:200]!r}: {why}")
