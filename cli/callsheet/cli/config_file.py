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

# What shows a run that is over, and whose prices it takes where it has none itself.
_DASHBOARD: Final = "dashboard"
_PRICED: Final = ("scheduler", "up")


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
    for name in _PRICED if words and words[0] == _DASHBOARD else ():
        table = tables.get(name)
        if isinstance(table, dict) and "price" in table and "price" not in values.setdefault(_DASHBOARD, {}):
            command = context.command.get_command(context, name)
            values[_DASHBOARD] |= _of_command(f"[{name}] ", command, context, {"price": table["price"]}, problems)
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
            # Without its value, which may be a secret whose table was forgotten.
            problems.append(f"[{at}{name}]: must be a table of a command's options")
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
            several = parameter.multiple and isinstance(value, list)
            rules = [(each, _broken(parameter, context, each, several)) for each in (value if several else [value])]
            problems += [f"{at}{key}: {_shown(each)}{rule}" for each, rule in rules if rule]
            right = [each if parameter.is_flag else str(each) for each, rule in rules if not rule]
            if right:
                values[parameter.name] = right if several else right[0]
    return values


def _broken(parameter: Any, context: Any, value: Any, several: bool) -> str:
    """The rule that a value breaks, one of several where the option is repeatable; empty if none."""
    if isinstance(value, bool) != parameter.is_flag:
        return "must be true or false" if parameter.is_flag else "must be a text or a number"
    if isinstance(value, list) or several != parameter.multiple:
        return "must be one value" if isinstance(value, list) else "must be a list"
    text = str(value)
    try:
        read = parameter.process_value(context, value if parameter.is_flag else [text] if several else text)
    except typer.BadParameter as error:
        return error.message.removeprefix("Value error, ").removeprefix(repr(text)).removeprefix(":").strip()
    # What was read tells of which type the option is.
    number = isinstance(read[0] if several else read, int | float)
    if isinstance(value, (int, float) if number else str):
        return ""
    return "must be a number" if number else "must be a text"


def _shown(value: Any) -> str:
    """A value before its rule; nothing of a URL with a password."""
    text = str(value)
    return "" if "://" in text and holds_secret(text) else f"{value!r}: "


def _near(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""
