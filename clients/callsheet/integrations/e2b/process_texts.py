"""The shell texts that begin and follow a process in a sandbox, and what their results mean. Pure.

A step of Callsheet ends with its command, and the next one waits for it. A client of E2B may have several processes at
once. So a process is begun in the background, and prints into files. A step follows it: it prints what is new in them,
and ends with the process or when its time slice is over. Between two slices come the other requests of the sandbox.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from signal import SIGUSR1, SIGUSR2

from callsheet.client import Command, CommandResult
from callsheet.integrations.e2b.errors import ConnectCode, E2bError, invalid, not_found
from callsheet.v1.rules.commands import VARIABLE

MOST_OUTPUT_BYTES = 8 << 20
"""Most bytes of each output that one slice prints."""

_KEPT_BYTES = 16 << 20
_INPUT_S = 10
_TIMED_OUT = 124

REFUSED = SIGUSR1
"""The signal that ends a step which could not begin or follow its process."""

PATHS = """
at() {
    case $1 in
        /*) p=$1 ;;
        "~") p=$HOME ;;
        "~/"*) p=$HOME/${1#??} ;;
        *) p=$PWD/$1 ;;
    esac
}
"""
"""Sets `p` to the absolute path of what a client names."""

_PLACE = """
d=${TMPDIR:-/tmp}/.callsheet-e2b/$1
marker=$2
refuse() {
    printf %s "$marker$1" >&2
    kill -USR1 $$
}
"""
# `kill -USR2` ends a slice: no exit code of the process can be taken for it. What was printed takes no disk any more,
# where the system can do that. The exit code is in a link, which needs no room on a disk that is full.
_FOLLOW = f"""
took=0
while :; do
    if [ -L "$d/s" ]; then ended=1; else ended=; fi
    set -- $(stat -c %s "$d/o" "$d/e" 2>/dev/null)
    [ $# = 2 ] || refuse "its output is gone"
    more=
    if [ "$1" -gt "$o" ]; then
        n=$(($1 - o))
        [ $n -le {MOST_OUTPUT_BYTES} ] || {{ n={MOST_OUTPUT_BYTES}; more=1; }}
        tail -c +$((o + 1)) "$d/o" | head -c $n
        o=$((o + n)); took=$((took + n))
    fi
    if [ "$2" -gt "$e" ]; then
        n=$(($2 - e))
        [ $n -le {MOST_OUTPUT_BYTES} ] || {{ n={MOST_OUTPUT_BYTES}; more=1; }}
        tail -c +$((e + 1)) "$d/e" | head -c $n >&2
        e=$((e + n)); took=$((took + n))
    fi
    if [ -n "$ended" ] && [ -z "$more" ]; then
        status=$(readlink "$d/s")
        [ -e "$d/h" ] && kill "$(cat "$d/h")" 2>/dev/null
        rm -rf "$d"
        exit "$status"
    fi
    if [ $took -gt 1048576 ]; then
        fallocate -p -o 0 -l "$o" "$d/o" 2>/dev/null
        [ "$e" -gt 0 ] && fallocate -p -o 0 -l "$e" "$d/e" 2>/dev/null
    fi
    [ -z "$more" ] && [ $t -lt $slice ] && [ $took -lt {MOST_OUTPUT_BYTES // 2} ] || kill -USR2 $$
    case $k in
        0 | 1) nap=0.01; t=$((t + 12)) ;;
        2 | 3) nap=0.02; t=$((t + 22)) ;;
        4 | 5) nap=0.05; t=$((t + 55)) ;;
        *) nap=0.1; t=$((t + 105)) ;;
    esac
    k=$((k + 1))
    sleep $nap
done
"""
_BEGIN = f"""{PATHS}{_PLACE}
cwd=$3 input=$4 slice=$5 starter=$6
shift 6
if [ -n "$cwd" ]; then
    at "$cwd"
    cd -- "$p" 2>/dev/null || refuse "cwd: '$p': must be a directory"
fi
(umask 077; mkdir -p "$d") && : >"$d/o" && : >"$d/e" && mkfifo "$d/f" || refuse "no room for its output"
in=/dev/null
if [ "$input" = 1 ]; then
    in=$d/i
    mkfifo "$in"
    # Whoever has the pipe open keeps it from ending; this one ends when the input is closed.
    (exec sleep 2147483647) <>"$in" >/dev/null 2>&1 &
    echo $! >"$d/h"
fi
(
    $(command -v setsid) sh -c "$starter" sh "$d" "$@" <"$in" >>"$d/o" 2>>"$d/e"
    ln -s $? "$d/s"
) </dev/null >/dev/null 2>&1 &
read -r pid <"$d/f"
rm "$d/f"
printf '%s\\n' "$pid"
o=0 e=0 t=0 k=0
{_FOLLOW}"""
_GO_ON = f"""{_PLACE}
slice=$3 o=$4 e=$5 t=0 k=4
{_FOLLOW}"""
# Where there is no bash, as in small images, sh takes its place.
_START = """
echo $$ >"$1/f"
shift
if [ "$1" = /bin/bash ] && ! [ -x /bin/bash ]; then
    shift
    set -- /bin/sh "$@"
fi
exec "$@"
"""
# Sends a signal to a process, its group and its session, and to all that is below them, in sessions of its own too. Who
# is in a group that gets it is spared a second one. dash takes "--" only behind "-s".
_ALL_OF_IT = """
signal_all() {
    signal=$1 found=" $2 " alone=$2 more=1
    while [ "$more" ]; do
        more=
        for stat in /proc/[0-9]*/stat; do
            { read -r line <"$stat"; } 2>/dev/null || continue
            stat=${stat#/proc/}
            each=${stat%/stat}
            set -- ${line##*") "}
            case $found in *" $each "*) continue ;; esac
            case $found in
                *" $3 "*) ;;
                *" $2 "* | *" $4 "*) alone="$alone $each" ;;
                *) continue ;;
            esac
            found="$found$each " more=1
        done
    done
    for each in $alone; do
        kill -s "$signal" -- -"$each" 2>/dev/null || kill -s "$signal" "$each" 2>/dev/null
    done
}
"""
_SIGNAL = f"""{_ALL_OF_IT}
kill -0 "$2" 2>/dev/null || exit 1
signal_all "$1" "$2"
exit 0
"""
_GIVE_UP = f"""{_PLACE}{_ALL_OF_IT}
signal_all KILL "$3"
[ -e "$d/h" ] && kill "$(cat "$d/h")" 2>/dev/null
rm -rf "$d"
"""
# Not for longer: the other requests of the sandbox wait meanwhile.
_WRITE = f"""{_PLACE}
[ -p "$d/i" ] || exit 1
exec timeout {_INPUT_S} sh -c 'cat >"$1"' sh "$d/i"
"""
_CLOSE = f"""{_PLACE}
[ -e "$d/h" ] || exit 1
kill "$(cat "$d/h")"
"""


@dataclass(frozen=True, slots=True)
class ProcessFiles:
    """Places of a process's files in its sandbox.

    Attributes:
        key: Its own name among the processes of the sandbox.
        marker: A random text that distinguishes a refusal from the process's output.
    """

    key: str
    marker: str


def begin_command(
    files: ProcessFiles,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    cwd: str,
    stdin: bool,
    slice_s: float,
) -> Command:
    """Returns the command that begins a process, and follows it for a slice.

    Raises:
        E2bError: It cannot be begun as it stands.
    """
    for name in variables:
        if not VARIABLE.fullmatch(name):
            raise invalid("envs", name, "must be a variable's name")
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    options = (files.key, files.marker, cwd, "1" if stdin else "0", _milliseconds(slice_s), exports + _START)
    for text in (*options, *arguments):
        if "\0" in text:
            raise invalid("process", text, "must not have a character 0")
    return _shell(_BEGIN, *options, *arguments)


def follow_command(files: ProcessFiles, *, slice_s: float, stdout_bytes: int, stderr_bytes: int) -> Command:
    """Returns the command that follows a process for a slice.

    Args:
        files: Of the process.
        slice_s: Seconds, if it does not end before.
        stdout_bytes: Bytes of standard output that were followed already.
        stderr_bytes: The same of standard error.
    """
    offsets = (str(stdout_bytes), str(stderr_bytes))
    return _shell(_GO_ON, files.key, files.marker, _milliseconds(slice_s), *offsets)


def signal_command(pid: int, number: int) -> Command:
    """Returns the command that signals a process and all that it began; it exits with 1 if there is none."""
    return _shell(_SIGNAL, str(number), str(pid))


def give_up_command(files: ProcessFiles, pid: int) -> Command:
    """Returns the command that kills a process and all that it began, and removes what is left of its output."""
    return _shell(_GIVE_UP, files.key, files.marker, str(pid))


def write_input_command(files: ProcessFiles, content: bytes) -> Command:
    """Returns the command that writes to a process's standard input."""
    return Command.argv("/bin/sh", "-c", _WRITE, "sh", files.key, files.marker, stdin=content)


