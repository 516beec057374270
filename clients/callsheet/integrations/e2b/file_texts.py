"""The shell texts for a sandbox's files, and what their results mean. Pure.

Files are read and written by programs of the sandbox, so that any path of it will do.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from datetime import UTC, datetime

from callsheet.client import Command, CommandResult
from callsheet.integrations.e2b.errors import ConnectCode, E2bError, invalid
from callsheet.integrations.e2b.messages import Body
from callsheet.integrations.e2b.process_texts import PATHS

PART_BYTES = 8 << 20
"""Bytes of a file that one step reads."""

_KEPT_BYTES = 16 << 20
_DEEPEST = 1000
# Exit codes of the texts below are errno values; what else fails is 1, and told on standard error. Pipes are refused:
# a step that waits for one would keep all others from the sandbox.
_CODES = {
    errno.ENOENT: ConnectCode.NOT_FOUND,
    errno.EEXIST: ConnectCode.ALREADY_EXISTS,
    errno.EACCES: ConnectCode.INVALID_ARGUMENT,
    errno.EINVAL: ConnectCode.INVALID_ARGUMENT,
    errno.EISDIR: ConnectCode.INVALID_ARGUMENT,
    errno.ENOTDIR: ConnectCode.INVALID_ARGUMENT,
}
_READ = f"""{PATHS}
at "$1"
[ -e "$p" ] || exit {errno.ENOENT}
[ -d "$p" ] && exit {errno.EISDIR}
[ -f "$p" ] || exit {errno.EINVAL}
[ -r "$p" ] || exit {errno.EACCES}
tail -c +"$2" <"$p" | head -c {PART_BYTES}
"""
_WRITE = f"""{PATHS}
at "$1"
[ -d "$p" ] && exit {errno.EISDIR}
[ -p "$p" ] && exit {errno.EINVAL}
mkdir -p -- "$(dirname -- "$p")" && cat >"$p" || exit 1
printf %s "$p"
"""
# A record for each entry, and another for what a link leads to. The marker keeps names apart that have line ends.
_DESCRIBE = """
marker=$1
shift
stat -c "$marker e %f %s %Y %U %G %n" -- "$@" || exit 1
for each do
    [ -L "$each" ] || continue
    printf '%s l %s %s\\n' "$marker" "$(stat -L -c %f -- "$each" 2>/dev/null || echo 0)" "$each"
    printf '%s t %s\\n' "$marker" "$(readlink -f -- "$each" || readlink -- "$each")"
done
"""
_STAT = f"""{PATHS}
at "$1"
marker=$2
[ -e "$p" ] || [ -L "$p" ] || exit {errno.ENOENT}
printf '%s b %s\\n' "$marker" "$(dirname -- "$p")"
set -- "$marker" "$p"
{_DESCRIBE}
"""
_LIST = f"""{PATHS}
at "$1"
[ -e "$p" ] || exit {errno.ENOENT}
[ -d "$p" ] || exit {errno.ENOTDIR}
cd -- "$p" || exit {errno.EACCES}
printf '%s b %s\\n' "$2" "$p"
exec find . -mindepth 1 -maxdepth "$3" -exec sh -c "$4" sh "$2" {{}} +
"""
_MAKE = f"""{PATHS}
at "$1"
[ -d "$p" ] && exit {errno.EEXIST}
[ -e "$p" ] && exit {errno.ENOTDIR}
mkdir -p -- "$p" || exit 1
set -- "$p" "$2"
{_STAT}
"""
_MOVE = f"""{PATHS}
at "$2"
to=$p
at "$1"
[ -e "$p" ] || [ -L "$p" ] || exit {errno.ENOENT}
mkdir -p -- "$(dirname -- "$to")" || exit 1
if [ -d "$to" ] && ! [ -L "$to" ]; then
    [ -d "$p" ] || exit {errno.EISDIR}
    rmdir -- "$to" || exit 1
