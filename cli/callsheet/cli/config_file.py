"""`callsheet --config FILE`: one TOML file with a table for each command, whose keys are names of its options.

The values are defaults: what the command line or the environment says goes before them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer
from callsheet.cli.output import CallsheetGroup, CommandError
from callsheet.options.declaration import holds_secret
from callsheet.options.tables import read_toml

# What `callsheet up --fleet` reads; the commands of this name have no table.
FLEET: Final = "fleet"
# The command that looks at the file itself, however wrong that is.
CONFIG: Final = "config"


class ConfiguredGroup(CallsheetGroup):
    """All commands, which take the defaults of their options from the file of settings."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command of the words."""
        if (path := ctx.params.get("config")) and args[:1] != [CONFIG]:
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
    context.default_map, problems = read_config(context, path, words)
    if problems:
        raise CommandError(f"{path}: {problems[0]}", usage=True)


def read_config(context: Any, path: Path, words: Sequence[str] | None) -> tuple[dict[str, Any], list[str]]:
    """Returns what a file has for options, and in which ways it is wrong.

    Args:
        context: Of the root of all commands.
        path: The file.
        words: The command line of the one command that is looked at; None for all commands.

    Returns:
        Values of options by the words of their commands, and problems that name table, key, value and rule.

    Raises:
        CommandError: The file cannot be read.
    """
    try:
        tables = read_toml(path)
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    fleet = tables.pop(FLEET, None)
    problems: list[str] = []
    values = _of_group("", context, context.command, tables, words, problems=problems)
    if fleet is not None:
        values.setdefault("up", {}).setdefault("fleet", str(path))
    return values, problems


def _of_group(
    at: str, context: Any, group: Any, tables: Mapping[str, Any], words: Sequence[str] | None, *, problems: list[str]
) -> dict[str, Any]:
    commands = group.list_commands(context)
    right = []
    for name, table in tables.items():
        if not isinstance(table, dict):
            problems.append(f"[{at}{name}]: {table!r}: must be a table of a command's options")
        elif name not in commands:
            problems.append(f"[{at}{name}]: is the table of no command{_near(name, commands)}")
        else:
            right.append(name)
    values: dict[str, Any] = {}
    for word in right if words is None else [each for each in words[:1] if each in right]:
        command, rest = group.get_command(context, word), words if words is None else words[1:]
        if hasattr(command, "list_commands"):
            values[word] = _of_group(f"{at}{word}.", context, command, tables[word], rest, problems=problems)
        else:
            values[word] = _of_command(f"[{at}{word}] ", command, context, tables[word], problems)
    return values


def _of_command(at: str, command: Any, context: Any, table: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    known = {
        parameter.opts[0].removeprefix("--").replace("-", "_"): parameter
        for parameter in command.params
        if parameter.param_type_name == "option" and parameter.name != "help"
    }
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        parameter = known.get(name)
        if parameter is None:
            problems.append(f"{at}{key}: is no option of this command{_near(name, known)}")
        elif parameter.name in values:
            problems.append(f"{at}{key}: is there twice, with '-' and with '_'")
        elif f"{name}_file" in known and holds_secret(str(value)):
            problems.append(f"{at}{key}: is a secret, which must be in a file of its own: {name}_file")
        else:
            try:
                values[parameter.name] = _checked(parameter, context, value)
            except ValueError as error:
                problems.append(f"{at}{key}: {value!r}: {error}")
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
        raise ValueError(error.message.removeprefix("Value error, ")) from error
    # What was read tells of which type the option is.
    for one, made in zip(value, read, strict=True) if parameter.multiple else [(value, read)]:
        number = isinstance(made, int | float)
        if not isinstance(one, (int, float) if number else str):
            raise ValueError(f"{one!r} must be a number" if number else f"{one!r} must be a text")
    return given


def _near(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""
