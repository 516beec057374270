"""`callsheet config`: whether settings are right, and where each value comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from callsheet.cli.config_file import FLEET, read_config
from callsheet.cli.options import FILE, AsJson, source_of
from callsheet.cli.output import CommandError, needs, print_json, print_table, say
from callsheet.options.declaration import holds_secret
from typer.core import TyperGroup

config_app = typer.Typer(
    help="Check the file of settings, and show the sources of values.", no_args_is_help=True, rich_markup_mode=None
)
_SECRET: Final = "(a secret)"


@config_app.callback()
def _config() -> None:
    """Check the file of settings, and show the sources of values."""


@config_app.command()
def check(context: typer.Context) -> None:
    """Report every error in the file of settings.

    Each wrong table, key or value is a line on standard error, with its rule; the exit code is 2 then. Nothing is
    started.
    """
    root = context.find_root()
    path: Path | None = root.params.get("config")
    if path is None:
        raise CommandError("config: must be given: callsheet --config FILE config check", usage=True)
    root.default_map, problems = read_config(root, path, None)
    commands = list(_configured(root, root.command, root.default_map))
    if fleet := root.default_map.get("up", {}).get(FLEET):
        problems += _refusals_of_fleet(Path(fleet))
    for words in commands:
        problems += [f"[{'.'.join(words)}] {problem}" for problem in _refusals(root, words)]
    for problem in problems:
        say(f"{path}: {problem}", err=True)
    if problems:
        raise typer.Exit(2)
    say(f"{path}: right; it has values for {', '.join(map(' '.join, commands)) or 'no command'}")


@config_app.command(context_settings={"ignore_unknown_options": True})
def show(
    context: typer.Context,
    words: Annotated[list[str], typer.Argument(help="A command, and options of it.", metavar="COMMAND [OPTION]...")],
    as_json: AsJson = False,
) -> None:
    """Show the value of each option of a command, and its source.

    The source is the command line, a variable of the environment, the file of settings or the default. Secrets are not
    shown.
    """
    root = context.find_root()
    path: Path | None = root.params.get("config")
    if path is not None:
        root.default_map, problems = read_config(root, path, words)
        if problems:
            raise CommandError(f"{path}: {problems[0]}", usage=True)
    inner = _context_of(root, words)
    rows = [
        {"option": option.opts[0], "value": _shown(option, inner), "source": _told(option, inner, path)}
        for option in inner.command.params
        if option.param_type_name == "option" and option.name != "help"
    ]
    if as_json:
        print_json({"command": inner.command_path, "options": rows})
    else:
        print_table(inner.command_path, ["option", "value", "source"], [[*map(_text, row.values())] for row in rows])


def _configured(context: Any, group: Any, values: Mapping[str, Any]) -> Iterator[list[str]]:
    """The words of each command that a file has values for."""
    for name, table in values.items():
        command = group.get_command(context, name)
        inner = _configured(context, command, table) if hasattr(command, "list_commands") else [[]]
        yield from ([name, *rest] for rest in inner)


def _refusals(root: Any, words: Sequence[str]) -> list[str]:
    """Returns the rules that settings break together although each of them is right."""
    inner = _context_of(root, words)
    made = getattr(inner.command.callback, "made", None)
    try:
        if made is not None:
            made(inner, dict(inner.params))
    except ValueError as error:
        return [str(error)]
    return []


def _refusals_of_fleet(path: Path) -> list[str]:
    with needs("local"):
        from callsheet.deploy.fleet.settings import read_fleet
    try:
        read_fleet(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [str(error)]
    return []


def _context_of(root: Any, words: Sequence[str]) -> Any:
    """The context of a command, as if it were about to run with these words; arguments may be missing."""
    context, rest = root, list(words)
    while hasattr(context.command, "list_commands"):
        if not rest:
            raise CommandError(f"command: {' '.join(words)!r}: is a group; name one of its commands", usage=True)
        # Not that of all commands, which reads the file.
        found: Any = TyperGroup.resolve_command(context.command, context, rest)
        name, command, rest = found
        is_group = hasattr(command, "list_commands")
        for argument in command.params:
            argument.required = False
        context = command.make_context(name, [] if is_group else rest, parent=context, resilient_parsing=is_group)
    return context


def _shown(option: Any, context: Any) -> Any:
    """The value as JSON has it."""
    value = context.params.get(option.name)
    if f"{option.name}_file" in context.params and value is not None and holds_secret(str(value)):
        return _SECRET
    if isinstance(value, (tuple, list)):
        return [str(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float)) else str(getattr(value, "value", value))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, list) else "" if value is None else str(value)


def _told(option: Any, context: Any, path: Path | None) -> str:
    source = source_of(context, option.name)
    if source == FILE:
        return str(path)
    names = {"COMMANDLINE": "the command line", "ENVIRONMENT": f"the variable {option.envvar}"}
    return names.get(source, "the default")