def close_input_command(files: ProcessFiles) -> Command:
    """Returns the command that ends a process's standard input."""
    return _shell(_CLOSE, files.key, files.marker)


def check_input(pid: int, result: CommandResult) -> None:
    """Raises E2bError if a process's input was not written or ended."""
    if result.exit_code == _TIMED_OUT:
        message = f"process {pid} read not all of its input within {_INPUT_S} s; how much it got is unknown"
        raise E2bError(ConnectCode.DEADLINE_EXCEEDED, message)
    if result.exit_code != 0:
        raise not_found(f"process {pid}")


def exit_code_of(files: ProcessFiles, result: CommandResult) -> int | None:
    """Returns the exit code of a process that has ended, -1 for a signal as in E2B; None if only its slice has ended.

    Raises:
        E2bError: It did not begin, or cannot be followed any more.
    """
    if result.signal == SIGUSR2:
        return None
    if result.signal == REFUSED:
        _, _, why = result.stderr.decode(errors="replace").rpartition(files.marker)
        raise E2bError(ConnectCode.INVALID_ARGUMENT, why)
    return max(result.exit_code, -1)


def slice_of(*, begins: bool, others: bool, left_s: float | None) -> float:
    """Returns how long a step follows a process, in seconds.

    Args:
        begins: It is the first one.
        others: There were other requests of the sandbox lately, which waited for this process's last slice.
        left_s: Seconds until the process's deadline.
    """
    length = 0.2 if others else 0.5 if begins else 1.0
    return length if left_s is None else max(0.0, min(length, left_s))


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))


def _shell(text: str, *arguments: str) -> Command:
    return Command.argv("/bin/sh", "-c", text, "sh", *arguments, max_output_bytes=_KEPT_BYTES)
