"""The texts that make a session of Callsheet behave as a shell of SWE-ReX, and what comes back. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from callsheet.client import CommandResult
from callsheet.integrations.swerex.errors import TransferredError, swerex_error

_SYNTAX_ERROR = 2
_LOST = 97
_SIGNAL_BASE = 128
# Control sequences of ECMA-48, and the two-character ones of a terminal.
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")


def start_text(session: str, sources: Sequence[str]) -> str:
    """Returns the first step of a session.

    Both outputs are one from here on, as on a terminal. PS1 is set as scripts take it for the sign of a user, and what
    they do for users, for instance putting a tool on the path, is why they are sourced.

    Args:
        session: Its name in the sandbox; later steps look whether it is still the same shell.
        sources: Files to source, as they are written in a shell.
    """
    lines = ["exec 2>&1", f"readonly CALLSHEET_SESSION={session}", "PS1='$ '"]
    lines.append('if [ -n "$BASH" ]; then shopt -s expand_aliases; fi')
    return "\n".join([*lines, *(f". {path}" for path in sources)])


def step_text(session: str, text: str, marker: str) -> str:
    """Returns a step that runs a text if all of it is correct, in the shell that the session began with.

    The shell may have been killed meanwhile, for instance for its memory. A new one of the same name must not run what
    was meant for its directory and variables.

    Args:
        session: Its name in the sandbox.
        text: What to run.
        marker: Random; letters and digits.
    """
    end = f"end-{marker}"
    return (
        f'[ "$CALLSHEET_SESSION" = {session} ] || exit {_LOST}\n'
        f"\"${{BASH:-sh}}\" -n <<'{end}' || {{ printf %s {marker}; return {_SYNTAX_ERROR}; }}\n"
        f"{text}\n{end}\n"
        f"{text}\n"
    )


def check_step(name: str, text: str, result: CommandResult, marker: str) -> None:
    """Raises TransferredError if a step did not run its text: it was not correct, or its shell is gone."""
    if result.session is not None and result.session.started:
        raise ended_error(name)
    if result.exit_code == _SYNTAX_ERROR and result.stdout.endswith(marker.encode()):
        said = result.stdout.decode(errors="backslashreplace").removesuffix(marker)
        message = f"Error (exit code {_SYNTAX_ERROR}) while checking bash command \n{text!r}\n---- Stderr ----\n{said}"
        raise swerex_error("BashIncorrectSyntaxError", message, bash_stdout="", bash_stderr=said)


def ended_error(name: str) -> TransferredError:
    """The shell of a session is gone."""
    return swerex_error(
        "SessionNotInitializedError", f"the shell of session {name!r} has ended: close it and create it again"
    )


def text_of(output: bytes) -> str:
    """Returns what a terminal would show, without colours and movements."""
    return _CONTROL.sub("", output.decode(errors="backslashreplace")).replace("\r\n", "\n")


def status_of(result: CommandResult) -> int:
    """Returns the status as a shell tells it: 128 and the signal for a shell that was killed."""
    return result.exit_code if result.signal is None else _SIGNAL_BASE + result.signal


def truncation(result: CommandResult) -> str:
    """Returns whether output is missing, as a sentence; empty if it is all there."""
    dropped = result.stdout_dropped_bytes
    return f"{dropped} bytes left out of the middle of the output" if dropped else ""
