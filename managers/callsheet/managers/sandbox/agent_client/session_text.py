"""How the steps of a session are told to its interpreter, and how their ends are known. Pure.

An interpreter reads steps from one pipe and says on another that a step ended: the step's marker and its status. What a
step prints never counts. The marker is random and not known inside before the step's own text has been run, so that
what runs in a session can at worst spoil the session's own result.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

STATUS_DESCRIPTOR = 8
"""Where an interpreter says that a step ended; the steps come on its standard input."""

_INTERRUPTED = 143
_LONGEST_STATUS = 3


# A signal makes the step return: it is read by `.`, and what it waits for is killed by the agent meanwhile.
SHELL_START = f"trap 'return {_INTERRUPTED} 2>/dev/null' USR1\n".encode()
SHELL_ARGUMENTS = (
    "/bin/sh",
    "-c",
    "if command -v bash >/dev/null 2>&1; then exec bash --noprofile --norc -s; fi; exec sh -s",
)


def shell_step(text: str, marker: str, environment: Mapping[str, str] | None = None) -> bytes:
    """Returns what a shell reads to run a step, with variables to export before, which stay.

    The step is a here-document that `.` reads, and not an argument of `eval`: only so can it be made to return, and a
    syntax error does not end a shell that follows POSIX to the letter. Its end does not occur in the text.
    """
    end = f"end-{marker}"
    run = f"command . /dev/fd/7 7<<'{end}' </dev/null\n{text}\n{end}\n"
    # By `command`: a variable that is read-only must not end a shell that follows POSIX to the letter.
    exports = "".join(f"command export {name}={shlex.quote(value)}\n" for name, value in (environment or {}).items())
    return f"{exports}{run}{{ printf '%s %s\\n' {marker} \"$?\" >&{STATUS_DESCRIPTOR}; }} 2>/dev/null\n".encode()


def python_step(text: str, marker: str, environment: Mapping[str, str] | None = None) -> bytes:
    """Returns what `agent/python_session.py` reads to run a step, with variables to set before, which stay.

    A line with the marker and two lengths, then the variables, if there are any, and the text.
    """
    content, variables = text.encode(), repr(dict(environment)).encode() if environment else b""
    return f"{marker} {len(variables)} {len(content)}\n".encode() + variables + content


class StatusScanner:
    """Finds the end of one step in what comes from the status pipe, whatever else comes there."""

    def __init__(self, marker: str) -> None:
        """Args: marker: Of the step; letters and digits."""
        self._end = re.compile(rb"%s (\d{1,%d})\n" % (marker.encode(), _LONGEST_STATUS))
        self._kept = len(marker) + 1 + _LONGEST_STATUS
        self._tail = b""

    def feed(self, chunk: bytes) -> int | None:
        """Returns the status once the step has ended; 0 to 255."""
        found = self._end.search(self._tail + chunk)
        if found is not None and int(found[1]) <= 0xFF:
            return int(found[1])
        self._tail = (self._tail + chunk)[-self._kept :]
        return None