fi
mv -f -- "$p" "$to" || exit 1
set -- "$to" "$3"
{_STAT}
"""
_REMOVE = f"""{PATHS}
at "$1"
rm -rf -- "$p"
"""
_NO_SPACE = os.strerror(errno.ENOSPC).encode()
_TOO_LITTLE_SPACE = 507
_TYPES = {stat.S_IFREG: "FILE_TYPE_FILE", stat.S_IFDIR: "FILE_TYPE_DIRECTORY"}


def read_command(path: str, begin: int) -> Command:
    """Returns the command that prints a part of a file, from a byte of it on."""
    return _shell(_READ, path, str(begin + 1))


def write_command(path: str, content: bytes) -> Command:
    """Returns the command that writes a file and the directories above it, and prints its absolute path."""
    return _shell(_WRITE, path, stdin=content)


def stat_command(path: str, marker: str) -> Command:
    """Returns the command that describes what has a path."""
    return _shell(_STAT, path, marker)


def list_command(path: str, depth: int, marker: str) -> Command:
    """Returns the command that describes what is in a directory, and below it down to a depth."""
    if not 0 <= depth <= _DEEPEST:
        raise invalid("depth", depth, f"must be 1 to {_DEEPEST}")
    return _shell(_LIST, path, marker, str(depth or 1), _DESCRIBE)


def make_command(path: str, marker: str) -> Command:
    """Returns the command that makes a directory, and describes it."""
    return _shell(_MAKE, path, marker)


def move_command(source: str, destination: str, marker: str) -> Command:
    """Returns the command that renames something, and describes it then."""
    if not destination:
        raise invalid("destination", destination, "must be a path")
    return _shell(_MOVE, source, destination, marker)


def remove_command(path: str) -> Command:
    """Returns the command that removes what has a path."""
    return _shell(_REMOVE, path)


def check(path: str, result: CommandResult) -> None:
    """Raises E2bError if something could not be done with a path."""
    if result.exit_code == 0:
        if dropped := result.stdout_dropped_bytes:
            raise E2bError(ConnectCode.RESOURCE_EXHAUSTED, f"path {path!r}: the answer has {dropped} bytes too many")
        return
    why = result.stderr.decode(errors="backslashreplace").strip()
    if result.exit_code in _CODES:
        why = os.strerror(result.exit_code)
        raise E2bError(_CODES[result.exit_code], f"path {path!r}: {why}")
    if _NO_SPACE in result.stderr:
        raise E2bError(ConnectCode.RESOURCE_EXHAUSTED, f"path {path!r}: {why}", status=_TOO_LITTLE_SPACE)
    ended = f"signal {result.signal}" if result.signal is not None else f"exit code {result.exit_code}"
    raise E2bError(ConnectCode.INVALID_ARGUMENT, f"path {path!r}: {why or ended}")


def written(path: str) -> Body:
    """Returns the answer to a client that wrote a file; `path` is absolute."""
    return {"name": posixpath.basename(path), "path": path, "type": "file"}


def entries_of(output: bytes, marker: str) -> list[Body]:
    """Returns the entries that a command described, by path."""
    base = ""
    entries: dict[str, Body] = {}
    link: Body = {}
    for kind, text in _records(output, marker):
        if kind == "b":
            base = text
        elif kind == "e":
            entry = _entry(base, text)
            entries[entry["path"]] = entry
        elif kind == "l":
            mode, _, name = text.partition(" ")
            link = entries[_absolute(base, name)]
            link["isSymlink"] = True
            link["type"] = _TYPES.get(stat.S_IFMT(int(mode, 16)), "FILE_TYPE_UNSPECIFIED")
        elif kind == "t":
            link["symlinkTarget"] = text
    return [entries[path] for path in sorted(entries)]


def _records(output: bytes, marker: str) -> Iterator[tuple[str, str]]:
    text = output.decode(errors="surrogateescape")
    for record in text.split(f"{marker} ")[1:]:
        yield record[0], record[2:].removesuffix("\n")


def _entry(base: str, text: str) -> Body:
    hexadecimal, size, modified, owner, group, name = text.split(" ", 5)
    mode = int(hexadecimal, 16)
    path = _absolute(base, name)
    return {
        "name": posixpath.basename(path),
        "type": _TYPES.get(stat.S_IFMT(mode), "FILE_TYPE_UNSPECIFIED"),
        "path": path,
        "size": size,
        "mode": mode & 0o777,
        "permissions": stat.filemode(mode),
        "owner": owner,
        "group": group,
        "modifiedTime": datetime.fromtimestamp(int(modified), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _absolute(base: str, name: str) -> str:
    path = posixpath.normpath(posixpath.join(base, name)).encode(errors="surrogateescape")
    return path.decode(errors="backslashreplace")


def _shell(text: str, path: str, *arguments: str, stdin: bytes = b"") -> Command:
    if not path or "\0" in path:
        raise invalid("path", path, "must be a path")
    return Command.argv("/bin/sh", "-c", text, "sh", path, *arguments, stdin=stdin, max_output_bytes=_KEPT_BYTES)
