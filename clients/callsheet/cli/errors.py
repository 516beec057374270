"""One clear line for every error a user can meet."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Any

import typer
import typer.core

TRACEBACK_VARIABLE = "CALLSHEET_TRACEBACK"
_EXIT_FAILURE = 1
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130


class CommandError(Exception):
    """A command cannot do what was asked; the message is for people and complete.

    Attributes:
        exit_code: What the command exits with: 1 for a failure, 2 for wrong usage.
    """

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.exit_code = _EXIT_USAGE if usage else _EXIT_FAILURE


class MissingExtraError(CommandError):
    """A command needs an extra that is not installed."""

    def __init__(self, missing: str, extra: str) -> None:
        super().__init__(f"module {missing} is not installed; this command needs: pip install 'callsheet[{extra}]'")


def load(module: str, extra: str) -> ModuleType:
    """Imports a module of another room.

    Args:
        module: Its full name.
        extra: The extra that installs what it needs.

    Raises:
        MissingExtraError: Something that it imports is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("callsheet."):
            raise
        raise MissingExtraError(error.name or module, extra) from error


class CallsheetGroup(typer.core.TyperGroup):
    """The command group that turns errors into one line on standard error and an exit code."""

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
            # Usage errors of the library know how to show themselves; a reader that has gone away hears nothing of it.
            if hasattr(error, "show") or isinstance(error, BrokenPipeError):
                raise error from None
            if os.environ.get(TRACEBACK_VARIABLE):
                traceback.print_exception(group, file=sys.stderr)
            typer.echo(f"callsheet: {describe(error)}", err=True)
            raise typer.Exit(getattr(error, "exit_code", _EXIT_FAILURE)) from None


def first_error(error: BaseException) -> BaseException:
    """The first leaf of an exception group; any other exception itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def describe(error: BaseException) -> str:
    """An error as one line, or as its own text where that has several (for instance the end of a log)."""
    if isinstance(error, CommandError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"module {error.name} is not installed; pip install 'callsheet[local]' brings everything"
    if isinstance(error, TimeoutError) and not str(error):
        return "timed out"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
