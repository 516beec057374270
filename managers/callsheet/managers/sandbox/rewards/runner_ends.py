"""How a reward's runner ended: by itself, by a signal, or before it had begun. Pure; what it printed is only a hint.

Whoever wrote the code under test can print all of it, so nothing here gives a score.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

from callsheet.managers.sandbox.backend import CommandOutcome

NOT_EXECUTABLE, NOT_FOUND = 126, 127
_TIMED_OUT = 124
_BY_SIGNAL, _CODES = 128, 256
# What people, supervisors and the kernel end a process with; all others come of what the process itself does.
_FROM_OUTSIDE = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM})
_LOOKED_AT, _SHOWN = 8192, 300
_NO_MODULE = "No module named "
# Parts of runners, by the beginning of their names.
_RUNNERS = ("pytest", "_pytest", "pluggy", "iniconfig", "unittest", "nose2", "xdist")
_SHELL_WORDS = frozenset({"Killed", "Terminated", "Hangup", "Quit", "Aborted"})
_QUOTES = "'\":\u2018\u2019"
_SYSTEM = ("/bin/", "/sbin/", "/usr/", "/opt/", "/nix/")


def killed_by(outcome: CommandOutcome) -> int:
    """Returns the signal that ended a runner, if it is one that others send; 0 otherwise.

    A shell tells it as an exit code above 128, or by a word; Python's `sys.exit(process.returncode)` as one from 256
    down.
    """
    shell, python = outcome.exit_code - _BY_SIGNAL, _CODES - outcome.exit_code
    for number in (outcome.signal, shell, python if python > signal.SIGHUP else 0):
        if number in _FROM_OUTSIDE:
            return number
    return signal.SIGKILL if outcome.failed and says_killed(outcome) else 0


def cut_short(outcome: CommandOutcome) -> bool:
    """Returns whether a runner was ended before its own end: by a stop, a signal of others, or timeout(1)."""
    return outcome.stopped or bool(killed_by(outcome)) or (outcome.exit_code == _TIMED_OUT and not outcome.signal)


def says_killed(outcome: CommandOutcome) -> bool:
    """Returns whether a shell reports that a signal ended a program in it, whatever its own exit code."""
    return any(
        line in _SHELL_WORDS or (": line " in line and not _SHELL_WORDS.isdisjoint(line.split()))
        for line in _lines(outcome.stderr)
    )


def cannot_start(outcome: CommandOutcome) -> str:
    """Returns the words in which a runner, or who was to start it, says that it cannot begin; empty if it began.

    A program or a module that the policy was to write is none of them.
    """
    if not outcome.failed:
        return ""
    for line in (*_lines(outcome.stderr), *_lines(outcome.stdout)):
        before, found, name = line.partition(_NO_MODULE)
        imported = before.endswith("ModuleNotFoundError: ") and name.strip("'").startswith(_RUNNERS)
        # As `python3 -m` says it, or what a runner imports.
        if found and (imported or _is_one_program(before)):
            return line
    if outcome.signal or outcome.exit_code not in {NOT_EXECUTABLE, NOT_FOUND}:
        return ""
    said = next(_lines(outcome.stderr), "")
    return "" if _is_policys(said) else said or outcome.end


def lacks_a_module(outcome: CommandOutcome) -> bool:
    """Returns whether code could not be imported, for instance because nothing was written yet."""
    return any("ModuleNotFoundError: " in line or "ImportError: " in line for line in _lines(outcome.stderr)) or any(
        "ModuleNotFoundError: " in line or "ImportError" in line for line in _lines(outcome.stdout)
    )


def last_words(outcome: CommandOutcome) -> str:
    """Returns the end of what was printed, as text in one line; empty for nothing."""
    printed = (outcome.stderr.strip() or outcome.stdout.strip())[-_SHOWN:].decode(errors="replace")
    return "".join(letter if letter.isprintable() else " " for letter in printed)


def _lines(output: bytes) -> Iterator[str]:
    """Yields the lines of the end of an output, the last one first."""
    for line in reversed(output[-_LOOKED_AT:].decode(errors="replace").splitlines()):
        if line.strip():
            yield line.strip()


def _is_one_program(before: str) -> bool:
    return before.endswith(": ") and not before.endswith("Error: ") and " " not in before[:-2]


def _is_policys(said: str) -> bool:
    """Returns whether a shell names a program with a path that is none of the system."""
    name = said.rpartition(": ")[0].rpartition(" ")[2].strip(_QUOTES)
    return "/" in name and not name.startswith(_SYSTEM) and not said.startswith("working directory ")
