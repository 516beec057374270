"""Offers declared options on the command line: `callsheet.options` says what one is, this makes typer's of it."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from callsheet.cli.output import CommandError, say
from callsheet.options import common
from callsheet.options.common import LogFormat, LogLevel
from callsheet.options.declaration import (
    DeclaredOption,
    PathRule,
    Setting,
    declared_options,
    from_values,
    holds_secret,
)

F = TypeVar("F", bound=Callable[..., None])
FILE = "DEFAULT_MAP"
_TOO_LARGE = 2**63
# The best one first, by the names of typer.
_SOURCES = ("COMMANDLINE", "ENVIRONMENT", FILE, "DEFAULT")


def options_of(**settings: type) -> Callable[[F], F]:
    """Decorates a command: parameters of these names are settings, made of options that their classes declare.

    Settings that refuse their values are wrong usage.
    """

    def decorate(command: F) -> F:
        def made(context: typer.Context, values: dict[str, Any]) -> dict[str, Any]:
            _drop_outdone(context, values)
            return {name: from_values(kind, values) for name, kind in settings.items()}

        @functools.wraps(command)
        def run(*, context: typer.Context, **values: Any) -> None:
            try:
                mine = made(context, values)
            except ValueError as error:
                config = context.find_root().params.get("config")
                of_file = config and source_of(context, str(error).partition(":")[0]) == FILE
                raise CommandError(f"{config}: {error}" if of_file else str(error), usage=True) from error
            command(**mine, **{name: values[name] for name in own})

        parameters = inspect.signature(command, eval_str=True).parameters
        own = [name for name in parameters if name not in settings]
        offered = [
            each
            for name, parameter in parameters.items()
            for each in (map(_parameter, declared_options(settings[name])) if name in settings else [parameter])
        ]
        offered.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
        run.__signature__ = inspect.Signature(offered)  # type: ignore[attr-defined]
        run.__annotations__ = {}
        # For `callsheet config`, which looks at settings and runs nothing.
        run.made = made  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]

    return decorate


def source_of(context: typer.Context, name: str) -> str:
    """Returns the source of an option's value; empty for no option."""
    return getattr(context.get_parameter_source(name), "name", "")


def _drop_outdone(context: typer.Context, values: dict[str, Any]) -> None:
    """Keeps, of a secret and the file of that secret, only the one from the better source."""
    for file in [name for name in values if name.endswith("_file")]:
        pair = [name for name in (file.removesuffix("_file"), file) if values.get(name) is not None]
        best = min((_SOURCES.index(source_of(context, name)) for name in pair), default=0)
        values.update((name, None) for name in pair if _SOURCES.index(source_of(context, name)) > best)


def _parameter(declared: DeclaredOption) -> inspect.Parameter:
    default = declared.default
    if callable(default) or default is ...:
        default = inspect.Parameter.empty
    # Written as a subscript it would be a type for checkers, which a value is not.
    annotation: Any = operator.getitem(Annotated, (declared.type, typer_option(declared)))
    return inspect.Parameter(declared.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def typer_option(declared: DeclaredOption) -> Any:
    """Typer's description of an option."""
    setting, path = declared.setting, declared.setting.path or PathRule(file=True)
    return typer.Option(
        *([setting.flag] if setting.flag else []),
        help=setting.help,
        envvar=setting.variable,
        metavar=setting.metavar,
        min=setting.least,
        show_default=setting.default_text or True,
        default_factory=declared.default if callable(declared.default) else None,
        callback=_secret(setting) if setting.secret else _check(setting),
        exists=path.exists,
        file_okay=path.file,
        dir_okay=path.directory,
        resolve_path=path.resolve,
    )


def _secret(setting: Setting) -> Callable[..., Any]:
    """Returns a callback that warns if a secret is on the command line."""

    def look(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
        source = context.get_parameter_source(parameter.name or "")
        if value is not None and source is not None and source.name == "COMMANDLINE" and holds_secret(value):
            say(
                f"callsheet: {parameter.opts[0]} stands on the command line, where all programs of this machine can "
                f"read it: use {parameter.opts[0]}-file or {setting.variable}",
                err=True,
            )
        return value

    return look


def _check(setting: Setting) -> Callable[[Any], Any]:
    """Has values that break the option's rule refused under the option's name, all that were given."""

    def check(value: Any) -> Any:
        wrong = []
        for each in value or () if setting.repeatable else [value]:
            try:
                # Not a number, infinite ones, and those that no database keeps.
                if isinstance(each, int | float) and not abs(each) < _TOO_LARGE:
                    raise ValueError("must be a number below 2^63")
                if each is not None and setting.parse is not None:
                    setting.parse(each)
            except ValueError as error:
                wrong.append(str(error))
        if wrong:
            raise typer.BadParameter("; ".join(wrong))
        return value

    return check


def offered(alias: Any) -> Any:
    """Typer's description of an option that `callsheet.options` declares, for a command that takes no settings."""
    (setting,) = alias.__metadata__
    return typer_option(DeclaredOption("", alias.__origin__, setting.default, setting))


Address = Annotated[str, offered(common.Address)]
DataDir = Annotated[Path, offered(common.DataDir)]
LogFormatOption = Annotated[LogFormat | None, offered(common.LogFormatOption)]
LogLevelOption = Annotated[LogLevel, offered(common.LogLevelOption)]
AsJson = Annotated[bool, offered(common.AsJson)]
