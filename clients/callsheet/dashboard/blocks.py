"""Blocks of a page: plain values, which one template shows by the names of their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlencode

from callsheet.dashboard.plain_text import PlainText, plain_line


@dataclass(frozen=True, slots=True)
class Cell:
    """A text or a number, and where it comes from.

    Attributes:
        text: What is shown.
        href: The page that tells more; empty for none.
        tone: "good", "bad" or "quiet"; empty for none. The text says the same, for those who see no colours.
        share: Between 0 and 1, for a bar beside the text; None for none.
        is_number: Whether it stands at the right of its column.
    """

    text: str
    href: str = ""
    tone: str = ""
    share: float | None = None
    is_number: bool = False


Row: TypeAlias = Sequence[Cell | str]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below headings. `empty` is said in place of no rows, `more` below a table that shows a part."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Row]
    empty: str = ""
    more: Cell | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Terms, each with its value."""

    facts: Sequence[tuple[str, Cell | str]]


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence. The tone is that of cells."""

    text: str
    tone: str = ""
    links: Sequence[Cell] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """Text from outside, in lines."""

    caption: str
    output: PlainText


@dataclass(frozen=True, slots=True)
class LaneBar:
    """Part of a lane: from when to when, in seconds since the chart's beginning."""

    start: float
    end: float
    kind: str
    label: str
    href: str = ""


@dataclass(frozen=True, slots=True)
class Gantt:
    """Lanes over time. A table beside it says the same."""

    caption: str
    lanes: Sequence[tuple[str, Sequence[LaneBar]]]
    seconds: float

    @property
    def data(self) -> Mapping[str, Any]:
        """Returns the data that the canvas draws."""
        return {
            "seconds": self.seconds,
            "lanes": [
                {"name": name, "bars": [[bar.start, bar.end, bar.kind, bar.label, bar.href] for bar in bars]}
                for name, bars in self.lanes
            ],
        }


@dataclass(frozen=True, slots=True)
class Chart:
    """A curve of numbers that grows while the page is open; `values` are those of now, by name."""

    caption: str
    values: Mapping[str, float]
    at: float


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a form; with `options` one of those, else a whole number or text."""

    name: str
    label: str
    value: str
    options: Sequence[str] = ()
    number: bool = False
    secret: bool = False


@dataclass(frozen=True, slots=True)
class WebForm:
    """Fields and a button. With `post` it acts, else it asks."""

    action: str
    button: str
    choices: Sequence[FormField] = ()
    hidden: Mapping[str, str] = field(default_factory=dict)
    post: bool = False


@dataclass(frozen=True, slots=True)
class PageSection:
    """Blocks below a heading."""

    heading: Cell | str
    blocks: Sequence[Any]


@dataclass(frozen=True, slots=True)
class View:
    """A page.

    Attributes:
        title: Its heading.
        blocks: What is below.
        summary: A sentence for screen readers, told when it has changed.
        refresh_s: Seconds after which the page asks for itself anew; 0 for never.
        trail: Pages above it.
    """

    title: str
    blocks: Sequence[Any]
    summary: str = ""
    refresh_s: int = 3
    trail: Sequence[Cell] = ()


def link(page: str, text: str = "", **query: str) -> Cell:
    """Returns a link to a page; its text is a name from outside."""
    return Cell(plain_line(text or next(reversed(query.values()), page)), href(page, **query))


def href(page: str, **query: str) -> str:
    """Returns the address of a page."""
    told = {name: value.encode("utf-8", "surrogatepass") for name, value in query.items() if value}
    return f"/{page}?{urlencode(told)}" if told else f"/{page}"


def count(value: str, href: str = "", tone: str = "") -> Cell:
    """Returns a number as a cell."""
    return Cell(value, href, tone, is_number=True)
