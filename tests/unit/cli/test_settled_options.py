"""Commands and options that users have may be added to, and none may go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from callsheet.cli.app import app

SETTLED = Path(__file__).with_name("settled_options.txt")


def commands(command: Any, name: str) -> Iterator[tuple[str, set[str]]]:
    """Every command below this one, with its options, arguments and environment variables."""
    words: set[str] = set()
    for parameter in command.params:
        is_option = parameter.param_type_name == "option"
        words.update((*parameter.opts, *parameter.secondary_opts) if is_option else [parameter.name.upper()])
        words.update([parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ())
    yield name, words
    context = typer.Context(command)
    for child in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from commands(command.get_command(context, child), f"{name} {child}")


SETTLED_OPTIONS = [line.split(":", 1) for line in SETTLED.read_text().splitlines()]


@pytest.fixture(scope="module")
def offered() -> dict[str, set[str]]:
    return dict(commands(typer.main.get_command(app), "callsheet"))


@pytest.mark.parametrize(("name", "words"), SETTLED_OPTIONS, ids=[name for name, _ in SETTLED_OPTIONS])
def test_a_settled_option_stays(offered: dict[str, set[str]], name: str, words: str) -> None:
    assert set(words.split()) <= offered[name]
