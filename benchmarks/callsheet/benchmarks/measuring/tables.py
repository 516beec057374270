"""Tables for people."""

from __future__ import annotations

from rich.table import Table


def new_table(title: str, *columns: str) -> Table:
    """A table without rows; columns whose names begin with ">" are numbers, on the right."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return table


def verdict(met: bool) -> str:
    """Whether a target is met."""
    return "[green]met[/]" if met else "[red]missed[/]"
