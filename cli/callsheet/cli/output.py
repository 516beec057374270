"""Prints the texts of all commands: results to standard output, progress to standard error.

Most of a text was written by others, so it can give the user's terminal no orders. Files and pipes get the same text
because they may be shown later. `--json` has every text exactly, with escapes. Every error of a user is one clear line.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import typer
import typer.core
from callsheet.credentials.masking import without_credentials
from callsheet.deploy.terminal import visible

if TYPE_CHECKING:
    from callsheet.client import JobStatus

_PIPED_WIDTH = 160
_NAME_WIDTH = 40
FINISHED = ("succeeded", "failed", "cancelled", "expired")
TRACEBACK_VARIABLE = "CALLSHEET_TRACEBACK"
_EXIT_FAILURE = 1
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130
# As gRPC says it, for a scheduler and everything else.
_NOTHING_LISTENS = "UNAVAILABLE: failed to connect"
# What has answered, if only with a certificate, runs.
_ANSWERED = ("TLS", "certificate")
_WANTS_JSON = "callsheet.cli.json"


def say(text: str, *, err: bool = False) -> None:
    """Prints a text and a newline, to standard output or standard error."""
    typer.echo(visible(text), err=err)


def print_json(value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Prints one JSON object, or a list of them, to standard output."""
    say(json.dumps(value, indent=2, sort_keys=False, allow_nan=False))


def print_report(report: Any) -> None:
    """Prints something that rich can render to standard output; wide tables keep their columns in a file or a pipe."""
    from callsheet.cli.console import TextConsole

    console = TextConsole()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    console.print(report)


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Prints a table to standard output; see `table_of`."""
    print_report(table_of(title, columns, rows))


def table_of(title: str, columns: list[str], rows: list[list[str]]) -> Any:
    """A table that rich can render; columns whose name ends in " #" hold numbers."""
    from callsheet.cli.console import plain_table

    return plain_table(title, columns, rows, _NAME_WIDTH)


def pairs(values: Mapping[str, object]) -> str:
    """Names with their values, in the order of the names, for a cell of a table."""
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()))


def failures_of(job: JobStatus) -> str:
    """The failures of a job by their kinds, for a cell of a table, and how many actions their sandboxes died under."""
    told = pairs(job.failures)
    if not job.dead_sandboxes:
        return told
    finished = sum(job.actions.get(state, 0) for state in FINISHED)
    share = f" ({job.dead_sandboxes / finished:.1%})" if finished else ""
    return f"{told}; sandbox died {job.dead_sandboxes}{share}"


@contextmanager
def progress_on_stderr() -> Iterator[Callable[[str], None]]:
    """Shows what is being done, a line each; on a terminal also a spinner beside the latest."""
    from callsheet.cli.console import TextConsole
    from rich.text import Text

    console = TextConsole(stderr=True, highlight=False)
    with console.status("starting") if console.is_terminal else nullcontext() as status:

        def show(text: str) -> None:
            console.print(text, markup=False, soft_wrap=True)
            if status is not None:
                status.update(Text(text))

        yield show


class CommandError(Exception):
    """A command cannot do what was asked; the message is for people and complete.

    Attributes:
        exit_code: What the command exits with: 1 for a failure, 2 for wrong usage.
        code: The canonical code of gRPC that --json tells.
    """

    def __init__(self, message: str, *, usage: bool = False, code: str = "UNKNOWN") -> None:
        super().__init__(message)
        self.code = "INVALID_ARGUMENT" if usage else code
        self.exit_code = _EXIT_USAGE if usage else _EXIT_FAILURE


class MissingExtraError(CommandError):
    """A command needs an extra that is not installed."""

    def __init__(self, missing: str, extra: str) -> None:
        hint = f"this command needs the extra {extra}: in a checkout of Callsheet, pip install '.[{extra}]'"
        super().__init__(f"module {missing} is not installed; {hint}")


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Surrounds imports of what an extra (empty for none) installs, and says so where it is missing.

    Raises:
        MissingExtraError: A module that is not Callsheet's own is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if not extra or (error.name or "callsheet").partition(".")[0] == "callsheet":
            raise
        raise MissingExtraError(str(error.name), extra) from error


class CallsheetGroup(typer.core.TyperGroup):
    """The command group that turns errors into one line on standard error and an exit code.

    With --json an object on standard output tells the same in parts; see `error_facts`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Notes whether the command is to answer in JSON."""
        ctx.meta[_WANTS_JSON] = "--json" in takewhile(lambda word: word != "--", args)
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            raise typer.Exit(_EXIT_INTERRUPTED) from None
        except (Exception, BaseExceptionGroup) as group:
            error = first_error(group)
            if ctx.meta[_WANTS_JSON] and not isinstance(error, BrokenPipeError):
                say(json.dumps({"error": error_facts(error)}))
            # Usage errors of the library know how to show themselves; a reader that has gone away hears nothing of it.
            if hasattr(error, "show") or isinstance(error, BrokenPipeError):
                raise error from None
            if os.environ.get(TRACEBACK_VARIABLE):
                say("".join(traceback.format_exception(group)).rstrip(), err=True)
            say(f"callsheet: {describe(error)}", err=True)
            raise typer.Exit(getattr(error, "exit_code", _EXIT_FAILURE)) from None


def error_facts(error: BaseException) -> dict[str, str]:
    """An error in parts: `code` (a canonical code of gRPC), `field`, `value`, `rule` and `message`.

    Only refusals name field, value and rule; elsewhere these are empty.
    """
    if getattr(error, "exit_code", _EXIT_FAILURE) == _EXIT_USAGE:
        code = "INVALID_ARGUMENT"
    elif isinstance(error, (ConnectionError, TimeoutError)):
        code = "UNAVAILABLE"
    else:
        code = str(getattr(error, "code", "UNKNOWN"))
    parts = {name: str(getattr(error, name, "")) for name in ("field", "value", "rule")}
    message = error.format_message() if hasattr(error, "format_message") else describe(error)
    return {"code": code, **parts, "message": without_credentials(message)}


def first_error(error: BaseException) -> BaseException:
    """The first leaf of an exception group; any other exception itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def describe(error: BaseException) -> str:
    """An error as one line, or as its own text where that has several (for instance the end of a log).

    Notes say where it was raised, for instance in which method of an environment; its type is told with them.
    """
    notes, told = getattr(error, "__notes__", ()), without_credentials(_described(error))
    return f"{type(error).__name__}: {told} ({'; '.join(notes)})" if notes else told


def _described(error: BaseException) -> str:
    if isinstance(error, CommandError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"module {error.name} is not installed; in a checkout of Callsheet, pip install '.[local]' brings it"
    if isinstance(error, TimeoutError) and not str(error):
        return "timed out"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    silent = str(error).startswith(_NOTHING_LISTENS) and not any(word in str(error) for word in _ANSWERED)
    if isinstance(error, ConnectionError) and silent:
        return f"{error}; is `callsheet up` running?"
    return str(error) or type(error).__name__
