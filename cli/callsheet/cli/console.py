"""Rich's console for what others wrote: nothing of it is an order to the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from callsheet.deploy.terminal import visible
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


class TextConsole(Console):
    """A console that writes its own orders alone, for colours and widths, and those of no text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `Console.render`; what is within others passes here, too."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def plain_table(title: str, columns: list[str], rows: list[list[str]], name_width: int) -> Any:
    """Returns a table of texts as they are: none of them is markup. See `print_table`."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(visible(title)), title_justify="left")
    cells = [[visible(cell) for cell in row] for row in rows]
    names = max((len(row[0]) for row in cells), default=0)
    for index, column in enumerate(columns):
        # Names are there to be copied: other columns are narrowed first, and what is too wide goes on below.
        least = min(names, name_width) if index == 0 else None
        header = column.removesuffix(" #")
        table.add_column(header, justify="left" if header == column else "right", overflow="fold", min_width=least)
    for row in cells:
        table.add_row(*map(Text, row))
    return table
