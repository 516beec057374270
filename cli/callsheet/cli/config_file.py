"""`callsheet --config FILE`: one TOML file with a table for each command, whose keys are names of its options.

The values are defaults: what the command line or the environment says goes before them.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer
from callsheet.cli.output import CallsheetGroup, CommandError
from callsheet.options.declaration import holds_secret

# What `callsheet up --fleet` reads; the commands of this name have no table.
FLEET: Final = "fleet"


class ConfiguredGroup(CallsheetGroup):
    """All commands, which take the defaults of their options from the file of settings."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command of the words."""
        if path := ctx.params.get("config"):
            use_config(ctx, path, args)
        return super().resolve_command(ctx, args)


def use_config(context: Any, path: Path, words: Sequence[str]) -> None:
    """Makes the values that a file has for a command the defaults of its options.

    Args:
        context: Of the root of all commands.
        path: The file.
        words: The command line from the name of the command on.

    Raises:
        CommandError: The file cannot be read, or its values for the command break a rule.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{path}: cannot be read: {error}", usage=True) from error
    fleet = tables.pop(FLEET, None)
    context.default_map = _of_group(f"{path}: [", context.command, context, tables, words)
    if fleet is not None:
        context.default_map.setdefault("up", {}).setdefault("fleet", str(path))


def _of_group(at: str, group: Any, context: Any, tables: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    commands = group.list_commands(context)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise CommandError(f"{at}{name}]: {table!r}: must be a table of a command's options", usage=True)
        if name not in commands:
            raise CommandError(f"{at}{name}]: is the table of no command{_near(name, commands)}", usage=True)
    word = words[0] if words else ""
    if word not in tables:
        return {}
    command = group.get_command(context, word)
    if hasattr(command, "list_commands"):
        return {word: _of_group(f"{at}{word}.", command, context, tables[word], words[1:])}
    return {word: _of_command(f"{at}{word}] ", command, context, tables[word])}


def _of_command(at: str, command: Any, context: Any, table: Mapping[str, Any]) -> dict[str, Any]:
    known = {
        parameter.opts[0].removeprefix("--").replace("-", "_"): parameter
        for parameter in command.params
        if parameter.param_type_name == "option" and parameter.name != "help"
    }
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            raise CommandError(f"{at}{key}: is no option of this command{_near(name, known)}", usage=True)
        parameter = known[name]
        if parameter.name in values:
            raise CommandError(f"{at}{key}: is there twice, with '-' and with '_'", usage=True)
        if f"{name}_file" in known and holds_secret(str(value)):
            raise CommandError(f"{at}{key}: is a secret, which must be in a file of its own: {name}_file", usage=True)
        try:
            values[parameter.name] = _checked(parameter, context, value)
        except ValueError as error:
            raise CommandError(f"{at}{key}: {value!r}: {error}", usage=True) from error
    return values


def _checked(parameter: Any, context: Any, value: Any) -> Any:
    """The value as a command line would give it; raises ValueError that names the rule which it breaks."""
    if isinstance(value, bool) != parameter.is_flag:
        raise ValueError("must be true or false" if parameter.is_flag else "must be a text or a number")
    if isinstance(value, list) != parameter.multiple:
        raise ValueError("must be a list" if parameter.multiple else "must be one value")
    given = value if parameter.is_flag else [str(each) for each in value] if parameter.multiple else str(value)
    try:
        read = parameter.process_value(context, given)
    except typer.BadParameter as error:
        raise ValueError(error.message) from error
    # What was read tells of which type the option is.
    for one, made in zip(value, read, strict=True) if parameter.multiple else [(value, read)]:
        number = isinstance(made, int | float)
        if not isinstance(one, (int, float) if number else str):
            raise ValueError(f"{one!r} must be a number" if number else f"{one!r} must be a text")
    return given


def _near(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""
