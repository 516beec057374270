"""Offers declared options on the command line: `callsheet.options` says what one is, this makes typer's of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from callsheet.cli.errors import CommandError
from callsheet.options import common
from callsheet.options.common import LogFormat, LogLevel
from callsheet.options.declaration import DeclaredOption, Option, PathRule, declared_options, from_values

F = TypeVar("F", bound=Callable[..., None])


def options_of(**settings: type) -> Callable[[F], F]:
    """Decorates a command: parameters of these names are settings, made of options that their classes declare.

    Settings that refuse their values are wrong usage.
    """

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            try:
                made: dict[str, Any] = {name: from_values(kind, values) for name, kind in settings.items()}
            except ValueError as error:
                raise CommandError(str(error), usage=True) from error
            command(**made, **{name: values[name] for name in own})

        parameters = inspect.signature(command, eval_str=True).parameters
        own = [name for name in parameters if name not in settings]
        declared = [_parameter(option) for kind in settings.values() for option in declared_options(kind)]
        run.__signature__ = inspect.Signature([*declared, *(parameters[name] for name in own)])  # type: ignore[attr-defined]
        run.__annotations__ = {}
        return run  # type: ignore[return-value]

    return decorate


def _parameter(declared: DeclaredOption) -> inspect.Parameter:
    default = declared.default
    if callable(default) or default is ...:
        default = inspect.Parameter.empty
    annotation: Any = Annotated.__class_getitem__((declared.type, typer_option(declared)))  # type: ignore[attr-defined]
    return inspect.Parameter(declared.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def typer_option(declared: DeclaredOption) -> Any:
    """Typer's description of an option."""
    option, path = declared.option, declared.option.path or PathRule(file=True)
    return typer.Option(
        *([option.flag] if option.flag else []),
        help=option.help,
        envvar=option.variable,
        metavar=option.metavar,
        min=option.least,
        show_default=option.default_text or True,
        default_factory=declared.default if callable(declared.default) else None,
        callback=None if option.parse is None or option.repeatable else _check(option),
        exists=path.exists,
        file_okay=path.file,
        dir_okay=path.directory,
        resolve_path=path.resolve,
    )


def _check(option: Option) -> Callable[[Any], Any]:
    """Has a value that breaks the option's rule refused under the option's name."""

    def check(value: Any) -> Any:
        try:
            if value is not None and option.parse is not None:
                option.parse(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        return value

    return check


def offered(alias: Any) -> Any:
    """Typer's description of an option that `callsheet.options` declares, for a command that takes no settings."""
    (option,) = alias.__metadata__
    return typer_option(DeclaredOption("", alias.__origin__, option.default, option))


Address = Annotated[str, offered(common.Address)]
DataDir = Annotated[Path, offered(common.DataDir)]
LogFormatOption = Annotated[LogFormat | None, offered(common.LogFormatOption)]
LogLevelOption = Annotated[LogLevel, offered(common.LogLevelOption)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
