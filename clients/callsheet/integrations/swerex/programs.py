"""Programs that `execute`, `read_file`, `write_file` and `upload` run in the sandbox, and their results. Pure.

Files are read and written by programs, and not as an action's own files, because clients name absolute paths anywhere.
"""

from __future__ import annotations

import errno
import io
import posixpath

from callsheet.client import Command, CommandResult
from callsheet.integrations.swerex.errors import TransferredError, os_error, swerex_error, value_error
from callsheet.integrations.swerex.protocol import Execute, ReadFile, Response

MAX_OUTPUT_BYTES = 16 << 20
"""The most that a sandbox manager keeps of each output."""

# Exit codes of the texts below are errno values; what else fails is 1, and told on standard error.
_ERRNOS = (errno.ENOENT, errno.EACCES, errno.EISDIR)
_READ = f"""
[ -e "$1" ] || exit {errno.ENOENT}
[ -d "$1" ] && exit {errno.EISDIR}
[ -r "$1" ] || exit {errno.EACCES}
cat < "$1" || exit 1
"""
_WRITE = f"""
[ -d "$1" ] && exit {errno.EISDIR}
{{ mkdir -p -- "$2" && cat > "$1"; }} || exit 1
"""
# "o": files belong to whoever unpacks them, also if that is root.
_UNPACK = 'mkdir -p -- "$1" && exec tar -xof - -C "$1"'
# The marker is gone once the program runs, which therefore cannot forge it.
_ENTER = 'cd -- "$2" 2>/dev/null || { printf %s "$1" >&2; exit 126; }; shift 2; exec "$@"'
_MERGE = 'exec "$@" 2>&1'
_CANNOT_ENTER = 126


def execute_command(request: Execute, marker: str) -> Command:
    """Returns the command of `execute`.

    Args:
        request: What to run.
        marker: Random; how a working directory that is not there is told from what the program says.

    Raises:
        TransferredError: It cannot be carried out as it stands.
    """
    given = [request.command] if isinstance(request.command, str) else request.command
    arguments = ["/bin/sh", "-c", *given] if request.shell else given
    if request.env is not None:
        arguments = [*_replaced_environment(request.env, arguments), *arguments]
    if request.merge_output_streams:
        arguments = ["/bin/sh", "-c", _MERGE, "sh", *arguments]
    if request.cwd is not None:
        arguments = ["/bin/sh", "-c", _ENTER, "sh", marker, request.cwd, *arguments]
    return Command.argv(*arguments, max_output_bytes=MAX_OUTPUT_BYTES)


def _replaced_environment(environment: dict[str, str], arguments: list[str]) -> list[str]:
    for name in environment:
        if not name or "=" in name:
            raise value_error("env", name, "must be a variable's name")
    if arguments and "=" in arguments[0]:
        raise value_error("command", arguments[0], "a program run with `env` must not have '=' in its name")
    return ["env", "-i", *(f"{name}={value}" for name, value in environment.items())]


def execute_response(request: Execute, result: CommandResult, marker: str) -> Response:
    """Returns the response to `execute`.

    Raises:
        TransferredError: Working directory or parts of the output are not there, or it failed and `check` is set.
    """
    if result.exit_code == _CANNOT_ENTER and result.stderr == marker.encode():
        raise os_error(errno.ENOENT, request.cwd or "")
    _check_whole(result, "the command's output")
    stdout, stderr = (content.decode(errors="backslashreplace") for content in (result.stdout, result.stderr))
    exit_code = result.exit_code
    if request.check and exit_code != 0:
        message = f"Command {request.command!r} failed with exit code {exit_code}. "
        message += f"Stdout:\n{stdout!r}\nStderr:\n{stderr!r}"
        raise non_zero_error(request.error_msg, message, exit_code)
    return {"stdout": stdout, "stderr": stderr, "exit_code": exit_code}


def non_zero_error(prefix: str, message: str, exit_code: int) -> TransferredError:
    """A command failed that must not."""
    return swerex_error("NonZeroExitCodeError", f"{prefix}: {message}" if prefix else message, exit_code=exit_code)


def read_command(path: str) -> Command:
    """Returns the command that prints a file."""
    return Command.argv("/bin/sh", "-c", _READ, "sh", path, max_output_bytes=MAX_OUTPUT_BYTES)


def read_response(request: ReadFile, result: CommandResult) -> Response:
    """Returns the response to `read_file`.

    Raises:
        TransferredError: There is no such file, or it is no text of that encoding.
    """
    check_file(request.path, result)
    _check_whole(result, f"file {request.path!r}")
    try:
        with io.TextIOWrapper(io.BytesIO(result.stdout), request.encoding or "utf-8", request.errors) as text:
            return {"content": text.read()}
    except (LookupError, ValueError) as error:
        raise TransferredError(f"builtins.{type(error).__name__}", str(error)) from error


def write_command(path: str, content: bytes) -> Command:
    """Returns the command that writes a file, and the directories above it."""
    parent = posixpath.dirname(path) or "."
    return Command.argv("/bin/sh", "-c", _WRITE, "sh", path, parent, stdin=content)


def unpack_command(path: str, archive: bytes) -> Command:
    """Returns the command that unpacks a tar archive into a directory."""
    return Command.argv("/bin/sh", "-c", _UNPACK, "sh", path, stdin=archive)


def check_file(path: str, result: CommandResult) -> None:
    """Raises TransferredError if a file could not be read or written."""
    if result.exit_code == 0:
        return
    if result.exit_code in _ERRNOS:
        raise os_error(result.exit_code, path)
    why = result.stderr.decode(errors="backslashreplace").strip()
    ended = f"signal {result.signal}" if result.signal is not None else f"exit code {result.exit_code}"
    raise TransferredError("builtins.OSError", f"{path!r}: {why or ended}")


def _check_whole(result: CommandResult, what: str) -> None:
    dropped = result.stdout_dropped_bytes + result.stderr_dropped_bytes
    if dropped:
        raise swerex_error(
            "SwerexException",
            f"{what} has {dropped} bytes more than the {MAX_OUTPUT_BYTES} that are kept",
            kind="resource_limit",
            reason="output_too_large",
        )
