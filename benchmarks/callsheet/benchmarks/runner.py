"""What every benchmark comes to: a report with figures as JSON, tables for people, and bars that it must reach."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table


def new_table(title: str, *columns: str) -> Table:
    """A table without rows; columns whose names begin with ">" are numbers, on the right."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return table


@dataclass(frozen=True, slots=True)
class Bar:
    """A bound that a figure is held to; a figure that there is not misses it.

    Attributes:
        name: Of the figure.
        value: What was found.
        at_least: Lower bound; None for none.
        at_most: Upper bound; None for none.
    """

    name: str
    value: float | None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool:
        """Whether the figure is within its bounds."""
        above = self.at_least is None or (self.value is not None and self.value >= self.at_least)
        return self.value is not None and above and (self.at_most is None or self.value <= self.at_most)

    @property
    def rule(self) -> str:
        """The bounds in words."""
        bounds = (("at least", self.at_least), ("at most", self.at_most))
        return ", ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)

    @property
    def found(self) -> str:
        """The figure with few digits."""
        return "nothing" if self.value is None else f"{self.value:.4g}"

    def __str__(self) -> str:
        return f"{self.name}: {self.found}, must be {self.rule}"


class BenchmarkReport(ABC):
    """What a benchmark found."""

    __slots__ = ()

    @property
    def bars(self) -> Sequence[Bar]:
        """What its figures are held to; a command whose report misses one ends with exit code 1."""
        return ()

    @abstractmethod
    def as_json(self) -> Any:
        """The figures, as one JSON object or a list of them."""

    @abstractmethod
    def tables(self) -> Iterable[RenderableType]:
        """The figures for people."""


Column = tuple[str, str, str]
"""A heading, the attribute that holds the figure, and its format."""


def figures_table(title: str, first: str, columns: Sequence[Column], rows: Iterable[tuple[str, object]]) -> Table:
    """A table of named rows with figures; a row named "callsheet" is bold."""
    table = new_table(title, first, *(f">{heading}" for heading, _, _ in columns))
    for name, figures in rows:
        cells = [cell(getattr(figures, figure), form) for _, figure, form in columns]
        table.add_row(name, *cells, style="bold" if name == "callsheet" else None)
    return table


def cell(value: float | None, form: str) -> str:
    """A figure in a format; nothing where there is none."""
    return "" if value is None else format(value, form)


def render(report: BenchmarkReport) -> RenderableType:
    """A report's tables, and after them its bars."""
    parts = list(report.tables())
    if report.bars:
        bars = new_table("Bars", "what", ">found", "must be", "")
        for bar in report.bars:
            bars.add_row(bar.name, bar.found, bar.rule, "[green]met[/]" if bar.met else "[red]missed[/]")
        parts.append(bars)
    return Group(*parts)
